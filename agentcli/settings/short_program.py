"""Runs a program that answers within seconds, and waits for that program alone.

asyncio's `Process.wait()` also waits until nobody holds the program's pipes any more, which a child that it left in the
background may do for ever. So the pipes are read here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

_CHUNK = 65_536
_MAX_PIPE_BYTES = 1 << 20  # more than a pipe holds, so that one read takes all that waits in it


class ProgramEnd(Struct, frozen=True):
    """`exit_code` is None for a program that took too long; the output is what it wrote until then."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes


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
    """Run a program and keep `max_bytes` of each of its outputs. Raises `OSError` where it cannot be started.

    It is killed with its process group when its time is over, or when the caller is cancelled; with `ends_children`
    what it left in its group is killed in any case.
    """
    loop = asyncio.get_running_loop()
    process, outputs, feed = await _start(argv, environment, cwd, stdin, max_bytes)
    try:
        for output in outputs:
            loop.add_reader(output.pipe, output.read)
        if feed is not None:
            loop.add_writer(feed.pipe, feed.write)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await process.wait()
        exit_code = process.returncode
    finally:
        if ends_children or process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for output in outputs:
            output.take_rest()
        if feed is not None:
            feed.close()
        await process.wait()
    return ProgramEnd(exit_code, *(bytes(output.kept) for output in outputs))


async def _start(
    argv: Sequence[str], environment: Mapping[str, str] | None, cwd: Path | None, stdin: bytes, max_bytes: int
) -> tuple[asyncio.subprocess.Process, list[_Output], _Feed | None]:
    with ExitStack() as made:
        ends: list[tuple[int, int]] = []
        for _ in range(3 if stdin else 2):
            ends.append(os.pipe())
            for descriptor in ends[-1]:
                made.callback(os.close, descriptor)
        made.pop_all()
    outputs = [_Output(read_end, max_bytes) for read_end, _ in ends[:2]]
    feed = _Feed(ends[2][1], stdin) if stdin else None
    given = [ends[0][1], ends[1][1], *(read_end for read_end, _ in ends[2:])]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=given[2] if stdin else asyncio.subprocess.DEVNULL,
            stdout=given[0],
            stderr=given[1],
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException as error:
        for end in (*outputs, feed):
            if end is not None:
                end.pipe.close()
        if isinstance(error, ValueError):  # a null character in the command
            raise OSError(errno.EINVAL, str(error)) from error
        raise
    finally:
        for descriptor in given:
            os.close(descriptor)
    return process, outputs, feed


class _Output:
    """One output of a program. What exceeds `max_bytes` is read and dropped, so that the program can go on."""

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        os.set_blocking(descriptor, False)
        self.pipe: BinaryIO = os.fdopen(descriptor, "rb", buffering=0)
        self.kept = bytearray()
        self._max_bytes = max_bytes

    def read(self, size: int = _CHUNK) -> None:
        chunk = self.pipe.read(size)
        if chunk == b"":  # the end; None means that nothing is there now
            asyncio.get_running_loop().remove_reader(self.pipe)
        self.kept += (chunk or b"")[: self._max_bytes - len(self.kept)]

    def take_rest(self) -> None:
        """Read what waits in the pipe, and leave it to whoever still holds its other end."""
        asyncio.get_running_loop().remove_reader(self.pipe)
        self.read(_MAX_PIPE_BYTES)
        self.pipe.close()


class _Feed:
    """The input of a program, which need not read it."""

    def __init__(self, descriptor: int, data: bytes) -> None:
        os.set_blocking(descriptor, False)
        self.pipe: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        self._rest = memoryview(data)

    def write(self) -> None:
        try:
            written = self.pipe.write(self._rest[:_CHUNK]) or 0
        except BrokenPipeError:
            written = len(self._rest)
        self._rest = self._rest[written:]
        if not self._rest:
            self.close()

    def close(self) -> None:
        if not self.pipe.closed:
            asyncio.get_running_loop().remove_writer(self.pipe)
            self.pipe.close()
