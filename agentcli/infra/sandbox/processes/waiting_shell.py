"""Keeps a shell ready in its sandbox, so that the next command that only reads need not wait until that is set up.

A waiting shell runs one command and ends. It is used only if the sandbox of the command would be the same: nothing else
is shown or hidden, and what lies under each mount is the same file or folder as when the shell was started. Linux takes
a mount away when somebody replaces what is under it, and new mounts of the machine appear in sandboxes that exist.
Commands that only read lock nothing and leave nothing on the disk, and so does a shell that waits for one.
"""

import asyncio
import os
import select
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, NamedTuple

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.processes.keeper import GRACE_S
from agentcli.infra.sandbox.processes.keeper_client import Process
from agentcli.infra.sandbox.secret_files import TICK_NS
from agentcli.tools.command import Command

_MAX_WAIT_S = 60.0  # a shell without a command ends then
_MAX_CHARS = 4_096  # of a command: a waiting shell reads it byte by byte, so a longer one is not faster

ShellProcess = tuple[Process, tuple[int, int]]  # with the descriptors to read its output and its report from
# Starts a shell in the sandbox of a launch, which reads its command from a descriptor. Raises `OSError`, `ValueError`.
OpenShell = Callable[[Launch, Command, int], Awaitable[ShellProcess]]


def can_wait(text: str) -> bool:
    """Return True for a command that a waiting shell can read."""
    return len(text) <= _MAX_CHARS and "\0" not in text


class _Shell(NamedTuple):
    process: Process
    ends: tuple[int, int]
    command: BinaryIO  # takes the text of the command; the shell ends when it is closed
    fits: Callable[[Launch, Command], bool]
    timer: asyncio.TimerHandle  # ends the shell


class WaitingShell:
    """Keeps at most one shell that waits for a command. `open_shell` starts it."""

    def __init__(self, open_shell: OpenShell) -> None:
        self._open_shell = open_shell
        self._shell: _Shell | None = None
        self._starting: asyncio.Task[None] | None = None

    async def take(self, launch: Launch, command: Command) -> ShellProcess | None:
        """Run a command in the shell; return None if it waits in another sandbox than that of `launch`, and end it."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        shell = self._shell
        with suppress(OSError):
            if shell is not None and not shell.process.is_over() and shell.fits(launch, command):
                shell.command.write(os.fsencode(command.text) + b"\0")
                shell.process.launch, shell.process.started_at = launch, time.monotonic()
                self._shell = None
                shell.timer.cancel()
                shell.command.close()
                return shell.process, shell.ends
        self._end()
        return None

    def prepare(self, launch: Launch, command: Command, confinement: ExitStack) -> None:
        """Start a shell for the next command in the sandbox of `launch`, whose context is `confinement`."""
        self._starting = asyncio.create_task(self._start(launch, command, confinement))

    async def _start(self, launch: Launch, command: Command, confinement: ExitStack) -> None:
        with confinement, suppress(OSError, ValueError):  # without it, the next command starts its own
            fits = _fits(launch, command, confinement)
            read, write = os.pipe()
            text = os.fdopen(write, "wb", 0)
            try:
                process, ends = await self._open_shell(launch, command, read)
            except BaseException:
                text.close()
                raise
            finally:
                os.close(read)
            process.confinement = confinement.pop_all()
            self._end()  # of two commands at once, each starts one
            timer = asyncio.get_running_loop().call_later(_MAX_WAIT_S, self._end)
            self._shell = _Shell(process, ends, text, fits, timer)

    def _end(self) -> Process | None:
        shell, self._shell = self._shell, None
        if shell is None:
            return None
        shell.timer.cancel()
        shell.command.close()
        for descriptor in shell.ends:
            os.close(descriptor)
        return shell.process

    async def aclose(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                if (process := self._end()) is not None:
                    await process.wait_until_gone()


def _fits(launch: Launch, command: Command, opened: ExitStack) -> Callable[[Launch, Command], bool]:
    """Return a test for launches whose sandbox is that of `launch`.

    What is under its mounts stays open with `opened`, so that nothing else gets its inode number. Raises `OSError`.
    """
    looked_ns = time.time_ns()
    mount_changes = select.poll()
    mount_table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    opened.callback(os.close, mount_table)
    mount_changes.register(mount_table, select.POLLPRI)
    for mount in launch.mounts:
        opened.callback(os.close, os.open(mount.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    sandbox, newest_ns = _sandbox_of(launch, command)

    def fits(launch: Launch, command: Command) -> bool:
        is_settled = newest_ns < looked_ns - TICK_NS and not mount_changes.poll(0)
        return is_settled and bool(_sandbox_of(launch, command)[0] == sandbox)

    return fits


def _sandbox_of(launch: Launch, command: Command) -> tuple[Any, int]:
    """Return all that a sandbox depends on, and the time when a file under one of its mounts changed last."""
    options = [word for word in launch.argv if not word.isdecimal()]  # without the numbers of descriptors
    mounts, newest_ns = [], 0
    for path, source, _, is_writable, mode in launch.mounts:
        status = os.lstat(path)
        changed_ns = 0  # of a folder: once removed it cannot come back, as a file can that has another name
        if not stat.S_ISDIR(status.st_mode):
            changed_ns = status.st_ctime_ns
            newest_ns = max(newest_ns, changed_ns)
        mounts.append((path, source, is_writable, mode, status.st_dev, status.st_ino, changed_ns))
    return (command.cwd, options, {**launch.environment}, mounts), newest_ns
