"""Time of a checkpoint of 50,000 files of which ten changed, against git's own way; of the first one; and of a turn without changes.

Git does `git add -A` and `git write-tree` with a repository of its own over the same folder. Both are warm, and take turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loopback import median

from agentcli.infra.changes.folder_index import FolderIndex, SnapshotLimits
from agentcli.infra.changes.state import Objects

FILES, CHANGED, ROUNDS, MOST = 50_000, 10, 15, 1.5


def make(folder: Path) -> list[Path]:
    files = []
    for number in range(FILES):
        if number % 100 == 0:
            inside = folder / f"d{number // 2_500}" / f"s{number // 100}"
            inside.mkdir(parents=True)
        files.append(inside / f"f{number}.py")
        files[-1].write_text(f"# {number}\n" * 20)
    return files


def took_ms(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1_000


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name).resolve()
        files = make(base / "project")
        environment = {**os.environ, "GIT_DIR": f"{base}/git", "GIT_WORK_TREE": f"{base}/project"}
        subprocess.run(["git", "init", "-q", "--bare", f"{base}/git"], check=True)
        subprocess.run(["git", "config", "core.bare", "false"], check=True, env=environment)

        def by_git() -> None:
            subprocess.run(["git", "add", "-A"], check=True, env=environment, cwd=base / "project")
            subprocess.run(["git", "write-tree"], check=True, env=environment, stdout=subprocess.DEVNULL)

        index = FolderIndex(base / "project", base / "index", Objects(base / "checkpoints"), SnapshotLimits())
        print(f"the first, by git       {took_ms(by_git):8.0f} ms")
        print(f"the first               {took_ms(index.refresh):8.0f} ms")
        index.refresh()
        gits, ours, still = [], [], []
        for number in range(ROUNDS):
            for file in files[number * CHANGED : (number + 1) * CHANGED]:
                file.write_text(f"changed {number}\n")
            time.sleep(0.05)  # beyond a tick of the clock of the file system
            gits.append(took_ms(by_git))
            ours.append(took_ms(index.refresh))
            still.append(took_ms(index.refresh))
        ratio = median([one / git for one, git in zip(ours, gits, strict=True)])
        print(f"{CHANGED} changed, by git     {median(gits):8.1f} ms, median of {ROUNDS}")
        print(f"{CHANGED} changed             {median(ours):8.1f} ms: {ratio:.2f} x git, at most {MOST} x")
        print(f"nothing changed         {median(still):8.1f} ms")
        print("a turn without a call that may change files makes none")
        return int(ratio > MOST)


if __name__ == "__main__":
    sys.exit(main())
