"""What sessions in Postgres bear beside what every store does: other workers, kills, pauses, a server that restarts."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentcli.conversation.entries import Assistant, Body, Entry, Result, Unreadable, User
from agentcli.conversation.file_changes import FilesChanged
from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.postgres import PostgresSessions
from agentcli.infra.sessions.postgres_database import VERSION
from agentcli.llm.messages import Text, ToolResult, Usage
from tests.conformance.postgres_server import PASSWORD, running

pytestmark = pytest.mark.slow
HERE = Path("/here")


def said(text: str) -> User:
    return User((Text(text),))


def texts_of(entries: list[Entry]) -> list[str]:
    return [entry.body.text for entry in entries if isinstance(entry.body, User)]


def database(folder: Path) -> psycopg.Connection[tuple[Any, ...]]:
    """For looking at the tables, and for doing to them what nobody should."""
    return psycopg.connect(running().url_for(folder), autocommit=True)


def run_out(folder: Path) -> None:
    """Every lease, as if its worker had not run for some seconds."""
    with database(folder) as db:
        db.execute("UPDATE agentcli.leases SET expires = '-infinity'")


@asynccontextmanager
async def workers(folder: Path, count: int = 1, **how: Any) -> AsyncIterator[list[PostgresSessions]]:
    """Stores on one database, as several processes have them."""
    stores = [PostgresSessions(running().url_for(folder), address=f"worker{n}", **how) for n in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


async def a_session(store: PostgresSessions, *bodies: Body, **how: Any) -> str:
    log = await store.create(cwd=HERE, **how)
    for body in bodies:
        await log.append(body).committed
    await log.close()
    return log.session_id


# Several workers.


@pytest.mark.full
async def test_a_session_that_another_worker_has_open_can_be_read_and_no_more(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        log = await one.create(cwd=HERE)
        for refused in (
            other.create(cwd=HERE, session_id=log.session_id),
            one.create(cwd=HERE, session_id=log.session_id),
        ):
            with pytest.raises(SessionInUse):
                await refused
        await log.append(said("one")).committed
        for refused in (
            other.open(log.session_id), one.open(log.session_id), other.remove(log.session_id),
            other.redact(log.session_id, ["one"]),
        ):  # fmt: skip
            with pytest.raises(SessionInUse):
                await refused
        await asyncio.sleep(4.5)  # the lease is renewed
        with pytest.raises(SessionInUse):
            await other.open(log.session_id)
        assert not log.is_wanted()
        assert texts_of((await other.load(log.session_id))[1]) == ["one"]
        await log.close()
        log, entries = await other.open(log.session_id)
        await log.close()
        assert texts_of(entries) == ["one"]


async def test_who_has_a_session_open_is_told_by_its_address(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        log = await other.create(cwd=HERE, name="mine")
        assert [await store.holder(log.session_id) for store in (one, other)] == ["worker1", "worker1"]
        await log.append(said("one")).committed
        assert [await one.holder(id) for id in (log.session_id, log.session_id[:20], "mine")] == ["worker1"] * 3
        await log.close()
        assert await one.holder(log.session_id) is None
        assert await one.holder("nobody's") is None
        nameless = PostgresSessions(running().url_for(tmp_path))
        log, _ = await nameless.open(log.session_id)
        assert await one.holder(log.session_id) == ""
        await nameless.close()  # and a store that is closed holds none any more
        assert await one.holder(log.session_id) is None


async def test_a_session_is_given_up_to_a_worker_that_asks_for_it(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        log = await one.create(cwd=HERE)
        await log.append(said("one")).committed
        taking = asyncio.create_task(other.open(log.session_id, take_over=True))
        async with asyncio.timeout(5):
            while not log.is_wanted():
                await asyncio.sleep(0.05)
        log.append(said("last words"))
        await log.close()
        taken, entries = await taking
        assert texts_of(entries) == ["one", "last words"]
        assert not taken.is_wanted()
        await taken.append(said("two")).committed
        await taken.close()


async def test_a_worker_that_does_not_give_up_a_session_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcli.infra.sessions.postgres_leases.PATIENCE_S", 0.3)
    async with workers(tmp_path, 2) as (one, other):
        log = await one.create(cwd=HERE)
        await log.append(said("one")).committed
        with pytest.raises(SessionInUse, match="does not give it up"):
            await other.open(log.session_id, take_over=True)
        await asyncio.sleep(1.2)
        assert not log.is_wanted()
        await log.append(said("two")).committed
        await log.close()


async def test_many_workers_may_make_the_tables_at_once(tmp_path: Path) -> None:
    async with workers(tmp_path, 12) as stores:
        ids = await asyncio.gather(*(a_session(store, said("one")) for store in stores))
        assert {info.id for info in await stores[0].list()} == set(ids)


async def test_many_sessions_of_one_worker_are_stored_side_by_side(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        logs = [await store.create(cwd=HERE) for _ in range(20)]
        waiting = [log.append(said(f"{n}")) for n in range(10) for log in logs]
        await asyncio.gather(*(one.committed for one in waiting))
        for log in logs:
            await log.close()
            assert texts_of((await store.load(log.session_id))[1]) == [f"{n}" for n in range(10)]


# Kills and pauses. A process appends, and writes down what it was told is stored or refused.

APPEND = """
import asyncio, os, sys
from pathlib import Path
from agentcli.conversation.entries import Assistant, CallsStarted, Result, User
from agentcli.errors import StorageError
from agentcli.infra.sessions.postgres import PostgresSessions
from agentcli.llm.messages import Text, ToolResult, ToolUse

async def main():
    store = PostgresSessions(sys.argv[1])
    if len(sys.argv) > 2:
        log, entries = await store.open(sys.argv[2], take_over=True)
    else:
        log, entries = await store.create(cwd=Path("/here")), []
    os.write(1, f"session {log.session_id}\\n".encode())
    for n in range(len(entries), 100_000):
        bodies = [Assistant((Text(f"{n}"), ToolUse(f"c{n}", "think", {})), "p", "m"), CallsStarted((f"c{n}",))]
        appended = log.append(User((Text("x" * 2_000),)), *bodies)
        following = log.append(Result(ToolResult(f"c{n}", "done"), "think"))
        for one in (appended, following):
            try:
                for entry in (await one.committed).entries:
                    os.write(1, f"{entry.id}\\n".encode())
            except StorageError as error:
                os.write(1, f"refused {log.is_wanted()} {error}\\n".encode())
                if one is following:
                    return await log.close()

asyncio.run(main())
"""


@contextmanager
def appending(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which is killed in the end, or when it takes long."""
    command = [sys.executable, "-c", APPEND, running().url_for(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.mark.full
async def test_a_killed_worker_s_session_is_free_after_its_lease(tmp_path: Path) -> None:
    with appending(tmp_path) as process:
        id = line_of(process).split()[1]
        line_of(process)
        async with workers(tmp_path) as (store,):
            await store.list()
            process.kill()
            began = time.monotonic()
            log, entries = await store.open(id, take_over=True)
            assert time.monotonic() - began < 20
            assert entries
            await log.append(said("mine now")).committed
            await log.close()


@pytest.mark.full
async def test_a_worker_that_was_stopped_can_store_nothing_once_another_goes_on(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with workers(tmp_path) as (store,):
        await store.list()
        for _ in range(3):  # some are stopped within a transaction
            with appending(tmp_path) as process:
                id = line_of(process).split()[1]
                line_of(process)
                await asyncio.sleep(chance.uniform(0, 0.1))
                process.send_signal(signal.SIGSTOP)
                log, entries = await store.open(id, take_over=True)
                await log.append(said("mine now")).committed
                process.send_signal(signal.SIGCONT)
                assert process.stdout is not None
                told = process.stdout.read().decode().splitlines()
                refused = [line for line in told if line.startswith("refused")]
                assert refused
                assert all(line.startswith("refused True Another program goes on with session") for line in refused)
                await log.append(said("and on")).committed
                await log.close()
            _, now = await store.load(id)
            assert [entry.id for entry in now[: len(entries)]] == [entry.id for entry in entries]
            assert texts_of(now[len(entries) :]) == ["mine now", "and on"]
            assert {line for line in told if not line.startswith("refused")} <= {entry.id for entry in entries}


async def test_a_lease_that_ran_out_is_kept_while_nobody_takes_the_session(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        log = await one.create(cwd=HERE)
        run_out(tmp_path)
        assert await other.holder(log.session_id) is None
        await log.append(said("one")).committed
        await asyncio.sleep(1.5)
        assert await other.holder(log.session_id) == "worker0"
        run_out(tmp_path)
        taken, _ = await other.open(log.session_id)
        with pytest.raises(StorageError, match="Another program goes on with session"):
            await log.append(said("two")).committed
        assert log.is_wanted()
        await log.close()
        assert await one.holder(log.session_id) == "worker1"
        await taken.close()


@pytest.mark.full
async def test_fifty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with workers(tmp_path) as (store,):
        await store.list()
        session, acknowledged = "", []
        for _ in range(50):
            run_out(tmp_path)
            with appending(tmp_path, *([session] if session else [])) as process:
                session = line_of(process).split()[1]
                told = [line_of(process)]
                time.sleep(chance.uniform(0, 0.05))
                process.kill()
                assert process.stdout is not None
                rest = process.stdout.read()
            acknowledged += [*told, *rest[: rest.rfind(b"\n") + 1].decode().split()]
            entries = (await store.load(session))[1]
            there = [entry.id for entry in entries]
            assert set(acknowledged) <= set(there)
            assert len(there) == len(set(there))
            assert [entry.parent_id for entry in entries] == [None, *there[:-1]]
            replies = [n for n, entry in enumerate(entries) if isinstance(entry.body, Assistant)]
            assert all(entries[n + 1].body.__class__.__name__ == "CallsStarted" for n in replies)  # one transaction
        assert len(acknowledged) >= 100


# The server.


async def test_a_server_that_restarts_fails_what_is_appended_meanwhile_and_gets_it_later(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        log = await one.create(cwd=HERE)
        await log.append(said("one")).committed
        running().stop()
        try:
            for text in ("two", "three"):
                with pytest.raises(StorageError, match=rf"127\.0\.0\.1:{running().port}.*see that it runs") as refused:
                    await log.append(said(text)).committed
                assert PASSWORD not in str(refused.value)
            with pytest.raises(StorageError):
                await other.list()
        finally:
            running().start()
        await log.append(said("four")).committed
        assert texts_of((await other.load(log.session_id))[1]) == ["one", "two", "three", "four"]
        running().stop()
        running().start()
        await log.append(said("five")).committed
        await asyncio.sleep(1.5)
        assert not log.is_wanted()
        await log.close()
        assert texts_of((await other.load(log.session_id))[1])[-1] == "five"


async def test_a_session_that_could_not_be_begun_is_stored_when_the_server_is_back(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        source = await a_session(store, said("one"))
        log, _ = await store.fork(source, cwd=HERE, name="early")
        running().stop()
        try:
            with pytest.raises(StorageError):
                await log.append(said("two")).committed
            await store.rename(log.session_id, "a copy")
        finally:
            running().start()
        await log.append(said("three")).committed
        await log.close()
        info, entries = await store.load("a copy")
        assert (info.title, info.last_prompt, texts_of(entries)) == ("one", "three", ["one", "two", "three"])


async def test_connections_that_are_cut_are_made_again(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
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
        assert texts_of((await store.load(log.session_id))[1]) == [f"{n}" for n in range(5)]


async def test_tables_of_a_newer_agentcli_are_refused(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        await store.list()
    with database(tmp_path) as db:
        db.execute("UPDATE agentcli.version SET version = version + 1")
    async with workers(tmp_path) as (store,):
        for refused in (store.list(), store.create(cwd=HERE)):
            with pytest.raises(StorageError, match=rf"newer agentcli \(version {VERSION + 1}.*update agentcli"):
                await refused


async def test_what_is_committed_is_on_disk(tmp_path: Path) -> None:
    with database(tmp_path) as db:
        db.execute(
            "DO $$BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET synchronous_commit = off'; END$$"
        )
    async with workers(tmp_path) as (store,), store._database.transaction() as db:
        assert await (await db.execute("SHOW synchronous_commit")).fetchone() == ("on",)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://tester:{secret}@127.0.0.1:{port}/postgres", r"127\.0\.0\.1:.*password authentication failed"),
        ("postgresql://tester:{secret}@127.0.0.1:1/postgres", r"127\.0\.0\.1:1 .*see that it runs"),
        ("postgresql://tester:{secret}@nowhere.invalid/postgres", r"nowhere\.invalid .*see that it runs"),
        ("postgresql://tester:{secret}/x@127.0.0.1:{port}/postgres", "cannot be read: write"),
        ("postgresql://tester:1/{secret}@127.0.0.1:{port}/postgres", "cannot be read: write"),
        ("postgresql://tester:a@{secret}@127.0.0.1:{port}/postgres", "cannot be read: write"),
        ("postgresql://tester:a?{secret}@127.0.0.1:{port}/postgres", "password authentication failed"),
        ("postgresql://tester@127.0.0.1:{port}/postgres?passwort={secret}", "cannot be read: write"),
        ("mysql://tester:{secret}@127.0.0.1:{port}/postgres", "cannot be read: write"),
        ("{secret}", "cannot be read: write"),
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


async def test_names_and_titles_may_hold_any_character(tmp_path: Path) -> None:
    odd = "a\0b\ud800c"
    async with workers(tmp_path) as (store,):
        log = await store.create(cwd=HERE, name=odd, user_id=odd)
        call = Result(ToolResult("call\0", "x\0y"), "think")
        await log.append(said("Say \0 to it"), call).committed
        await log.close()
        (info,) = await store.list(user_id=odd)
        _, entries = await store.load(info.id)
        assert [entry.body for entry in entries] == [said("Say \0 to it"), call]
        assert "Say" in info.title
        await store.rename(info.id, f"new {odd}")
        assert (await store.load(f"new {odd}"))[0].id == info.id
        assert [one.session_id for one in await store.search("say")] == [info.id]
        for id in (odd, "\0"):
            with pytest.raises(StorageError):
                await store.load(id)
            assert await store.holder(id) is None


async def test_a_body_that_cannot_be_stored_stops_its_own_session_alone(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        log = await store.create(cwd=HERE)
        good, bad = log.append(said("fine")), log.append(said("too"), said("\ud800"))
        await good.committed
        with pytest.raises(StorageError):
            await bad.committed
        await log.close()
        assert texts_of((await store.load(log.session_id))[1]) == ["fine"]
        assert await a_session(store, said("one"))


async def test_an_append_that_nobody_waits_for_any_more_is_stored(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        log = await store.create(cwd=HERE)
        log.append(said("one")).committed.cancel()  # type: ignore[attr-defined]
        await log.append(said("two")).committed
        await log.close()
        assert texts_of((await store.load(log.session_id))[1]) == ["one", "two"]


async def test_entries_from_a_position_on_are_loaded(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        id = await a_session(store, said("one"), said("two"), said("three"))
        loaded = [await store.load(id, after=after) for after in range(4)]
    assert [texts_of(entries) for _, entries in loaded] == [["one", "two", "three"], ["two", "three"], ["three"], []]
    assert [info.entries for info, _ in loaded] == [3] * 4


@pytest.mark.parametrize(
    ("change", "says"),
    [("body = replace(body, 'two', 'too')", "checksum"), ("schema_version = 99", r"newer agentcli \(schema 99")],
)
async def test_an_entry_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, change: str, says: str) -> None:
    told: list[str] = []
    async with workers(tmp_path, on_notice=told.append) as (store,):
        id = await a_session(store, said("one"), said("two"), said("three"))
        with database(tmp_path) as db:
            db.execute(f"UPDATE agentcli.entries SET {change} WHERE seq = 2")
        log, entries = await store.open(id)
        await log.close()
    assert [type(entry.body) for entry in entries] == [User, Unreadable, User]
    (notice,) = told
    assert "1 of the 3 entries" in notice


async def test_long_words_and_long_texts_are_found(tmp_path: Path) -> None:
    long = "verylong" * 1_000
    many = " ".join(f"word{n}" for n in range(400_000))  # some megabytes
    async with workers(tmp_path) as (store,):
        id = await a_session(store, said(f"{long}end"), said(f"first {many}"), said(f"{long}other"))
        assert len(await store.search(long)) == 2
        assert [one.session_id for one in await store.search(f"{long}end")] == [id]
        assert len(await store.search("first word77")) == 1
        assert await store.search(f"{long}none") == []
        assert len(await store.search("verylong")) == 2


async def test_a_search_looks_on_until_enough_is_found(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        await a_session(store, said("file_read is here"), *(said("read a file") for _ in range(150)))
        assert len(await store.search("file_read", limit=1)) == 1
        assert len(await store.search("file read")) == 20


async def test_of_a_fork_what_is_its_own_counts_until_its_source_is_removed(tmp_path: Path) -> None:
    paid = Assistant((Text("Hi."),), "p", "m", Usage(3, 4))
    async with workers(tmp_path) as (store,):
        source = await a_session(store, said("one"), paid, FilesChanged("c1", ()), user_id="ada")
        log, _ = await store.fork(source, cwd=HERE)
        await log.append(paid, FilesChanged("c2", ())).committed
        await log.close()
        fork = log.session_id

        async def requests(session: str = "", **how: Any) -> int:
            return (await store.usage(session=session, **how)).total.requests

        async def changed() -> list[str]:
            return [id for id, _ in await store.file_changes()]

        assert [await requests(), await requests(source), await requests(fork)] == [2, 1, 1]
        assert await requests(since=time.time() + 60) == 0
        assert await changed() == [source, fork]
        await store.remove(source)
        assert [await requests(), await requests(fork)] == [2, 2]
        assert await changed() == [fork, fork]
        await store.restore(source)
        assert [await requests(), await requests(source), await requests(fork)] == [2, 0, 2]


async def test_redacting_changes_every_copy_and_the_trash(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        source = await a_session(store, said("sesame opens"), said("after"))
        ids = []
        for _ in range(2):
            log, _ = await store.fork(source, cwd=HERE)
            await log.append(said("its own")).committed
            await log.close()
            ids.append(log.session_id)
        late, _ = await store.fork(source, cwd=HERE)  # not stored yet
        open_fork, _ = await store.open(ids[0])
        await store.remove(ids[1])
        assert await store.redact(source, ["sesame"]) == 1
        await open_fork.append(said("goes on")).committed
        await late.append(said("late")).committed
        for log in (open_fork, late):
            await log.close()
            info, entries = await store.load(log.session_id)
            assert texts_of(entries)[0] == "[redacted] opens"
            assert info.title == "[redacted] opens"
        assert await store.search("sesame") == []
        await store.restore(ids[1])
        assert texts_of((await store.load(ids[1]))[1]) == ["[redacted] opens", "after", "its own"]


async def test_a_fork_of_what_was_removed_meanwhile_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (one, other):
        source = await a_session(one, said("one"))
        log, _ = await one.fork(source, cwd=HERE)
        await other.remove(source)
        with pytest.raises(StorageError, match=f"sessions restore {source}"):
            await log.append(said("two")).committed
        await other.restore(source)
        await log.append(said("three")).committed
        await log.close()
        assert texts_of((await other.load(log.session_id))[1]) == ["one", "two", "three"]


async def test_the_trash_keeps_each_session_of_one_id(tmp_path: Path) -> None:
    async with workers(tmp_path) as (store,):
        id = await a_session(store, said("first"), session_id="12345678-1234-4234-8234-123456789abc")
        await store.remove(id)
        assert await a_session(store, said("second"), session_id=id) == id
        with pytest.raises(StorageError, match=f"sessions rm {id}"):
            await store.restore(id)
        await store.remove(id)
        assert [await store.restore("12345678"), texts_of((await store.load(id))[1])] == [id, ["second"]]
        await store.remove(id)
        assert [await store.restore(id), texts_of((await store.load(id))[1])] == [id, ["second"]]
