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
from pathlib import Path
from typing import Any, NamedTuple

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.processes.keeper import GRACE_S
from agentcli.infra.sandbox.processes.keeper_client import Process
from agentcli.infra.sandbox.secret_files import TICK_NS
from agentcli.tools.command import Command

_MAX_WAIT_S = 60.0  # a shell without a command ends then
_MAX_CHARS = 4_096  # of a command: a waiting shell reads it byte by byte, which takes longer than a sandbox does

ShellProcess = tuple[Process, tuple[int, int]]  # with the descriptors to read its output and its report from
# Starts a shell in the sandbox of a launch, which reads its command from a descriptor. Raises `OSError`, `ValueError`.
OpenShell = Callable[[Launch, Command, int], Awaitable[ShellProcess]]


class Plan:
    """What a sandbox shows and hides. What is under its mounts stays open, so that nothing else gets its inode."""

    def __init__(self, launch: Launch, command: Command) -> None:
        self._looked_ns = time.time_ns()
        self._mount_changes = select.poll()
        with ExitStack() as opened:
            mount_table = opened.enter_context(Path("/proc/self/mountinfo").open("rb"))
            self._mount_changes.register(mount_table, select.POLLPRI)
            for mount in launch.mounts:
                opened.callback(os.close, os.open(mount.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
            self._sandbox, self._newest_ns = _sandbox_of(launch, command)
            self._opened = opened.pop_all()

    def fits(self, launch: Launch, command: Command) -> bool:
        """Return True if the sandbox of `launch` would be the same now as the one that was started by this plan."""
        if self._mount_changes.poll(0) or self._newest_ns > self._looked_ns - TICK_NS:
            return False
        with suppress(OSError):
            sandbox, _ = _sandbox_of(launch, command)
            return bool(sandbox == self._sandbox)
        return False

    def close(self) -> None:
        self._opened.close()


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


class _Shell(NamedTuple):
    """A shell that waits in the sandbox of a plan; its command is written to the descriptor `command`."""

    process: Process
    ends: tuple[int, int]
    command: int
    plan: Plan
    timer: asyncio.TimerHandle  # ends the shell

    def run(self, text: str) -> bool:
        """Let the shell run a command; return False if it has ended."""
        try:
            return not self.process.is_over() and os.write(self.command, os.fsencode(text) + b"\0") > 0
        except OSError:
            return False

    def close(self) -> None:
        """Let the shell end, as it does at the end of what it reads."""
        self.timer.cancel()
        self.plan.close()
        for descriptor in (self.command, *self.ends):
            os.close(descriptor)


def can_wait(text: str) -> bool:
    """Return True for a command that a waiting shell can read."""
    return len(text) <= _MAX_CHARS and "\0" not in text


class WaitingShell:
    """Keeps at most one shell that waits for a command. `open_shell` starts it."""

    def __init__(self, open_shell: OpenShell) -> None:
        self._open_shell = open_shell
        self._shell: _Shell | None = None
        self._plan: Plan | None = None  # of the shell that a command has taken, for the next one
        self._starting: asyncio.Task[None] | None = None

    async def take(self, launch: Launch, command: Command) -> ShellProcess | None:
        """Run a command in the shell; return None if it waits in another sandbox than that of `launch`, and end it."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._shell is None:
            return None
        shell = self._shell
        if not (shell.plan.fits(launch, command) and shell.run(command.text)):
            self._end()
            return None
        self._shell, self._plan = None, shell.plan
        shell.timer.cancel()
        os.close(shell.command)
        shell.process.launch, shell.process.started_at = launch, time.monotonic()
        return shell.process, shell.ends

    def prepare(self, launch: Launch, command: Command, confinement: ExitStack) -> None:
        """Start a shell for the next command in the sandbox of `launch`, whose context is `confinement`."""
        plan, self._plan = self._plan, None
        self._starting = asyncio.create_task(self._start(launch, command, plan, confinement))

    async def _start(self, launch: Launch, command: Command, plan: Plan | None, confinement: ExitStack) -> None:
        with confinement, suppress(OSError, ValueError):  # without it, the next command starts its own
            plan = plan or Plan(launch, command)
            read, write = os.pipe()
            try:
                process, ends = await self._open_shell(launch, command, read)
            except BaseException:
                os.close(write)
                plan.close()
                raise
            finally:
                os.close(read)
            process.confinement = confinement.pop_all()
            self._end()  # of two commands at once, each starts one
            timer = asyncio.get_running_loop().call_later(_MAX_WAIT_S, self._end)
            self._shell = _Shell(process, ends, write, plan, timer)

    def _end(self) -> None:
        if self._shell is not None:
            self._shell.close()
        self._shell = None

    async def aclose(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if (shell := self._shell) is not None:
            self._end()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await shell.process.wait_until_gone()
