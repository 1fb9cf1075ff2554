"""Commands leave nothing behind: whatever they start, and however they, the session or agentcli itself ends."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.processes.keeper_client import Keeper, Process
from agentcli.infra.sandbox.processes.process_tree import processes_below
from agentcli.settings.short_program import run_short_program
from tests.unit.sandbox.trees import ENDS, LEAST_PROCESSES, alive
from tests.unit.tools.bench import is_alive, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a reaper of orphans")

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
NOBODY = 65_534
CHECKOUT = Path(__file__).parents[3]
PATIENCE_S = 20.0  # for what never comes; a loaded machine may take long


@pytest.fixture(params=["as we are", pytest.param("as an ordinary user", marks=pytest.mark.slow)])
def python(request: pytest.FixtureRequest) -> list[str]:
    """How to start Python as a user. Root's own Python may be in a folder that is root's alone."""
    if request.param == "as we are":
        return [sys.executable]
    if os.getuid() != 0 or not (setpriv := shutil.which("setpriv")):
        pytest.skip("we are one, or cannot become one")
    as_nobody = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for program in (sys.executable, f"/usr/bin/{version}"):
        command = [*as_nobody, "env", f"PYTHONPATH={os.pathsep.join(sys.path)}", program]
        if not subprocess.run([*command, "-c", "import agentcli.infra.sandbox.local"], check=False).returncode:
            return command
    pytest.skip(f"no {version} that everybody may use")


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mark() -> str:
    return f"{random.randrange(10**8, 10**9)}.5"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", [pytest.param(end, marks=pytest.mark.slow) if end == "close" else end for end in ENDS])
@pytest.mark.parametrize(
    "confinement", ["none", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("bubblewrap", "landlock"))]
)
def test_nothing_survives(confinement: str, end: str, python: list[str], folder: Path, mark: str) -> None:
    command = [*python, "-m", "tests.unit.sandbox.trees", end, str(folder), mark, confinement]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        most = 0
        if end != "time-out":
            said = program.stdout.readline()
            if said == "cannot be confined so here\n":
                pytest.skip(said)
            assert said.startswith("grown ")
            most = int(said.split()[1])
        family = processes_below(program.pid)
        if end == "kill":
            program.kill()
        else:
            while end == "time-out" and program.poll() is None and most < LEAST_PROCESSES:
                most = max(most, len(alive(mark)))
                time.sleep(0.02)
            said = program.stdout.readline()
            if said == "cannot be confined so here\n":
                pytest.skip(said)
            assert said == "ended\n"
        ended = time.monotonic()
        while (left := alive(mark)) and time.monotonic() < ended + PATIENCE_S:
            time.sleep(0.02)
        assert not left
        assert most >= LEAST_PROCESSES  # they had been there
        if end not in ("close", "kill"):
            family = processes_below(program.pid)
            program.kill()
            ended = time.monotonic()
        while (
            left := [process for process in family if is_alive(process.pid)]
        ) and time.monotonic() < ended + PATIENCE_S:
            time.sleep(0.02)
        assert not left  # nor a keeper, which cleans up


async def started(keeper: Keeper, folder: Path, *argv: str, passed: tuple[int, ...] = ()) -> tuple[Process, int]:
    """A process, and where its output can be read."""
    read, write = os.pipe()
    try:
        return await keeper.start(Launch([*argv], passed), cwd=folder, environment=ENVIRONMENT, output=write), read
    finally:
        os.close(write)


async def output_of(keeper: Keeper, folder: Path, *argv: str, passed: tuple[int, ...] = ()) -> str:
    process, read = await started(keeper, folder, *argv, passed=passed)
    await process.wait_until_gone()
    with os.fdopen(read) as said:
        return said.read()


async def test_killing_the_supervisor_does_not_free_its_processes(tmp_path: Path, mark: str) -> None:
    keeper = Keeper(ENVIRONMENT)
    script = f"setsid -f sleep {mark}; sleep 0.1; kill -KILL $PPID; sleep {mark}"
    process, read = await started(keeper, tmp_path, "/bin/bash", "-c", script)
    await asyncio.wait_for(process.wait_until_gone(), 5)
    assert process.exit_code == -signal.SIGKILL
    assert await until(lambda: not alive(mark), 3)
    os.close(read)
    await keeper.aclose()


async def test_a_keeper_that_was_killed_is_replaced(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    command = ("/bin/sh", "-c", "ps -o ppid= -p $PPID")
    first = int(await output_of(keeper, tmp_path, *command))
    os.kill(first, signal.SIGKILL)
    assert await until(lambda: not is_alive(first))
    second = int(await output_of(keeper, tmp_path, *command))
    assert second != first
    await keeper.aclose()
    assert not is_alive(second)


async def test_a_supervisor_takes_one_command_after_another(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    command = ("/bin/sh", "-c", "set -- /proc/$$/fd/*; echo $# $PPID")
    first = await output_of(keeper, tmp_path, *command)
    assert await output_of(keeper, tmp_path, *command) == first  # nor has the second one more descriptors
    slowly = ("/bin/sh", "-c", "sleep 0.5; echo 0 $PPID")
    together = await asyncio.gather(*(output_of(keeper, tmp_path, *slowly) for _ in range(3)))
    assert len(set(together)) == 3  # commands that run at the same time have one each
    supervisor = int((await output_of(keeper, tmp_path, *command)).split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert await until(lambda: not is_alive(supervisor))
    assert int((await output_of(keeper, tmp_path, *command)).split()[1]) != supervisor
    await keeper.aclose()
    assert not any(is_alive(int(output.split()[1])) for output in (first, *together))


async def test_whoever_reads_the_end_of_a_command_those_who_wait_for_it_are_woken(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    process, read = await started(keeper, tmp_path, "/bin/sleep", "0.2")
    waiting = asyncio.ensure_future(process.wait_until_gone())
    await asyncio.sleep(0)
    while not process.is_gone():  # without giving the event loop a turn
        time.sleep(0.01)
    await asyncio.wait_for(waiting, 5)
    os.close(read)
    await keeper.aclose()


async def test_a_command_runs_after_one_that_was_ended_and_one_that_was_cancelled(tmp_path: Path, mark: str) -> None:
    keeper = Keeper(ENVIRONMENT)
    process, read = await started(keeper, tmp_path, "/bin/sleep", mark)
    await process.end()
    os.close(read)
    assert await output_of(keeper, tmp_path, "/bin/echo", "after the end") == "after the end\n"
    starting = asyncio.ensure_future(started(keeper, tmp_path, "/bin/sleep", mark))
    await asyncio.sleep(0)
    starting.cancel()
    with suppress(asyncio.CancelledError):
        process, _ = await starting  # it had started before the cancellation came
        await process.end()
    assert not alive(mark)
    assert await output_of(keeper, tmp_path, "/bin/echo", "after that") == "after that\n"
    await keeper.aclose()


@pytest.mark.slow
async def test_a_tree_that_multiplies_is_ended_by_itself(tmp_path: Path, mark: str) -> None:
    keeper = Keeper(ENVIRONMENT, max_processes=60)
    script = f"for n in $(seq 200); do sleep {mark} & done; wait"
    process, read = await started(keeper, tmp_path, "/bin/bash", "-c", script)
    await asyncio.wait_for(process.wait_until_gone(), 5)
    assert process.was_swarm
    assert not alive(mark)
    os.close(read)
    await keeper.aclose()


async def test_a_program_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    for program, folder in ((str(tmp_path / "none"), tmp_path), ("/bin/true", tmp_path / "none")):
        with pytest.raises(FileNotFoundError):
            await started(keeper, folder, program)
    await keeper.aclose()


async def test_descriptors_keep_their_numbers_and_no_other_is_passed_on(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    (tmp_path / "a").write_text("from a")
    passed = tuple(os.open(tmp_path / "a", os.O_RDONLY) for _ in range(3))
    script = f"cat <&{passed[1]}; ls -x /proc/self/fd"
    text = await output_of(keeper, tmp_path, "/bin/bash", "-c", script, passed=passed)
    for descriptor in passed:
        os.close(descriptor)
    assert text.startswith("from a")
    seen = set(map(int, text.removeprefix("from a").split()))
    assert {0, 1, 2, *passed} <= seen
    assert len(seen - {0, 1, 2, *passed}) == 1  # the folder that ls looks at
    await keeper.aclose()


async def test_signals_are_as_a_program_expects_them(tmp_path: Path) -> None:
    keeper = Keeper(ENVIRONMENT)
    said = await output_of(keeper, tmp_path, "/bin/grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status")
    real_time = -1 << 31  # two of these posix_spawn leaves ignored: they are the C library's own
    assert [int(line.split()[1], 16) & ~real_time for line in said.splitlines()] == [0, 0]
    await keeper.aclose()


def test_the_keeper_sees_no_more_than_commands_do(tmp_path: Path) -> None:
    script = (
        "import asyncio, pathlib\nfrom agentcli.infra.sandbox.local import LocalSandbox\n"
        "from agentcli.tools.sandbox import Command\n"
        "async def main():\n folder = pathlib.Path.cwd()\n"
        " sandbox = LocalSandbox([folder], environment={'PATH': '/usr/bin:/bin'}, job_folder=folder / 'jobs')\n"
        " command = 'for p in $PPID $(ps -o ppid= -p $PPID); do cat /proc/$p/environ; done'\n"
        " print((await sandbox.run(Command(command, folder, timeout_s=9))).output)\n await sandbox.aclose()\n"
        "asyncio.run(main())"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(CHECKOUT), "ANTHROPIC_API_KEY": "s3cret", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "AGENTCLI=1" in run.stdout
    assert "s3cret" not in run.stdout


def test_a_short_program_for_which_there_are_too_few_descriptors_leaves_none_open() -> None:
    code = """
import asyncio, os, resource
from agentcli.settings.short_program import run_short_program

def count():
    return len(os.listdir("/proc/self/fd"))

async def run():
    before = count()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + 5, hard))
    try:
        await run_short_program(["true"], timeout_s=10, max_bytes=10, stdin=b"x")
    except OSError as error:
        print(error.strerror, count() - before)

asyncio.run(run())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, check=True)
    assert ran.stdout == "Too many open files 0\n"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
async def test_a_short_program_is_given_its_input_also_where_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    given = b"x" * 1_000_000
    end = await run_short_program(["cat"], timeout_s=10, max_bytes=2_000_000, stdin=given)
    assert (end.exit_code, end.stdout) == (0, given)
