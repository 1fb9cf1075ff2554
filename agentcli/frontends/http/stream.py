"""Writes the event stream of one session: every entry of its log, once and in order, and the events in between.

The note beside it counts the log's entries that were sent, and changes only together with their events. The next
writer first sends the missing ones, so a kill loses none and doubles none.
"""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec

from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.llm.messages import Block

log = logging.getLogger(__name__)

IDS_PER_WRITER = 1_000_000
_RETRY_AFTER_S = 1.0


class Waiting(msgspec.Struct, frozen=True):
    """A message whose turn has not begun: its `stream_id`, and a hash of its content."""

    stream_id: str
    content: str


class StreamNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state that the next writer of a stream needs, stored with it."""

    epoch: int = 0  # the number of writers so far
    entries: int = 0  # of the log that were sent
    last_entry_event: int = msgspec.field(default=0, name="told")  # the id of the event with the newest of them
    model: str = ""
    mode: str = ""
    span: str = ""  # the `stream_id` of the prompt answered last
    waiting: tuple[Waiting, ...] = ()  # queued messages
    accepted: tuple[str, ...] = msgspec.field(default=(), name="taken")  # the `stream_id`s of the newest messages
    is_open: bool = False  # a turn's result was not sent yet


class StreamWriter:
    """Writes to one stream for as long as nobody else does."""

    def __init__(self, store: EventStore, stream_id: str, stored_note: str, last_id: int) -> None:
        self._store = store
        self._stream_id = stream_id
        self._stored_note = stored_note
        self._last_id = last_id
        self._writing = asyncio.Lock()
        self.note = msgspec.json.decode(stored_note, type=StreamNote) if stored_note else StreamNote()

    @classmethod
    async def of(cls, store: EventStore, stream_id: str) -> Self:
        """Return a writer that adds what is missing, where nobody else writes. Raises `StorageError`."""
        state = await store.state(stream_id)
        return cls(store, stream_id, state.note if state else "", state.last_id if state else 0)

    @classmethod
    async def acquire(cls, store: EventStore, stream_id: str) -> Self:
        """Return the stream's only writer: a former one can write no more. Raises `StorageError`."""
        while True:
            writer = await cls.of(store, stream_id)
            with suppress(StreamMoved):  # another writer has begun just now, and this one begins after it
                await writer.begin()
                return writer

    async def begin(self) -> None:
        """Keep all others from writing. Raises `StreamMoved` where another one has begun."""
        # A power cut may take back ids that readers know already: go on with the next multiple of `IDS_PER_WRITER`.
        self._last_id = -(-self._last_id // IDS_PER_WRITER) * IDS_PER_WRITER
        self.change(epoch=self.note.epoch + 1)
        await self._append([], None)

    def change(self, **fields: Any) -> None:
        """Change the note; it is stored with the next objects."""
        self.note = msgspec.structs.replace(self.note, **fields)

    async def write_now(self, *, status: StreamStatus | None) -> None:
        """Store the note. Unlike `write` it raises `StorageError` at once."""
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
                await asyncio.sleep(_RETRY_AFTER_S)

    async def _append(self, objects: Sequence[dict[str, Any]], status: StreamStatus | None) -> None:
        events = [msgspec.json.encode(value) for value in objects]
        ids_of_entries = [  # of the events that show an entry of the log
            id
            for id, value in enumerate(objects, self._last_id + 1)  # the store gives them the same ids
            if value["type"] in ("assistant", "user") or "entry_id" in value
        ]
        last_entry_event = max(ids_of_entries, default=self.note.last_entry_event)
        note = msgspec.structs.replace(self.note, last_entry_event=last_entry_event)
        text = msgspec.json.encode(note).decode()
        last_id = await self._store.append(
            self._stream_id, events, status=status, note=text, if_note=self._stored_note, after=self._last_id
        )
        self._last_id = max(self._last_id, last_id)  # without events the store returns its own, below that of `begin`
        self._stored_note = text
        # Others may have changed `self.note` meanwhile, so it only takes over what changed here.
        self.change(last_entry_event=last_entry_event)


def hash_of(content: Sequence[Block]) -> str:
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()[:16]
