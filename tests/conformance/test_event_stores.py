"""What every store of event streams does, and what several processes on one of them can rely on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentcli.agent.interfaces import EventStore, StreamState
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.event_log import MemoryEvents, SqliteEvents
from tests.conformance.redis_server import redis_url
from tests.conformance.sessions import a_session, database, on_disk


def redis_events(folder: Path, **how: Any) -> Any:
    from agentcli.infra.event_log import RedisEvents

    return RedisEvents(redis_url(), **how)


def events_file(folder: Path) -> Path:
    return folder / "state" / "events.db"


MAKERS: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: MemoryEvents(),
    "sqlite": lambda folder: SqliteEvents(events_file(folder)),
    "redis": redis_events,
}
CASES = {name: pytest.param(name, marks=[pytest.mark.slow] if name == "redis" else []) for name in MAKERS}
shared_stores = pytest.mark.parametrize("make", [CASES["sqlite"], CASES["redis"]])


@pytest.fixture
def opened(tmp_path: Path, at_end: AsyncExitStack) -> Callable[[str], EventStore]:
    def open_store(make: str) -> EventStore:
        store = MAKERS[make](tmp_path)
        at_end.push_async_callback(store.close)
        return store

    return open_store


@pytest.fixture(params=CASES.values())
def store(request: pytest.FixtureRequest, opened: Callable[[str], EventStore]) -> EventStore:
    return opened(request.param)


@pytest.fixture
def stream(tmp_path: Path) -> str:
    return f"stream of {tmp_path}"


async def test_events_are_read_in_their_order_after_an_id(store: EventStore, stream: str) -> None:
    assert await store.read(stream) == []
    assert await store.append(stream, [b'{"n":1}', b'{"n":2}']) == 2
    assert await store.append(stream, [b'{"n":3}']) == 3
    found = [(event.id, event.data) for event in await store.read(stream)]
    assert found == [(1, b'{"n":1}'), (2, b'{"n":2}'), (3, b'{"n":3}')]
    assert [event.id for event in await store.read(stream, 1)] == [2, 3]
    assert [event.id for event in await store.read(stream, 0, 2)] == [1, 2]
    assert not await store.read(stream, 3)
    assert [await store.has(stream, id) for id in (0, 3, 4)] == [False, True, False]


async def test_status_and_note_change_with_the_events(store: EventStore, stream: str) -> None:
    assert await store.state(stream) is None
    await store.append(stream, [b"1"], note="first")
    assert await store.state(stream) == StreamState("running", 1, "first")
    assert stream in await store.running()
    await store.append(stream, [b"2"], status="failed")
    assert await store.state(stream) == StreamState("failed", 2, "first")
    assert stream not in await store.running()
    assert await store.append(stream, [], status="complete", note="") == 2
    assert await store.state(stream) == StreamState("complete", 2, "")
    with pytest.raises(StreamMoved):
        await store.append(stream, [b"3"], note="c", if_note="b")
    await store.append(stream, [b"4"], note="b", if_note="")
    assert [event.data for event in await store.read(stream)] == [b"1", b"2", b"4"]


async def test_ids_skip_to_a_given_one_and_never_go_back(store: EventStore, stream: str) -> None:
    await store.append(stream, [b"1"])
    assert await store.append(stream, [b"2", b"3"], after=1_000_000) == 1_000_002
    assert await store.append(stream, [b"4"], after=5) == 1_000_003
    assert [event.id for event in await store.read(stream)] == [1, 1_000_001, 1_000_002, 1_000_003]
    assert not await store.has(stream, 7)
    await store.remove(stream)
    assert await store.state(stream) is None
    assert not await store.read(stream)
    assert stream not in await store.running()
    assert await store.append(stream, [b"5"]) > 1_000_003


async def test_a_reader_waits_for_what_comes(store: EventStore, stream: str) -> None:
    began = time.monotonic()
    assert not await store.read(stream, wait_s=0.2)
    assert time.monotonic() - began >= 0.15
    readers = [asyncio.create_task(store.read(stream, wait_s=10)) for _ in range(3)]
    await asyncio.sleep(0.3)
    await store.append(stream, [b"1"])
    for events in await asyncio.gather(*readers):
        assert [event.data for event in events] == [b"1"]


async def test_many_writers_get_ids_of_their_own(store: EventStore, stream: str) -> None:
    ids = await asyncio.gather(*(store.append(stream, [str(n).encode()]) for n in range(200)))
    assert sorted(ids) == list(range(1, 201))
    events = {event.id: event.data for event in await store.read(stream, 0, 500)}
    assert events == {id: str(n).encode() for n, id in enumerate(ids)}


async def test_a_subscriber_sees_every_event_once(store: EventStore, stream: str) -> None:
    written = [f"{n}".encode() for n in range(900)]

    async def follow() -> list[bytes]:
        seen: list[bytes] = []
        after = 0
        while len(seen) < 900:
            for event in await store.read(stream, after, 7, wait_s=5):
                assert event.id > after
                after = event.id
                seen.append(event.data)
        return seen

    async def write() -> None:
        for n in range(0, 900, 3):
            await store.append(stream, written[n : n + 3])

    first, second, _ = await asyncio.gather(follow(), follow(), write())
    assert first == second == written


@shared_stores
async def test_two_programs_share_a_stream(make: str, opened: Callable[[str], EventStore], stream: str) -> None:
    here, there = opened(make), opened(make)
    await here.append(stream, [b"1"], note="mine")
    reader = asyncio.create_task(there.read(stream, 1, wait_s=10))
    await asyncio.sleep(0.3)
    await here.append(stream, [b"2"])
    assert [event.data for event in await reader] == [b"2"]
    await there.append(stream, [b"3"], note="yours", if_note="mine")
    with pytest.raises(StreamMoved):
        await here.append(stream, [b"4"], if_note="mine")
    assert [(event.id, event.data) for event in await here.read(stream, 2, wait_s=10)] == [(3, b"3")]


WRITER = """
import asyncio, sys
from pathlib import Path
from agentcli.infra.event_log import RedisEvents, SqliteEvents
async def run():
    store = SqliteEvents(Path(sys.argv[1])) if sys.argv[1][0] == "/" else RedisEvents(sys.argv[1])
    n = 0
    while True:
        id = await store.append(sys.argv[2], [str(n).encode(), str(n + 1).encode()])
        n += 2
        print(id, flush=True)
asyncio.run(run())
"""


@pytest.mark.full
@pytest.mark.slow
@shared_stores
async def test_a_killed_writer_loses_nothing_that_it_was_reported_is_stored(
    make: str, opened: Callable[[str], EventStore], tmp_path: Path, stream: str
) -> None:
    program = [sys.executable, "-c", WRITER, redis_url() if make == "redis" else str(events_file(tmp_path)), stream]
    store = opened(make)
    for round in range(5):
        await store.remove(stream)
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = told = int(writer.stdout.readline())
            time.sleep(0.05 + round * 0.03)
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                told = int(line)
        state = await store.state(stream)
        assert state is not None
        assert state.last_id >= told
        events = [event.data for event in await store.read(stream, 0, 1_000_000)]
        assert events == [str(n).encode() for n in range(len(events))], "each once, in order, pairs whole"
        assert len(events) % 2 == 0
        assert len(events) >= told - first + 2


# How long streams are kept.


async def test_a_stream_in_memory_goes_after_its_time() -> None:
    now = [0.0]
    store = MemoryEvents(ttl_s=3_600, clock=lambda: now[0])
    await store.append("old", [b"1", b"2"])
    now[0] = 3_000
    await store.append("young", [b"1"])
    now[0] = 3_700
    assert await store.state("old") is None
    assert not await store.read("old")
    assert await store.state("young") is not None
    assert await store.append("old", [b"3"]) > 2, "no id comes again"


async def test_streams_that_nobody_wrote_to_for_long_are_removed_at_the_start(tmp_path: Path) -> None:
    for version in (None, 1):
        store = SqliteEvents(path := tmp_path / f"{version}.db")
        await store.append("old", [b"1"], status="complete")
        await store.append("under way", [b"1"])
        await store.close()
        if version:  # with streams alone, as an earlier version kept them
            with closing(apsw.Connection(str(path))) as db:
                db.execute("DROP TABLE words; DROP TABLE entries; DROP TABLE sessions; DROP INDEX streams_by_time")
                db.pragma("user_version", version)
        store = SqliteEvents(path, keep_s=-1)
        assert await store.state("old") is None
        assert [event.data for event in await store.read("under way")] == [b"1"]
        assert await store.append("old", [b"2"]) == 2
        await store.close()


@pytest.mark.slow
async def test_in_redis_streams_go_after_their_time_but_for_those_under_way(tmp_path: Path) -> None:
    store, old, running = redis_events(tmp_path, keep_s=0.2), f"old {tmp_path}", f"running {tmp_path}"
    await store.append(old, [b"1", b"2"], status="complete", note="mine")
    await store.append(running, [b"1"], status="complete")
    await store.append(running, [b"2"], status="running")
    assert [event.data for event in await store.read(old)] == [b"1", b"2"]
    await asyncio.sleep(0.4)
    assert await store.state(old) is None
    assert not await store.read(old)
    assert len(await store.read(running)) == 2
    assert await store.append(old, [b"3"], if_note="") == 3, "no id comes again"
    await store.close()


@pytest.mark.slow
async def test_in_redis_an_earlier_version_may_write_in_between(tmp_path: Path, stream: str) -> None:
    import redis.asyncio as redis

    store, earlier = redis_events(tmp_path), redis.Redis.from_url(redis_url())
    await store.append(stream, [b"1"])
    await earlier.xadd(f"agentcli:{stream}:events", {"data": b"2"}, id="2-0")
    await earlier.hset(f"agentcli:{stream}:state", "last_id", "2")
    assert await store.append(stream, [b"3"]) == 3
    await store.close()
    await earlier.aclose()


# Files and servers that fail.


async def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = SqliteEvents(tmp_path / "file" / "events.db")
    with pytest.raises(StorageError, match=r"events\.db"):
        await store.append("stream", [b"1"])
    await store.close()


async def test_of_a_redacted_session_no_event_and_of_its_stream_no_byte_is_left(tmp_path: Path) -> None:
    events = SqliteEvents(database(tmp_path))
    async with on_disk(tmp_path) as sessions:
        ids = [await a_session(sessions, text) for text in ("hunter2", "harmless")]
        for id, text in zip(ids, ("hunter2", "harmless"), strict=True):
            await events.append(id, [f"{text} ".encode() * 500] * 20)
        await sessions.redact(ids[0], ["hunter2"])
        assert [len(await events.read(id)) for id in ids] == [0, 20]
        await sessions.remove(ids[1])
        assert not await events.read(ids[1])
        await events.close()
    for file in database(tmp_path).parent.glob("sessions.db*"):
        assert b"hunter2" not in file.read_bytes(), file


@pytest.mark.slow
def test_redis_is_left_at_once_at_whatever_step_of_connecting(tmp_path: Path) -> None:
    async def run(steps: int) -> None:
        store = redis_events(tmp_path)
        reading = asyncio.create_task(store.read("stream", wait_s=10))
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await store.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    for steps in range(40):
        asyncio.run(run(steps))


@pytest.mark.slow
async def test_redis_that_does_not_exist_is_reported_without_its_password() -> None:
    from agentcli.infra.event_log import RedisEvents

    store = RedisEvents("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(StorageError, match=r"127\.0\.0\.1") as told:
        await store.append("stream", [b"1"])
    await store.close()
    assert "hunter2" not in str(told.value)
