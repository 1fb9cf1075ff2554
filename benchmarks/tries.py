"""What trying a command costs over running it, and how long what it did takes to be read and kept.

A workspace of 50,000 files in a repository. `true` and an empty Python run directly and are tried, in turns; times are wall
milliseconds as the caller sees them. Then commands that make, change and delete 30,000 files are tried and kept. The
argument is the folder to work in.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders
from agentcli.tools.command import Command, DryRun

BUDGET_MS = 40
FOLDERS, FILES = 500, 100
ROUNDS = 25
LARGE = {
    "30,000 new files": "mkdir new; cd new; for i in {1..300}; do mkdir $i; for j in {1..100}; do : >$i/$j; done; done",
    "chmod -R of 30,000": "chmod -R o-r new",
    "30,000 deleted": "rm -r new",
}


def make_workspace(ws: Path) -> None:
    for folder in range(FOLDERS):
        (ws / f"d{folder}").mkdir(parents=True)
        for file in range(FILES):
            (ws / f"d{folder}/f{file}.py").write_text(f"print({file})\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(ws), *arguments], check=True)


async def main() -> None:
    base = Path(tempfile.mkdtemp(dir="/var/tmp"))
    if len(sys.argv) > 1:
        base = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    ws = base / "ws"
    try:
        make_workspace(ws)
        confinement = choose_confinement(tmp=base)
        limits = CommandLimits(
            profile="workspace-write", home=base / "home", folders=SessionFolders(state=base, cache=base / "cache")
        )
        sandbox = LocalSandbox(
            [ws], environment=dict(os.environ), job_folder=base / "jobs", limits=limits, choose=lambda: confinement
        )
        if why := sandbox.facts().dry_run_problem:
            sys.exit(why)
        for text in ("true", "python3 -c pass"):
            await against_direct(sandbox, Command(text, ws, timeout_s=60))
        for name, text in LARGE.items():
            await kept(sandbox, name, Command(text, ws, timeout_s=600))
        await sandbox.aclose()
        print("left in the folder of tries:", len(list((base / "tries").iterdir())))
    finally:
        shutil.rmtree(base, ignore_errors=True)


async def against_direct(sandbox: LocalSandbox, command: Command) -> None:
    direct, tried = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await sandbox.run(command)
        direct.append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        trial = await dry_run(sandbox, command)
        await trial.discard()
        tried.append((time.perf_counter() - started) * 1000)
        assert not trial.changes, trial.changes
    more = median(tried) - median(direct)
    verdict = "" if more <= BUDGET_MS else "  MISSED"
    print(
        f"{command.text:15} direct {median(direct):6.1f} ms   tried {median(tried):6.1f} ms   more {more:5.1f}{verdict}"
    )


async def dry_run(sandbox: LocalSandbox, command: Command) -> DryRun:
    result = await sandbox.run(replace(command, dry_run="full"))
    assert result.dry_run is not None
    return result.dry_run


async def kept(sandbox: LocalSandbox, name: str, command: Command) -> None:
    started = time.perf_counter()
    trial = await dry_run(sandbox, command)
    ran = time.perf_counter() - started
    changes = len(trial.changes)
    result = await trial.apply()
    await trial.discard()
    total = time.perf_counter() - started
    assert not result.conflicts, result.conflicts[:3]
    print(f"{name:20} tried {ran:6.2f} s   kept {total - ran:6.2f} s   {changes:,} changes")


if __name__ == "__main__":
    asyncio.run(main())
