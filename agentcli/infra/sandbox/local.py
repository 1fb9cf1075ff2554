"""Files and commands on this machine: workspace paths are enforced, commands are not confined."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
import re
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
LARGEST_PROGRAM_OUTPUT = 64 * 1024 * 1024

_SECRET_NAME = re.compile(
    r"(_API_KEY|_ACCESS_KEY|_SECRET_KEY|_PRIVATE_KEY|_TOKEN|_SECRET|_PASSWORD|_CREDENTIALS)$"
    r"|^(AWS_ACCESS_KEY_ID|PGPASSWORD|ANTHROPIC_CUSTOM_HEADERS)$"
)
# The shell tells where it ended through a pipe named by path: a command may use every short descriptor itself. The
# command stands on the same line, so that line numbers in its errors are right.
_REPORT_CWD = "trap 'pwd -P >/dev/fd/{fd} 2>/dev/null' EXIT; "


class LocalSandbox:
    """Implements `Sandbox`. `environment` is what commands see, credentials taken out."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        environment: Mapping[str, str],
        job_folder: Path,
        readable_roots: Sequence[Path] = (),
        session_id: str = "",
    ) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._readable = (*self.roots, *(root.resolve() for root in readable_roots), job_folder.resolve())
        self._environment = command_environment(environment, session_id)
        self._shell = shutil.which("bash") or "/bin/sh"
        self._jobs = Jobs(job_folder)
        self._left_running: list[subprocess.Popen[bytes]] = []

    def readable(self, path: Path) -> Path:
        return self._inside(path, self._readable, "read")

    def writable(self, path: Path) -> Path:
        return self._inside(path, self.roots, "written")

    def _inside(self, path: Path, roots: tuple[Path, ...], done: str) -> Path:
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of symlinks; a NUL or a lone surrogate
            raise ToolError(f"{str(path)!r} cannot be resolved.", kind="invalid_parameters") from error
        if not any(real.is_relative_to(root) for root in roots):
            where = ", ".join(map(str, self.roots))
            raise ToolError(
                f"{path} is outside the workspace ({where}) and may not be {done}.", kind="permission_denied"
            )
        return real

    async def run_shell(
        self,
        command: str,
        *,
        cwd: Path,
        timeout_s: float,
        on_output: Callable[[str], None],
        most_bytes: int,
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

    async def run_program(self, argv: Sequence[str], *, cwd: Path, timeout_s: float) -> tuple[int, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LARGEST_PROGRAM_OUTPUT,
            )
        except FileNotFoundError as error:
            raise ToolError(f"Could not start {argv[0]}: {error.strerror}.", kind="dependency_error") from error
        except (OSError, ValueError) as error:
            raise _not_started(Path(argv[0]).name, error) from error
        try:
            async with asyncio.timeout(timeout_s):
                output, errors = await process.communicate()
        except TimeoutError as error:
            raise ToolError(f"{Path(argv[0]).name} took longer than {timeout_s:g} s.", kind="timeout") from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        return process.returncode or 0, output, errors

    async def start_job(self, command: str, *, cwd: Path) -> BackgroundJob:
        try:
            return self._jobs.start(command, lambda file: self._spawn([self._shell, "-c", command], cwd, file))
        except (OSError, ValueError) as error:
            raise _not_started("the job", error) from error

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._jobs.list()

    async def stop_job(self, id: str) -> None:
        await self._jobs.stop(id)

    def add_root(self, folder: Path) -> None:
        real = folder.resolve()
        self.roots = (*self.roots, real)
        self._readable = (*self._readable, real)

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


def command_environment(environment: Mapping[str, str], session_id: str) -> dict[str, str]:
    """What a command sees: no credentials, no pagers or editors that would wait for a person."""
    kept = {name: value for name, value in environment.items() if not _SECRET_NAME.search(name)}
    kept |= {"AGENTCLI": "1", "GIT_EDITOR": "true", "GIT_PAGER": "cat", "PAGER": "cat", "TERM": "dumb"}
    if session_id:
        kept["AGENTCLI_SESSION_ID"] = session_id
    return kept
