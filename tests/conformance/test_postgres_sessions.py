"""What sessions in Postgres bear beside what every store does: other workers, kills, pauses, a server that restarts."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentcli.conversation.entries import Result, Unreadable, User
from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.postgres import VERSION, PostgresSessions
from agentcli.llm.messages import ToolResult
from tests.conformance.postgres_server import PASSWORD, running
from tests.conformance.sessions import (
    HERE,
    a_session,
    appending,
    assert_nothing_is_lost,
    entries_in,
    goes_on,
    kept,
    said,
    texts_in,
    texts_of,
    told_by,
)

pytestmark = pytest.mark.slow
Workers = Callable[..., list[PostgresSessions]]


def database(folder: Path) -> psycopg.Connection[tuple[Any, ...]]:
    """For looking at the tables, and for doing to them what nobody should."""
    return psycopg.connect(running().url_for(folder), autocommit=True)


def run_out(folder: Path) -> None:
    """Every lease, as if its worker had not run for some seconds."""
    with database(folder) as db:
        db.execute("UPDATE agentcli.leases SET expires = '-infinity'")


@pytest.fixture
def workers(tmp_path: Path, at_end: AsyncExitStack) -> Workers:
    """Makes stores on one database, as several processes have them."""

    def make(count: int, **how: Any) -> list[PostgresSessions]:
        url = running().url_for(tmp_path)
        stores = [PostgresSessions(url, **{"address": f"worker{n}", **how}) for n in range(count)]
        for store in stores:
            at_end.push_async_callback(store.close)
        return stores

    return make


@pytest.fixture
def store(workers: Workers) -> PostgresSessions:
    return workers(1)[0]


# Several workers.


@pytest.mark.full
async def test_a_session_that_another_worker_has_open_can_be_read_and_no_more(workers: Workers) -> None:
    one, other = workers(2)
    log = await one.create(cwd=HERE)
    id = log.session_id
    await kept(log, "one")
    for refused in (
        *(store.create(cwd=HERE, session_id=id) for store in (one, other)), *(store.open(id) for store in (one, other)),
        other.remove(id), other.redact(id, ["one"]),
    ):  # fmt: skip
        with pytest.raises(SessionInUse):
            await refused
    await asyncio.sleep(4.5)  # the lease is renewed
    with pytest.raises(SessionInUse):
        await other.open(id)
    assert not log.is_wanted()
    assert await texts_in(other, id) == ["one"]
    await log.close()
    await goes_on(other, id, "two")
    assert await texts_in(one, id) == ["one", "two"]


async def test_the_holder_of_a_session_is_reported_by_address(workers: Workers) -> None:
    one, other = workers(2)
    log = await other.create(cwd=HERE, name="mine")
    id = log.session_id
    assert [await store.holder(id) for store in (one, other)] == ["worker1", "worker1"]
    await kept(log, "one")
    assert [await one.holder(given) for given in (id, id[:20], "mine")] == ["worker1"] * 3
    await log.close()
    assert [await one.holder(given) for given in (id, "nobody's")] == [None, None]
    (nameless,) = workers(1, address="")
    await nameless.open(id)
    assert await one.holder(id) == ""
    await nameless.close()  # and a store that is closed holds none any more
    assert await one.holder(id) is None


async def test_a_session_is_given_up_to_a_worker_that_asks_for_it(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = workers(2)
    log = await one.create(cwd=HERE)
    await kept(log, "one")
    with monkeypatch.context() as impatient:
        impatient.setattr("agentcli.infra.sessions.store.TAKE_OVER_TIMEOUT_S", 0.3)
        with pytest.raises(SessionInUse, match="does not give it up"):
            await other.open(log.session_id, take_over=True)
    await asyncio.sleep(1.2)
    assert not log.is_wanted(), "it is not asked for any more"
    taking = asyncio.create_task(other.open(log.session_id, take_over=True))
    async with asyncio.timeout(5):
        while not log.is_wanted():
            await asyncio.sleep(0.05)
    log.append(said("last words"))
    await log.close()
    taken, entries = await taking
    assert texts_of(entries) == ["one", "last words"]
    assert not taken.is_wanted()
    await kept(taken, "two")
    await taken.close()


async def test_many_workers_may_make_the_tables_at_once(workers: Workers) -> None:
    stores = workers(12)
    ids = await asyncio.gather(*(a_session(store, "one") for store in stores))
    assert {info.id for info in await stores[0].list()} == set(ids)


async def test_many_sessions_of_one_worker_are_stored_side_by_side(store: PostgresSessions) -> None:
    logs = [await store.create(cwd=HERE) for _ in range(20)]
    await asyncio.gather(*(kept(log, f"{n}") for n in range(10) for log in logs))
    for log in logs:
        await log.close()
        assert await texts_in(store, log.session_id) == [f"{n}" for n in range(10)]


# Kills and pauses.


@pytest.mark.full
async def test_a_killed_worker_s_session_is_free_after_its_lease(tmp_path: Path, store: PostgresSessions) -> None:
    await store.list()
    with appending(running().url_for(tmp_path)) as (process, id):
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        began = time.monotonic()
        log, entries = await store.open(id, take_over=True)
        assert time.monotonic() - began < 20
        assert entries
        await kept(log, "mine now")
        await log.close()


@pytest.mark.full
async def test_a_worker_that_was_stopped_can_store_nothing_once_another_continues(
    tmp_path: Path, store: PostgresSessions
) -> None:
    chance = random.Random(3)
    await store.list()
    for _ in range(3):  # some are stopped within a transaction
        with appending(running().url_for(tmp_path)) as (process, id):
            assert process.stdout is not None
            process.stdout.readline()
            await asyncio.sleep(chance.uniform(0, 0.1))
            process.send_signal(signal.SIGSTOP)
            log, entries = await store.open(id, take_over=True)
            await kept(log, "mine now")
            process.send_signal(signal.SIGCONT)
            told = told_by(process)
            refused = [line for line in told if line.startswith("refused")]
            assert refused
            assert all(line.startswith("refused True Another program has taken over session") for line in refused)
            await kept(log, "and on")
            await log.close()
        now = await entries_in(store, id)
        assert [entry.id for entry in now[: len(entries)]] == [entry.id for entry in entries]
        assert texts_of(now[len(entries) :]) == ["mine now", "and on"]
        assert {line for line in told if not line.startswith("refused")} <= {entry.id for entry in entries}


async def test_a_lease_that_ran_out_is_kept_while_nobody_takes_the_session(tmp_path: Path, workers: Workers) -> None:
    one, other = workers(2)
    log = await one.create(cwd=HERE)
    run_out(tmp_path)
    assert await other.holder(log.session_id) is None
    await kept(log, "one")
    await asyncio.sleep(1.5)
    assert await other.holder(log.session_id) == "worker0"
    for attempt in range(10):
        run_out(tmp_path)
        try:
            taken, _ = await other.open(log.session_id)
            break
        except SessionInUse:  # it was renewed in between, as it is each second
            assert attempt < 9
    with pytest.raises(StorageError, match="Another program has taken over session"):
        await kept(log, "two")
    assert log.is_wanted()
    await log.close()
    assert await one.holder(log.session_id) == "worker1"
    await taken.close()


@pytest.mark.full
async def test_fifty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, store: PostgresSessions) -> None:
    chance = random.Random(7)
    await store.list()
    session, acknowledged = "", list[str]()
    for _ in range(50):
        run_out(tmp_path)
        with appending(running().url_for(tmp_path), session) as (process, session):
            assert process.stdout is not None
            acknowledged.append(process.stdout.readline().decode().strip())
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
            acknowledged += told_by(process)
        assert_nothing_is_lost(await entries_in(store, session), acknowledged)
    assert len(acknowledged) >= 100


# The server.


async def test_a_server_that_restarts_fails_what_is_appended_meanwhile_and_gets_it_later(workers: Workers) -> None:
    one, other = workers(2)
    log = await one.create(cwd=HERE)
    await kept(log, "one")
    fork, _ = await one.fork(log.session_id, cwd=HERE, name="early")
    running().stop()
    try:
        for failing, text in ((log, "two"), (log, "three"), (fork, "first")):
            with pytest.raises(StorageError, match=rf"127\.0\.0\.1:{running().port}.*Check that it runs") as refused:
                await kept(failing, text)
            assert PASSWORD not in str(refused.value)
        with pytest.raises(StorageError):
            await other.list()
        await one.rename(fork.session_id, "a copy")
    finally:
        running().start()
    await kept(log, "four")
    assert await texts_in(other, log.session_id) == ["one", "two", "three", "four"]
    await kept(fork, "then")
    await fork.close()
    info, entries = await other.load("a copy")
    assert (info.title, info.last_prompt, texts_of(entries)) == ("one", "then", ["one", "first", "then"])
    running().stop()
    running().start()
    await kept(log, "five")
    await asyncio.sleep(1.5)
    assert not log.is_wanted()
    await log.close()
    assert (await texts_in(other, log.session_id))[-1] == "five"


async def test_connections_that_are_cut_are_made_again(tmp_path: Path, store: PostgresSessions) -> None:
    log = await store.create(cwd=HERE)
    for n in range(5):
        waiting = log.append(said(f"{n}"))
        with database(tmp_path) as db:
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await waiting.committed
    await log.close()
    assert await texts_in(store, log.session_id) == [f"{n}" for n in range(5)]


async def test_tables_of_a_newer_agentcli_are_refused(tmp_path: Path, workers: Workers) -> None:
    before, after = workers(2)
    await before.list()
    with database(tmp_path) as db:
        db.execute("UPDATE agentcli.version SET version = version + 1")
    for refused in (after.list(), after.create(cwd=HERE)):
        with pytest.raises(StorageError, match=rf"newer agentcli \(version {VERSION + 1}.*update agentcli"):
            await refused


async def test_committed_entries_are_on_disk(tmp_path: Path, store: PostgresSessions) -> None:
    with database(tmp_path) as db:
        db.execute(
            "DO $$BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET synchronous_commit = off'; END$$"
        )
    async with store._database.transaction() as connection:
        assert await (await connection.execute("SHOW synchronous_commit")).fetchone() == ("on",)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://tester:{secret}@127.0.0.1:{port}/postgres", r"127\.0\.0\.1:.*password authentication failed"),
        ("postgresql://tester:{secret}@127.0.0.1:1/postgres", r"127\.0\.0\.1:1 .*Check that it runs"),
        ("postgresql://tester:{secret}@nowhere.invalid/postgres", r"nowhere\.invalid .*Check that it runs"),
        ("postgresql://tester:{secret}/x@127.0.0.1:{port}/postgres", "cannot be read. Write"),
        ("postgresql://tester:1/{secret}@127.0.0.1:{port}/postgres", "cannot be read. Write"),
        ("postgresql://tester:a@{secret}@127.0.0.1:{port}/postgres", "cannot be read. Write"),
        ("postgresql://tester:a?{secret}@127.0.0.1:{port}/postgres", "password authentication failed"),
        ("postgresql://tester@127.0.0.1:{port}/postgres?passwort={secret}", "cannot be read. Write"),
        ("mysql://tester:{secret}@127.0.0.1:{port}/postgres", "cannot be read. Write"),
        ("{secret}", "cannot be read. Write"),
    ],
)
async def test_a_password_is_in_no_message(
    url: str, says: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    store = PostgresSessions(url.format(secret="hunter2", port=running().port))
    for refused in (store.list(), store.create(cwd=HERE), store.search("word")):
        with pytest.raises(StorageError, match=says) as error:
            await refused
        chain: BaseException | None = error.value
        while chain is not None:
            assert "hunter2" not in f"{chain}"
            chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    await store.close()
    assert "hunter2" not in f"{store!r}{vars(store)!r}{caplog.text}{''.join(capfd.readouterr())}"


# What is stored.


async def test_names_and_titles_may_hold_any_character(store: PostgresSessions) -> None:
    odd = "a\0b\ud800c"
    call = Result(result=ToolResult("call\0", "x\0y"), name="think")
    id = await a_session(store, "Say \0 to it", call, name=odd, user_id=odd)
    (info,) = await store.list(user_id=odd)
    assert [entry.body for entry in await entries_in(store, id)] == [said("Say \0 to it"), call]
    assert "Say" in info.title
    await store.rename(id, f"new {odd}")
    assert (await store.load(f"new {odd}"))[0].id == id
    assert [one.session_id for one in await store.search("say")] == [id]
    for nobodys in (odd, "\0"):
        with pytest.raises(StorageError):
            await store.load(nobodys)
        assert await store.holder(nobodys) is None


async def test_an_append_that_nobody_waits_for_any_more_is_stored(store: PostgresSessions) -> None:
    log = await store.create(cwd=HERE)
    log.append(said("one")).committed.cancel()  # type: ignore[attr-defined]
    await kept(log, "two")
    await log.close()
    assert await texts_in(store, log.session_id) == ["one", "two"]


@pytest.mark.parametrize(
    ("change", "says"),
    [("body = replace(body, 'two', 'too')", "checksum"), ("schema_version = 99", "newer agentcli (schema 99")],
)
async def test_an_entry_that_cannot_be_read_is_left_out_and_said(
    tmp_path: Path, workers: Workers, change: str, says: str
) -> None:
    told: list[str] = []
    (store,) = workers(1, on_notice=told.append)
    id = await a_session(store, "one", "two", "three")
    with database(tmp_path) as db:
        db.execute(f"UPDATE agentcli.entries SET {change} WHERE seq = 2")
    log, entries = await store.open(id)
    await log.close()
    assert [type(entry.body) for entry in entries] == [User, Unreadable, User]
    (notice,) = told
    assert "1 of the 3 entries" in notice
    assert says in notice


async def test_long_words_and_long_texts_are_found_and_a_search_looks_on_until_enough_is(
    store: PostgresSessions,
) -> None:
    long = "verylong" * 1_000
    many = " ".join(f"word{n}" for n in range(150_000))  # more than Postgres indexes
    id = await a_session(store, f"{long}end", f"first {many}", f"{long}other")
    assert [one.session_id for one in await store.search(f"{long}end")] == [id]
    counts = {long: 2, "first word77": 1, f"{long}none": 0, "verylong": 2}
    assert {text: len(await store.search(text)) for text in counts} == counts
    log = await store.create(cwd=HERE)
    await kept(log, "file_read is here", *["read a file"] * 150)
    await log.close()
    assert len(await store.search("file_read", limit=1)) == 1
    assert len(await store.search("file read")) == 20
