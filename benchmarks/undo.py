"""Plays random interleavings of an agent's edits, its commands and a person's edits, and takes them back: python benchmarks/undo.py [COUNT] [SEED].

After the undo the folder has to be what a model says, with no file touched that the agent had not touched; after the redo
what it was before. Exits with 1 where something is wrong, and says what.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.app.undo_model import interleave

COUNT = 1_000


def main() -> int:
    count, seed = [*map(int, sys.argv[1:]), *(COUNT, 0)[len(sys.argv) - 1 :]]
    wrong = 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        os.environ["AGENTCLI_HOME"] = f"{name}/home"
        for number in range(seed, seed + count):
            if number % 100 == 0 and number > seed:
                print(f"{number - seed} played", flush=True)
            with tempfile.TemporaryDirectory(dir=name) as folder:
                if found := asyncio.run(interleave(number, Path(folder))):
                    wrong += 1
                    print(f"seed {number}:", *found, sep="\n  ")
    print(f"interleavings           {count}, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
