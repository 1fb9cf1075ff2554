"""Defines the store of event streams: what happened, numbered, for those who follow now or come back later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

StreamStatus = Literal["running", "complete", "failed"]


class StreamEvent(Struct, frozen=True):
    """An event of a stream; `data` is one JSON object in UTF-8."""

    id: int
    data: bytes


class StreamState(Struct, frozen=True):
    """The position of a stream. `last_id` is 0 while it has no event; `note` is its writer's."""

    status: StreamStatus
    last_id: int
    note: str = ""


class EventStore(Protocol):
    """Streams of events by id. Every method raises `StorageError` when the store cannot be read or written.

    The ids of a stream's events are integers from 1 that only grow, also past events that were removed. An id is given
    out, and an event read, only after it was stored.
    """

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
        """Store events, all or none, and give the id of the last one, or the stream's last id for none.

        They are numbered in a row from the stream's last id on, or from `after` where that is greater. `status` and
        `note` change with them; a stream begins as `running`. With `if_note` only where the note is that one (that of a
        stream that is not there is empty); else raises `StreamMoved`.
        """
        ...

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        """Return the first `count` events after an id; where there is none, wait up to `wait_s` seconds for one."""
        ...

    async def has(self, stream_id: str, id: int) -> bool:
        """True if the event is stored: who has read up to it can go on from there."""
        ...

    async def state(self, stream_id: str) -> StreamState | None:
        """None for a stream that is not there."""
        ...

    async def running(self) -> Sequence[str]:
        """The ids of streams that are `running`."""
        ...

    async def remove(self, stream_id: str) -> None:
        """Remove the events for good, with status and note; ids of later events are greater than theirs were."""
        ...

    async def close(self) -> None: ...
