"""Sandboxes that cannot be set up as planned, because what they were planned around has gone meanwhile."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.session_confinement import CommandLimits
from agentcli.tools.command import Command, CommandResult
from tests.conformance.confining import confinement_for, folder_on_disk
from tests.unit.tools.bench import is_alive, until


@pytest.fixture
def home() -> Iterator[Path]:
    with folder_on_disk() as folder:
        (folder / "ws").mkdir()
        yield folder


class Churning:
    """A confinement beside a program that makes a socket before commands are planned, and removes it afterwards."""

    def __init__(self, confinement: Confinement, path: Path, times: int) -> None:
        self._confinement = confinement
        self._path = path
        self.times = times

    def __getattr__(self, name: str) -> object:
        return getattr(self._confinement, name)

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        with socket.socket(socket.AF_UNIX) as server:
            if self.times:
                server.bind(str(self._path))
                server.listen()
            with self._confinement.launch(argv, cwd=cwd, bounds=bounds) as launch:
                if self.times:
                    self.times -= 1
                    self._path.unlink()
                yield launch


def sandbox_in(home: Path, times: int) -> LocalSandbox:
    confinement = confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")[0]
    return LocalSandbox(
        [home / "ws"],
        environment={"PATH": "/usr/bin:/bin", "HOME": str(home)},
        job_folder=home / "jobs",
        limits=CommandLimits(profile="workspace-write", home=home),
        choose=lambda: Churning(confinement, home / "socket", times),
    )


def run(home: Path, command: str, *, times: int, timeout_s: float = 20, is_job: bool = False) -> CommandResult:
    """What a command comes to; of a job what it says, and its exit code."""

    async def execute() -> CommandResult:
        sandbox, detach = sandbox_in(home, times), asyncio.Event()
        try:
            if not is_job:
                return await sandbox.run(Command(command, home / "ws", timeout_s=timeout_s))
            detach.set()
            await sandbox.run(Command(command, home / "ws"), detach=detach)
            await until(lambda: not sandbox.jobs.list()[0].is_running)
            (job,) = sandbox.jobs.list()
            return CommandResult(sandbox.jobs.read(job.id, 10_000), job.outcome.exit_code if job.outcome else None)
        finally:
            await sandbox.aclose()

    return asyncio.run(execute())


@pytest.mark.parametrize("is_job", [False, True])
@pytest.mark.parametrize("times", [0, 1, 9])
def test_a_command_runs_once_although_a_socket_went_meanwhile(home: Path, times: int, is_job: bool) -> None:
    result = run(home, "echo ran | tee -a runs; cd /", times=times, is_job=is_job)
    assert (result.output, result.exit_code, result.cwd) == ("ran\n", 0, None if is_job else Path("/"))
    assert (home / "ws/runs").read_text() == "ran\n"


@pytest.mark.parametrize("is_job", [False, True])
def test_a_command_that_cannot_be_confined_is_an_error_and_nothing_runs(home: Path, is_job: bool) -> None:
    with pytest.raises(ToolError, match=r"^The sandbox could not be set up: bwrap: ") as caught:
        run(home, "echo ran >runs", times=1_000, is_job=is_job)
    assert caught.value.kind == "resource_error"
    assert list((home / "ws").iterdir()) == []


@pytest.mark.parametrize("is_job", [False, True])
def test_a_line_that_is_not_a_command_says_so(home: Path, is_job: bool) -> None:
    result = run(home, "if; then", times=0, is_job=is_job)
    assert result.exit_code == 2
    assert "line 1: syntax error" in result.output


@pytest.mark.parametrize("is_job", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        "echo ran >>runs; echo 'bwrap: not permitted'; exit 1",
        "echo ran >>runs; exec sh -c \"echo 'bwrap: not permitted'; exit 1\"",
        "echo ran >>runs; exec bwrap --no-such-option",
    ],
)
def test_a_command_that_talks_like_a_sandbox_runs_once(home: Path, command: str, is_job: bool) -> None:
    result = run(home, command, times=0, is_job=is_job)
    assert result.exit_code == 1
    assert result.output.startswith("bwrap: ")
    assert (home / "ws/runs").read_text() == "ran\n"


DAEMON = (
    "python3 -c 'import os,time; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); time.sleep(40)'"
)


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("sleep 40 & sleep 40 &", ["sleep", "sleep"]),
        ("(sleep 40; echo late) & cd /", ["bash", "sleep"]),
        ("(nohup sleep 40 >/dev/null 2>&1 &)", ["sleep"]),
        ("sleep 40 & disown", ["sleep"]),
        ("setsid sleep 40 &", ["sleep"]),
        ("sh -c 'sleep 40 &'", ["sleep"]),
        (DAEMON, ["python3"]),
        ("set -ufx; sleep 40 & true", ["sleep"]),
        ("set -e; sleep 40 & cd /", ["sleep"]),
        ("true & wait", []),
        ("seq 9 | tail -1 >/dev/null; cd /", []),
    ],
)
def test_ended_leftover_processes_are_named(home: Path, command: str, ended: list[str]) -> None:
    result = run(home, f"{command}\n sleep 0.2", times=0)  # until each has become its program
    assert (result.exit_code, sorted(result.ended), result.job) == (0, ended, None)
    assert "/proc" not in result.output
    assert result.cwd == (Path("/") if "cd /" in command else home / "ws")


def test_of_a_command_whose_time_is_up_nothing_is_counted_as_left(home: Path) -> None:
    result = run(home, "echo on; sleep 40", times=0, timeout_s=0.5)
    assert (result.output, result.timed_out, result.ended) == ("on\n", True, ())


@pytest.mark.slow
async def test_a_command_that_is_cancelled_before_its_start_was_heard_of_is_ended_too(tmp_path: Path) -> None:
    sandbox = LocalSandbox([tmp_path], environment={"PATH": "/usr/bin:/bin"}, job_folder=tmp_path / "jobs")
    await sandbox.run(Command("true", tmp_path, timeout_s=20))
    call = asyncio.create_task(sandbox.run(Command("echo $$ >pid; trap '' TERM; sleep 40", tmp_path, timeout_s=20)))
    await asyncio.sleep(0)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):  # without the loop, which would hear of it
        time.sleep(0.005)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not is_alive(int(pid.read_text()))
    await sandbox.aclose()
