"""Shell commands on this machine: their output while it comes, their end, and what goes on in the background."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from agentcli.errors import ToolError
from agentcli.infra.sandbox.jobs import Jobs, available
from agentcli.infra.sandbox.processes import end_group, group_is_alive, wait_for_exit
from agentcli.tools.sandbox import BackgroundJob, CommandResult

GRACE_AFTER_EXIT_S = 0.1  # a grandchild may hold the pipe open: what has come by then is the output

# The shell tells where it ended through a pipe named by path: a command may use every short descriptor itself. The
# command stands on the same line, so that line numbers in its errors are right.
_REPORT_CWD = "trap 'pwd -P >/dev/fd/{fd} 2>/dev/null' EXIT; "


class Shell:
    """Runs commands for `LocalSandbox`. `environment` is what they see, credentials taken out already."""

    def __init__(self, environment: Mapping[str, str], job_folder: Path) -> None:
        self._environment = environment
        self._shell = shutil.which("bash") or "/bin/sh"
        self._jobs = Jobs(job_folder)
        self._left_running: list[subprocess.Popen[bytes]] = []

    async def exec(
        self,
        command: str,
        *,
        cwd: Path,
        timeout_s: float,
        on_output: Callable[[str], None] = lambda text: None,
        most_bytes: int = 30_000,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        cwd_read, cwd_write = _pipe_above(9)
        try:
            script = _REPORT_CWD.format(fd=cwd_write) + command
            process = self._spawn([self._shell, "-c", script], cwd, subprocess.PIPE, pass_fds=(cwd_write,))
        except (OSError, ValueError) as error:
            os.close(cwd_read)
            raise _not_started("the shell", error) from error
        finally:
            os.close(cwd_write)
        try:
            output = CommandOutput(most_bytes, on_output)
            end = await self._follow(process, output, timeout_s, detach)
            if end == "detached":
                text, rest, cut = output.so_far()
                job = self._jobs.adopt(process, command, text.encode() + rest)
                return CommandResult(text, None, cut_bytes=cut, job=job)
            text, cut = output.close()
            code = None if end == "timed out" else process.returncode
            return CommandResult(text, code, end == "timed out", _read_cwd(cwd_read), cut)
        finally:
            os.close(cwd_read)

    async def _follow(
        self, process: subprocess.Popen[bytes], output: CommandOutput, timeout_s: float, detach: asyncio.Event | None
    ) -> Literal["ended", "timed out", "detached"]:
        """Read until the command has ended. Ends the group when its time has run out, or when cancelled."""
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        os.set_blocking(pipe, False)
        loop = asyncio.get_running_loop()
        at_end = asyncio.Event()
        is_detached = False

        def read() -> None:
            data = available(pipe)
            if data:
                output.add(data)
            elif data is not None:
                loop.remove_reader(pipe)
                at_end.set()

        loop.add_reader(pipe, read)
        try:
            async with asyncio.timeout(timeout_s):
                is_detached = await _is_detached(process, detach)
            if is_detached:
                return "detached"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_AFTER_EXIT_S):
                    await at_end.wait()
            if group_is_alive(process.pid):
                self._left_running.append(process)
            return "ended"
        except TimeoutError:
            await end_group(process)
            return "timed out"
        except asyncio.CancelledError:
            await asyncio.shield(end_group(process))
            raise
        finally:
            loop.remove_reader(pipe)
            if not is_detached:
                process.stdout.close()

    def _spawn(
        self,
        argv: Sequence[str],
        cwd: Path,
        stdout: int,
        *,
        stderr: int = subprocess.STDOUT,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )

    async def start_job(self, command: str, *, cwd: Path, timeout_s: float | None = None) -> BackgroundJob:
        try:
            return self._jobs.start(command, lambda file: self._spawn([self._shell, "-c", command], cwd, file))
        except (OSError, ValueError) as error:
            raise _not_started("the job", error) from error

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._jobs.list()

    def read_job(self, id: str, most_bytes: int) -> str:
        return self._jobs.read(id, most_bytes)

    async def stop_job(self, id: str) -> None:
        await self._jobs.stop(id)

    async def aclose(self) -> None:
        running, self._left_running = self._left_running, []
        await asyncio.gather(self._jobs.aclose(), *(end_group(process) for process in running))


async def _is_detached(process: subprocess.Popen[bytes], detach: asyncio.Event | None) -> bool:
    """Wait until a command has ended or is to go on by itself; whether it is the latter."""
    if detach is None:
        await wait_for_exit(process)
        return False
    exited, asked = asyncio.ensure_future(wait_for_exit(process)), asyncio.ensure_future(detach.wait())
    try:
        await asyncio.wait({exited, asked}, return_when=asyncio.FIRST_COMPLETED)
        return not exited.done()
    finally:
        exited.cancel()
        asked.cancel()


class CommandOutput:
    """Collects output within a bound: the first half and the last half are kept, `close` joins them."""

    def __init__(self, most_bytes: int, on_output: Callable[[str], None]) -> None:
        self._half = most_bytes // 2
        self._on_output = on_output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = ""
        self._tail = ""
        self._cut = 0

    def add(self, data: bytes, *, final: bool = False) -> None:
        text = self._decoder.decode(data, final)
        if not text:
            return
        self._on_output(text)
        room = max(0, self._half - len(self._head))
        self._head += text[:room]
        self._tail += text[room:]
        if len(self._tail) > 2 * self._half:
            self._drop_front()

    def _drop_front(self) -> None:
        over = len(self._tail) - self._half
        self._cut += over
        self._tail = self._tail[over:]

    def close(self) -> tuple[str, int]:
        """The output, and how many characters of its middle are missing."""
        self.add(b"", final=True)
        return self._joined()

    def so_far(self) -> tuple[str, bytes, int]:
        """As `close` of a command that goes on; in the middle the bytes that begin a character."""
        text, cut = self._joined()
        return text, self._decoder.getstate()[0], cut

    def _joined(self) -> tuple[str, int]:
        if len(self._tail) > self._half:
            self._drop_front()
        if not self._cut:
            return self._head + self._tail, 0
        return f"{self._head}\n[{self._cut:,} characters cut]\n{self._tail}", self._cut


def _pipe_above(lowest: int) -> tuple[int, int]:
    """A pipe whose ends have descriptors above `lowest`, out of the way of `exec 3>file` and the like."""
    ends = os.pipe()
    try:
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, lowest + 1) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return read, write


def _not_started(what: str, error: OSError | ValueError) -> ToolError:
    """The error for a command that the system does not take: too long, or with a NUL or a lone surrogate in it."""
    if isinstance(error, OSError):
        return ToolError(f"Could not start {what}: {error.strerror}.", kind="resource_error")
    return ToolError(f"Could not start {what}: {error}.", kind="invalid_parameters")


def _read_cwd(descriptor: int) -> Path | None:
    os.set_blocking(descriptor, False)
    try:
        said = os.read(descriptor, 8_192)
    except BlockingIOError:
        return None
    return Path(os.fsdecode(said.removesuffix(b"\n"))) if said.startswith(b"/") else None
