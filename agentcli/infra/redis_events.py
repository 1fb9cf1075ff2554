"""Keeps event streams in Redis Streams, for servers on several machines (extra `redis`).

Redis decides what outlasts a power cut: with `appendonly yes` and `appendfsync always` nothing is lost.
https://redis.io/docs/latest/develop/data-types/streams/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agentcli.agent.interfaces import StreamEvent, StreamState, StreamStatus
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.event_log import KEEP_S, WaitingReaders

try:
    import redis.asyncio as redis
    from redis.exceptions import RedisError
except ImportError as error:
    raise StorageError("Event streams in Redis need an extra: pip install 'agentcli[redis]'.") from error

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECTIONS = 16
_RUNNING, _NEWS = "agentcli:running", "agentcli:news"
# Keys: events, state, the set of running streams, the last id. Arguments: stream, status, note, if_note, after,
# milliseconds to keep it, events. A status or note of "-" stays as it is, others begin with "=". The last id never
# expires, so that no id is used again. Earlier versions, which may still run on another machine, store it in the state
# only, so the greater one counts.
_APPEND = """
local note = redis.call('HGET', KEYS[2], 'note') or ''
if ARGV[4] ~= '-' and string.sub(ARGV[4], 2) ~= note then return -1 end
local last = tonumber(redis.call('GET', KEYS[4]) or '0')
last = math.max(last, tonumber(redis.call('HGET', KEYS[2], 'last_id') or '0'))
local next = math.max(last, tonumber(ARGV[5]))
for n = 7, #ARGV do
    next = next + 1
    redis.call('XADD', KEYS[1], string.format('%d-0', next), 'data', ARGV[n])
    last = next
end
local status = redis.call('HGET', KEYS[2], 'status') or 'running'
if ARGV[2] ~= '-' then status = string.sub(ARGV[2], 2) end
if ARGV[3] ~= '-' then note = string.sub(ARGV[3], 2) end
redis.call('HSET', KEYS[2], 'status', status, 'note', note, 'last_id', string.format('%d', last))
redis.call('SET', KEYS[4], string.format('%d', last))
redis.call(status == 'running' and 'SADD' or 'SREM', KEYS[3], ARGV[1])
for n = 1, 2 do
    if status == 'running' then redis.call('PERSIST', KEYS[n]) else redis.call('PEXPIRE', KEYS[n], ARGV[6]) end
end
redis.call('PUBLISH', 'agentcli:news', ARGV[1])
return last
"""


class RedisEvents(WaitingReaders):
    """Implements `EventStore`. Streams that do not run are removed `keep_s` seconds after their last event."""

    def __init__(self, url: str, *, keep_s: float = KEEP_S) -> None:
        super().__init__()
        self._keep_ms = round(keep_s * 1000)
        self._host = urlsplit(url).hostname or "localhost"
        # One of the connections is subscribed to news. If none is free, a request waits for one.
        pool = redis.BlockingConnectionPool.from_url(
            url, max_connections=_CONNECTIONS, timeout=30, socket_connect_timeout=5, health_check_interval=30
        )
        self._client: Any = redis.Redis.from_pool(pool)
        self._append = self._client.register_script(_APPEND)
        self._listening: asyncio.Task[None] | None = None

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
        keys = [_key(stream_id, "events"), _key(stream_id, "state"), _RUNNING, _key(stream_id, "last")]
        words = ("-" if one is None else f"={one}" for one in (status, note, if_note))
        arguments: list[Any] = [stream_id, *words, after, self._keep_ms, *events]
        last_id = int(await self._ask(lambda: self._append(keys=keys, args=arguments)))
        if last_id < 0:
            raise StreamMoved(stream_id)
        return last_id

    async def _find(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]:
        first = f"{max(after, 0)}-1"
        found = await self._ask(lambda: self._client.xrange(_key(stream_id, "events"), first, "+", count=count))
        return [StreamEvent(int(id.partition(b"-")[0]), fields[b"data"]) for id, fields in found]

    def _follow_others(self) -> None:
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as news:
                    await news.subscribe(_NEWS)
                    for stream_id in list(self._waiting):  # for events that came before the subscription
                        self._wake(stream_id)
                    async for message in news.listen():
                        if message["type"] == "message":
                            self._wake(message["data"].decode())
            except RedisError as error:
                log.warning("Redis at %s does not tell of new events: %s", self._host, error)
                await asyncio.sleep(1)

    async def state(self, stream_id: str) -> StreamState | None:
        found = await self._ask(lambda: self._client.hgetall(_key(stream_id, "state")))
        if b"status" not in found:
            return None
        return StreamState(found[b"status"].decode(), int(found[b"last_id"]), found[b"note"].decode())

    async def running(self) -> Sequence[str]:
        return [id.decode() for id in await self._ask(lambda: self._client.smembers(_RUNNING))]

    async def remove(self, stream_id: str) -> None:
        async def work() -> None:
            async with self._client.pipeline(transaction=True) as together:
                together.delete(_key(stream_id, "events"))
                together.hdel(_key(stream_id, "state"), "status", "note")  # the last id stays
                together.srem(_RUNNING, stream_id)
                together.publish(_NEWS, stream_id)
                await together.execute()

        await self._ask(work)
        self._wake(stream_id, is_removed=True)

    async def _ask(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await work()
        except (RedisError, OSError) as error:
            raise StorageError(
                f"Redis at {self._host} could not be asked ({error}): see that it runs and that serve.redis is right."
            ) from error

    async def close(self) -> None:
        while self._listening is not None and not self._listening.done():
            self._listening.cancel()  # more than once: before Python 3.12 a `wait_for` within it may swallow one
            await asyncio.wait([self._listening], timeout=0.1)
        await self._client.aclose()


def _key(stream_id: str, part: str) -> str:
    return f"agentcli:{stream_id}:{part}"
