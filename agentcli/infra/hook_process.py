"""Runs the command of a hook: unconfined, in a process group of its own that does not outlive it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agentcli.agent.command_hooks.answers import Ended

_MOST_OUTPUT = 1_000_000  # bytes of each stream
_GRACE_S = 0.2  # for what a command has written before it ended, where something holds its output open


async def run_hook(command: str, input: bytes, *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command with `input`; all that is left of its group is killed in any case."""
    began = time.monotonic()
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, failure=f"it could not be started ({error.strerror or error})")
    assert process.stdin is not None
    streams = [bytearray(), bytearray()]
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [
        asyncio.create_task(_read(source, into))
        for source, into in zip((process.stdout, process.stderr), streams, strict=True)
    ]
    failure = ""
    try:
        async with asyncio.timeout(timeout_s):
            with suppress(BrokenPipeError, ConnectionResetError):  # a hook need not read
                process.stdin.write(input)
                await process.stdin.drain()
            process.stdin.close()
            await process.wait()
        await asyncio.wait(reading, timeout=_GRACE_S)
    except TimeoutError:
        failure = f"it took longer than {timeout_s:g} s"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        for task in reading:
            task.cancel()
        await process.wait()
    out, err = (bytes(stream).decode(errors="replace") for stream in streams)
    return Ended(None if failure else process.returncode, out, err, failure, time.monotonic() - began)


async def _read(source: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await source.read(65_536):
        into += chunk[: max(0, _MOST_OUTPUT - len(into))]
