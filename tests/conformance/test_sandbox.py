"""What every sandbox owes the tools: paths that are judged where they lead, commands that end when they should."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentcli.errors import ToolError
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.command import BackgroundJob, Command, CommandResult, Grants
from agentcli.tools.sandbox import FoundRows, Listing, Sandbox, Search, SearchOptions, SearchOutcome, Use
from agentcli.tools.tool import ToolContext, ToolRegistry
from agentcli.tools.workspace import Workspace
from tests.conformance.remote_sandbox import RemoteSandbox, why_not_remote
from tests.unit.tools.bench import until

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/nowhere",
}


def local(folder: Path, environment: Mapping[str, str]) -> Sandbox:
    return LocalSandbox([folder / "ws"], environment=environment, job_folder=folder / "jobs", session_id="s-1")


def remote(folder: Path, environment: Mapping[str, str]) -> Sandbox:
    if why := why_not_remote():
        pytest.skip(why)
    return RemoteSandbox(folder, environment=environment, session_id="s-1")


# How to make each implementation: on `folder`/ws, for commands that see `environment`.
SANDBOXES: dict[str, Callable[[Path, Mapping[str, str]], Sandbox]] = {"local": local, "remote": remote}

pytestmark = pytest.mark.parametrize("kind", list(SANDBOXES))


def on_disk(sandbox: Sandbox, path: Path) -> Path:
    """Where a path of the sandbox lies for the test's own hands."""
    return sandbox.on_disk(path) if isinstance(sandbox, RemoteSandbox) else path


def root_of(sandbox: Sandbox) -> Path:
    return sandbox.facts().roots[0]


def said(sandbox: Sandbox, job: BackgroundJob) -> str:
    """The output of a job so far."""
    return on_disk(sandbox, job.output_file).read_text()


@asynccontextmanager
async def opened(kind: str, folder: Path, environment: Mapping[str, str] = ENVIRONMENT) -> AsyncIterator[Sandbox]:
    (folder / "ws").mkdir()
    sandbox = SANDBOXES[kind](folder, environment)
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


@pytest.fixture
def sandbox(kind: str, tmp_path: Path, at_end: AsyncExitStack) -> Sandbox:
    (tmp_path / "ws").mkdir()
    sandbox = SANDBOXES[kind](tmp_path, ENVIRONMENT)
    at_end.push_async_callback(sandbox.aclose)
    return sandbox


async def run(
    sandbox: Sandbox, command: str, *, timeout_s: float = 20, max_bytes: int = 30_000, cwd: Path | None = None
) -> CommandResult:
    return await sandbox.run(Command(command, cwd or root_of(sandbox), timeout_s=timeout_s, max_bytes=max_bytes))


async def start(sandbox: Sandbox, command: str) -> BackgroundJob:
    """Run a command as a job."""
    detach = asyncio.Event()
    detach.set()
    job = (await sandbox.run(Command(command, root_of(sandbox)), detach=detach)).job
    assert job is not None
    return job


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    if Path("/proc/self/stat").exists():  # a small system has no ps
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state not in "ZX"
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return shown.strip()[:1] not in ("", "Z", "X")


async def ends(pid: int) -> bool:
    return await until(lambda: not is_alive(pid))


async def ended(sandbox: Sandbox) -> bool:
    return await until(lambda: not any(job.is_running for job in sandbox.jobs.list()), 6)


async def pid_in(sandbox: Sandbox, name: str) -> int:
    """A process id that a command writes to a file of the workspace."""
    file = on_disk(sandbox, root_of(sandbox) / name)
    assert await until(lambda: file.exists() and file.read_text().endswith("\n"), 5)
    return int(file.read_text())


# Paths

USES: tuple[Use, Use] = ("read", "write")


async def test_paths_inside_are_given_as_they_really_are(sandbox: Sandbox) -> None:
    root = root_of(sandbox)
    (on_disk(sandbox, root) / "link").symlink_to("a/b")
    for name, real in (("", ""), ("new/file", "new/file"), ("x/../y", "y"), ("link", "a/b")):
        for use in USES:
            status = sandbox.look(root / name, use)
            assert (status.real, status.place, status.is_usable) == (root / real, "inside", True)


OUTSIDE = ("..", "../other", "a/../../other", "link", "folder/other", "/", "/etc/passwd")


@pytest.mark.parametrize("path", [*OUTSIDE, "loop", "a\0b"])
async def test_paths_that_lead_outside_are_refused(sandbox: Sandbox, path: str) -> None:
    root = root_of(sandbox)
    disk = on_disk(sandbox, root)
    (disk / "../other").write_text("x")
    (disk / "link").symlink_to("../other")
    (disk / "folder").symlink_to("..")
    (disk / "loop").symlink_to("loop")
    for use in USES:
        if path in OUTSIDE:
            status = sandbox.look(root / path, use)
            assert (status.place, status.is_usable) == ("outside", False)
        else:
            with pytest.raises(ToolError) as caught:
                sandbox.look(root / path, use)
            assert caught.value.kind == "invalid_parameters"


# Output


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("for n in 1 2 3; do echo out$n; echo err$n >&2; done", {"output": "out1\nerr1\nout2\nerr2\nout3\nerr3\n"}),
        (r"printf '\xe2\x82'; sleep 0.05; printf '\xac'", {"output": "€"}),
        (r"printf 'a\xffb'", {"output": "a\ufffdb"}),
        (r"printf 'a\xe2\x82'", {"output": "a\ufffd"}),
        (r"printf '\xc3('", {"output": "\ufffd("}),
        (
            "echo $AGENTCLI $AGENTCLI_SESSION_ID $GIT_EDITOR $GIT_PAGER $PAGER $TERM",
            {"output": "1 s-1 true cat cat dumb\n"},
        ),
        ("true", {"exit_code": 0, "timed_out": False}),
        ("exit 7", {"exit_code": 7, "timed_out": False}),
        ("false; true", {"exit_code": 0}),
        ("no-such-program", {"exit_code": 127}),
        ("kill -TERM $$; sleep 5", {"exit_code": -15}),
        ("mkdir d; cd d; rmdir ../d", {"cwd": None}),
    ],
)
async def test_what_is_reported_of_a_command(sandbox: Sandbox, command: str, told: dict[str, Any]) -> None:
    result = await run(sandbox, command)
    assert {name: getattr(result, name) for name in told} == told


@pytest.fixture
def typed() -> Iterator[None]:
    """Something waits on our own input, as in a terminal."""
    reading, writing = os.pipe()
    before = os.dup(0)
    os.write(writing, b"typed by the person\n")
    os.dup2(reading, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for descriptor in (reading, writing, before):
            os.close(descriptor)


@pytest.mark.usefixtures("typed")
async def test_the_input_is_empty(sandbox: Sandbox) -> None:
    assert (await run(sandbox, "cat; read line; echo $?")).output == "1\n"
    job = await start(sandbox, "cat; echo ended")
    assert await until(lambda: said(sandbox, job) == "ended\n", 4)


async def test_output_is_heard_while_the_command_runs(sandbox: Sandbox) -> None:
    go, heard = on_disk(sandbox, root_of(sandbox) / "go"), []

    def hear(text: str) -> None:
        heard.append(text)
        go.touch()  # the command goes on only when its first line was heard

    command = "echo first; for n in $(seq 200); do [ -e go ] && break; sleep 0.02; done; [ -e go ] && echo second"
    result = await sandbox.run(Command(command, root_of(sandbox), timeout_s=20), on_output=hear)
    assert heard[0] == "first\n"
    assert "".join(heard) == result.output == "first\nsecond\n"


async def test_long_output_keeps_both_ends_and_says_what_is_missing(sandbox: Sandbox) -> None:
    result = await run(sandbox, "echo begin; seq 200000; echo end", max_bytes=2_000)
    assert result.output.startswith("begin\n1\n2\n")
    assert result.output.endswith("\n200000\nend\n")
    assert len(result.output) < 2_300
    whole = len("begin\nend\n") + sum(len(str(n)) + 1 for n in range(1, 200_001))
    assert f"[{whole - 2_000:,} characters cut; all of it is in {result.output_file}]" in result.output
    assert result.output_file is not None
    assert sandbox.look(result.output_file).is_usable
    assert on_disk(sandbox, result.output_file).stat().st_size == whole


@pytest.mark.parametrize("length", [1_999, 2_000, 2_001])
async def test_output_is_cut_above_the_limit_only(sandbox: Sandbox, length: int) -> None:
    result = await run(sandbox, f"printf 'x%.0s' $(seq {length})", max_bytes=2_000)
    assert (result.output == "x" * length) == (length <= 2_000)


# The directory


async def test_the_directory_the_shell_ended_in_is_reported(sandbox: Sandbox) -> None:
    root = root_of(sandbox)
    assert (await run(sandbox, "mkdir -p a/b && cd a/b")).cwd == root / "a/b"
    assert (await run(sandbox, "pwd", cwd=root / "a")).output == f"{root}/a\n"
    assert (await run(sandbox, "cd a; exit 3")).cwd == root / "a"
    assert (await run(sandbox, "(cd a); true")).cwd == root


@pytest.mark.parametrize("name", ["with space", "new\nline", "'quote'", "文件", "$HOME"])
async def test_directories_with_odd_names_are_reported(sandbox: Sandbox, name: str) -> None:
    root = root_of(sandbox)
    (on_disk(sandbox, root) / "d").symlink_to(name)
    (on_disk(sandbox, root) / name).mkdir()
    assert (await run(sandbox, "cd d")).cwd == root / name


async def test_a_command_may_use_any_descriptor_of_its_own(sandbox: Sandbox) -> None:
    root = root_of(sandbox)
    command = 'mkdir d; for n in 3 4 5 6 7 8 9; do eval "exec $n>out"; done; echo hello >&3; cd d'
    assert (await run(sandbox, command)).cwd == root / "d"
    assert on_disk(sandbox, root / "out").read_text() == "hello\n"


async def test_line_numbers_in_the_shell_s_errors_are_those_of_the_command(sandbox: Sandbox) -> None:
    assert "line 2:" in (await run(sandbox, "true\nno-such-program")).output


# Ending


async def test_a_timeout_ends_the_whole_group_and_keeps_the_output(sandbox: Sandbox) -> None:
    command = "echo begin; (sh -c 'sleep 60 & echo $! > pid; wait') & wait"
    started = time.monotonic()
    result = await run(sandbox, command, timeout_s=0.4)
    assert time.monotonic() - started < 20
    assert (result.timed_out, result.exit_code, result.output) == (True, None, "begin\n")
    assert await ends(await pid_in(sandbox, "pid"))


@pytest.mark.slow
async def test_a_command_that_ignores_the_polite_signal_is_killed(sandbox: Sandbox) -> None:
    command = "trap '' TERM; echo $$ > pid; while true; do sleep 0.1; done"
    assert (await run(sandbox, command, timeout_s=0.1)).timed_out
    assert await ends(await pid_in(sandbox, "pid"))


@pytest.mark.parametrize(
    "command", ["sleep 60 & echo $! > pid; echo done", "nohup sleep 60 & echo $! > pid; echo done"]
)
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_call_and_ends_with_the_session(
    kind: str, command: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as sandbox:
        started = time.monotonic()
        result = await run(sandbox, command)
        assert time.monotonic() - started < 20
        assert result.output.endswith("done\n")
        pid = await pid_in(sandbox, "pid")
        assert is_alive(pid)
    assert await ends(pid)


@pytest.mark.parametrize("way", ["sleep 60 &", "setsid -f sleep 60", "(sleep 60 &)", "nohup sleep 60 >log 2>&1 &"])
async def test_processes_that_a_command_leaves_running_become_a_job(sandbox: Sandbox, way: str) -> None:
    result = await run(sandbox, f"{way}\ncd /tmp; exit 3")
    assert result.exit_code == 3
    assert result.cwd == Path("/tmp")
    (job,) = sandbox.jobs.list()
    assert result.job == job
    assert (job.outcome, job.new_bytes) == (None, 0)
    await sandbox.jobs.stop(job.id)
    (job,) = sandbox.jobs.list()
    assert job.outcome is not None
    assert (job.outcome.exit_code, job.outcome.timed_out) == (None, False)


async def test_processes_that_outlive_their_command_may_continue_to_write(sandbox: Sandbox) -> None:
    result = await run(sandbox, "(until [ -e go ]; do sleep 0.02; done; echo late) & echo now")
    assert result.output == "now\n"
    assert result.job is not None
    on_disk(sandbox, root_of(sandbox) / "go").touch()
    assert await ended(sandbox)
    assert sandbox.jobs.read(result.job.id, 1_000) == "late\n"
    assert said(sandbox, result.job) == "now\nlate\n"


async def test_processes_that_end_with_their_command_are_not_jobs(sandbox: Sandbox) -> None:
    await run(sandbox, "sleep 0.02 & true")
    assert not sandbox.jobs.list()


async def test_a_cancelled_call_ends_the_group(sandbox: Sandbox) -> None:
    call = asyncio.create_task(run(sandbox, "sleep 60 & echo $! > pid; wait"))
    pid = await pid_in(sandbox, "pid")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await ends(pid)


@pytest.mark.slow
async def test_commands_can_run_side_by_side(sandbox: Sandbox) -> None:
    started = time.monotonic()
    results = await asyncio.gather(*(run(sandbox, f"sleep 3; echo {n}") for n in range(8)))
    assert [result.output for result in results] == [f"{n}\n" for n in range(8)]
    assert time.monotonic() - started < 20  # of the 24 s of all


def descriptors(sandbox: Sandbox) -> list[int]:
    """How many are open here and, where the sandbox has processes of its own, there."""
    folders = [f"/proc/{pid}/fd" for pid in sandbox.server_pids] if isinstance(sandbox, RemoteSandbox) else []
    return [len(os.listdir(folder)) for folder in ("/dev/fd", *folders)]


async def test_no_descriptors_are_left_open(sandbox: Sandbox) -> None:
    await run(sandbox, "true")
    before = descriptors(sandbox)
    for _ in range(5):
        await run(sandbox, "sleep 9 & true" if _ == 2 else "echo x")
    await run(sandbox, "sleep 5", timeout_s=0.05)
    await run(sandbox, "seq 20000", max_bytes=100)
    with pytest.raises(ToolError):
        await run(sandbox, "a\0b")
    for job in sandbox.jobs.list():
        await sandbox.jobs.stop(job.id)
    assert descriptors(sandbox) == before


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "true " + "x" * 3_000_000])
async def test_a_command_the_system_does_not_take_is_a_tool_s_error(sandbox: Sandbox, command: str) -> None:
    with pytest.raises(ToolError, match="Could not start"):
        await run(sandbox, command)
    with pytest.raises(ToolError, match="Could not start"):
        await start(sandbox, command)


@pytest.mark.parametrize("length", [29_999, 30_000, 131_072, 600_000])
async def test_a_command_may_be_longer_than_one_argument(sandbox: Sandbox, length: int) -> None:
    command = f"cat >long <<'END'\n{'é' * length}\nEND\nwc -m <long; echo $#; exit 3"
    result = await run(sandbox, command)
    assert (result.exit_code, result.output.split()) == (3, [str(length + 1), "0"]), result.output[:200]


# Jobs


async def test_a_job_writes_its_output_to_a_file_and_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        job = await start(sandbox, "echo hello; echo oops >&2; sleep 60")
        assert await until(lambda: said(sandbox, job) == "hello\noops\n", 4)
        assert (sandbox.look(job.output_file).real, sandbox.look(job.output_file).place) == (job.output_file, "granted")
        assert is_alive(job.pid)
        assert not sandbox.look(job.output_file, "write").is_usable
    assert await ends(job.pid)


async def test_jobs_have_names_and_files_of_their_own(sandbox: Sandbox) -> None:
    jobs = [await start(sandbox, "true") for _ in range(3)]
    assert len({job.id for job in jobs}) == len({job.output_file for job in jobs}) == 3


@pytest.mark.slow
async def test_closing_ends_everything_soon_and_twice_is_safe(sandbox: Sandbox) -> None:
    jobs = [await start(sandbox, "trap '' TERM; sleep 60") for _ in range(8)]
    await run(sandbox, "sleep 60 & echo $! > pid")
    left = await pid_in(sandbox, "pid")
    await asyncio.sleep(0.1)  # let the jobs set their traps
    started = time.monotonic()
    await sandbox.aclose()
    assert time.monotonic() - started < 12  # the grace is 2 s for all together
    assert not [job for job in jobs if not await ends(job.pid)]
    assert await ends(left)
    await sandbox.aclose()


async def test_a_process_left_running_is_asked_before_it_is_killed(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = root_of(sandbox)
        tidy = "import signal, time, sys\ndef end(*_):\n time.sleep(0.2)\n open('tidied', 'w').close()\n sys.exit()\n"
        tidied = on_disk(sandbox, root / "tidied")
        on_disk(sandbox, root / "tidy.py").write_text(
            f"{tidy}signal.signal(signal.SIGTERM, end)\nopen('ready', 'w').close()\ntime.sleep(60)\n"
        )
        await run(
            sandbox, f"{sys.executable} tidy.py & for n in $(seq 200); do [ -e ready ] && break; sleep 0.02; done"
        )
    assert tidied.exists()


# The environment


SECRETS = """
    ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN OPENAI_API_KEY TAVILY_API_KEY AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID
    AWS_SESSION_TOKEN GITHUB_TOKEN GH_TOKEN HF_TOKEN NPM_TOKEN DB_PASSWORD CLIENT_SECRET
""".split()


async def test_commands_see_no_credentials(kind: str, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, **dict.fromkeys(SECRETS, "s3cret")}
    async with opened(kind, tmp_path, environment) as sandbox:
        assert "s3cret" not in (await run(sandbox, "env")).output
        job = await start(sandbox, "env; echo end")
        assert await until(lambda: said(sandbox, job).endswith("end\n"), 4)
        assert "s3cret" not in said(sandbox, job)


async def test_commands_see_what_programs_need_of_the_environment(kind: str, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": "/venv", "CARGO_HOME": "/cargo", "https_proxy": "http://proxy:3128"}
    async with opened(kind, tmp_path, environment) as sandbox:
        seen = dict(line.split("=", 1) for line in (await run(sandbox, "env")).output.splitlines())
        assert environment.items() <= seen.items()


# Jobs.


async def detached(sandbox: Sandbox, command: str, *, after: str, max_bytes: int = 30_000) -> CommandResult:
    """Run a command that is sent to the background once it has said `after`."""
    detach = asyncio.Event()
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        if after in "".join(heard):
            detach.set()

    terms = Command(command, root_of(sandbox), timeout_s=20, max_bytes=max_bytes)
    return await sandbox.run(terms, on_output=hear, detach=detach)


async def test_a_detached_command_continues_and_all_its_output_is_in_the_file(sandbox: Sandbox) -> None:
    result = await detached(sandbox, "printf 'one \\303'; sleep 0.2; printf '\\251 two'; pwd", after="one")
    assert (result.output.strip(), result.exit_code, result.timed_out) == ("one", None, False)
    assert result.job is not None
    assert result.job.is_running
    assert await ended(sandbox)
    assert said(sandbox, result.job) == f"one é two{root_of(sandbox)}\n"


async def test_a_detached_command_outlives_its_time_limit_and_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await detached(sandbox, "echo $$ > pid; echo on; sleep 30 & wait", after="on")
        assert result.job is not None
        pid = await pid_in(sandbox, "pid")
        assert is_alive(pid)
    assert await ends(pid)


async def test_a_detached_command_ends_with_its_own_exit_code(sandbox: Sandbox) -> None:
    await detached(sandbox, "echo on; sleep 0.1; exit 3", after="on")
    assert await ended(sandbox)
    outcome = sandbox.jobs.list()[0].outcome
    assert outcome is not None
    assert outcome.exit_code == 3
    assert 0.1 <= outcome.duration_s < 60


async def test_a_command_that_ended_first_is_not_a_job(sandbox: Sandbox) -> None:
    detach = asyncio.Event()
    result = await sandbox.run(Command("echo done", root_of(sandbox), timeout_s=20, max_bytes=100), detach=detach)
    detach.set()
    assert (result.output, result.exit_code, result.job) == ("done\n", 0, None)
    assert list(sandbox.jobs.list()) == []


async def test_a_long_output_is_cut_in_the_result_and_continues_in_the_file(sandbox: Sandbox) -> None:
    command = "seq 20000; echo on; sleep 0.2; echo the end"
    result = await detached(sandbox, command, after="\non\n", max_bytes=1_000)
    assert " characters cut; " in result.output
    assert result.job is not None
    assert await ended(sandbox)
    whole = "".join(f"{n}\n" for n in range(1, 20_001)) + "on\n"
    assert result.output_file == result.job.output_file
    assert str(result.output_file) in result.output
    assert result.output.endswith("\n20000\non\n")
    assert said(sandbox, result.job) == whole + "the end\n"
    assert sandbox.jobs.read(result.job.id, 1_000) == "the end\n"


async def test_jobs_are_listed_with_what_they_run_and_stopped_one_by_one(sandbox: Sandbox) -> None:
    first, second = await start(sandbox, "sleep 30 & sleep 30"), await start(sandbox, "true")
    assert await until(lambda: not sandbox.jobs.list()[1].is_running, 4)
    assert [(job.id, job.command, job.is_running) for job in sandbox.jobs.list()] == [
        (first.id, "sleep 30 & sleep 30", True),
        (second.id, "true", False),
    ]
    await sandbox.jobs.stop(first.id)
    await sandbox.jobs.stop(second.id)
    assert not any(job.is_running for job in sandbox.jobs.list())
    with pytest.raises(ToolError) as caught:
        await sandbox.jobs.stop("job_9")
    assert caught.value.kind == "not_found"


async def test_a_job_s_new_output_is_read_once(sandbox: Sandbox) -> None:
    command = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
    job = await start(sandbox, command)
    assert await until(lambda: said(sandbox, job), 4)
    assert sandbox.jobs.list()[0].new_bytes == len("one\n")
    assert [sandbox.jobs.read(job.id, 100) for _ in range(2)] == ["one\n", ""]
    on_disk(sandbox, root_of(sandbox) / "go").touch()
    assert await ended(sandbox)
    assert sandbox.jobs.read(job.id, 100) == "two\n"
    with pytest.raises(ToolError) as caught:
        sandbox.jobs.read("job_9", 100)
    assert caught.value.kind == "not_found"


# Exceptions


async def test_a_grant_counts_for_the_look_that_it_comes_with_and_no_other(sandbox: Sandbox) -> None:
    other, secret = root_of(sandbox).parent / "other", root_of(sandbox) / ".env"
    for path, grants, places in (
        (other, Grants(), ("outside", "outside")),
        (other, Grants(readable=(other,)), ("granted", "outside")),
        (other, Grants(writable=(other,)), ("granted", "granted")),
        (other / "below", Grants(writable=(other,)), ("outside", "outside")),
        (other / "below", Grants(roots=(other,)), ("inside", "inside")),
        (secret, Grants(), ("secret", "secret")),
        (secret, Grants(readable=(secret,)), ("granted", "secret")),
        (other, Grants(), ("outside", "outside")),
    ):
        assert tuple(sandbox.look(path, use, grants).place for use in USES) == places
    assert sandbox.facts(Grants(roots=(other,))).roots == (root_of(sandbox), other)


def test_grants_are_revoked_one_by_one(kind: str) -> None:
    a, b = Path("/a"), Path("/b")
    grants = Grants(readable=(a,)) + Grants(readable=(a, b), hosts=("example.org",))
    assert grants - Grants(readable=(a,)) == Grants(readable=(a, b), hosts=("example.org",))
    assert grants - Grants(readable=(a, a), writable=(b,), hosts=("other.org",)) == Grants((b,), (), ("example.org",))


async def test_commands_reach_outside_unless_the_sandbox_confines_them(sandbox: Sandbox) -> None:
    await run(sandbox, "touch ../outside")
    facts = sandbox.facts()
    assert on_disk(sandbox, facts.roots[0].parent / "outside").exists() == (not facts.confines)


async def test_a_command_that_cannot_be_dry_run_is_not_run(sandbox: Sandbox) -> None:
    why = sandbox.facts().dry_run_problem
    assert why
    with pytest.raises(ToolError, match=re.escape(why)):
        await sandbox.run(Command("touch tried", root_of(sandbox), timeout_s=5, dry_run="full"))
    assert not sandbox.look(root_of(sandbox) / "tried").is_there


# Files


async def test_written_bytes_are_read_back_unchanged(sandbox: Sandbox) -> None:
    path = sandbox.look(root_of(sandbox) / "new/deep/文件", "write").real
    for content in (b"\0\xff\r\n", b"", b"x" * 300_000):
        sandbox.write(path, content)
        with sandbox.read(path) as file:
            assert file.read() == content == on_disk(sandbox, path).read_bytes()


async def test_a_file_that_is_replaced_keeps_its_mode(sandbox: Sandbox) -> None:
    path = root_of(sandbox) / "script"
    sandbox.write(path, b"old")
    on_disk(sandbox, path).chmod(0o750)
    sandbox.write(path, b"new")
    assert on_disk(sandbox, path).stat().st_mode & 0o777 == 0o750


async def test_status_tells_what_there_is(sandbox: Sandbox) -> None:
    root = root_of(sandbox)
    disk = on_disk(sandbox, root)
    (disk / "file").write_text("four")
    (disk / "twin").hardlink_to(disk / "file")
    os.mkfifo(disk / "pipe")
    status = sandbox.look(root / "file")
    assert (status.kind, status.size, status.links, status.is_there) == ("file", 4, 2, True)
    for name, what in (("", "folder"), ("pipe", "other"), ("missing", None), ("file/below", None)):
        assert (sandbox.look(root / name).kind, sandbox.look(root / name).is_there) == (what, what is not None)
    status = sandbox.look(root / ("x" * 300))
    assert (status.kind, status.errno) == (None, errno.ENAMETOOLONG)
    with pytest.raises(OSError, match="name too long"):
        assert status.is_there


@pytest.mark.parametrize(("name", "error"), [("missing", FileNotFoundError), ("", OSError), ("pipe", OSError)])
async def test_only_regular_files_can_be_read(sandbox: Sandbox, name: str, error: type[OSError]) -> None:
    os.mkfifo(on_disk(sandbox, root_of(sandbox) / "pipe"))
    with pytest.raises(error) as caught:
        sandbox.read(root_of(sandbox) / name)
    assert caught.value.errno
    assert caught.value.strerror


async def test_a_write_that_fails_changes_nothing(sandbox: Sandbox) -> None:
    root = root_of(sandbox)
    on_disk(sandbox, root / "file").write_text("as it was")
    for path, number in ((root / "file/below", errno.ENOTDIR), (root / "new" / ("x" * 300), errno.ENAMETOOLONG)):
        with pytest.raises(OSError, match=r".") as caught:
            sandbox.write(path, b"new")
        assert caught.value.errno == number
    assert os.listdir(on_disk(sandbox, root)) == ["file"]
    assert on_disk(sandbox, root / "file").read_text() == "as it was"


# Looking


async def test_a_listing_has_the_files_below_that_are_not_ignored(sandbox: Sandbox) -> None:
    root, names = root_of(sandbox), list[str]()
    # macOS has no names that are no UTF-8.
    odd = os.fsdecode(b"src/odd\xff" if sys.platform == "linux" else b"src/odd\n")
    for name in (".gitignore", "src/a.py", "src/b/c.txt", odd, "built/x", ".git/config"):
        sandbox.write(root / name, b"built/\n")
    assert await sandbox.search(Listing(root), names.append) == SearchOutcome()
    assert sorted("".join(names).split("\0")) == ["", ".gitignore", "src/a.py", "src/b/c.txt", odd]
    names.clear()
    await sandbox.search(Listing(root / "src", "*.py", base=root), names.append)
    assert "".join(names) == "src/a.py\0"
    with pytest.raises(ToolError) as caught:
        await sandbox.search(Listing(root, "a\0b"), names.append)
    assert caught.value.kind == "invalid_parameters"


async def test_a_search_gives_rows_as_bytes_and_leaves_secrets_out(sandbox: Sandbox) -> None:
    root, found = root_of(sandbox), list[FoundRows]()
    sandbox.write(root / "src/a.py", b"one\ntwo \xff needle\nthree\n")
    sandbox.write(root / ".env", b"KEY=needle\n")
    assert await sandbox.search(Search(root, "needle", context=1), found.extend) == SearchOutcome()
    assert found == [(b"src/a.py", b"1-one\n2:two \xff needle\n3-three")]
    found.clear()
    await sandbox.search(Search(root, "KEY"), found.extend, Grants(readable=(root / ".env",)))
    assert found == [(b".env", b"1:KEY=needle")]
    found.clear()
    await sandbox.search(
        Search(root / "src", "NEEDLE", options=SearchOptions(ignore_case=True), mode="count", base=root), found.extend
    )
    assert found == [(b"src/a.py", b"1")]
    with pytest.raises(ToolError, match="unclosed group"):
        await sandbox.search(Search(root, "(needle"), found.extend)


async def test_a_cancelled_search_hands_over_nothing_more(sandbox: Sandbox) -> None:
    root, rows, loop = root_of(sandbox), list[int](), asyncio.get_running_loop()
    for n in range(20):
        sandbox.write(root / str(n), b"needle\n" * 20_000)

    def take(found: Sequence[FoundRows]) -> None:
        assert threading.current_thread() is not threading.main_thread()
        rows.append(len(found))
        loop.call_soon_threadsafe(call.cancel)
        time.sleep(0.02)

    call = asyncio.create_task(sandbox.search(Search(root, "needle"), take))
    with pytest.raises(asyncio.CancelledError):
        await call
    taken = len(rows)
    await asyncio.sleep(0.2)
    assert len(rows) == taken > 0


async def test_a_search_whose_taker_fails_ends_with_that_failure(sandbox: Sandbox) -> None:
    sandbox.write(root_of(sandbox) / "a", b"needle\n")

    def take(found: Sequence[FoundRows]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await sandbox.search(Search(root_of(sandbox), "needle"), take)


# The tools


class Bench:
    """Every built-in tool, on a sandbox alone: what of it does not go through the protocol fails or goes astray."""

    def __init__(self, sandbox: Sandbox, cwd: Path) -> None:
        self.workspace = Workspace(cwd=cwd, sandbox=sandbox)
        self.tools = ToolRegistry(builtin_tools())

    async def call(self, name: str, **given: Any) -> str:
        tool = self.tools.get(name)
        output = await tool.run(tool.parse(given), ToolContext(self.workspace, "id"))
        return str(output.content)


@pytest.mark.parametrize("cwd", ["ws", "link"])
async def test_the_tools_reach_files_and_commands_through_the_sandbox_alone(sandbox: Sandbox, cwd: str) -> None:
    place, outer = root_of(sandbox).parent, root_of(sandbox)
    is_remote = on_disk(sandbox, outer) != outer
    assert outer.exists() != is_remote
    on_disk(sandbox, place / "link").symlink_to("ws")
    call = Bench(sandbox, place / cwd).call
    assert await call("file_write", path="src/a.py", content="one\ntwo\n") == "Created src/a.py."
    assert await call("file_read", path="src/a.py") == "1\tone\n2\ttwo"
    assert "-two\n+three\n" in await call("file_edit", path="src/a.py", old_string="two", new_string="three")
    assert await call("file_list") == "src/\nsrc/a.py"
    assert await call("file_list", path=str(place / "ws"), pattern="/src/*.py") == "src/a.py"
    assert await call("grep_search", pattern="three") == "src/a.py:2:three"
    assert await call("bash", command="cat a.py; cd ..", cwd="src") == "one\nthree"
    assert await call("bash", command="cd .") == ""
    assert await call("bash", command="cd src") == "[now in src]"
    assert await call("bash", command="pwd; cd ../..") == (
        f"{outer}/src\n[{place} is outside the workspace: back in src]"
    )
    await call("bash", command="echo hello", background=True)
    assert await ended(sandbox)
    (job,) = sandbox.jobs.list()
    assert await call("jobs", action="read", job_id=job.id) == "hello\n[exit code 0]"
    assert await call("file_read", path=str(job.output_file)) == "1\thello"
    with pytest.raises(ToolError, match=r"^a\.py does not exist\. There is src/a\.py\.$"):
        await call("file_read", path="a.py")
    assert await call("bash", command="rm -r ../src") == ""
    assert await call("bash", command="pwd") == f"{outer}\n[src is gone: started in .]"
    assert outer.exists() != is_remote  # nothing went to a path of that name on this disk
