"""What confinement costs a command: `true` as a session runs it, plain and in each confinement that works here.

The workspace has a repository with a nested one, the home has secrets, some protected names are missing: the layout that
commands get. Times are wall milliseconds from before the preparation to after the clean-up, as the caller sees them; the
ways take turns. The preparation alone is told too, and a plain `subprocess`. At last comes what this process itself takes
of the processor for a command of a session with all its bounds, whose plan is unchanged.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from loopback import ServedTools

from agentcli.infra.sandbox.backends.choosing import choose_confinement
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch, Unconfined
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders
from agentcli.tools.command import Command

END_TO_END_MS = 25  # median of `bash true`
BUDGET_MS = 10, 20  # median over plain, on a quiet machine and on a busy one
SECRETS = ".ssh .aws .gnupg .config/gh .netrc .docker .kube .npmrc .pypirc .git-credentials".split()
PROTECTED = (".agentcli", ".vscode", ".mcp.json", ".idea")


def surroundings(base: Path) -> Bounds:
    home, ws = base / "home", base / "ws"
    for name in SECRETS[:5]:
        (home / name).mkdir(parents=True)
    for folder in (ws, ws / "vendor/lib"):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for number in range(200):
        (ws / f"src/package_{number}").mkdir(parents=True)
    return Bounds(
        profile="workspace-write", roots=(ws,), home=home, masked=tuple(home / s for s in SECRETS), protected=PROTECTED
    )


class Session:
    """Runs commands as a session does, through its keeper, in one confinement."""

    def __init__(self, confinement: Confinement, bounds: Bounds, loop: asyncio.AbstractEventLoop) -> None:
        @contextmanager
        def launch(argv: Sequence[str], command: Command) -> Iterator[Launch]:
            with confinement.launch(argv, cwd=command.cwd, bounds=bounds) as made:
                yield made

        self._shell = Shell({"PATH": "/usr/bin:/bin"}, bounds.home / "jobs", launch=launch)
        self._cwd = bounds.roots[0]
        self._loop = loop

    def run(self) -> None:
        result = self._loop.run_until_complete(self._shell.exec(Command("true", self._cwd, timeout_s=20)))
        assert (result.exit_code, result.output) == (0, ""), result

    def end(self) -> None:
        self._loop.run_until_complete(self._shell.aclose())


def run_plain(bounds: Bounds) -> None:
    command = ["bash", "--noprofile", "--norc", "-c", "true"]
    subprocess.run(command, cwd=bounds.roots[0], stdin=subprocess.DEVNULL, start_new_session=True, check=True)


def prepare(confinement: Confinement, bounds: Bounds) -> None:
    with confinement.launch(["true"], cwd=bounds.roots[0], bounds=bounds):
        pass


def own_milliseconds(bounds: Bounds, rounds: int) -> float:
    """The processor's time that one command takes in this process: planning, starting, reading, cleaning up."""
    state = bounds.home / "state"
    limits = CommandLimits(
        profile="workspace-write",
        home=bounds.home,
        folders=SessionFolders(state=state, cache=bounds.home / "cache"),
    )
    tmp = Path(tempfile.gettempdir())
    sandbox = LocalSandbox(
        bounds.roots,
        environment={"PATH": "/usr/bin:/bin", "HOME": str(bounds.home)},
        job_folder=state / "jobs",
        limits=limits,
        choose=lambda: choose_confinement(tmp=tmp),
    )

    async def run() -> list[float]:
        taken = []
        for _ in range(rounds):
            start = time.process_time()
            await sandbox.run(Command("true", bounds.roots[0], timeout_s=20))
            taken.append((time.process_time() - start) * 1_000)
        await sandbox.aclose()
        return taken

    return median(asyncio.run(run()))


def milliseconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1_000


def main(rounds: int = 100) -> None:
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        bounds = surroundings(Path(folder).resolve())
        sessions = {"plain": Session(Unconfined(), bounds, loop)}
        ways: dict[str, Callable[[], None]] = {"subprocess": lambda: run_plain(bounds), "plain": sessions["plain"].run}
        for kind in ("bubblewrap", "landlock"):
            confinement = choose_confinement(tmp=Path(tempfile.gettempdir()), kinds=(kind,))
            if isinstance(confinement, Unconfined):
                print(f"{kind} does not work here: {confinement.problem}")
                continue
            sessions[kind] = Session(confinement, bounds, loop)
            ways[kind] = sessions[kind].run
            ways[f"{kind}, preparation alone"] = lambda confinement=confinement: prepare(confinement, bounds)
        scratch = bounds.home / "scratch"
        scratch.mkdir()
        served = ServedTools(bounds.roots[0], scratch, "--permission-mode", "bypassPermissions")
        ways["end to end"] = lambda: served.run("bash", {"command": "true"})
        for way in ways.values():
            way()
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                times[name].append(milliseconds(way))
        for session in sessions.values():
            session.end()
        served.end()
        own = own_milliseconds(bounds, rounds)
    plain = median(times["plain"])
    print(f"{'':30}{'median':>8}{'p95':>8}{'over plain':>12}   (ms, {rounds} rounds)")
    for name, taken in times.items():
        print(f"{name:30}{median(taken):8.2f}{sorted(taken)[int(len(taken) * 0.95)]:8.2f}{median(taken) - plain:12.2f}")
    print(f"processor's time in this process: {own:.2f} ms")
    print(f"end to end, through `tools run`: {median(times['end to end']):.1f} ms (bound {END_TO_END_MS})")
    for kind in sessions.keys() - {"plain"}:
        over = median(times[kind]) - plain
        verdict = "within" if over <= BUDGET_MS[0] else "within, if busy," if over <= BUDGET_MS[1] else "OVER"
        print(f"{kind}: {over:.1f} ms over plain, {verdict} the budget of {BUDGET_MS[0]} ms ({BUDGET_MS[1]} when busy)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
