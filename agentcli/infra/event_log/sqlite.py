"""Keeps event streams in the database of the sessions, which several processes may share, or in memory.

What is committed outlives the process; after a power cut the newest events may be missing, since the log of the session
holds what counts of them. Their ids are then not known here, which a reader is told.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from agentcli.agent.interfaces import EventStore, StreamEvent, StreamState, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.event_log import KEEP_S, WaitingReaders
from agentcli.infra.sessions.database import connect_to_memory
from agentcli.infra.sessions.sqlite import open_sessions
from agentcli.infra.sessions.writer import Writer

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_EVERY_S = 0.05  # for what other processes have written
TIME_TO_LIVE_S = 3_600.0  # in memory
_TAIL = 256  # events of a stream that are kept for those who follow it

_KEEP_STATE = """
INSERT INTO streams (id, status, last_id, note, touched, is_there) VALUES (:id, :status, :last_id, :note, :now, 1)
ON CONFLICT (id) DO UPDATE SET status = :status, last_id = :last_id, note = :note, touched = :now, is_there = 1
RETURNING number
"""
_EVENTS = """
SELECT events.id, data FROM events JOIN streams ON number = stream
WHERE streams.id = ? AND events.id > ? ORDER BY events.id LIMIT ?
"""


class SqliteEvents(WaitingReaders):
    """Implements `EventStore`. Streams that nothing was written to for `keep_s` seconds are removed at the start."""

    def __init__(self, path: Path, *, keep_s: float = KEEP_S) -> None:
        super().__init__()
        self._writer = Writer(path, partial(_open, path, keep_s))
        self._clock = time.time
        self._tails: dict[str, list[StreamEvent]] = {}
        self._looking: asyncio.Task[None] | None = None

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
        def work(db: apsw.Connection) -> int:
            query = "SELECT CASE WHEN is_there THEN status ELSE 'running' END, last_id, note FROM streams WHERE id = ?"
            old_status, last_id, old_note = db.execute(query, (stream_id,)).fetchone() or ("running", 0, "")
            if if_note is not None and old_note != if_note:
                raise StreamMoved(stream_id)
            first = max(last_id, after) + 1
            last_id = first + len(events) - 1 if events else last_id
            new_note = old_note if note is None else note
            state = {"id": stream_id, "status": status or old_status, "last_id": last_id, "note": new_note}
            number = db.execute(_KEEP_STATE, {**state, "now": self._clock()}).get
            rows = ((number, id, data) for id, data in enumerate(events, first))
            db.executemany("INSERT INTO events (stream, id, data) VALUES (?, ?, ?)", rows)
            return int(last_id)

        last_id = await self._do(work)
        self._keep_tail(stream_id, [StreamEvent(last_id - len(events) + n, one) for n, one in enumerate(events, 1)])
        self._wake(stream_id)
        return last_id

    async def _do(self, work: Callable[[apsw.Connection], T]) -> T:
        return await self._writer.submit(work, writes=True)

    def _keep_tail(self, stream_id: str, events: Sequence[StreamEvent]) -> None:
        """Keep the newest events of a stream that somebody follows here."""
        if stream_id not in self._waiting:
            self._tails.pop(stream_id, None)
            return
        tail = self._tails.setdefault(stream_id, [])
        if tail and events and events[0].id != tail[-1].id + 1:  # another process wrote, too
            tail.clear()
        tail += events
        del tail[:-_TAIL]

    async def _find(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]:
        tail = self._tails.get(stream_id)
        if tail and tail[0].id <= after + 1 and tail[-1].id > after:
            return tail[max(0, after + 1 - tail[0].id) :][:count]

        def work(db: apsw.Connection) -> list[StreamEvent]:
            return [StreamEvent(id, data) for id, data in db.execute(_EVENTS, (stream_id, after, count))]

        return await self._do(work)

    def _follow_others(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_others())

    async def _look_for_others(self) -> None:
        """Wake readers for what other processes write, while there are any."""
        version, known, idle_rounds = -1, dict[str, Any](), 0
        query = "SELECT id, last_id FROM streams WHERE id IN (SELECT value FROM json_each(?))"
        while idle_rounds < 20:
            await asyncio.sleep(LOOK_EVERY_S)
            streams = list(self._waiting)
            idle_rounds = 0 if streams else idle_rounds + 1
            with suppress(StorageError):  # readers are told when they look themselves
                now = await self._do(lambda db: int(db.pragma("data_version")))
                if now != version and streams:
                    names = json.dumps(streams)
                    rows = await self._do(lambda db: db.execute(query, (names,)).fetchall())  # noqa: B023
                    version, found = now, {str(id): last_id for id, last_id in rows}
                    for id in streams:
                        if known.get(id) != found.get(id):
                            self._wake(id)
                    known = found

    async def state(self, stream_id: str) -> StreamState | None:
        query = "SELECT status, last_id, note FROM streams WHERE id = ? AND is_there"
        row = await self._do(lambda db: db.execute(query, (stream_id,)).fetchone())
        return StreamState(*row) if row else None

    async def running(self) -> Sequence[str]:
        query = "SELECT id FROM streams WHERE status = 'running' AND is_there"
        return await self._do(lambda db: [str(id) for (id,) in db.execute(query)])

    async def remove(self, stream_id: str) -> None:
        await self._do(lambda db: _remove(db, "id = ?", stream_id))
        self._tails.pop(stream_id, None)
        self._wake(stream_id, is_removed=True)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await self._writer.close()


class MemoryEvents(SqliteEvents):
    """Implements `EventStore`. A stream goes `ttl_s` seconds after it was last written to; `clock` gives seconds."""

    def __init__(self, *, ttl_s: float = TIME_TO_LIVE_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Path())
        self._writer = Writer(None, connect_to_memory)
        self._ttl_s = ttl_s
        self._clock = clock

    async def _do(self, work: Callable[[apsw.Connection], T]) -> T:
        old = self._clock() - self._ttl_s

        def after_removal(db: apsw.Connection) -> T:
            _remove(db, "is_there AND touched <= ?", old)
            return work(db)

        return await self._writer.submit(after_removal)

    def _follow_others(self) -> None:
        """There are none."""


def _open(path: Path, keep_s: float, may_replace: bool) -> apsw.Connection:
    connection = open_sessions(path, log.warning, may_replace, synchronous="normal")
    with connection:
        _remove(connection, "touched < ? AND status <> 'running'", time.time() - keep_s)
    return connection


def _remove(db: apsw.Connection, which: str, value: float | str) -> None:
    """Remove events; the rows of their streams stay, so that no id comes again."""
    numbers = f"SELECT number FROM streams WHERE {which}"  # noqa: S608  # a condition of this module
    db.execute(f"DELETE FROM events WHERE stream IN ({numbers})", (value,))  # noqa: S608
    db.execute(f"UPDATE streams SET is_there = 0, status = 'complete', note = '' WHERE {which}", (value,))  # noqa: S608


if TYPE_CHECKING:
    _: type[EventStore] = SqliteEvents
