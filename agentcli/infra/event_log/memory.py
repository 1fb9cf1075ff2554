"""Keeps event streams in memory, each for some time after its newest event."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentcli.agent.event_store import EventStore, StreamEvent, StreamState, StreamStatus
from agentcli.errors import StreamMoved
from agentcli.infra.event_log.waiting import Arrivals

TIME_TO_LIVE_S = 3_600.0


@dataclass
class _Stream:
    events: list[StreamEvent] = field(default_factory=list)
    status: StreamStatus = "running"
    last_id: int = 0
    note: str = ""
    touched: float = 0.0


class MemoryEvents:
    """Implements `EventStore`. A stream goes `ttl_s` seconds after it was last written to; `clock` gives seconds."""

    def __init__(self, *, ttl_s: float = TIME_TO_LIVE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._streams: dict[str, _Stream] = {}  # the one that was written to last comes last
        self._gone_id = 0  # the greatest id among streams that went: one of their names goes on behind it
        self._ttl_s = ttl_s
        self._clock = clock
        self._arrivals = Arrivals()

    async def append(
        self,
        stream_id: str,
        events: Sequence[bytes],
        *,
        status: StreamStatus | None = None,
        note: str | None = None,
        if_note: str | None = None,
        after: int = 0,
    ) -> int:
        stream = self._found(stream_id) or _Stream(last_id=self._gone_id)
        if if_note is not None and stream.note != if_note:
            raise StreamMoved(stream_id)
        first = max(stream.last_id, after) + 1
        stream.events += [StreamEvent(id, data) for id, data in enumerate(events, first)]
        if events:
            stream.last_id = stream.events[-1].id
        stream.status, stream.note = status or stream.status, stream.note if note is None else note
        stream.touched = self._clock()
        self._streams.pop(stream_id, None)
        self._streams[stream_id] = stream
        self._arrivals.tell(stream_id)
        return stream.last_id

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        async def look() -> Sequence[StreamEvent]:
            events = stream.events if (stream := self._found(stream_id)) else []
            start = bisect_right(events, after, key=lambda event: event.id)
            return events[start : start + count]

        return await self._arrivals.wait(stream_id, look, wait_s)

    async def has(self, stream_id: str, id: int) -> bool:
        return id > 0 and any(event.id == id for event in await self.read(stream_id, id - 1, 1))

    async def state(self, stream_id: str) -> StreamState | None:
        stream = self._found(stream_id)
        return StreamState(stream.status, stream.last_id, stream.note) if stream else None

    async def running(self) -> Sequence[str]:
        self._forget_old()
        return [id for id, stream in self._streams.items() if stream.status == "running"]

    async def remove(self, stream_id: str) -> None:
        if (stream := self._streams.pop(stream_id, None)) is not None:
            self._gone_id = max(self._gone_id, stream.last_id)
        self._arrivals.end(stream_id)

    async def close(self) -> None:
        await asyncio.sleep(0)

    def _found(self, stream_id: str) -> _Stream | None:
        self._forget_old()
        return self._streams.get(stream_id)

    def _forget_old(self) -> None:
        too_old = self._clock() - self._ttl_s
        while self._streams:
            id, stream = next(iter(self._streams.items()))
            if stream.touched > too_old:
                return
            self._gone_id = max(self._gone_id, stream.last_id)
            del self._streams[id]


if TYPE_CHECKING:
    _: type[EventStore] = MemoryEvents
