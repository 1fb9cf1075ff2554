"""Runs a program that ends within seconds; waits for it, not its children.

asyncio's `Process.wait()` also waits for all processes that hold the pipes, such as a child in the background. This
module therefore uses the layer below, which reports the end of the program itself.
"""

import asyncio
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO

from msgspec import Struct

_MAX_PIPE_BYTES = 1 << 20  # more than a pipe holds, so that one read takes all that waits in it


class ProgramEnd(Struct, frozen=True):
    exit_code: int | None  # None if it took too long
    stdout: bytes
    stderr: bytes


class _ProgramProtocol(asyncio.SubprocessProtocol):
    """Keeps `max_bytes` of each output. The rest is read and dropped, so that the program can go on."""

    def __init__(self, max_bytes: int) -> None:
        self.outputs = {1: bytearray(), 2: bytearray()}
        self.exited = asyncio.Event()
        self._max_bytes = max_bytes

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.outputs[fd] += data[: self._max_bytes - len(self.outputs[fd])]

    def process_exited(self) -> None:
        self.exited.set()

    async def take_rest(self, transport: asyncio.SubprocessTransport) -> None:
        """Read the rest of both outputs, even if other processes still hold the pipes open."""
        pipes = {
            fd: pipe
            for fd in self.outputs
            if isinstance(pipe := transport.get_pipe_transport(fd), asyncio.ReadTransport)
        }
        for pipe in pipes.values():
            pipe.pause_reading()
        await asyncio.sleep(0)  # lets `pipe_data_received` get what was read already
        for fd, pipe in pipes.items():
            if not (file := pipe.get_extra_info("pipe")).closed:
                self.pipe_data_received(fd, file.read(_MAX_PIPE_BYTES) or b"")


async def run_short_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    max_bytes: int,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    ends_children: bool = False,
) -> ProgramEnd:
    """Run a program and keep `max_bytes` of each output. Raises `OSError` if it cannot be started.

    Its process group is killed when the time is up or the caller is cancelled, and with `ends_children` always.
    """
    program = _ProgramProtocol(max_bytes)
    with _open_file_with(stdin) if stdin else nullcontext() as input_file:
        start = partial(asyncio.get_running_loop().subprocess_exec, env=environment, cwd=cwd, start_new_session=True)
        starting = asyncio.ensure_future(start(lambda: program, *argv, stdin=input_file or asyncio.subprocess.DEVNULL))
        # If the caller is cancelled, finish the start, then kill the program below: cancelling the start itself would
        # wait for the program's children, too.
        cancelled: asyncio.CancelledError | None = None
        while not starting.done():
            try:
                await asyncio.wait([starting])
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            transport, _ = starting.result()
        except ValueError as error:  # a null character in the command
            raise OSError(errno.EINVAL, str(error)) from error
    try:
        if cancelled is not None:
            raise cancelled
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await program.exited.wait()
        exit_code = transport.get_returncode()  # None if the program is still running
    finally:
        if ends_children or transport.get_returncode() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
        await program.exited.wait()
        await program.take_rest(transport)
        transport.close()
    return ProgramEnd(exit_code, *map(bytes, program.outputs.values()))


def _open_file_with(content: bytes) -> IO[bytes]:
    """Return an open file with the content. Unlike a pipe, it needs no task that writes.

    It is in memory where the system can do that, because a hook that may deny a call must run on a full disk, too.
    """
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("stdin"), "w+b")
    else:
        from tempfile import TemporaryFile

        file = TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file
