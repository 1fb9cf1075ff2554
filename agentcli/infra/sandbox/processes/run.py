"""Waits for a command: reads its output, notices when it stalls, and ends it or makes it a job."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from agentcli.errors import ToolError
from agentcli.infra.sandbox.processes.keeper_client import SWARMED, ShellProcess, wait_until_readable
from agentcli.infra.sandbox.processes.output import CommandOutput, read_rest
from agentcli.infra.sandbox.processes.stall import MIN_QUIET_S, Stall, StallDetector
from agentcli.tools.command import BackgroundJob, Command, CommandResult, JobOutcome
from agentcli.tools.observation import as_shown

GRACE_AFTER_EXIT_S = 0.1  # after a command's end, for the processes that it left running to end by themselves

_FREE_SPACE_ADVICE = (
    " The sandbox needs room for a few empty folders in the workspace: the user has to free some,"
    " or to allow a command with `unconfined` that does."
)
_CHUNK = 65_536  # bytes, the size of a pipe
_END_BYTES = 300  # at the end of a job's output, in which a prompt is looked for

# A silent command is checked every half second, and after six seconds of silence every two seconds.
_CHECK_EVERY_S = 0.5
_CHECK_LATER_EVERY_S = 2.0
_LATER_AFTER_S = 6.0


class Run:
    """A running command, which may become a job."""

    def __init__(
        self,
        command: Command,
        shell: ShellProcess,
        on_output: Callable[[str], None],
        *,
        new_file: Callable[[str], Path],
        on_detached: Callable[[Any], None],  # takes this run once it is a job
    ) -> None:
        self.setup_failed = False  # True if the command could not be confined, so it did not run
        self.id = ""  # of a job: the name of its file without the suffix
        self.process = shell.process
        self._command = command
        self._output = CommandOutput(command.max_bytes, on_output, partial(new_file, "output"))
        self._on_output = on_output
        self._output_pipe, self._report_pipe = shell.output, shell.report  # the shell's report: see `_Report`
        self._new_file, self._on_detached = new_file, on_detached
        self._file: Path | None = None  # of a job: the file with its output; None while a call waits for the command
        self._returned_bytes = 0  # of the file: those that `read_new` or the call's result has returned
        self._is_leftover = False  # True if the command has ended, and the job is the processes that it left running
        self._stall: Stall | None = None  # the reason why the command is silent now, if one was found
        self._writing: asyncio.Future[None] | None = None  # the newest write of output to the disk
        os.set_blocking(self._output_pipe, False)
        self._reading = asyncio.create_task(self._read_output())

    async def result(self, detach: asyncio.Event | None, *, is_job: bool = False) -> CommandResult:
        """Wait until the command has ended, its time is up, or it becomes a job; with `is_job`, until it begins."""
        try:
            if is_job:
                becomes_job = await self._wait_until_begun()
            else:
                async with asyncio.timeout(self._command.timeout_s):
                    becomes_job = await self._should_detach(detach)
                becomes_job = becomes_job or not await self._is_gone_after_grace()  # it left processes running
        except TimeoutError:
            return await asyncio.shield(self._end())
        except asyncio.CancelledError:
            await asyncio.shield(self._end())
            raise
        return await asyncio.shield(self._make_job(is_started_as_job=is_job) if becomes_job else self._final_result())

    async def _wait_until_begun(self) -> bool:
        """Wait until the command begins; return False if its confinement could not be set up."""
        await wait_until_readable(self._report_pipe)
        error_prefix = self.process.launch.setup_error_prefix
        if _read_report(self._report_pipe).has_begun or not error_prefix:
            return True
        await self.process.wait_until_gone()
        await asyncio.wait({self._reading}, timeout=GRACE_AFTER_EXIT_S)  # until the error is read
        return not self._output.first_chars.startswith(error_prefix)

    async def _read_output(self) -> None:
        """Read output until all writers have closed the pipe. If the disk is slow, the command has to wait."""
        while True:
            await wait_until_readable(self._output_pipe)
            while (data := _available(self._output_pipe)) is not None:
                if not data:
                    return
                self._output.add(data)
                if self._output.should_write:
                    self._writing = asyncio.ensure_future(asyncio.to_thread(self._output.write))
                    await asyncio.shield(self._writing)
                if len(data) < _CHUNK:  # the pipe is empty now
                    break

    async def _should_detach(self, detach: asyncio.Event | None) -> bool:
        """Wait for the command; return True if it should become a job before its end: on `detach`, or as a server."""
        exited = asyncio.ensure_future(self.process.wait_until(lambda: self.process.exit_code is not None))
        tasks: list[asyncio.Future[Any]] = [exited]
        if detach is not None:
            tasks.append(asyncio.ensure_future(detach.wait()))
        try:
            # Most commands end before they can stall, so the watch begins later.
            ended, _ = await asyncio.wait(tasks, timeout=_CHECK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                if not self._command.terminal:  # a command on a terminal prints there, so it would always seem silent
                    tasks.append(asyncio.ensure_future(self._watch()))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return not exited.done()
        finally:
            for task in tasks:
                task.cancel()

    async def _watch(self) -> None:
        """Check repeatedly why the command is silent; while a call waits for it, show each new reason.

        Return when a job has ended, or when a command that a call waits for turns out to be a server: it becomes a job.
        """
        detector, is_job = StallDetector(self.process.supervisor), self._file is not None
        while not is_job or not self.process.is_gone():
            quiet_s, last_output = self._quiet_s_and_last_output()
            # A check compares CPU times with the check before, so the first comes one pause before a stall can show.
            pause_s = MIN_QUIET_S - _CHECK_EVERY_S - quiet_s
            found = None
            if pause_s <= 0:
                found = await asyncio.to_thread(detector.find, quiet_s, last_output)
                pause_s = _CHECK_EVERY_S if quiet_s < _LATER_AFTER_S else _CHECK_LATER_EVERY_S
            if found is not None:
                is_new = found != self._stall
                self._stall = found
                if not is_job and found.kind == "listens":  # a server
                    return
                if not is_job and is_new:
                    self._on_output(f"\n[{found.text}]\n")
            elif self._stall is not None and self._stall.kind != "listens":  # a server stays one while it is busy
                self._stall = None
            await asyncio.sleep(min(pause_s, MIN_QUIET_S) + 0.01)  # limited: a file time may be in the future

    def _quiet_s_and_last_output(self) -> tuple[float, str]:
        """Return the seconds since the last output, or since the command became a job, and the end of the output."""
        if self._file is None:
            return time.monotonic() - self._output.last_output_at, self._output.last_chars
        try:
            with self._file.open("rb") as file:
                status = os.fstat(file.fileno())
                file.seek(max(0, status.st_size - _END_BYTES))
                return time.time() - max(self._detached_at, status.st_mtime), file.read().decode(errors="replace")
        except OSError:
            return time.time() - self._detached_at, ""

    async def _is_gone_after_grace(self) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_AFTER_EXIT_S):  # `wait_for` may lose a cancellation
                await self.process.wait_until_gone()
        return self.process.is_gone()

    async def _end(self) -> CommandResult:
        await self.process.end()
        return await self._final_result(timed_out=True, stall=self._stall.text if self._stall else "")

    async def _final_result(self, *, timed_out: bool = False, stall: str = "") -> CommandResult:
        """Read the rest of the output, close the pipes, and return the result of the ended command."""
        last_output_at = 0.0
        # Processes of other users cannot be ended and may hold the pipe open, so stop when nothing more comes.
        while not self._reading.done() and last_output_at < self._output.last_output_at:
            last_output_at = self._output.last_output_at
            await asyncio.wait({self._reading}, timeout=GRACE_AFTER_EXIT_S)
        await self._stop_reading()
        text = self._output.close()
        report = _read_report(self._report_pipe)
        os.close(self._output_pipe)
        os.close(self._report_pipe)
        error_prefix = self.process.launch.setup_error_prefix
        shows_setup_error = error_prefix != "" and text.startswith(error_prefix)
        self.setup_failed = shows_setup_error and not report.has_begun and not timed_out
        return CommandResult(
            text,
            None if timed_out else self.process.exit_code,
            timed_out=timed_out,
            cwd=report.cwd,
            output_file=self._output.saved.path,
            stall=SWARMED if self.process.was_swarm else stall,
            # A sandbox, which has a `setup_error_prefix`, ends with its shell, and ends all that still runs in it.
            # Without a sandbox such processes make the command a job. A timeout ends all processes anyway.
            ended=report.still_running if error_prefix and not timed_out else (),
            reverts=self.process.launch.reverts,
        )

    async def _make_job(self, *, is_started_as_job: bool) -> CommandResult:
        """Make the command, or the processes that it left running, a job; the result holds the output so far."""
        await self._stop_reading()
        process, stall = self.process, self._stall.text if self._stall else ""
        self._is_leftover = process.exit_code is not None and not is_started_as_job
        cwd = _read_report(self._report_pipe).cwd if self._is_leftover else None
        try:
            path = self._new_file("job")
            text, cut_chars, returned_bytes = self._output.move_to(path, is_complete=process.exit_code is not None)
            # The supervisor copies further output to the file while processes are left.
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            if not await process.keep_output(self._output_pipe, descriptor, self._report_pipe):
                # All processes have ended, so the rest is copied here. A full disk costs output, never the command.
                with contextlib.suppress(OSError):
                    while data := _available(self._output_pipe):
                        os.write(descriptor, data)
            os.close(descriptor)
        except OSError as error:
            await process.end()
            raise start_error("the job", error) from error
        finally:
            os.close(self._output_pipe)
            os.close(self._report_pipe)
        self.id, self._file = path.stem, path
        self._returned_bytes = 0 if is_started_as_job else returned_bytes  # a call that starts a job shows no output
        self._detached_at = time.time()
        self._watching = asyncio.create_task(self._watch())
        self._on_detached(self)
        file, job = path if cut_chars else None, self.describe_job()
        return CommandResult(text, process.exit_code, cwd=cwd, output_file=file, job=job, stall=stall)

    def describe_job(self) -> BackgroundJob:
        """Return the state of the job, for the model and for lists of jobs."""
        assert self._file is not None
        process, is_gone = self.process, self.process.is_gone()
        stall = "" if is_gone or self._stall is None else self._stall.text
        size = 0
        with contextlib.suppress(OSError):
            size = self._file.stat().st_size
        outcome = JobOutcome(
            exit_code=None if self._is_leftover else process.exit_code,  # leftover processes have no exit code
            timed_out=process.was_late,
            duration_s=process.ended_at - process.started_at,
            is_dry_run=self._command.dry_run is not None,
        )
        return BackgroundJob(
            id=self.id,
            pid=process.pid,
            output_file=self._file,
            command=self._command.text,
            outcome=outcome if is_gone else None,
            stall=SWARMED if process.was_swarm else stall,
            new_bytes=max(0, size - self._returned_bytes),
            reverts=process.launch.reverts,
        )

    def read_new(self, max_bytes: int) -> str:
        """Return a job's output since the last call, its middle cut out above the limit. Raises `ToolError`."""
        assert self._file is not None
        # The last word is only returned if it is complete: when the job has ended or stalled, perhaps at a question.
        # This is found out first, because the job may end while the file is read.
        is_complete = self.process.is_gone() or bool(self._stall and self._stall.text)
        try:
            with self._file.open("rb") as file:
                text, self._returned_bytes = read_rest(file, self._returned_bytes, max_bytes, is_complete=is_complete)
        except OSError as error:
            message = f"The output of {self.id} cannot be read: {error.strerror}."
            raise ToolError(message, kind="resource_error") from error
        return as_shown(text)

    async def stop_watching(self) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def _stop_reading(self) -> None:
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        if self._writing is not None:
            await self._writing


def _available(pipe: int) -> bytes | None:
    """Read from a pipe without waiting; return None if there is nothing to read, and b"" if all writers closed it."""
    try:
        return os.read(pipe, _CHUNK)
    except BlockingIOError:
        return None


def start_error(what: str, error: OSError | ValueError) -> ToolError:
    """Return the error for `the shell` or `the job` that could not be started: the command's fault, or the system's."""
    if isinstance(error, ValueError):  # there is a NUL in the command
        return ToolError(f"Could not start {what}: {error}.", kind="invalid_parameters")
    if error.errno == errno.E2BIG:  # the command is too long
        return ToolError(f"Could not start {what}: {error.strerror}.", kind="invalid_parameters")
    advice = _FREE_SPACE_ADVICE if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ToolError(f"Could not start {what}: {error.strerror}.{advice}", kind="resource_error")


class _Report(NamedTuple):
    """A shell's report about its command, as `_read_report` reads it."""

    has_begun: bool = False
    cwd: Path | None = None  # at the end
    still_running: tuple[str, ...] = ()  # names of the processes that it left


def _read_report(descriptor: int) -> _Report:
    """Read a report: a dot when the command begins; at its end the output of `pwd`, and each process name after a NUL.

    The second part is missing if the shell was killed, and both if the shell never started the command.
    """
    os.set_blocking(descriptor, False)
    report = _available(descriptor) or b""
    folder, *processes = report[1:].split(b"\0")
    folder = folder.removesuffix(b"\n")
    return _Report(
        has_begun=report.startswith(b"."),
        cwd=Path(os.fsdecode(folder)) if folder.startswith(b"/") else None,
        still_running=tuple(name.decode(errors="replace") for name in processes),
    )
