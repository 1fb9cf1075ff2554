"""What every sandbox owes the tools: paths that are judged where they lead, commands that end when they should."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentcli.errors import ToolError
from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.sandbox import CommandResult, Sandbox

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/nowhere",
}


def local(folder: Path, environment: Mapping[str, str]) -> Sandbox:
    return LocalSandbox([folder / "ws"], environment=environment, job_folder=folder / "jobs", session_id="s-1")


# How to make each implementation: on `folder`/ws, for commands that see `environment`.
SANDBOXES: dict[str, Callable[[Path, Mapping[str, str]], Sandbox]] = {"local": local}

pytestmark = pytest.mark.parametrize("kind", list(SANDBOXES))


@asynccontextmanager
async def opened(kind: str, folder: Path, environment: Mapping[str, str] = ENVIRONMENT) -> AsyncIterator[Sandbox]:
    (folder / "ws").mkdir()
    sandbox = SANDBOXES[kind](folder, environment)
    try:
        yield sandbox
    finally:
        await sandbox.aclose()


async def run(
    sandbox: Sandbox, command: str, *, timeout_s: float = 20, most_bytes: int = 30_000, cwd: Path | None = None
) -> CommandResult:
    return await sandbox.exec(
        command, cwd=cwd or sandbox.roots[0], timeout_s=timeout_s, on_output=lambda text: None, most_bytes=most_bytes
    )


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
    for _ in range(100):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def pid_in(file: Path) -> int:
    """A process id that a command writes to a file."""
    for _ in range(250):
        if file.exists() and (said := file.read_text()).endswith("\n"):
            return int(said)
        await asyncio.sleep(0.02)
    raise AssertionError(f"{file} was not written")


# Paths


async def test_paths_inside_are_given_as_they_really_are(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        (root / "link").symlink_to("a/b")
        for path in (root, root / "new/file", root / "x/../y", root / "link"):
            assert sandbox.validate_path(path, "read") == sandbox.validate_path(path, "write") == path.resolve()


@pytest.mark.parametrize(
    "path", ["..", "../other", "a/../../other", "link", "folder/other", "loop", "a\0b", "/", "/etc/passwd"]
)
async def test_paths_that_lead_outside_are_refused(kind: str, path: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        (tmp_path / "other").write_text("x")
        (root / "link").symlink_to("../other")
        (root / "folder").symlink_to("..")
        (root / "loop").symlink_to("loop")
        for access in ("read", "write"):
            with pytest.raises(ToolError) as caught:
                sandbox.validate_path(root / path, access)
            assert caught.value.kind in ("permission_denied", "invalid_parameters")


# Output


async def test_both_streams_come_in_order(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        command = "for n in 1 2 3; do echo out$n; echo err$n >&2; done"
        assert (await run(sandbox, command)).output == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"


@pytest.mark.parametrize(
    ("command", "code"), [("true", 0), ("exit 7", 7), ("false; true", 0), ("no-such-program", 127)]
)
async def test_the_exit_code_is_the_command_s(kind: str, command: str, code: int, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await run(sandbox, command)
        assert result.exit_code == code
        assert not result.timed_out


async def test_a_signal_is_a_negative_exit_code(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert (await run(sandbox, "kill -TERM $$; sleep 5")).exit_code == -15


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
async def test_the_input_is_empty(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert (await run(sandbox, "cat; read line; echo $?")).output == "1\n"
        job = await sandbox.start_job("cat; echo ended", cwd=sandbox.roots[0])
        for _ in range(200):
            if job.output_file.read_text():
                break
            await asyncio.sleep(0.02)
        assert job.output_file.read_text() == "ended\n"


async def test_output_is_heard_while_the_command_runs(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        go, heard = sandbox.roots[0] / "go", []

        def hear(text: str) -> None:
            heard.append(text)
            go.touch()  # the command goes on only when its first line was heard

        command = "echo first; for n in $(seq 200); do [ -e go ] && break; sleep 0.02; done; [ -e go ] && echo second"
        result = await sandbox.exec(command, cwd=sandbox.roots[0], timeout_s=20, on_output=hear, most_bytes=30_000)
        assert heard[0] == "first\n"
        assert "".join(heard) == result.output == "first\nsecond\n"


async def test_a_character_that_comes_in_two_parts_is_one(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert (await run(sandbox, r"printf '\xe2\x82'; sleep 0.05; printf '\xac'")).output == "€"


@pytest.mark.parametrize(
    ("bytes", "shown"), [(r"a\xffb", "a\ufffdb"), (r"a\xe2\x82", "a\ufffd"), (r"\xc3(", "\ufffd(")]
)
async def test_bytes_that_are_no_utf_8_are_replaced(kind: str, bytes: str, shown: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert (await run(sandbox, f"printf '{bytes}'")).output == shown


async def test_long_output_keeps_both_ends_and_says_what_is_missing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await run(sandbox, "echo begin; seq 200000; echo end", most_bytes=2_000)
        assert result.output.startswith("begin\n1\n2\n")
        assert result.output.endswith("\n200000\nend\n")
        assert len(result.output) < 2_300
        whole = len("begin\nend\n") + sum(len(str(n)) + 1 for n in range(1, 200_001))
        assert result.cut_bytes == whole - 2_000
        assert f"[{result.cut_bytes:,} characters cut; all of it is in {result.output_file}]" in result.output
        assert result.output_file is not None
        assert sandbox.validate_path(result.output_file, "read")
        assert result.output_file.stat().st_size == whole


@pytest.mark.parametrize("length", [1_999, 2_000, 2_001])
async def test_output_is_cut_above_the_limit_only(kind: str, length: int, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await run(sandbox, f"printf 'x%.0s' $(seq {length})", most_bytes=2_000)
        assert (result.output == "x" * length) == (length <= 2_000)
        assert result.cut_bytes == max(0, length - 2_000)


# The directory


async def test_the_directory_the_shell_ended_in_is_told(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        assert (await run(sandbox, "mkdir -p a/b && cd a/b")).cwd == root / "a/b"
        assert (await run(sandbox, "pwd", cwd=root / "a")).output == f"{root}/a\n"
        assert (await run(sandbox, "cd a; exit 3")).cwd == root / "a"
        assert (await run(sandbox, "(cd a); true")).cwd == root


@pytest.mark.parametrize("name", ["with space", "new\nline", "'quote'", "文件", "$HOME"])
async def test_directories_with_odd_names_are_told(kind: str, name: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        (root / "d").symlink_to(name)
        (root / name).mkdir()
        assert (await run(sandbox, "cd d")).cwd == root / name


async def test_a_directory_that_was_removed_is_told_as_none(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert (await run(sandbox, "mkdir d; cd d; rmdir ../d")).cwd is None


async def test_a_command_may_use_any_descriptor_of_its_own(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        command = 'mkdir d; for n in 3 4 5 6 7 8 9; do eval "exec $n>out"; done; echo hello >&3; cd d'
        assert (await run(sandbox, command)).cwd == root / "d"
        assert (root / "out").read_text() == "hello\n"


async def test_line_numbers_in_the_shell_s_errors_are_those_of_the_command(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        assert "line 2:" in (await run(sandbox, "true\nno-such-program")).output


# Ending


async def test_a_timeout_ends_the_whole_group_and_keeps_the_output(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        command = "echo begin; (sh -c 'sleep 60 & echo $! > pid; wait') & wait"
        started = time.monotonic()
        result = await run(sandbox, command, timeout_s=0.4)
        assert time.monotonic() - started < 2
        assert (result.timed_out, result.exit_code, result.output) == (True, None, "begin\n")
        assert await ends(await pid_in(root / "pid"))


async def test_a_command_that_ignores_the_polite_signal_is_killed(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        command = "trap '' TERM; echo $$ > pid; while true; do sleep 0.1; done"
        assert (await run(sandbox, command, timeout_s=0.1)).timed_out
        assert await ends(await pid_in(root / "pid"))


@pytest.mark.parametrize(
    "command", ["sleep 60 & echo $! > pid; echo done", "nohup sleep 60 & echo $! > pid; echo done"]
)
async def test_a_grandchild_that_holds_the_pipe_does_not_hold_the_call_and_ends_with_the_session(
    kind: str, command: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as sandbox:
        started = time.monotonic()
        result = await run(sandbox, command)
        assert time.monotonic() - started < 1.5
        assert result.output.endswith("done\n")
        pid = await pid_in(sandbox.roots[0] / "pid")
        assert is_alive(pid)
    assert await ends(pid)


@pytest.mark.parametrize("way", ["sleep 60 &", "setsid -f sleep 60", "(sleep 60 &)", "nohup sleep 60 >log 2>&1 &"])
async def test_what_a_command_leaves_running_is_a_job(kind: str, way: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await run(sandbox, f"{way}\ncd /tmp; exit 3")
        assert result.exit_code == 3
        assert result.cwd == Path("/tmp")
        (job,) = sandbox.jobs()
        assert result.job == job
        assert (job.is_running, job.exit_code, job.new_bytes) == (True, None, 0)
        await sandbox.stop_job(job.id)
        (job,) = sandbox.jobs()
        assert (job.is_running, job.exit_code) == (False, None)


async def test_what_a_command_leaves_running_may_go_on_to_write(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await run(sandbox, "(until [ -e go ]; do sleep 0.02; done; echo late) & echo now")
        assert result.output == "now\n"
        assert result.job is not None
        (sandbox.roots[0] / "go").touch()
        assert await ended(sandbox)
        assert sandbox.read_job(result.job.id, 1_000) == "late\n"
        assert result.job.output_file.read_text() == "now\nlate\n"


async def test_what_ends_with_its_command_is_no_job(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        await run(sandbox, "sleep 0.02 & true")
        assert not sandbox.jobs()


async def test_a_cancelled_call_ends_the_group(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        call = asyncio.create_task(run(sandbox, "sleep 60 & echo $! > pid; wait"))
        pid = await pid_in(sandbox.roots[0] / "pid")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await ends(pid)


async def test_commands_can_run_side_by_side(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        started = time.monotonic()
        results = await asyncio.gather(*(run(sandbox, f"sleep 0.3; echo {n}") for n in range(4)))
        assert [result.output for result in results] == ["0\n", "1\n", "2\n", "3\n"]
        assert time.monotonic() - started < 1.1


async def test_no_descriptors_are_left_open(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        await run(sandbox, "true")
        before = len(os.listdir("/dev/fd"))
        for _ in range(5):
            await run(sandbox, "sleep 9 & true" if _ == 2 else "echo x")
        await run(sandbox, "sleep 5", timeout_s=0.05)
        await run(sandbox, "seq 20000", most_bytes=100)
        with pytest.raises(ToolError):
            await run(sandbox, "a\0b")
        for job in sandbox.jobs():
            await sandbox.stop_job(job.id)
        assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("command", ["echo a\0b", "echo \ud800", "true " + "x" * 3_000_000])
async def test_a_command_the_system_does_not_take_is_a_tool_s_error(kind: str, command: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        with pytest.raises(ToolError, match="Could not start"):
            await run(sandbox, command)
        with pytest.raises(ToolError, match="Could not start"):
            await sandbox.start_job(command, cwd=sandbox.roots[0])


# Jobs


async def test_a_job_writes_its_output_to_a_file_and_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        job = await sandbox.start_job("echo hello; echo oops >&2; sleep 60", cwd=sandbox.roots[0])
        for _ in range(200):
            if job.output_file.read_text() == "hello\noops\n":
                break
            await asyncio.sleep(0.02)
        assert job.output_file.read_text() == "hello\noops\n"
        assert sandbox.validate_path(job.output_file, "read") == job.output_file.resolve()
        assert is_alive(job.pid)
        with pytest.raises(ToolError):
            sandbox.validate_path(job.output_file, "write")
    assert await ends(job.pid)


async def test_jobs_have_names_and_files_of_their_own(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        jobs = [await sandbox.start_job("true", cwd=sandbox.roots[0]) for _ in range(3)]
        assert len({job.id for job in jobs}) == len({job.output_file for job in jobs}) == 3


async def test_closing_ends_everything_soon_and_twice_is_safe(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        jobs = [await sandbox.start_job("trap '' TERM; sleep 60", cwd=sandbox.roots[0]) for _ in range(3)]
        await run(sandbox, "sleep 60 & echo $! > pid")
        left = await pid_in(sandbox.roots[0] / "pid")
        await asyncio.sleep(0.1)  # let the jobs set their traps
        started = time.monotonic()
        await sandbox.aclose()
        assert time.monotonic() - started < 3.5  # the grace is 2 s for all together
        assert not [job for job in jobs if not await ends(job.pid)]
        assert await ends(left)
        await sandbox.aclose()


async def test_a_process_left_running_is_asked_before_it_is_killed(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        root = sandbox.roots[0]
        tidy = "import signal, time, sys\ndef end(*_):\n time.sleep(0.2)\n open('tidied', 'w').close()\n sys.exit()\n"
        (root / "tidy.py").write_text(
            f"{tidy}signal.signal(signal.SIGTERM, end)\nopen('ready', 'w').close()\ntime.sleep(60)\n"
        )
        await run(
            sandbox, f"{sys.executable} tidy.py & for n in $(seq 200); do [ -e ready ] && break; sleep 0.02; done"
        )
    assert (root / "tidied").exists()


# The environment


SECRETS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "OPENAI_API_KEY",
    "TAVILY_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "HF_TOKEN",
    "NPM_TOKEN",
    "DB_PASSWORD",
    "CLIENT_SECRET",
)


async def test_commands_see_no_credentials(kind: str, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, **dict.fromkeys(SECRETS, "s3cret")}
    async with opened(kind, tmp_path, environment) as sandbox:
        assert "s3cret" not in (await run(sandbox, "env")).output
        job = await sandbox.start_job("env; echo end", cwd=sandbox.roots[0])
        for _ in range(200):
            if job.output_file.read_text().endswith("end\n"):
                break
            await asyncio.sleep(0.02)
        assert job.output_file.read_text().endswith("end\n")
        assert "s3cret" not in job.output_file.read_text()


async def test_commands_see_what_programs_need_of_the_environment(kind: str, tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": "/venv", "CARGO_HOME": "/cargo", "https_proxy": "http://proxy:3128"}
    async with opened(kind, tmp_path, environment) as sandbox:
        seen = dict(line.split("=", 1) for line in (await run(sandbox, "env")).output.splitlines())
        assert environment.items() <= seen.items()


async def test_commands_know_who_runs_them_and_wait_for_no_pager_or_editor(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        output = (await run(sandbox, "echo $AGENTCLI $AGENTCLI_SESSION_ID $GIT_EDITOR $GIT_PAGER $PAGER $TERM")).output
        assert output == "1 s-1 true cat cat dumb\n"


# Jobs.


async def detached(sandbox: Sandbox, command: str, *, after: str, most_bytes: int = 30_000) -> CommandResult:
    """Run a command that is sent to the background once it has said `after`."""
    detach = asyncio.Event()
    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        if after in "".join(heard):
            detach.set()

    return await sandbox.exec(
        command, cwd=sandbox.roots[0], timeout_s=20, on_output=hear, most_bytes=most_bytes, detach=detach
    )


async def ended(sandbox: Sandbox) -> bool:
    for _ in range(300):
        if not any(job.is_running for job in sandbox.jobs()):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_detached_command_goes_on_and_all_its_output_is_in_the_file(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await detached(sandbox, "printf 'one \\303'; sleep 0.2; printf '\\251 two'; pwd", after="one")
        assert (result.output.strip(), result.exit_code, result.timed_out) == ("one", None, False)
        assert result.job is not None
        assert result.job.is_running
        assert await ended(sandbox)
        assert result.job.output_file.read_text() == f"one é two{sandbox.roots[0]}\n"


async def test_a_detached_command_outlives_its_time_limit_and_ends_with_the_session(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        result = await detached(sandbox, "echo $$ > pid; echo on; sleep 30 & wait", after="on")
        assert result.job is not None
        pid = await pid_in(sandbox.roots[0] / "pid")
        assert is_alive(pid)
    assert await ends(pid)


async def test_a_detached_command_ends_with_its_own_exit_code(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        await detached(sandbox, "echo on; sleep 0.1; exit 3", after="on")
        assert await ended(sandbox)
        assert sandbox.jobs()[0].exit_code == 3


async def test_a_command_that_ended_first_is_no_job(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        detach = asyncio.Event()
        result = await sandbox.exec(
            "echo done", cwd=sandbox.roots[0], timeout_s=20, on_output=lambda t: None, most_bytes=100, detach=detach
        )
        detach.set()
        assert (result.output, result.exit_code, result.job) == ("done\n", 0, None)
        assert list(sandbox.jobs()) == []


async def test_a_long_output_is_cut_in_the_result_and_goes_on_in_the_file(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        command = "seq 20000; echo on; sleep 0.2; echo the end"
        result = await detached(sandbox, command, after="\non\n", most_bytes=1_000)
        assert result.cut_bytes > 0
        assert result.job is not None
        assert await ended(sandbox)
        whole = "".join(f"{n}\n" for n in range(1, 20_001)) + "on\n"
        assert result.output_file == result.job.output_file
        assert str(result.output_file) in result.output
        assert result.output.endswith("\n20000\non\n")
        assert result.job.output_file.read_text() == whole + "the end\n"
        assert sandbox.read_job(result.job.id, 1_000) == "the end\n"


async def test_jobs_are_listed_with_what_they_run_and_stopped_one_by_one(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        first = await sandbox.start_job("sleep 30 & sleep 30", cwd=sandbox.roots[0])
        second = await sandbox.start_job("true", cwd=sandbox.roots[0])
        for _ in range(200):
            if not sandbox.jobs()[1].is_running:
                break
            await asyncio.sleep(0.02)
        assert [(job.id, job.command, job.is_running) for job in sandbox.jobs()] == [
            (first.id, "sleep 30 & sleep 30", True),
            (second.id, "true", False),
        ]
        await sandbox.stop_job(first.id)
        await sandbox.stop_job(second.id)
        assert not any(job.is_running for job in sandbox.jobs())
        with pytest.raises(ToolError) as caught:
            await sandbox.stop_job("job_9")
        assert caught.value.kind == "not_found"


async def test_a_folder_that_is_added_may_be_read_and_written(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as sandbox:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(ToolError):
            sandbox.validate_path(other / "a", "write")
        sandbox.add_root(other)
        assert sandbox.validate_path(other / "a", "write") == (other / "a").resolve()
        assert sandbox.validate_path(other, "read") == other.resolve()
        assert sandbox.roots[-1] == other.resolve()
