"""Hands events to subscribers, and keeps those of each until they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from agentcli.agent.events import Event, InputDelta, OutputDelta, TextDelta, ThinkingDelta


class EventQueue:
    """One subscriber's events, unbounded. Unread deltas of one kind are joined; nothing is dropped."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._has_ended = False

    def end(self) -> None:
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
        """Wait for events and return all that have arrived; an empty list after the end."""
        while not (self._events or self._has_ended):
            self._arrived.clear()
            await self._arrived.wait()
        events, self._events = self._events, []
        return events


class Subscribers:
    """The subscribers of a session, each with a queue of its own."""

    def __init__(self) -> None:
        self._queues: list[EventQueue] = []

    def __len__(self) -> int:
        return len(self._queues)

    def put(self, event: Event) -> None:
        for queue in self._queues:
            queue.put(event)

    def end(self) -> None:
        """End all subscriptions once their events are read."""
        for queue in self._queues:
            queue.end()

    def batches(self) -> AsyncGenerator[list[Event], None]:
        """Return a generator of the events from this call on, each time all that have arrived."""
        queue = EventQueue()
        self._queues.append(queue)
        return self._read(queue)

    async def _read(self, queue: EventQueue) -> AsyncGenerator[list[Event], None]:
        try:
            while events := await queue.get_all():
                yield events
        finally:
            self._queues.remove(queue)


async def one_by_one(batches: AsyncGenerator[list[Event], None]) -> AsyncGenerator[Event, None]:
    """Yield the events of batches, and close their generator at the end."""
    async with aclosing(batches):
        async for events in batches:
            for event in events:
                yield event


def _joined(last: Event, event: Event) -> Event | None:
    """Return two neighbouring deltas as one; None where they belong apart."""
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
    return None
