"""Cuts the power of a session store 500 times, in a model of a disk; `power_cuts.py CUTS SEED`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.conformance.power_cuts import cut_power

CUTS = 500
PART = 50  # cuts, after which a row is printed


def main(cuts: int = CUTS, seed: int = 1) -> int:
    print(f"{'cuts':>6} {'acknowledged':>13} {'lost':>6} {'unreadable':>11}")
    done = acknowledged = lost = unreadable = 0
    while done < cuts:
        with tempfile.TemporaryDirectory() as folder:
            found = cut_power(Path(folder), cuts=min(PART, cuts - done), seed=seed + done)
        done, acknowledged, lost = done + found.cuts, acknowledged + found.acknowledged, lost + found.lost
        unreadable += len(found.unreadable)
        print(f"{done:>6} {acknowledged:>13,} {lost:>6} {unreadable:>11}", flush=True)
        for what in found.unreadable:
            print(f"       {what}")
    return int(bool(lost or unreadable))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
