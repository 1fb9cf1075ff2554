"""Runs the person's own command for the status line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.output.status_bar import Status
from agentcli.frontends.terminal.programs.short_program import output_of

COMMAND_TIMEOUT_S = 2.0
LONGEST_OUTPUT = 65_536  # bytes; a command that prints more is not waited for


class StatusCommand:
    """Runs the command again on each `refresh`, one run at a time; `text` is the line it printed last."""

    def __init__(self, command: str, environment: Mapping[str, str], changed: Callable[[], None]) -> None:
        self._command = command
        self._environment = environment
        self._changed = changed
        self._running: asyncio.Task[None] | None = None
        self.text = ""

    def refresh(self, status: Status) -> None:
        if self._command and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._run(status))

    def cancel(self) -> None:
        if self._running is not None:
            self._running.cancel()

    async def _run(self, status: Status) -> None:
        self.text = await custom_status(self._command, status, self._environment)
        self._changed()


async def custom_status(command: str, status: Status, environment: Mapping[str, str]) -> str:
    """The first line a status command prints; empty when it fails or takes longer than two seconds."""
    if not command.strip():
        return ""
    told = {**msgspec.structs.asdict(status), "context_share": round(status.context_share, 4)}
    shell = ("/bin/sh", "-c", command)
    output = await output_of(
        shell, environment, stdin=msgspec.json.encode(told), seconds=COMMAND_TIMEOUT_S, most=LONGEST_OUTPUT
    )
    return printable((output or b"").decode("utf-8", "replace")).partition("\n")[0]
