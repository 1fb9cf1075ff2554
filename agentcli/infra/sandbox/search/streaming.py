"""Runs one program in a thread of its own and hands over what it prints as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

PIPE_BYTES = 1024 * 1024  # so that the program need not wait while its output is looked at
PIECE_BYTES = 256 * 1024  # handed over at a time, or a little more: looking at many small pieces costs more

ERROR_BYTES = 1024 * 1024


class Ended(NamedTuple):
    """The end of a program: its exit code, the start of its stderr, whether its time was up."""

    exit_code: int
    errors: bytes
    timed_out: bool


async def stream_output(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    take: Callable[[bytes], None],
    time_limit_s: float,
) -> Ended:
    """Run a program, giving `take` its output in a thread; no process is left. Raises `OSError`, `ValueError`."""
    program = _Program(argv, cwd, environment)
    work = asyncio.ensure_future(asyncio.to_thread(program.read_to_the_end, take))
    try:
        done, _ = await asyncio.wait([work], timeout=time_limit_s)
        if not done:
            program.kill()
        exit_code, errors = await asyncio.shield(work)
    finally:
        if not work.done():
            program.kill()
            await _over(work)
            work.exception()  # what killing it leads to is nobody's concern
    return Ended(exit_code, errors, timed_out=not done)


async def _over(work: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended, also when somebody cancels once more: until then it hands over output."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _Program:
    """A process that one thread reads and waits for, and another may kill."""

    def __init__(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._argv, self._cwd, self._environment = argv, cwd, environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def read_to_the_end(self, take: Callable[[bytes], None]) -> tuple[int, bytes]:
        with tempfile.TemporaryFile() as errors:  # a pipe would have to be read at the same time
            with _batch_scheduling():
                exit_code = self._run(take, errors)
            errors.seek(0)
            return exit_code, errors.read(ERROR_BYTES)

    def _run(self, take: Callable[[bytes], None], errors: IO[bytes]) -> int:
        if self._is_killed:  # before a thread was free
            return -signal.SIGKILL
        process = subprocess.Popen(
            self._argv,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            start_new_session=True,
        )
        with self._lock:
            self._process = process
            if self._is_killed:
                process.kill()
        assert process.stdout is not None
        try:
            with process.stdout:
                _read(process.stdout.fileno(), take)
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
        return process.returncode


@contextlib.contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Keep this thread and the program from waking one another all the time, which slows a listing by a tenth."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):  # only Linux has it, and a sandbox around us may forbid it
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, *before)


def _read(output: int, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # a person may have no room left; only Linux has it
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(output, PIPE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            take(b"".join(pieces))
            pieces, size = [], 0
    if pieces:
        take(b"".join(pieces))
