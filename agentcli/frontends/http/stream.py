"""Writes the event stream of one session: all that its log holds, once and in order, and the events in between.

The note beside it counts the log's entries that were sent, and changes only together with their events. The next
writer first sends the missing ones, so a kill loses none and doubles none.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.conversation.entries import Entry
from agentcli.errors import StorageError, StreamMoved
from agentcli.frontends.json_forms.output import entry_object
from agentcli.llm.messages import Block

log = logging.getLogger(__name__)

IDS_OF_A_WRITER = 1_000_000
_AGAIN_AFTER_S = 1.0


class Waiting(Struct, frozen=True):
    """A message whose turn has not begun: its `stream_id`, and a hash of what it says."""

    stream_id: str
    content: str


class StreamNote(Struct, frozen=True, omit_defaults=True):
    """The state that the next writer of a stream needs, stored with it. `epoch` counts the writers.

    `entries` of the log were sent, the newest as event `told`. `span` is the prompt answered last, `waiting` those that
    wait for their turn, `taken` the newest accepted, by `stream_id`. `is_open`: the turn's result was not sent.
    """

    epoch: int = 0
    entries: int = 0
    told: int = 0
    model: str = ""
    mode: str = ""
    span: str = ""
    waiting: tuple[Waiting, ...] = ()
    taken: tuple[str, ...] = ()
    is_open: bool = False


class StreamWriter:
    """Writes to one stream for as long as nobody else does."""

    def __init__(self, store: EventStore, stream_id: str, kept: str, last_id: int) -> None:
        self._store = store
        self._stream_id = stream_id
        self._kept = kept  # the note as it is stored
        self._last_id = last_id
        self._writing = asyncio.Lock()
        self.note = msgspec.json.decode(kept, type=StreamNote) if kept else StreamNote()

    @classmethod
    async def of(cls, store: EventStore, stream_id: str) -> StreamWriter:
        """To add what is missing where nobody writes. Raises `StorageError`."""
        state = await store.state(stream_id)
        return cls(store, stream_id, state.note if state else "", state.last_id if state else 0)

    @classmethod
    async def acquire(cls, store: EventStore, stream_id: str) -> StreamWriter:
        """To be its only writer: whoever wrote before can write no more. Raises `StorageError`."""
        while True:
            writer = await cls.of(store, stream_id)
            try:
                await writer.begin()
            except StreamMoved:
                continue
            return writer

    async def begin(self) -> None:
        """Keep all others from writing. Raises `StreamMoved` where another one has begun."""
        # Ids that a power cut took back may be known to readers: none is given twice.
        self._last_id = -(-self._last_id // IDS_OF_A_WRITER) * IDS_OF_A_WRITER
        self.change(epoch=self.note.epoch + 1)
        await self._append([], None)

    def change(self, **fields: Any) -> None:
        """Change the note; it is stored with the next objects."""
        self.note = replace(self.note, **fields)

    async def write_now(self, *, status: StreamStatus | None) -> None:
        """Store the note, or raise `StorageError`."""
        async with self._writing:
            await self._append([], status)

    async def write(self, objects: Sequence[dict[str, Any]], *, status: StreamStatus | None = None) -> None:
        """Store the objects and the note; waits for a store that cannot be reached. Raises `StreamMoved`."""
        async with self._writing:
            while True:
                try:
                    return await self._append(objects, status)
                except StreamMoved:
                    raise
                except StorageError as error:
                    log.warning("events of session %s wait: %s", self._stream_id, error)
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def _append(self, objects: Sequence[dict[str, Any]], status: StreamStatus | None) -> None:
        events = [msgspec.json.encode(one) for one in objects]
        of_entries = (
            n for n, one in enumerate(objects, 1) if one["type"] in ("assistant", "user") or "entry_id" in one
        )
        telling = max(of_entries, default=0)
        note = replace(self.note, told=self._last_id + telling) if telling else self.note
        text = msgspec.json.encode(note).decode()
        last_id = await self._store.append(
            self._stream_id, events, status=status, note=text, if_note=self._kept, after=self._last_id
        )
        self._last_id = max(self._last_id, last_id)
        self._kept, self.note = text, replace(self.note, told=note.told)

    async def write_missing(self, entries: Iterable[Entry]) -> None:
        """Tell the entries that follow those the stream has told. Raises `StreamMoved`."""
        missing = list(entries)
        self.change(entries=self.note.entries + len(missing))
        await self.write([made for entry in missing if (made := entry_object(entry, self._stream_id))])


def hash_of(content: Sequence[Block]) -> str:
    """Tells a message from others."""
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]
