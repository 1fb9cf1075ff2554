"""What every store of event streams does, and what several processes on one of them can rely on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import apsw
import pytest

from agentcli.agent.event_store import EventStore, StreamState
from agentcli.conversation.entries import User
from agentcli.errors import StorageError, StreamMoved
from agentcli.infra.event_log.sqlite import MemoryEvents, SqliteEvents
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text
from tests.conformance.redis_server import redis_url


def redis_events(folder: Path) -> EventStore:
    from agentcli.infra.event_log.redis import RedisEvents

    return RedisEvents((folder / "redis.url").read_text())


MAKERS: dict[str, Callable[[Path], EventStore]] = {
    "memory": lambda folder: MemoryEvents(),
    "sqlite": lambda folder: SqliteEvents(folder / "state" / "events.db"),
    "redis": redis_events,
}
every_store = pytest.mark.parametrize(
    "make", [pytest.param(name, marks=[pytest.mark.slow] if name == "redis" else []) for name in MAKERS]
)
shared_stores = pytest.mark.parametrize(
    "make", [pytest.param(name, marks=[pytest.mark.slow] if name == "redis" else []) for name in ("sqlite", "redis")]
)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("make") == "redis":
        (tmp_path / "redis.url").write_text(redis_url())
    return tmp_path


@asynccontextmanager
async def opened(make: str, folder: Path) -> AsyncIterator[EventStore]:
    store = MAKERS[make](folder)
    try:
        yield store
    finally:
        await store.close()


def new_id(folder: Path) -> str:
    return f"stream of {folder}"


@every_store
def test_events_are_read_in_their_order_after_an_id(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
            assert await store.read(stream) == []
            assert await store.append(stream, [b'{"n":1}', b'{"n":2}']) == 2
            assert await store.append(stream, [b'{"n":3}']) == 3
            assert [(event.id, event.data) for event in await store.read(stream)] == [
                (1, b'{"n":1}'),
                (2, b'{"n":2}'),
                (3, b'{"n":3}'),
            ]
            assert [event.id for event in await store.read(stream, 1)] == [2, 3]
            assert [event.id for event in await store.read(stream, 0, 2)] == [1, 2]
            assert not await store.read(stream, 3)
            assert await store.has(stream, 3)
            assert not await store.has(stream, 4)
            assert not await store.has(stream, 0)

    asyncio.run(run())


@every_store
def test_status_and_note_change_with_the_events(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
            assert await store.state(stream) is None
            await store.append(stream, [b"1"], note="first")
            assert await store.state(stream) == StreamState("running", 1, "first")
            assert stream in await store.running()
            await store.append(stream, [b"2"], status="failed")
            assert await store.state(stream) == StreamState("failed", 2, "first")
            assert stream not in await store.running()
            assert await store.append(stream, [], status="complete", note="") == 2
            assert await store.state(stream) == StreamState("complete", 2, "")

    asyncio.run(run())


@every_store
def test_nothing_is_stored_where_the_note_is_another_one(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
            await store.append(stream, [b"1"], note="a", if_note="")
            with pytest.raises(StreamMoved):
                await store.append(stream, [b"2"], note="c", if_note="b")
            await store.append(stream, [b"3"], note="b", if_note="a")
            assert [event.data for event in await store.read(stream)] == [b"1", b"3"]

    asyncio.run(run())


@every_store
def test_ids_skip_to_a_given_one_and_never_go_back(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
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

    asyncio.run(run())


@every_store
def test_a_reader_waits_for_what_comes(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
            began = time.monotonic()
            assert not await store.read(stream, wait_s=0.2)
            assert time.monotonic() - began >= 0.15
            readers = [asyncio.create_task(store.read(stream, wait_s=10)) for _ in range(3)]
            await asyncio.sleep(0.3)
            await store.append(stream, [b"1"])
            for events in await asyncio.gather(*readers):
                assert [event.data for event in events] == [b"1"]

    asyncio.run(run())


@every_store
def test_many_writers_get_ids_of_their_own(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:
            ids = await asyncio.gather(*(store.append(stream, [str(n).encode()]) for n in range(200)))
            assert sorted(ids) == list(range(1, 201))
            events = {event.id: event.data for event in await store.read(stream, 0, 500)}
            assert events == {id: str(n).encode() for n, id in enumerate(ids)}

    asyncio.run(run())


@every_store
def test_who_follows_sees_every_event_once(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as store:

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
                for n in range(300):
                    await store.append(stream, [f"{n}.{part}".encode() for part in range(3)])

            first, second, _ = await asyncio.gather(follow(), follow(), write())
            assert first == second == [f"{n}.{part}".encode() for n in range(300) for part in range(3)]

    asyncio.run(run())


@shared_stores
def test_two_programs_share_a_stream(make: str, folder: Path) -> None:
    async def run() -> None:
        stream = new_id(folder)
        async with opened(make, folder) as here, opened(make, folder) as there:
            await here.append(stream, [b"1"], note="mine")
            reader = asyncio.create_task(there.read(stream, 1, wait_s=10))
            await asyncio.sleep(0.3)
            await here.append(stream, [b"2"])
            assert [event.data for event in await reader] == [b"2"]
            await there.append(stream, [b"3"], note="yours", if_note="mine")
            with pytest.raises(StreamMoved):
                await here.append(stream, [b"4"], if_note="mine")
            reader = asyncio.create_task(here.read(stream, 2, wait_s=10))
            assert [(event.id, event.data) for event in await reader] == [(3, b"3")]

    asyncio.run(run())


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.conformance.test_event_stores import MAKERS
async def run():
    store = MAKERS[sys.argv[1]](Path(sys.argv[2]))
    n = 0
    while True:
        id = await store.append("stream", [str(n).encode(), str(n + 1).encode()])
        n += 2
        print(id, flush=True)
asyncio.run(run())
"""


@pytest.mark.full
@pytest.mark.slow
@shared_stores
def test_a_killed_writer_loses_nothing_that_it_was_told_is_stored(make: str, folder: Path) -> None:
    stream = "stream"
    program = [sys.executable, "-c", textwrap.dedent(WRITER), make, str(folder)]

    async def look() -> tuple[int, list[bytes]]:
        async with opened(make, folder) as store:
            await store.state(stream)
            return (await store.state(stream) or StreamState("running", 0)).last_id, [
                event.data for event in await store.read(stream, 0, 1_000_000)
            ]

    async def clear() -> None:
        async with opened(make, folder) as store:
            await store.remove(stream)

    for round in range(5):
        asyncio.run(clear())
        first = asyncio.run(look())[0]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told = int(writer.stdout.readline())
            time.sleep(0.05 + round * 0.03)
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                told = int(line)
        last_id, events = asyncio.run(look())
        assert last_id >= told
        assert events == [str(n).encode() for n in range(len(events))], "each once, in order, pairs whole"
        assert len(events) % 2 == 0
        assert len(events) >= (told - first if round == 0 else 2)


def test_a_stream_in_memory_goes_after_its_time(tmp_path: Path) -> None:
    now = [0.0]

    async def run() -> None:
        store = MemoryEvents(ttl_s=3_600, clock=lambda: now[0])
        await store.append("old", [b"1", b"2"])
        now[0] = 3_000
        await store.append("young", [b"1"])
        now[0] = 3_700
        assert await store.state("old") is None
        assert not await store.read("old")
        assert await store.state("young") is not None
        assert await store.append("old", [b"3"]) > 2, "no id comes again"

    asyncio.run(run())


def test_streams_that_nobody_wrote_to_for_long_are_removed_at_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "events.db"
        store = SqliteEvents(path)
        await store.append("old", [b"1"], status="complete")
        await store.append("under way", [b"1"])
        await store.close()
        store = SqliteEvents(path, keep_s=-1)
        assert await store.state("old") is None
        assert await store.state("under way") is not None
        assert await store.append("old", [b"2"]) == 2
        await store.close()

    asyncio.run(run())


@pytest.mark.slow
def test_in_redis_streams_go_after_their_time_but_for_those_under_way(folder: Path) -> None:
    from agentcli.infra.event_log.redis import RedisEvents

    async def run() -> None:
        store, old, running = RedisEvents(redis_url(), keep_s=0.2), f"old {folder}", f"running {folder}"
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

    asyncio.run(run())


@pytest.mark.slow
def test_in_redis_an_earlier_version_may_write_in_between(folder: Path) -> None:
    import redis.asyncio as redis

    from agentcli.infra.event_log.redis import RedisEvents

    async def run() -> None:
        store, earlier, id = RedisEvents(redis_url()), redis.Redis.from_url(redis_url()), f"shared {folder}"
        await store.append(id, [b"1"])
        await earlier.xadd(f"agentcli:{id}:events", {"data": b"2"}, id="2-0")
        await earlier.hset(f"agentcli:{id}:state", "last_id", "2")
        assert await store.append(id, [b"3"]) == 3
        await store.close()
        await earlier.aclose()

    asyncio.run(run())


def test_a_damaged_file_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"no database at all" * 100)

    async def run() -> None:
        store = SqliteEvents(path)
        assert await store.append("stream", [b"1"]) == 1
        await store.close()

    asyncio.run(run())
    assert list(tmp_path.glob("sessions.db.damaged-*"))


def test_the_streams_of_an_earlier_version_go_on_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "events.db"

    async def run() -> None:
        store = SqliteEvents(path)
        await store.append("stream", [b"1", b"2"])
        await store.close()
        with closing(apsw.Connection(str(path))) as db:
            db.execute("DROP TABLE words; DROP TABLE entries; DROP TABLE sessions; DROP INDEX streams_by_time")
            db.pragma("user_version", 1)
        store = SqliteEvents(path)
        assert await store.append("stream", [b"3"]) == 3
        assert [event.data for event in await store.read("stream")] == [b"1", b"2", b"3"]
        await store.close()

    asyncio.run(run())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def run() -> None:
        store = SqliteEvents(tmp_path / "file" / "events.db")
        with pytest.raises(StorageError, match=r"events\.db"):
            await store.append("stream", [b"1"])
        await store.close()

    asyncio.run(run())


def test_of_a_redacted_session_no_event_and_of_its_stream_no_byte_is_left(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"

    async def run() -> None:
        events, sessions = SqliteEvents(path), SqliteSessions(path)
        ids = []
        for text in ("hunter2", "harmless"):
            log = await sessions.create(cwd=tmp_path)
            await log.append(User((Text(text),))).committed
            await log.close()
            await events.append(log.session_id, [f"{text} ".encode() * 500] * 20)
            ids.append(log.session_id)
        await sessions.redact(ids[0], ["hunter2"])
        assert not await events.read(ids[0])
        assert len(await events.read(ids[1])) == 20
        await sessions.remove(ids[1])
        assert not await events.read(ids[1])
        await events.close()
        await sessions.close()

    asyncio.run(run())
    for file in tmp_path.glob("sessions.db*"):
        assert b"hunter2" not in file.read_bytes(), file


@pytest.mark.slow
def test_redis_is_left_at_once_at_whatever_step_of_connecting(folder: Path) -> None:
    async def run(steps: int) -> None:
        store = MAKERS["redis"](folder)
        reading = asyncio.create_task(store.read("stream", wait_s=10))
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await store.close()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    (folder / "redis.url").write_text(redis_url())
    for steps in range(40):
        asyncio.run(run(steps))


@pytest.mark.slow
def test_redis_that_is_not_there_is_told_without_its_password() -> None:
    from agentcli.infra.event_log.redis import RedisEvents

    async def run() -> str:
        store = RedisEvents("redis://:hunter2@127.0.0.1:1/0")
        with pytest.raises(StorageError) as told:
            await store.append("stream", [b"1"])
        await store.close()
        return str(told.value)

    text = asyncio.run(run())
    assert "127.0.0.1" in text
    assert "hunter2" not in text


async def test_sessions_and_streams_that_find_a_damaged_file_at_once_restore_it_once(tmp_path: Path) -> None:
    path = tmp_path / "state" / "sessions.db"
    store = SqliteSessions(path)
    log = await store.create(cwd=tmp_path)
    await log.append(User((Text("Remember me"),))).committed
    await log.close()
    await store.close()
    path.write_bytes(bytes(16) + path.read_bytes()[16:])
    store, events = SqliteSessions(path), SqliteEvents(path)
    other = await store.create(cwd=tmp_path)
    await asyncio.gather(
        other.append(User((Text("Another"),))).committed, *(events.append(name, [b"x"]) for name in "ab")
    )
    await other.close()
    assert {info.title for info in await store.list()} == {"Remember me", "Another"}
    assert [event.data for event in await events.read("a")] == [b"x"]
    await store.close()
    await events.close()
    assert len([file for file in path.parent.glob("*.damaged-*") if file.suffix[-4:] not in ("-wal", "-shm")]) == 1
