"""Keeps a shell ready in a sandbox, so that the next read-only command need not wait for the sandbox's setup.

A spare shell runs one command and ends. It is used only if the sandbox of the command would be the same: the mounts
are the same, and so is the file or folder under each of them. This is checked because Linux removes a mount when the
file under it is replaced, and new mounts of the machine appear in existing sandboxes. Like a read-only command, a
spare shell locks nothing and leaves nothing on the disk.
"""

import asyncio
import os
import select
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from agentcli.infra.changes.writing import TICK_NS
from agentcli.infra.sandbox.confinement import Launch, private_folders
from agentcli.infra.sandbox.processes.keeper_client import ShellProcess
from agentcli.tools.command import Command

_MAX_WAIT_S = 60.0  # for a command; then the shell ends
MAX_CHARS = 4_096  # of a command: a spare shell reads byte by byte, so longer ones would gain nothing

SandboxCheck = Callable[[Launch, Command], bool]  # True if a command's sandbox would be that of the spare shell


async def start_spare(
    launch: Launch, command: Command, confinement: ExitStack, start_shell: Callable[..., Awaitable[ShellProcess]]
) -> "SpareShell | None":
    """Start a shell with `start_shell` in the sandbox of `launch`, whose context is `confinement`.

    Return None if this fails: the next command then starts its own shell.
    """
    with confinement, suppress(OSError, ValueError):
        has_same_sandbox = _make_sandbox_check(launch, command, confinement)
        read, write = os.pipe()
        with os.fdopen(read), ExitStack() as opened:
            command_pipe = opened.enter_context(os.fdopen(write, "wb", 0))
            shell = await start_shell(launch, command, reads_from=read)
            opened.pop_all()  # the spare shell keeps its pipe open
        shell.process.confinement = confinement.pop_all()
        return SpareShell(shell, command_pipe, has_same_sandbox)
    return None


class SpareShell:
    """A shell that reads its command from `command_pipe`, and ends if none comes."""

    def __init__(self, shell: ShellProcess, command_pipe: BinaryIO, has_same_sandbox: SandboxCheck) -> None:
        self._shell = shell
        self._command_pipe = command_pipe
        self._has_same_sandbox = has_same_sandbox
        self._timer = asyncio.get_running_loop().call_later(_MAX_WAIT_S, self.end)

    def run(self, launch: Launch, command: Command) -> ShellProcess | None:
        """Run a command; if its sandbox would differ, or the shell has ended, end the shell and return None."""
        process = self._shell.process
        with suppress(OSError):
            if not (self._command_pipe.closed or process.is_gone()) and self._has_same_sandbox(launch, command):
                self._command_pipe.write(os.fsencode(command.text) + b"\0")
                self._command_pipe.close()
                self._timer.cancel()
                process.launch, process.started_at = launch, time.monotonic()
                return self._shell
        self.end()
        return None

    def end(self) -> None:
        self._timer.cancel()
        if not self._command_pipe.closed:
            self._command_pipe.close()
            os.close(self._shell.output)
            os.close(self._shell.report)


def _make_sandbox_check(launch: Launch, command: Command, confinement: ExitStack) -> SandboxCheck:
    """Return a test that a later command's sandbox equals this one, until `confinement` ends. Raises `OSError`."""
    started_ns = time.time_ns()
    mount_table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    confinement.callback(os.close, mount_table)
    mount_changes = select.poll()
    mount_changes.register(mount_table, select.POLLPRI)  # reports every later change of the machine's mounts
    sandbox = _describe_sandbox(launch, command)
    *_, mounts = sandbox
    # A file that has just changed may change again within the same clock tick, unnoticed.
    can_compare = all(changed_ns < started_ns - TICK_NS for *_, changed_ns in mounts)
    return lambda *later: can_compare and not mount_changes.poll(0) and _describe_sandbox(*later) == sandbox


def _describe_sandbox(launch: Launch, command: Command) -> tuple[Any, ...]:
    """Return all that makes two sandboxes differ, the mounts last. Raises `OSError`."""
    options = [word for word in launch.argv if not word.isdecimal()]  # without descriptors, whose numbers differ
    mounts = []
    for path, source, descriptor, is_writable, mode in launch.mounts:
        found = os.lstat(path) if descriptor is None else os.fstat(descriptor)
        # A folder's contents may change: its inode number is enough, because no other folder gets that number while
        # the folder is held open (and nobody removes /tmp). A file can be removed and return under another hard link.
        may_change = stat.S_ISDIR(found.st_mode) and (descriptor is not None or path in private_folders())
        changed_ns = 0 if may_change else found.st_ctime_ns
        mounts.append((path, source, is_writable, mode, found.st_dev, found.st_ino, changed_ns))
    return command.cwd, options, {**launch.environment}, mounts
