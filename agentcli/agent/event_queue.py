"""One subscriber's events, kept until they are read."""

from __future__ import annotations

import asyncio
from collections import deque

from agentcli.agent.events import Event, InputDelta, TextDelta, ThinkingDelta, ToolOutput


class EventQueue:
    """One subscriber's events: unbounded; deltas nobody has read yet are joined, nothing else is dropped."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        match event:
            case TextDelta(text) if isinstance(last, TextDelta):
                self._events[-1] = TextDelta(last.text + text)
            case ThinkingDelta(text) if isinstance(last, ThinkingDelta):
                self._events[-1] = ThinkingDelta(last.text + text)
            case InputDelta(id, text, index) if isinstance(last, InputDelta) and last.id == id:
                self._events[-1] = InputDelta(id, last.partial_json + text, index)
            case ToolOutput(id, text) if isinstance(last, ToolOutput) and last.id == id:
                self._events[-1] = ToolOutput(id, last.text + text)
            case _:
                self._events.append(event)
        self._arrived.set()

    async def get(self) -> Event:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()
