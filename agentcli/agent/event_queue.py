"""Hands events to subscribers, and keeps those of each until they are read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from msgspec.structs import replace

from agentcli.agent.events import Event, InputDelta, OutputDelta, TextDelta, ThinkingDelta


class EventQueue:
    """One subscriber's events: unbounded; deltas nobody has read yet are joined, nothing else is dropped."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._has_ended = False

    def end(self) -> None:
        """Nothing comes any more."""
        self._has_ended = True
        self._arrived.set()

    def put(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and type(last) is type(event) and (joined := _joined(last, event)) is not None:
            self._events[-1] = joined
        else:
            self._events.append(event)
        self._arrived.set()

    async def get_all(self) -> list[Event]:
        """All that has arrived, once there is something; nothing after the end."""
        while not (self._events or self._has_ended):
            self._arrived.clear()
            await self._arrived.wait()
        events = list(self._events)
        self._events.clear()
        return events

    async def get(self) -> Event:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()


class Subscribers:
    """Whoever follows a session, each through a queue of its own."""

    def __init__(self) -> None:
        self._queues: list[EventQueue] = []

    def __len__(self) -> int:
        return len(self._queues)

    def put(self, event: Event) -> None:
        for queue in self._queues:
            queue.put(event)

    def end(self) -> None:
        """Nothing comes any more: those who take events in batches have heard all."""
        for queue in self._queues:
            queue.end()

    def single(self) -> AsyncGenerator[Event, None]:
        """Events one by one, from this call on."""
        return self._single(self._added())

    def batches(self) -> AsyncGenerator[list[Event], None]:
        """All the events at once that have arrived since the last ones, from this call on; ends with `end`."""
        return self._batches(self._added())

    def _added(self) -> EventQueue:
        self._queues.append(EventQueue())
        return self._queues[-1]

    async def _single(self, queue: EventQueue) -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._queues.remove(queue)

    async def _batches(self, queue: EventQueue) -> AsyncGenerator[list[Event], None]:
        try:
            while events := await queue.get_all():
                yield events
        finally:
            self._queues.remove(queue)


def _joined(last: Event, event: Event) -> Event | None:
    """Two neighbouring deltas as one; None where they belong apart."""
    if last.agent_id != event.agent_id:
        return None
    if isinstance(event, TextDelta) and isinstance(last, TextDelta):  # most of all events: no pattern, no replace
        return TextDelta(last.text + event.text, agent_id=event.agent_id)
    match last, event:
        case (ThinkingDelta(before), ThinkingDelta(text)):
            return replace(event, text=before + text)
        case (OutputDelta(id, before), OutputDelta(other, text)) if id == other:
            return replace(event, text=before + text)
        case (InputDelta(id, before), InputDelta(other, text)) if id == other:
            return replace(event, partial_json=before + text)
        case _:
            return None
