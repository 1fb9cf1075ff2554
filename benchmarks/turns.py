"""Fifty `echo` calls: from the end of a reply to the next request, with durable commits."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import pairwise

from loopback import cpu_of, environment, loopback, median, workspace


def sync_ms(times: int = 50) -> float:
    """Milliseconds of one append of 4 KB with fdatasync where sessions are stored, median."""
    took = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(times):
            started = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1000)
    return median(took)


def main(runs: int = 3) -> None:
    with workspace() as (repository, home):
        with loopback("hello") as (url, _):
            ask = [sys.executable, "-m", "agentcli", "-p", "BENCHMARK", "--max-turns", "60"]
            env = environment(url, home)
            cpu_of(ask, cwd=repository, env=env)
            single = median([cpu_of(ask, cwd=repository, env=env)["cpu"] for _ in range(3)])
        gaps, growth, cpus = [], [], []
        for _ in range(runs):
            with loopback("turns") as (url, requests):
                run = cpu_of(ask, cwd=repository, env=environment(url, home))
                rows = requests()
            each = [(b["arrived"] - a["ended"]) * 1000 for a, b in pairwise(rows)]
            gaps.append(median(each))
            growth.append(median(each[-10:]) - median(each[:10]))
            cpus.append((run["cpu"] - single) / 50 * 1000)
    sync = sync_ms()
    print(f"gap per turn         {median(gaps):.2f} ms median (runs: {', '.join(f'{gap:.2f}' for gap in gaps)})")
    print(f"fdatasync            {sync:.2f} ms, twice in each gap; bound of the gap 8 ms")
    print(f"last 10 - first 10   {median(growth):+.2f} ms")
    print(f"CPU per turn         {median(cpus):.2f} ms")


if __name__ == "__main__":
    main()
