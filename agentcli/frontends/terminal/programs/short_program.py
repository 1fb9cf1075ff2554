"""Runs a program that answers within seconds, and ends it with its children where it does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

KILL_TIMEOUT_S = 0.5
_CHUNK = 65_536


async def output_of(
    argv: Sequence[str], environment: Mapping[str, str], *, seconds: float, most: int, stdin: bytes = b""
) -> bytes | None:
    """The output, at most `most` bytes; None when the program fails, or has not ended in time."""
    process = None
    is_done = False
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        async with asyncio.timeout(seconds):
            output = await _answer(process, stdin, most)
            is_done = await process.wait() == 0
    except (OSError, ValueError, TimeoutError):
        return None
    finally:
        if process is not None:
            if not is_done:
                await _end(process)
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it may have read nothing of its input
                await process.stdin.wait_closed()
    return output if is_done else None


async def _answer(process: asyncio.subprocess.Process, stdin: bytes, most: int) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(stdin)
    process.stdin.close()
    try:
        return await process.stdout.readexactly(most)
    except asyncio.IncompleteReadError as ended:
        return ended.partial


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with its children, and read the rest so that the pipe is closed."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_TIMEOUT_S):
            while await process.stdout.read(_CHUNK):
                pass
            await process.wait()
