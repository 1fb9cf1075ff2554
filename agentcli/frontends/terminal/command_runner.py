"""Runs slash commands and shows what they give."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentcli.agent.commands.command import AsDiff, AsPrompt, CommandHost, Outcome, SlashCommand
from agentcli.frontends.terminal.output.turn_view import TurnView


class CommandRunner:
    """Several commands can run at a time; `changed` is called when one starts."""

    def __init__(self, view: TurnView, changed: Callable[[], None]) -> None:
        self._view = view
        self._changed = changed
        self._running: set[asyncio.Task[Outcome]] = set()

    async def run(self, command: SlashCommand, argument: str, host: CommandHost) -> AsPrompt | None:
        """Show the command's outcome; one that is a prompt is returned instead. Raises what the command raises."""
        task = asyncio.ensure_future(command.run(host, argument))
        self._running.add(task)
        self._view.live.commands[command.name] = time.monotonic()
        self._changed()
        try:
            outcome = await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            self._view.line(f"/{command.name} was interrupted.", "warning")
            return None
        finally:
            self._running.discard(task)
            self._view.live.commands.pop(command.name, None)
        if isinstance(outcome, AsPrompt):
            return outcome
        if outcome:
            self._show(outcome)
        return None

    def _show(self, outcome: AsDiff | str) -> None:
        self._view.gap()
        if isinstance(outcome, AsDiff):
            for file in outcome.files:
                self._view.diff(file.path, file.diff)
            outcome = outcome.note
        if outcome:
            self._view.line(outcome)
        self._view.gap()

    def interrupt(self) -> None:
        for task in self._running:
            task.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The running commands wait for the person, so their clocks are out of sight."""
        running, self._view.live.commands = self._view.live.commands, {}
        try:
            yield
        finally:
            self._view.live.commands |= running
