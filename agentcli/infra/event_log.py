"""Keeps event streams in the database of the sessions, which several processes may share, or in memory.

Committed events outlast the process. After a power cut the newest ones may be missing, because the log of the session
has what counts of them. A reader that asks for their ids then learns that they are unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from agentcli.agent.interfaces import StreamEvent, StreamState, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.sessions.database import Writer, connect_to_memory
from agentcli.infra.sessions.sqlite import open_sessions

log = logging.getLogger(__name__)

T = TypeVar("T")

KEEP_S = 30 * 86_400.0  # a stream that does not run is removed so long after its last event
POLL_S = 0.05  # for events of other processes
TIME_TO_LIVE_S = 3_600.0  # of a stream in memory
_MAX_IDLE_POLLS = 20
_TAIL = 256  # the newest events of a stream stay in memory for its readers

_KEEP_STATE = """
INSERT INTO streams (id, status, last_id, note, touched, is_there) VALUES (:id, :status, :last_id, :note, :now, 1)
ON CONFLICT (id) DO UPDATE SET status = :status, last_id = :last_id, note = :note, touched = :now, is_there = 1
RETURNING number
"""
_EVENTS = """
SELECT events.id, data FROM events JOIN streams ON number = stream
WHERE streams.id = ? AND events.id > ? ORDER BY events.id LIMIT ?
"""


class WaitingReaders(ABC):
    """Implements `read` and `has` of `EventStore`, with readers that wait for new events."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by stream
        self._removed: set[str] = set()  # streams that were removed while somebody waited

    @abstractmethod
    async def _find(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]: ...

    @abstractmethod
    def _follow_others(self) -> None:
        """Begin to wake readers for events of other processes, unless that is under way."""

    def _wake(self, stream_id: str, *, is_removed: bool = False) -> None:
        waiting = self._waiting.get(stream_id, ())
        if waiting and is_removed:
            self._removed.add(stream_id)
        for arrived in waiting:
            arrived.set()

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        if wait_s <= 0:
            return await self._find(stream_id, after, count)
        self._follow_others()
        arrived = asyncio.Event()
        waiting = self._waiting.setdefault(stream_id, set())
        waiting.add(arrived)  # before the first look: nothing is missed
        try:
            async with asyncio.timeout(wait_s):
                while not (found := await self._find(stream_id, after, count)) and stream_id not in self._removed:
                    await arrived.wait()
                    arrived.clear()
                return found
        except TimeoutError:
            return ()
        finally:
            waiting.discard(arrived)
            if not waiting:
                del self._waiting[stream_id]
                self._removed.discard(stream_id)

    async def has(self, stream_id: str, id: int) -> bool:
        return id > 0 and any(event.id == id for event in await self.read(stream_id, id - 1, 1))


class SqliteEvents(WaitingReaders):
    """Implements `EventStore`. Streams without events for `keep_s` seconds are removed at the start."""

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
        """Keep the newest events of a stream that has readers in this process."""
        tail = self._tails.pop(stream_id, [])
        if stream_id in self._waiting:
            follows = not (tail and events) or events[0].id == tail[-1].id + 1  # not if another process wrote, too
            self._tails[stream_id] = [*(tail if follows else ()), *events][-_TAIL:]

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
        """Wake readers for events of other processes, as long as there are readers."""
        version, known, idle_polls = -1, dict[str, Any](), 0
        query = "SELECT id, last_id FROM streams WHERE id IN (SELECT value FROM json_each(?))"
        while idle_polls < _MAX_IDLE_POLLS:
            await asyncio.sleep(POLL_S)
            streams = list(self._waiting)
            idle_polls = 0 if streams else idle_polls + 1
            with suppress(StorageError):  # readers get the error when they look themselves
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
    """Implements `EventStore`. A stream is removed `ttl_s` seconds after its last event; `clock` returns seconds."""

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
        pass  # no other process has the database


def _open(path: Path, keep_s: float, may_replace: bool) -> apsw.Connection:
    connection = open_sessions(path, log.warning, may_replace, synchronous="normal")
    with connection:
        _remove(connection, "touched < ? AND status <> 'running'", time.time() - keep_s)
    return connection


def _remove(db: apsw.Connection, which: str, value: float | str) -> None:
    """Remove events. The rows of their streams stay, so that no id is used again."""
    numbers = f"SELECT number FROM streams WHERE {which}"  # noqa: S608  # a condition of this module
    db.execute(f"DELETE FROM events WHERE stream IN ({numbers})", (value,))  # noqa: S608
    db.execute(f"UPDATE streams SET is_there = 0, status = 'complete', note = '' WHERE {which}", (value,))  # noqa: S608
