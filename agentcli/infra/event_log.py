"""Stores event streams: in the database of the sessions, which several processes may share, in memory, or in Redis.

Committed events outlast the process. After a power cut the newest ones may be missing: the session's log still has
their essential contents, and `has` returns False for their ids. Redis decides by its own settings what outlasts a power
cut: with `appendonly yes` and `appendfsync always` nothing is lost.
"""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw

from agentcli.agent.interfaces import StreamEvent, StreamState, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.sessions import database
from agentcli.infra.sessions.tables import SQLITE
from agentcli.settings.files import make_private_folder

log = logging.getLogger(__name__)

KEEP_S = 30 * 86_400.0  # a stream that is not running is removed this long after its last event
POLL_S = 0.05  # between polls for events of other processes
TIME_TO_LIVE_S = 3_600.0  # a stream in memory is removed this long after its last event
_MAX_IDLE_POLLS = 20  # polling ends after so many polls without a reader
_REDIS_CONNECTIONS = 16
_RUNNING_KEY, _NEWS_CHANNEL = "agentcli:running", "agentcli:news"  # in Redis


class WaitingReaders(ABC):
    """Implements `read` and `has` of `EventStore`, with readers that wait for new events."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by stream id, an event for each reader, set to wake it
        self._removed: set[str] = set()  # streams that were removed while somebody waited for their events
        self._follower: asyncio.Task[None] | None = None  # wakes readers for events of other processes

    @abstractmethod
    async def _stored_events(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]: ...

    @abstractmethod
    async def _follow_others(self) -> None:
        """Wake readers for events of other processes. Runs while there are readers, and may run longer."""

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
            return await self._stored_events(stream_id, after, count)
        if self._follower is None or self._follower.done():
            self._follower = asyncio.create_task(self._follow_others())
        arrived = asyncio.Event()
        waiting = self._waiting.setdefault(stream_id, set())
        waiting.add(arrived)  # before the first query, so that no event is missed
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    events = await self._stored_events(stream_id, after, count)
                    if events or stream_id in self._removed:
                        return events
                    await arrived.wait()
                    arrived.clear()
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
    """Implements `EventStore`. The first use removes streams that are not running and had no events for `keep_s` s."""

    def __init__(self, path: Path, *, keep_s: float = KEEP_S) -> None:
        super().__init__()
        self._writer = database.Writer(path, lambda: _open(path, keep_s))
        self._clock = time.time

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
            # A stream that was removed (not `is_there`) has kept its row and last id, but begins again as a new one.
            query = "SELECT CASE WHEN is_there THEN status ELSE 'running' END, last_id, note FROM streams WHERE id = ?"
            old_status, last_id, old_note = db.execute(query, (stream_id,)).fetchone() or ("running", 0, "")
            if if_note is not None and old_note != if_note:  # another writer has begun, and changed the note
                raise StreamMoved(stream_id)
            first = max(last_id, after) + 1  # `after`: ids that readers may know, although a power cut removed them
            last_id = first + len(events) - 1 if events else last_id
            new_note = old_note if note is None else note
            state = {"id": stream_id, "status": status or old_status, "last_id": last_id, "note": new_note}
            number = db.execute(SQLITE["keep_stream"], {**state, "now": self._clock()}).get  # of the row
            rows = ((number, id, data) for id, data in enumerate(events, first))
            db.executemany("INSERT INTO events (stream, id, data) VALUES (?, ?, ?)", rows)
            return int(last_id)

        last_id = await self._do(work)
        self._wake(stream_id)
        return last_id

    async def _do(self, work: Callable[[apsw.Connection], database.T]) -> database.T:
        return await self._writer.submit(work)

    async def _stored_events(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]:
        values = (stream_id, after, count)
        return await self._do(lambda db: [StreamEvent(*row) for row in db.execute(SQLITE["events"], values)])

    async def _follow_others(self) -> None:
        known_ids: dict[str, Any] = {}  # the last id of each stream at the last poll
        idle_polls = 0
        query = "SELECT id, last_id FROM streams WHERE id IN (SELECT value FROM json_each(?))"
        while idle_polls < _MAX_IDLE_POLLS:
            await asyncio.sleep(POLL_S)
            streams = json.dumps([*self._waiting])
            idle_polls = 0 if self._waiting else idle_polls + 1
            with suppress(StorageError):  # readers get the error when they look themselves
                rows = await self._do(lambda db: db.execute(query, (streams,)).fetchall())  # noqa: B023
                last_ids = {str(id): last_id for id, last_id in rows}
                for id, _ in last_ids.items() - known_ids.items():
                    self._wake(id)
                known_ids = last_ids

    async def state(self, stream_id: str) -> StreamState | None:
        query = "SELECT status, last_id, note FROM streams WHERE id = ? AND is_there"
        row = await self._do(lambda db: db.execute(query, (stream_id,)).fetchone())
        return StreamState(*row) if row else None

    async def running(self) -> Sequence[str]:
        query = "SELECT id FROM streams WHERE status = 'running' AND is_there"
        return await self._do(lambda db: [str(id) for (id,) in db.execute(query)])

    async def remove(self, stream_id: str) -> None:
        await self._do(lambda db: _remove(db, "id = ?", stream_id))
        self._wake(stream_id, is_removed=True)

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
        await self._writer.close()


class MemoryEvents(SqliteEvents):
    """Implements `EventStore`. A stream is removed `ttl_s` seconds after its last event; `clock` returns seconds."""

    def __init__(self, *, ttl_s: float = TIME_TO_LIVE_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Path())
        self._writer = database.Writer(None, database.connect_to_memory)  # replaces the one for a file
        self._ttl_s = ttl_s
        self._clock = clock

    async def _do(self, work: Callable[[apsw.Connection], database.T]) -> database.T:
        def remove_old_and_work(db: apsw.Connection) -> database.T:
            _remove(db, "is_there AND touched <= ?", self._clock() - self._ttl_s)
            return work(db)

        return await self._writer.submit(remove_old_and_work)

    async def _follow_others(self) -> None:
        pass  # no other process can use the database


def _open(path: Path, keep_s: float) -> apsw.Connection:
    make_private_folder(path.parent)
    connection = database.connect(path, synchronous="normal")
    with database.transaction(connection):
        _remove(connection, "touched < ? AND status <> 'running'", time.time() - keep_s)
    return connection


def _remove(db: apsw.Connection, condition: str, value: float | str) -> None:
    """Remove the streams for which an SQL condition is true. Their rows stay, so that no id is used again."""
    numbers = f"SELECT number FROM streams WHERE {condition}"  # noqa: S608  # all conditions are in this module
    db.execute(f"DELETE FROM events WHERE stream IN ({numbers})", (value,))  # noqa: S608
    db.execute(f"UPDATE streams SET is_there = 0, status = 'complete', note = '' WHERE {condition}", (value,))  # noqa: S608


class RedisEvents(WaitingReaders):
    """Implements `EventStore` with Redis Streams (https://redis.io/docs/latest/develop/data-types/streams/).

    A stream that is not running is removed `keep_s` s after its last event. Needs the extra `redis`.
    """

    def __init__(self, url: str, *, keep_s: float = KEEP_S) -> None:
        super().__init__()
        try:
            import redis.asyncio as redis
        except ImportError as error:
            raise StorageError("Event streams in Redis need an extra: pip install 'agentcli[redis]'.") from error
        self._keep_ms = round(keep_s * 1000)
        self._host = urlsplit(url).hostname or "localhost"
        # One of the connections is subscribed to news. If none is free, a request waits for one.
        pool = redis.BlockingConnectionPool.from_url(
            url, max_connections=_REDIS_CONNECTIONS, timeout=30, socket_connect_timeout=5, health_check_interval=30
        )
        self._error = redis.RedisError
        self._client: Any = redis.Redis.from_pool(pool)
        self._append = self._client.register_script(Path(__file__).with_name("redis_append.lua").read_text())

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
        stream = f"agentcli:{stream_id}"
        keys = [f"{stream}:events", f"{stream}:state", _RUNNING_KEY, f"{stream}:last"]
        # redis_append.lua distinguishes no text ("-") from an empty one ("=").
        texts = ("-" if text is None else f"={text}" for text in (status, note, if_note))
        arguments: list[Any] = [stream_id, *texts, after, self._keep_ms, *events]
        last_id = int(await self._ask(self._append(keys=keys, args=arguments)))
        if last_id < 0:
            raise StreamMoved(stream_id)
        return last_id

    async def _stored_events(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]:
        first = f"{max(after, 0)}-1"  # event 7 has the id `7-0` in Redis, so `7-1` begins right after it
        entries = await self._ask(self._client.xrange(f"agentcli:{stream_id}:events", first, "+", count=count))
        return [StreamEvent(int(id.partition(b"-")[0]), fields[b"data"]) for id, fields in entries]

    async def _follow_others(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as news:
                    await news.subscribe(_NEWS_CHANNEL)
                    for stream_id in list(self._waiting):  # events may have come before the subscription
                        self._wake(stream_id)
                    async for message in news.listen():
                        if message["type"] == "message":
                            self._wake(message["data"].decode())
            except self._error as error:
                log.warning("Redis at %s does not report new events: %s", self._host, error)
                await asyncio.sleep(1)

    async def state(self, stream_id: str) -> StreamState | None:
        fields = await self._ask(self._client.hgetall(f"agentcli:{stream_id}:state"))
        if b"status" not in fields:
            return None
        return StreamState(fields[b"status"].decode(), int(fields[b"last_id"]), fields[b"note"].decode())

    async def running(self) -> Sequence[str]:
        return [id.decode() for id in await self._ask(self._client.smembers(_RUNNING_KEY))]

    async def remove(self, stream_id: str) -> None:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.delete(f"agentcli:{stream_id}:events")
            pipeline.hdel(f"agentcli:{stream_id}:state", "status", "note")  # the last id stays
            pipeline.srem(_RUNNING_KEY, stream_id)
            pipeline.publish(_NEWS_CHANNEL, stream_id)
            await self._ask(pipeline.execute())
        self._wake(stream_id, is_removed=True)

    async def _ask(self, request: Awaitable[database.T]) -> database.T:
        try:
            return await request
        except (self._error, OSError) as error:
            raise StorageError(
                f"Redis at {self._host} did not answer ({error}): check that it runs and that serve.redis is right."
            ) from error

    async def close(self) -> None:
        while self._follower is not None and not self._follower.done():
            self._follower.cancel()  # more than once: before Python 3.12 a `wait_for` within it may swallow one
            await asyncio.wait([self._follower], timeout=0.1)
        await self._client.aclose()
