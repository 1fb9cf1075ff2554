"""A shell that waits in its sandbox for the next command that only reads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.infra.sandbox.processes.process_tree import processes_below
from agentcli.infra.sandbox.session_confinement import CommandLimits
from agentcli.tools.command import Command, CommandResult, Grants
from tests.conformance.confining import confinement_for, folder_on_disk
from tests.processes import needs_bubblewrap
from tests.unit.tools.bench import is_alive, until

pytestmark = needs_bubblewrap

CHECKOUT = Path(__file__).parents[3]
SECRET = "kT9sQ2vXb7LmZr4WcYpH8nDf"
HAS_WAITED = "grep -q 'read[ ]-rd' /proc/$$/cmdline && echo waited; "  # of its own shell
Run = Callable[..., Awaitable[CommandResult]]


@pytest.fixture
def root() -> Iterator[Path]:
    with folder_on_disk() as folder:
        (folder / "ws").mkdir()
        yield folder / "ws"


def sandbox_in(root: Path) -> LocalSandbox:
    return LocalSandbox(
        [root],
        environment={"PATH": "/usr/bin:/bin", "HOME": str(root.parent)},
        job_folder=root.parent / "jobs",
        limits=CommandLimits(profile="workspace-write", home=root.parent),
        choose=lambda: confinement_for("bubblewrap, root" if os.getuid() == 0 else "bubblewrap, user")[0],
    )


def session(root: Path, work: Callable[[Run], Awaitable[None]]) -> None:
    """Do `work` in a session; it is given what runs a command that only reads."""

    async def run() -> None:
        sandbox = sandbox_in(root)

        async def read(text: str, cwd: Path = root, **terms: Grants) -> CommandResult:
            return await sandbox.run(Command(text, cwd, timeout_s=20, profile="read-only", **terms))

        try:
            await read("true")  # a shell waits from the second command on
            await work(read)
        finally:
            await sandbox.aclose()

    asyncio.run(run())
    assert spare_shells(os.getpid()) == []


def spare_shells(pid: int) -> list[int]:
    found = []
    for process in processes_below(pid):
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith((b"/usr/bin/bash", b"/bin/bash")) and b"read -rd" in words:
            found.append(process.pid)
    return found


def test_each_command_has_a_shell_of_its_own_and_begins_as_any_other(root: Path) -> None:
    async def work(read: Run) -> None:
        text = 'echo "[$x] $# $- $(ls /tmp) $PWD"; x=1; echo 1 >/tmp/file; cd /; ls /proc/self/fd | wc -l'
        first = await read(text)
        second = await read(f"{text}; {HAS_WAITED}exit 7")
        assert (first.exit_code, second.exit_code, second.cwd) == (0, 7, Path("/"))
        assert second.output == f"{first.output}waited\n"
        odd = "printf '%s' '\x01\x7f\udcff \\n' | od -An -tx1\n\n"
        assert (await read(odd)).output == " 01 7f ff 20 5c 6e\n"
        assert "line 3: syntax error" in (await read("echo 1\nif")).output

    session(root, work)


def test_commands_at_once_do_not_get_in_each_others_way_over_the_shell_that_waits(root: Path) -> None:
    async def work(read: Run) -> None:
        for _ in range(3):
            results = await asyncio.gather(*(read(f"echo {number}") for number in range(3)))
            assert [result.output for result in results] == ["0\n", "1\n", "2\n"]

    session(root, work)


def test_commands_in_one_event_loop_after_another_run_with_a_shell_that_waits(root: Path) -> None:
    sandbox = sandbox_in(root)
    command = Command("echo ran", root, timeout_s=20, profile="read-only")
    assert [asyncio.run(sandbox.run(command)).output for _ in range(4)] == ["ran\n"] * 4
    asyncio.run(sandbox.aclose())
    assert spare_shells(os.getpid()) == []


def replaced(file: Path) -> None:
    (new := file.with_name("new")).write_text(SECRET)
    new.replace(file)


def made_anew(file: Path) -> None:
    before = file.stat()
    file.unlink()
    file.write_text(SECRET)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [lambda file: (file.parent / ".env.local").write_text(SECRET), replaced, made_anew])
def test_a_secret_file_that_appears_while_a_shell_waits_is_hidden(root: Path, change: Callable[[Path], None]) -> None:
    (root / ".env").write_text("x" * len(SECRET))

    async def work(read: Run) -> None:
        await read("true")
        change(root / ".env")
        result = await read(f"{HAS_WAITED}cat .env .env.local")
        assert SECRET not in result.output
        assert "waited" not in result.output

    session(root, work)


def test_a_shell_waits_only_for_a_command_of_the_same_folder_and_grants(root: Path) -> None:
    (root / "sub").mkdir()
    (root / ".env").write_text(SECRET)

    async def work(read: Run) -> None:
        await read("true")
        assert (await read(f"{HAS_WAITED}pwd", root / "sub")).output == f"{root}/sub\n"
        granted = Grants(readable=(root / ".env",))
        assert (await read(f"{HAS_WAITED}cat .env", root / "sub", grants=granted)).exit_code == 1
        assert (await read(f"{HAS_WAITED}cat ../.env", root / "sub", grants=granted)).output == f"waited\n{SECRET}"
        assert (await read(f"{HAS_WAITED}cat ../.env", root / "sub")).exit_code == 1

    session(root, work)


def test_a_folder_of_secrets_that_is_made_anew_while_a_shell_waits_is_hidden(root: Path) -> None:
    folder = root.parent / ".ssh"
    folder.mkdir()

    async def work(read: Run) -> None:
        await read("true")
        folder.rmdir()
        folder.mkdir()
        (folder / "id_ed25519").write_text(SECRET)
        result = await read(f"{HAS_WAITED}cat {folder}/id_ed25519")
        assert result.exit_code == 1
        assert "waited" not in result.output

    session(root, work)


_PROGRAM = """
import asyncio, pathlib, sys
from agentcli.tools.command import Command
from tests.unit.sandbox.test_spare_shell import sandbox_in
async def main():
    root = pathlib.Path(sys.argv[1])
    sandbox = sandbox_in(root)
    for _ in range(2):
        await sandbox.run(Command("true", root, profile="read-only"))
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_no_shell_waits_once_agentcli_was_killed(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM, str(root)], cwd=CHECKOUT) as program:
        assert await until(lambda: bool(spare_shells(program.pid)), seconds=20)
        family = [process.pid for process in processes_below(program.pid)]
        program.kill()
        assert await until(lambda: not any(map(is_alive, family)), seconds=20)
