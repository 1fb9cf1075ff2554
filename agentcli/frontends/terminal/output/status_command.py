"""Runs the person's own command for the status line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.output.status_bar import Status

COMMAND_TIMEOUT_S = 2.0
KILL_TIMEOUT_S = 0.5
LONGEST_OUTPUT = 65_536  # bytes; a command that prints more is not waited for


class StatusCommand:
    """Runs the command again on each `refresh`, one run at a time; `text` is the line it printed last."""

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        *,
        status: Callable[[], Status],
        changed: Callable[[], None],
    ) -> None:
        self._command = command
        self._environment = environment
        self._status = status
        self._changed = changed
        self._running: asyncio.Task[None] | None = None
        self.text = ""

    def refresh(self) -> None:
        if self._command and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._run())

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self) -> None:
        self.text = await custom_status(self._command, self._status(), self._environment)
        self._changed()


async def custom_status(command: str, status: Status, environment: Mapping[str, str]) -> str:
    """The first line a status command prints; empty when it fails or takes longer than two seconds."""
    process = None
    is_done = False
    try:
        if not command.strip():
            return ""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_shell(
                command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:  # it is ended below with its children, which asyncio would leave
            process = await starting
            raise
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            output = await _answer(process, msgspec.json.encode(_as_dict(status)))
            is_done = await process.wait() == 0
    except (OSError, ValueError, TimeoutError):
        return ""
    finally:
        if process is not None:
            if not is_done:
                await _end(process)
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it may have read nothing of its input
                await process.stdin.wait_closed()
    return printable(output.decode("utf-8", "replace")).partition("\n")[0] if is_done else ""


async def _answer(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question)
    process.stdin.close()
    try:
        return await process.stdout.readexactly(LONGEST_OUTPUT)
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
            while await process.stdout.read(LONGEST_OUTPUT):
                pass
            await process.wait()


def _as_dict(status: Status) -> dict[str, Any]:
    return {**msgspec.structs.asdict(status), "context_share": round(status.context_share, 4)}
