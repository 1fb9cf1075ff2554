"""Writes the event stream of one session: each entry of its log once, in order, and the events in between.

The stream's note has the number of log entries that were sent, and is stored together with their events. The next
writer begins with the missing entries, so a killed process neither loses nor repeats any.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec

from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.llm.messages import Block

log = logging.getLogger(__name__)

IDS_PER_WRITER = 1_000_000  # each writer begins at a multiple of this
_RETRY_AFTER_S = 1.0  # after the store could not be reached


class QueuedMessage(msgspec.Struct, frozen=True):
    """A message whose turn has not begun."""

    stream_id: str
    content_hash: str = msgspec.field(name="content")


class StreamNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state that the next writer of a stream needs, stored with it."""

    epoch: int = 0  # the number of writers so far
    entries: int = 0  # how many entries of the log were sent
    last_entry_event: int = msgspec.field(default=0, name="told")  # the id of the event with the newest sent entry
    model: str = ""
    mode: str = ""
    turn_stream_id: str = msgspec.field(default="", name="span")  # the `stream_id` of the newest turn
    queue: tuple[QueuedMessage, ...] = msgspec.field(default=(), name="waiting")
    accepted: tuple[str, ...] = msgspec.field(default=(), name="taken")  # `stream_id`s of the newest accepted messages
    is_turn_open: bool = msgspec.field(default=False, name="is_open")  # the newest turn's result was not sent yet


class StreamWriter:
    """Writes to one stream until another writer begins."""

    def __init__(self, store: EventStore, stream_id: str, stored_note: str, last_id: int) -> None:
        self._store = store
        self._stream_id = stream_id
        self._stored_note = stored_note  # the store rejects writes if it has another note by now
        self._last_id = last_id  # of the newest event
        self._writing = asyncio.Lock()
        self.note = msgspec.json.decode(stored_note, type=StreamNote) if stored_note else StreamNote()

    @classmethod
    async def of(cls, store: EventStore, stream_id: str) -> Self:
        """Return a writer that stops no other, to read the note or add entries. Raises `StorageError`."""
        state = await store.state(stream_id)
        return cls(store, stream_id, state.note if state else "", state.last_id if state else 0)

    @classmethod
    async def acquire(cls, store: EventStore, stream_id: str) -> Self:
        """Become the stream's only writer, which stops the previous one. Raises `StorageError`."""
        while True:
            writer = await cls.of(store, stream_id)
            with suppress(StreamMoved):  # another writer began at the same time: try again after it
                await writer.begin()
                return writer

    async def begin(self) -> None:
        """Stop all other writers. Raises `StreamMoved` if another one has begun meanwhile."""
        # After a power cut the store may have lost ids that readers already know, so skip to the next multiple.
        self._last_id = math.ceil(self._last_id / IDS_PER_WRITER) * IDS_PER_WRITER
        self.change_note(epoch=self.note.epoch + 1)
        await self._append([], status=None)

    def change_note(self, **fields: Any) -> None:
        self.note = msgspec.structs.replace(self.note, **fields)

    async def write_now(self, *, status: StreamStatus | None) -> None:
        """Store the note, and the status unless it is None. Raises `StorageError` if the store cannot be reached."""
        async with self._writing:
            await self._append([], status)

    async def write(self, objects: Sequence[dict[str, Any]], *, status: StreamStatus | None = None) -> None:
        """Store the objects and the note, and wait while the store cannot be reached. Raises `StreamMoved`."""
        async with self._writing:
            while True:
                try:
                    return await self._append(objects, status)
                except StreamMoved:
                    raise
                except StorageError as error:
                    log.warning("events of session %s wait: %s", self._stream_id, error)
                await asyncio.sleep(_RETRY_AFTER_S)

    async def _append(self, objects: Sequence[dict[str, Any]], status: StreamStatus | None) -> None:
        """Store the objects and the note together. Raises `StreamMoved` if another writer has begun."""
        events = [msgspec.json.encode(value) for value in objects]
        ids_of_entries = [  # of those events that are entries of the log
            id
            for id, value in enumerate(objects, self._last_id + 1)  # the store assigns the same ids
            if value["type"] in ("assistant", "user") or "entry_id" in value
        ]
        last_entry_event = max(ids_of_entries, default=self.note.last_entry_event)
        note = msgspec.structs.replace(self.note, last_entry_event=last_entry_event)
        note_text = msgspec.json.encode(note).decode()
        last_id = await self._store.append(
            self._stream_id, events, status=status, note=note_text, if_note=self._stored_note, after=self._last_id
        )
        self._last_id = max(self._last_id, last_id)  # the store does not know the ids that `begin` skipped
        self._stored_note = note_text
        # `self.note` may have changed while the store was writing, so only this field is set.
        self.change_note(last_entry_event=last_entry_event)


def hash_of(content: Sequence[Block]) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]
