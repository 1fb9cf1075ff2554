"""Entries that are being stored outside of a turn."""

from __future__ import annotations

import asyncio
from typing import Any

from agentcli.agent.events import Emit, Notice


class Storing:
    """What could not be stored is told and ends nothing; the end of a session waits for the rest."""

    def __init__(self, publish: Emit) -> None:
        self._publish = publish
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._publish(Notice(str(error)))

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
