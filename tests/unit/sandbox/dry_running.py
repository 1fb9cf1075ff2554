"""Shared by the tests of dry runs, and a program that makes one as whoever starts it.

Started as `python -m tests.unit.sandbox.dry_running CASE`, where CASE is a `Case` as JSON; prints an `Outcome`.
"""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from agentcli.infra.sandbox.backends.linux import PROGRAMS, Bubblewrap
from agentcli.infra.sandbox.confinement import Bounds, CommandResources
from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns, OverlayDryRun
from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.tools.command import ApplyOutcome, ChangeSummary, Command, DryRunLimits
from tests.conformance.confining import clean_environment

PROTECTED = (".agentcli", ".vscode")
NAMESPACES = {"root": "all but user", "root in a user namespace": "all", "user": "all"}


class Case(Struct):
    """`between` runs outside the sandbox before anything is kept; `keep` None is all, in `parts` are hunks."""

    base: str
    who: str
    command: str
    between: str = ""
    keep: list[str] | None = None
    parts: dict[str, list[int]] = {}
    drops: bool = False


class Outcome(Struct):
    output: str
    exit_code: int | None
    timed_out: bool
    changes: list[ChangeSummary]
    kept: ApplyOutcome


def dry_runs(base: Path, who: str, **more: object) -> DryRuns:
    """For the workspace `base`/ws, in whose `.env` a secret is."""
    program = next(program for program in PROGRAMS if program.is_file())
    confinement = Bubblewrap(program, NAMESPACES[who], hidden=base / "hidden")
    ws = base / "ws"
    given = {"masked": (ws / ".env", base / "secrets"), "protected": PROTECTED} | more
    limits, search_path = given.pop("limits", DryRunLimits()), given.pop("search_path", "")
    resources = CommandResources(cache=given.pop("cache", None))
    bounds = Bounds(profile="workspace-write", roots=(ws,), home=given.pop("home", base), resources=resources, **given)
    shell = Shell(clean_environment(base), base / "state/output")
    return DryRuns(
        lambda: shell,
        lambda: confinement,
        lambda grants: bounds,
        folder=base / "state/tries",
        search_path=search_path,
        limits=limits,
    )


@asynccontextmanager
async def discarding(dry_run: OverlayDryRun) -> AsyncIterator[OverlayDryRun]:
    try:
        yield dry_run
    finally:
        await dry_run.discard()


def tree_of(folder: Path) -> dict[str, tuple[str, int, bytes | str]]:
    """What a folder holds, itself too: kinds and modes, owners, contents or targets, by relative path."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        at = path.lstat()
        held: bytes | str = path.read_bytes() if stat.S_ISREG(at.st_mode) else b""
        if path.is_symlink():
            held = str(path.readlink())
        found[str(path.relative_to(folder))] = (stat.filemode(at.st_mode), at.st_uid, held)
    return found


async def run_case(case: Case) -> Outcome:
    base = Path(case.base)
    runs = dry_runs(base, case.who)
    async with discarding(await runs.run(Command(case.command, base / "ws", timeout_s=30))) as tried:
        if case.between:
            subprocess.run(["bash", "-c", case.between], cwd=base / "ws", check=True)
        kept = ApplyOutcome() if case.drops else await tried.apply(case.keep, hunks=case.parts)
    runs.close()
    result = tried.result
    return Outcome(result.output, result.exit_code, result.timed_out, list(tried.changes), kept)


if __name__ == "__main__":
    case = msgspec.json.decode(sys.argv[1], type=Case)
    outcome = asyncio.run(run_case(case))
    sys.stdout.buffer.write(msgspec.json.encode(outcome, enc_hook=str))
