"""What a file of sessions has to bear: kills, damage, full disks, other programs and other versions."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from zlib import crc32

import apsw
import pytest

from agentcli.agent.interfaces import subagents_owner
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import ContextNote, Unreadable, User, reminder
from agentcli.errors import StorageError
from agentcli.infra.sessions.database import VERSION, Writer, connect
from agentcli.infra.sessions.repair import check, repair
from agentcli.infra.sessions.sqlite import SqliteSessions
from tests.conformance.disks import fill, read_only, tiny_disk
from tests.conformance.sessions import (
    HERE,
    THERE,
    a_fork,
    a_session,
    appending,
    assert_nothing_is_lost,
    database,
    entries_in,
    goes_on,
    kept,
    on_disk,
    texts_in,
    texts_of,
    told_by,
)
from tests.unit.agent.stage import call, on_stage

is_root = hasattr(os, "geteuid") and os.geteuid() == 0
NO_DATABASE = [b"This is no database at all. " * 100, b"SQLite format 3\0" + b"\xff" * 4080]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def replace_file(folder: Path) -> None:
    """Put a copy of the file in its place, as a repair does."""
    (folder / "new").write_bytes(database(folder).read_bytes())
    (folder / "new").replace(database(folder))
    for suffix in ("-wal", "-shm"):
        database(folder).with_name(f"sessions.db{suffix}").unlink()


# What is told is on disk, and nobody else's.


async def test_nothing_is_made_before_the_first_use_and_nothing_reported_before_it_is_on_disk(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        assert not database(tmp_path).parent.exists()
        log = await store.create(cwd=HERE)
        for n in range(10):
            await kept(log, f"{n}", "and")
            with closing(apsw.Connection(str(database(tmp_path)), flags=apsw.SQLITE_OPEN_READONLY)) as other:
                assert other.execute("SELECT count(*) FROM entries").get == 2 * (n + 1)
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "user_version")
        read = [await store._writer.submit(lambda db, name=name: db.pragma(name)) for name in names]
        assert read == ["wal", 2, 1, 5_000, VERSION]  # 2 is FULL
        await log.close()


async def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        async with on_disk(tmp_path) as store:
            await a_session(store, "one")
            modes = {path.name: mode_of(path) for path in database(tmp_path).parent.iterdir()}
    finally:
        os.umask(mask)
    assert modes["sessions.db"] == modes["sessions.db-wal"] == modes["sessions.db-shm"] == 0o600
    assert modes["locks"] == mode_of(database(tmp_path).parent) == 0o700
    database(tmp_path).chmod(0o644)
    async with on_disk(tmp_path) as store:
        await store.list()
    assert mode_of(database(tmp_path)) == 0o600


async def test_redacted_text_is_in_no_file_of_the_database(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        ids = [await a_session(store, *(f"{n} sesame{n} {'x' * 1_000 * (n % 7)}" for n in range(60))) for _ in range(2)]
        await goes_on(store, ids[0], *(f"again sesame{n} {'y' * 3_000 * (n % 3)}" for n in range(60)))
        await a_session(store, *(f"harmless{n}" for n in range(60)))
        assert len(await store.search("sesame7")) == 3
        await store.remove(ids[1])
    copies = [database(tmp_path).with_name(f"sessions.db.{end}") for end in ("copy", "v4")]
    copies[1].write_bytes(copies[0].read_bytes())
    async with on_disk(tmp_path) as store:
        assert await store.redact(ids[0], [f"sesame{n}" for n in range(60)]) == 120
        files = {path.name: path.read_bytes() for path in database(tmp_path).parent.glob("sessions.db*")}
        assert {"sessions.db", "sessions.db.copy"} <= files.keys()
        assert [name for name, content in files.items() if b"esame" in content] == []
        assert await store.search("sesame7") == []
        assert len(await store.search("redacted")) == 20
        await store.restore(ids[1])
        assert (await texts_in(store, ids[1]))[7] == "7 [redacted] "


# Files that are damaged, of other versions, or of other programs.


@pytest.mark.parametrize("damage", NO_DATABASE)
async def test_a_damaged_file_is_refused_untouched_and_the_error_names_the_repair(
    tmp_path: Path, damage: bytes
) -> None:
    database(tmp_path).parent.mkdir()
    database(tmp_path).write_bytes(damage)
    async with on_disk(tmp_path) as store:
        for work in (
            store.list(),
            store.load("x"),
            store.open("x"),
            store.fork("x", cwd=HERE),
            a_session(store, "one"),
        ):
            with pytest.raises(StorageError, match=r"damaged.*fsck --repair"):
                await work
    assert database(tmp_path).read_bytes() == damage


async def test_a_file_that_was_emptied_is_restored_from_its_copy(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, "one")
    database(tmp_path).write_bytes(b"")
    assert check(database(tmp_path)).is_file_damaged
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match=r"damaged \(it is empty\).*fsck --repair"):
            await store.list()
    assert repair(database(tmp_path)).restored_from
    async with on_disk(tmp_path) as store:
        await a_session(store, "two")
        assert await texts_in(store, id) == ["one"]


async def test_damage_in_the_middle_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, *(f"{n} " + "x" * 500 for n in range(100)))
    content = bytearray(database(tmp_path).read_bytes())
    content[4096:-4096] = b"\xa5" * (len(content) - 8192)
    database(tmp_path).write_bytes(content)
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match=r"sessions\.db.*damaged"):
            await store.load(id)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (f"PRAGMA user_version = {VERSION + 1}; PRAGMA journal_mode = delete", r"newer agentcli .*update agentcli"),
        ("CREATE TABLE bookmarks (url)", "another program"),
    ],
)
async def test_a_file_that_is_not_ours_is_refused_untouched(tmp_path: Path, change: str, says: str) -> None:
    database(tmp_path).parent.mkdir()
    with closing(apsw.Connection(str(database(tmp_path)))) as db:
        db.execute(change)
    database(tmp_path).chmod(0o640)
    before = database(tmp_path).read_bytes()
    async with on_disk(tmp_path) as store:
        for refused in (store.list(), a_session(store, "one")):
            with pytest.raises(StorageError, match=says):
                await refused
    assert (database(tmp_path).read_bytes(), mode_of(database(tmp_path))) == (before, 0o640)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("schema_version = 99", "newer agentcli (schema 99"),
        ("checksum = crc32('[]'), schema_version = 1, body = '[]'", "cannot be read"),
        ('checksum = crc32(\'{"kind":"poem"}\'), body = \'{"kind":"poem"}\'', "poem"),
        ("checksum = crc32(''), body = ''", "cannot be read"),
        ("checksum = crc32(X'7BFF'), body = CAST(X'7BFF' AS TEXT)", "cannot be read"),
        ("body = CAST(X'7BFF' AS TEXT)", "checksum"),
        ("body = replace(body, 'two', 'too')", "checksum"),
        ("body = substr(body, 1, length(body) - 2)", "checksum"),
    ],
)
async def test_an_entry_that_cannot_be_read_is_left_out_said_and_redacted(
    tmp_path: Path, change: str, says: str
) -> None:
    told: list[str] = []
    async with on_disk(tmp_path, told) as store:
        id = await a_session(store, "one", "two sesame", "three")
        with closing(apsw.Connection(str(database(tmp_path)))) as db:
            db.create_scalar_function("crc32", lambda body: crc32(body.encode() if isinstance(body, str) else body), 1)
            db.execute(f"UPDATE entries SET {change} WHERE seq = 2")
        log, entries = await store.open(id)
        await log.close()
        assert says in told[0]
        assert "1 of the 3 entries" in told[0]
        assert isinstance(entries[1].body, Unreadable)
        assert [message.text for message in Conversation(entries).messages] == ["onethree"]
        fork = await a_fork(store, id, "four")
        assert [type(entry.body) for entry in await entries_in(store, fork)] == [User, Unreadable, User, User]
        places = "sesame" in entries[1].body.stored
        assert await store.redact(id, ["sesame"]) == places
        _, entry, _, *note = await entries_in(store, id)
        assert isinstance(entry.body, Unreadable)
        assert entry.body.stored == entries[1].body.stored.replace("sesame", "[redacted]")
        assert [type(one.body) for one in note] == [ContextNote] * places


TABLES_OF_4 = """
DROP TABLE words; DROP TABLE entries; DROP TABLE sessions; DROP TABLE events; DROP TABLE streams;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, cwd TEXT NOT NULL, name TEXT NOT NULL, title TEXT NOT NULL, created REAL NOT NULL,
    updated REAL NOT NULL, forked_from TEXT, forked_at INTEGER, used INTEGER NOT NULL DEFAULT 0,
    user_id TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
CREATE TABLE entries (
    session_id TEXT NOT NULL REFERENCES sessions (id), seq INTEGER NOT NULL, id TEXT NOT NULL, parent_id TEXT,
    time REAL NOT NULL, kind TEXT NOT NULL, schema_version INTEGER NOT NULL, body TEXT NOT NULL, checksum INTEGER,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX changes_of_files ON entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE TABLE indexed (number INTEGER PRIMARY KEY, session_id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
);
"""


def as_version_4(db: apsw.Connection) -> None:
    """As the last release wrote it: a fork shares entries by their number, which may be below its own first one."""
    sessions = db.execute("SELECT id, cwd, name, title, created, updated, used, user_id FROM sessions").fetchall()
    columns = "n, origin, own, session_id, seq, id, parent_id, time, kind, schema_version, body, checksum"
    entries = db.execute(f"SELECT {columns} FROM entries ORDER BY n").fetchall()
    owners = {n: (session_id, seq) for n, _, _, session_id, seq, *_ in entries}
    db.execute(TABLES_OF_4)
    for id, *rest in sessions:
        shared = [origin for _, origin, own, session_id, *_ in entries if session_id == id and not own]
        source, at = owners[shared[-1]] if shared else (None, None)
        values = (id, *rest[:5], source, at and at - 10, *rest[5:])
        db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    for _, _, own, session_id, seq, *rest in entries:
        if own:
            rest[-1] = rest[-1] if seq % 2 else None  # rows of older versions have no checksum
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (session_id, seq - 10, *rest))
    db.pragma("user_version", 4)


async def test_a_file_of_the_last_release_is_copied_and_brought_up_with_what_its_log_holds(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        source = await a_session(store, "one", "two", "three", name="mine", user_id="ada")
        fork = await a_fork(store, source, "four", cwd=THERE, at=(await entries_in(store, source))[1].id)
        deep = await a_fork(store, fork, reminder("a note"))
        before = {id: await store.load(id) for id in (source, fork, deep)}
    old = apsw.Connection(str(database(tmp_path)))  # held open, so that the log is not written into the file
    as_version_4(old)
    assert database(tmp_path).with_name("sessions.db-wal").stat().st_size
    told: list[str] = []
    async with on_disk(tmp_path, told) as store:
        assert {id: await store.load(id) for id in before} == before
        assert [one.session_id for one in await store.search("two")] == [source]
        assert {one.session_id for one in await store.search("four")} == {fork}
        log, _ = await store.open(source)
        assert (await log.append(reminder("five")).committed).first_seq == 4
        await log.close()
        await store.remove(source)
        assert [one.session_id for one in await store.search("two")] == [fork]
    old.close()
    copy = database(tmp_path).with_name("sessions.db.v4")
    assert [str(copy) in notice for notice in told] == [True]
    assert mode_of(copy) == 0o600
    with closing(apsw.Connection(str(copy))) as db:
        assert db.pragma("user_version") == 4
        assert db.execute("SELECT count(*) FROM entries").get == 5
    assert check(database(tmp_path)).found == []
    assert not list(database(tmp_path).parent.glob("*.part"))


@pytest.mark.parametrize("kept_as", ["today", "version 4"])
async def test_the_file_of_subagents_of_earlier_versions_is_taken_over(tmp_path: Path, kept_as: str) -> None:
    agents = database(tmp_path).with_name("agents.db")
    store = SqliteSessions(agents)
    ids = [await a_session(store, "task", "more", user_id="0197") for _ in range(2)]
    before = [await entries_in(store, id) for id in ids]
    await store.close()
    if kept_as == "version 4":
        with closing(apsw.Connection(str(agents))) as db:
            as_version_4(db)
    told: list[str] = []
    async with on_disk(tmp_path, told) as here:
        mine = await a_session(here, "mine")
        assert [info.id for info in await here.list()] == [mine]
        assert [info.id for info in await here.list(user_id=subagents_owner("0197"))] == ids[::-1]
        assert [await entries_in(here, id) for id in ids] == before
        await goes_on(here, ids[0], "it goes on")
    left = {"today": [], "version 4": ["agents.db.v4"]}
    assert [path.name[:12] for path in agents.parent.glob("agents.db*")] == left[kept_as]
    assert all(str(agents) in notice for notice in told)
    assert len(told) == len(left[kept_as])
    assert check(database(tmp_path)).found == []


# Other programs.


async def test_the_program_continues_while_an_entry_waits_for_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, "one")
        with closing(apsw.Connection(str(database(tmp_path)))) as other:
            other.execute("BEGIN EXCLUSIVE")
            waiting = asyncio.ensure_future(kept(log, "two"))
            began = time.monotonic()
            await asyncio.sleep(0.2)
            assert time.monotonic() - began < 2
            assert not waiting.done()
            monkeypatch.setattr("agentcli.infra.sessions.database.BUSY_TIMEOUT_MS", 50)
            async with on_disk(tmp_path) as impatient:
                with pytest.raises(StorageError, match="Another program has locked"):
                    await a_session(impatient, "two")
            other.execute("ROLLBACK")
        await waiting
        await log.close()


async def test_entries_are_not_written_to_a_file_in_whose_place_is_another(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, "one")
        with closing(apsw.Connection(str(database(tmp_path)))) as db:
            db.pragma("wal_checkpoint", "truncate")
            db.execute("BEGIN IMMEDIATE")
            waiting = asyncio.ensure_future(kept(log, "two"))
            await asyncio.sleep(0.3)
            replace_file(tmp_path)
            db.execute("ROLLBACK")
            with pytest.raises(StorageError, match="replaced by another file"):
                await waiting
        await kept(log, "three")
        with closing(apsw.Connection(str(database(tmp_path)))) as db:
            db.pragma("wal_checkpoint", "truncate")
        replace_file(tmp_path)
        await kept(log, "four")
        await log.close()
    async with on_disk(tmp_path) as store:
        assert await texts_in(store, log.session_id) == ["one", "two", "three", "four"]


async def test_a_file_that_is_replaced_while_a_program_opens_it_is_not_written_to(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, "one")

    def connect_too_early() -> apsw.Connection:
        connection = connect(database(tmp_path))
        replace_file(tmp_path)
        return connection

    writer = Writer(database(tmp_path), connect_too_early)
    with pytest.raises(StorageError, match="replaced by another file"):
        await writer.submit(lambda db: db.execute("DELETE FROM sessions"))
    await writer.close()
    async with on_disk(tmp_path) as store:
        assert await texts_in(store, id) == ["one"]


@pytest.mark.parametrize("times", [5, pytest.param(40, marks=[pytest.mark.full, pytest.mark.slow])])
async def test_a_killed_program_has_lost_nothing_that_was_acknowledged(tmp_path: Path, times: int) -> None:
    chance = random.Random(7)
    session_id, acknowledged = "", list[str]()
    for n in range(times):
        with appending(database(tmp_path), session_id if acknowledged else "") as (process, session_id):
            # On a busy machine nothing may be stored within the moment that is left: every second one is given time.
            assert process.stdout is not None
            acknowledged += [process.stdout.readline().decode().strip()] if n % 2 == 0 else []
            time.sleep(chance.uniform(0, 0.03))
            process.kill()
            acknowledged += told_by(process)
        told: list[str] = []
        async with on_disk(tmp_path, told) as store:
            log, entries = await store.open(session_id)  # which the kill has freed
            await log.close()
        assert told == []
        assert_nothing_is_lost(entries, acknowledged)
    assert len(acknowledged) >= times // 2


@pytest.mark.slow
async def test_several_programs_may_begin_the_file_at_once(tmp_path: Path) -> None:
    with ExitStack() as running, ThreadPoolExecutor(4) as at_once:
        begun = [at_once.submit(running.enter_context, appending(database(tmp_path))) for _ in range(4)]
        for one in begun:
            process, _ = one.result()
            assert process.stdout is not None
            assert len([process.stdout.readline() for _ in range(6)]) == 6
    async with on_disk(tmp_path) as store:
        assert [info.entries > 4 for info in await store.list()] == [True] * 4


# Disks that are full or read-only.


async def test_a_full_disk_is_reported_and_takes_nothing_away(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "1m") as disk:
        async with on_disk(disk) as store:
            log = await store.create(cwd=HERE)
            await kept(log, "first")
            fill(disk, all_but=600_000)
            stored = 1
            with pytest.raises(StorageError, match="disk is full"):
                for n in range(200):
                    await kept(log, f"{n} " + "x" * 20_000)
                    stored += 1
            assert len(await entries_in(store, log.session_id)) == stored
            fill(disk)
            late = await store.create(cwd=HERE)
            with pytest.raises(StorageError):
                await kept(late, "late " + "x" * 50_000)
            (disk / "filler").unlink()
            for one in (log, late):
                await kept(one, "room again")  # and what had found no room comes with it
                await one.close()
            assert len(await entries_in(store, log.session_id)) == stored + 2
            assert [text[:5] for text in await texts_in(store, late.session_id)] == ["late ", "room "]
            assert (await store.load(late.session_id))[0].title.startswith("late")
        async with on_disk(disk) as store:
            entries = await entries_in(store, log.session_id)
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert texts_of(entries)[-1] == "room again"


async def test_a_damaged_file_waits_for_room_to_be_restored_from_its_copy(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "1m") as disk:
        async with on_disk(disk) as store:
            id = await a_session(store, "Remember me " + "x" * 100_000)
        file, copy = database(disk), database(disk).with_name("sessions.db.copy")
        file.write_bytes(bytes(16) + file.read_bytes()[16:])
        before = file.read_bytes(), copy.read_bytes()
        fill(disk)
        with pytest.raises(StorageError, match=r"Make room.*Nothing was changed"):
            repair(file)
        assert (file.read_bytes(), copy.read_bytes()) == before
        (disk / "filler").unlink()
        assert repair(file).restored_from
        async with on_disk(disk) as store:
            assert len(await entries_in(store, id)) == 1


@pytest.mark.slow
async def test_a_full_disk_ends_turns_with_a_sentence_and_prints_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thinks = {"text": "x" * 20_000, "tool_calls": [call("think", thought=one) for one in "ab"]}
    with tiny_disk(tmp_path, "200k") as disk:
        async with on_disk(disk) as store, on_stage(tmp_path, [thinks] * 12, log=await store.create(cwd=HERE)) as stage:
            for _ in range(2):
                ended = await stage.ask("y" * 30_000)
                assert "disk is full" in ended.error
    gc.collect()
    assert [record.getMessage()[:7] for record in caplog.records] == ["No copy"]


async def test_a_read_only_disk_is_read_and_a_clear_error_for_who_writes(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "2m") as disk:
        old = disk / "old"
        for folder in (disk, old):
            async with on_disk(folder) as store:
                await a_session(store, "needle")
        with closing(apsw.Connection(str(database(old)))) as db:
            as_version_4(db)
        with read_only(disk):
            for folder in (disk, old):
                async with on_disk(folder) as store:
                    ((id, texts),) = [(info.id, await texts_in(store, info.id)) for info in await store.list(cwd=HERE)]
                    assert texts == ["needle"]
                    assert [one.session_id for one in await store.search("needle")] == [id]
                    says = r"Could not write to .*/locks: Read-only file system.*--no-session"
                    with pytest.raises(StorageError, match=says):
                        await a_session(store, "two")


@pytest.mark.skipif(is_root, reason="root writes to read-only folders")
async def test_a_read_only_folder_is_a_clear_error(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
    database(tmp_path).parent.chmod(0o500)
    try:
        async with on_disk(tmp_path) as store:
            with pytest.raises(StorageError, match=r"sessions\.db could not be opened or written.*--no-session"):
                await a_session(store, "two")
    finally:
        database(tmp_path).parent.chmod(0o700)


async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    async with on_disk(tmp_path) as store:
        for refused in (store.list(), store.create(cwd=HERE)):
            with pytest.raises(StorageError, match="state"):
                await refused
