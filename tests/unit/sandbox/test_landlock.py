"""Commands bounded by Landlock: they work in the workspace, and are never started unbounded."""

from __future__ import annotations

import asyncio
import marshal
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentcli.infra.sandbox.backends import launcher
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch
from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.tools.command import Command
from tests.conformance.confining import alive, confinement_for, folder_on_disk, git, run, wait_until


@pytest.fixture
def landlock() -> Confinement:
    return confinement_for("landlock, root" if os.getuid() == 0 else "landlock, user")[0]


@pytest.fixture
def ws() -> Iterator[Path]:
    with folder_on_disk() as base:
        (base / "ws").mkdir()
        git(base / "ws", "init", "-q")
        yield base / "ws"


def bounds_of(ws: Path, **more: object) -> Bounds:
    return Bounds(**({"profile": "workspace-write", "roots": (ws,), "home": ws.parent} | more))


def test_ordinary_work_is_done(landlock: Confinement, ws: Path) -> None:
    script = """
        set -e
        mkdir -p a/b; echo x >a/x; mv a/x a/b/x; ln -s b a/link; cat a/link/x
        git add .; git commit -qm first; git log --format=%s
        echo tmp >"$TMPDIR/x"; cat "$TMPDIR/x"; echo >/dev/null; ls / >/dev/null; yes | head -1
    """
    done = run(landlock, bounds_of(ws), script)
    assert (done.returncode, done.stdout) == (0, "x\nfirst\ntmp\ny\n"), done.stderr


def test_a_commands_temporary_files_go_with_it(landlock: Confinement, ws: Path) -> None:
    done = run(landlock, bounds_of(ws), 'touch "$TMPDIR/x"; echo "$TMPDIR"')
    assert not Path(done.stdout.strip()).exists()


def test_only_reading_when_that_is_the_profile(landlock: Confinement, ws: Path) -> None:
    (ws / ".env").write_text("SECRET")
    (ws / "a").write_text("a\n")
    bounds = bounds_of(ws, profile="read-only", writable=(ws,), masked=(ws / ".env",))
    done = run(landlock, bounds, "cat a .env; touch x")
    assert done.stdout == "a\n"
    assert not (ws / "x").exists()


def test_a_link_to_a_secret_is_not_a_way_to_it(landlock: Confinement, ws: Path) -> None:
    (ws.parent / "secret").write_text("SECRET")
    (ws.parent / "link").symlink_to("secret")
    done = run(landlock, bounds_of(ws, masked=(ws.parent / "link",)), "cat ../secret ../link")
    assert done.stdout == ""


def test_a_command_that_cannot_be_bounded_is_not_started(landlock: Confinement, ws: Path) -> None:
    with landlock.launch(["touch", str(ws / "x")], cwd=ws, bounds=bounds_of(ws)) as launch:
        broken = [*launch.argv]
        broken[broken.index("touch") - 1] = "999"  # the descriptor of the plan
        done = subprocess.run(broken, pass_fds=launch.pass_fds, capture_output=True, text=True, check=False)
    assert done.returncode == 126
    assert "could not be confined" in done.stderr
    assert not (ws / "x").exists()


def test_a_command_can_be_started_by_another_process_and_dies_with_it(landlock: Confinement, ws: Path) -> None:
    seconds = f"700.{os.getpid()}"
    with landlock.launch(["sleep", seconds], cwd=ws, bounds=bounds_of(ws)) as launch:
        starter = ["sh", "-c", '"$@"; exit 1', "sh", *launch.argv]
        process = subprocess.Popen(starter, pass_fds=launch.pass_fds)
        wait_until(lambda: alive(seconds))
        process.kill()
        process.wait()
        wait_until(lambda: not alive(seconds))


def test_a_grant_that_leads_elsewhere_now_makes_nothing_writable(landlock: Confinement, ws: Path) -> None:
    (ws.parent / "outside").mkdir()
    (ws / "granted").symlink_to("../outside")
    run(landlock, bounds_of(ws, writable=(ws / "granted",)), "touch granted/x")
    assert not (ws.parent / "outside/x").exists()


def test_the_exit_code_is_the_commands(landlock: Confinement, ws: Path) -> None:
    assert run(landlock, bounds_of(ws), "exit 7").returncode == 7
    assert run(landlock, bounds_of(ws), "kill -PIPE $$").returncode == -13
    assert run(landlock, bounds_of(ws), ["/nowhere/program"]).returncode == 127


def test_descriptors_that_are_passed_arrive(landlock: Confinement, ws: Path) -> None:
    read, write = os.pipe()
    try:
        argv = ["bash", "-c", f"pwd -P >/dev/fd/{write}"]
        with landlock.launch(argv, cwd=ws, bounds=bounds_of(ws)) as launch:
            subprocess.run(launch.argv, pass_fds=(write, *launch.pass_fds), check=True, cwd=ws)
        assert os.read(read, 1000).decode() == f"{ws}\n"
    finally:
        os.close(read)
        os.close(write)


def said_in_shell(
    landlock: Confinement, bounds: Bounds, command: str, *, has_launcher: bool = False, plan: bytes | None = None
) -> tuple[int | None, str]:
    """As commands of a session run: bounded by the keeper, or with a launcher of their own."""

    @contextmanager
    def launch(argv: Sequence[str], command: Command) -> Iterator[Launch]:
        with landlock.launch(argv, cwd=command.cwd, bounds=bounds) as made:
            if plan is not None:
                os.ftruncate(made.pass_fds[-1], 0)
                os.pwrite(made.pass_fds[-1], plan, 0)
            yield made._replace(launcher_words=None) if has_launcher else made

    async def execute() -> tuple[int | None, str]:
        shell = Shell({"PATH": "/usr/bin:/bin", "NAME": "value"}, bounds.home / "jobs", launch=launch)
        try:
            result = await shell.exec(Command(command, bounds.roots[0], timeout_s=20))
            return result.exit_code, result.output
        finally:
            await shell.aclose()

    return asyncio.run(execute())


STATE = """
    env | sed 's/agentcli-[a-z0-9_]*/scratch/' | sort; umask; ulimit -a; pwd; ps -o sid=,pgid=,tty= -p $$ | tr -d 0-9
    grep -E '^(SigBlk|SigCgt|Cap|NoNewPrivs|Seccomp|Groups|Uid)' /proc/self/status
    for fd in /proc/$$/fd/*; do readlink $fd; done >fds; tr -d 0-9 <fds | sort; rm fds
    cat /proc/$$/cmdline | tr -d 0-9 | wc -c
"""


def test_a_command_begins_the_same_whoever_bounds_it(landlock: Confinement, ws: Path) -> None:
    both = [said_in_shell(landlock, bounds_of(ws), STATE, has_launcher=has_launcher) for has_launcher in (False, True)]
    assert both[0] == both[1]
    assert both[0][0] == 0
    assert "NoNewPrivs:\t1" in both[0][1]
    assert "NAME=value" in both[0][1]
    code, said = said_in_shell(landlock, bounds_of(ws), "grep SigIgn /proc/self/status")
    reserved = 0b11 << 31  # the C library's own signals, 32 and 33, which no program can set
    assert (code, int(said.split()[1], 16) & ~reserved) == (0, 0)


@pytest.mark.parametrize("has_launcher", [False, True])
def test_what_a_session_runs_is_bounded(landlock: Confinement, ws: Path, *, has_launcher: bool) -> None:
    (ws.parent / "secret").write_text("SECRET")
    bounds = bounds_of(ws, masked=(ws.parent / "secret",))
    script = """
        cat ../secret; touch ../x; echo x >../y; mkdir ../z; echo in >x; cat x
        python3 -c 'import socket; socket.create_connection(("127.0.0.1", 9))' 2>&1 | tail -1
    """
    _, said = said_in_shell(landlock, bounds, script, has_launcher=has_launcher)
    assert "SECRET" not in said
    assert said.count(": Permission denied\n") == 4
    assert "\nin\nPermissionError: " in said
    assert {path.name for path in ws.parent.iterdir()} == {"ws", "secret"}


def test_each_command_that_is_bounded_imports_little() -> None:
    """`pathlib` would take 3 ms of every dry run: a process of its own imports the launcher each time."""
    names = "import sys; sys.path.append(sys.argv[1]); import launcher; print('pathlib' in sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", names, str(Path(launcher.__file__).parent)]
    assert subprocess.check_output(command, text=True) == "False\n"


FILTERS = (b"", b"\0", b"\xff" * 8)  # none of them is one


@pytest.mark.parametrize("has_launcher", [False, True])
@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"restrict",
        marshal.dumps(("restrict",)),
        *(marshal.dumps(("restrict", code, ([], [], []))) for code in FILTERS),
    ],
)
def test_a_command_of_a_session_that_cannot_be_bounded_is_not_started(
    landlock: Confinement, ws: Path, plan: bytes, *, has_launcher: bool
) -> None:
    code, said = said_in_shell(landlock, bounds_of(ws), "touch x", has_launcher=has_launcher, plan=plan)
    assert code == 126
    assert "the command was not started" in said
    assert not (ws / "x").exists()
