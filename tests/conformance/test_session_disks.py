"""What the session database bears: power cuts, disks that fail, files that were damaged."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentcli.conversation.entries import Entry
from agentcli.errors import StorageError
from agentcli.infra.sessions import sqlite
from agentcli.infra.sessions.database import SessionLock
from agentcli.infra.sessions.repair import CheckReport, check, make_copy, repair
from agentcli.infra.sessions.sqlite import SqliteSessions
from tests.conformance.disks import disk, fill, tiny_disk
from tests.conformance.power_cuts import cut_power
from tests.conformance.sessions import HERE, a_fork, a_session, database, entries_in, goes_on, on_disk, said, texts_of

TEXTS = ("one", "two", "three")


async def stored(folder: Path, *texts: str) -> tuple[Path, str, list[Entry]]:
    """A file with a session of these texts and its copy: with the session's id and entries."""
    async with on_disk(folder) as store:
        id = await a_session(store, *texts)
        return database(folder), id, await entries_in(store, id)


async def read(path: Path, session_id: str) -> list[Entry]:
    async with on_disk(path.parent.parent) as store:
        return await entries_in(store, session_id)


def copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def change(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("cuts", "seed"), [(20, 1), (60, 2)])
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, cuts: int, seed: int) -> None:
    found = cut_power(tmp_path, cuts=cuts, seed=seed)
    assert (found.cuts, found.lost, found.unreadable) == (cuts, 0, [])
    assert found.acknowledged > 500


# Disks that fail.


def io_error() -> Exception:
    error = apsw.IOError("the disk did not do it")
    error.extendedresult = apsw.SQLITE_IOERR_WRITE
    return error


FAILURES: dict[str, tuple[Callable[[], Exception], tuple[str, ...]]] = {
    "EIO": (io_error, ("could not be written", "sessions.db: ")),
    "ENOSPC": (lambda: apsw.FullError("no room"), ("disk is full",)),
}


async def fails_at(folder: Path, first: int, last: int, failure: Callable[[], Exception]) -> tuple[bool, list[str]]:
    """Append while the writes and syncs of these numbers fail; True if there were so many, and what was told."""
    steps, acknowledged, told = 0, [], []

    def fail(step: str, name: str) -> None:
        nonlocal steps
        steps += 1
        if first <= steps <= last:
            raise failure()

    with disk() as failing:
        failing.before_each = fail
        store = SqliteSessions(database(folder))
        log = await store.create(cwd=HERE)
        for n in range(6):
            try:
                done = await log.append(said(f"{n} {'x' * 9_000 * (n % 3)}")).committed
                acknowledged += [entry.id for entry in done.entries]
            except StorageError as error:
                told.append(str(error))
        failing.before_each = lambda step, name: None
        await log.append(said("6 works again")).committed
        await log.close()
        await store.close()
    entries = await read(database(folder), log.session_id)
    assert [text[0] for text in texts_of(entries)] == list("0123456")
    assert set(acknowledged) <= {entry.id for entry in entries}
    assert check(database(folder)).found == []
    return steps >= first, told


@pytest.mark.parametrize("length", [0, *(pytest.param(n, marks=[pytest.mark.full, pytest.mark.slow]) for n in (1, 15))])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_disk_that_fails_at_any_write_or_sync_is_reported_and_loses_nothing(
    tmp_path: Path, kind: str, length: int
) -> None:
    """At each of them once, or for some in a row; the shortest run looks at some of them alone."""
    failure, says = FAILURES[kind]
    told: list[str] = []
    first, is_there = 1 if length else 5, True
    while is_there and (length or first < 60):
        is_there, more = await fails_at(tmp_path / str(first), first, first + max(length, 1) - 1, failure)
        told += more
        first += 1 if length else 12
    assert first > 60 or not length
    assert len(told) > (40 if length else 0)
    assert [text for text in told if not any(part in text for part in says)] == []


# Damage.


async def checked_repair(path: Path, before: dict[str, list[Entry]]) -> CheckReport | None:
    """What the repair says; every way ends in a sound file with every entry, or in a clear answer.

    A file in which only entries are damaged stays as it is.
    """
    damage = path.read_bytes()
    try:
        found = check(path)
        assert path.read_bytes() == damage
        report = repair(path)
    except StorageError as error:
        return None if str(path) in str(error) else pytest.fail(f"names no file: {error}")
    assert check(path).found == report.left
    assert (Path(report.kept_as) if report.kept_as else path).read_bytes() == damage
    if report.is_healthy and not found.is_healthy:
        for id, entries in before.items():
            assert [entry.body for entry in await read(path, id)] == [entry.body for entry in entries]
    assert not list(path.parent.glob("repair-*"))
    return report


@pytest.mark.slow
@pytest.mark.parametrize(("times", "seed"), [(12, 3), pytest.param(200, 4, marks=pytest.mark.full)])
async def test_a_file_with_flipped_bits_is_restored(tmp_path: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    talks = [[f"{n} {chance.random()} {'word ' * chance.choice((1, 20, 400))}" for n in range(30)] for _ in range(3)]
    async with on_disk(tmp_path / "whole") as store:
        ids = [await a_session(store, *talk) for talk in talks]
        ids.append(await a_fork(store, ids[0], *talks[1]))
        await store.search("word")
        before = {id: await entries_in(store, id) for id in ids}
    path, repaired = database(tmp_path / "whole"), 0
    content = path.read_bytes()
    for n in range(times):
        damaged = bytearray(content)
        for _ in range(1 if n % 3 else 20):
            damaged[chance.randrange(100, len(damaged))] ^= 1 << chance.randrange(8)
        place = database(tmp_path / str(n))
        place.parent.mkdir(parents=True)
        shutil.copy2(copy_of(path), copy_of(place))
        place.write_bytes(damaged)
        report = await checked_repair(place, before)
        repaired += report is not None and bool(report.kept_as)
        assert report is None or not report.is_file_damaged
    assert repaired  # what lies where nothing is stored is no damage


DAMAGE = {
    "PRAGMA foreign_keys = off; DELETE FROM sessions": "file",
    "DROP TABLE entries": "file",
    "half": "file",
    "beginning": "file",
}
ENTRY_DAMAGE = {
    "DELETE FROM entries WHERE seq = 2": "order",
    "UPDATE entries SET checksum = 7 WHERE seq = 2": "checksum",
    "UPDATE entries SET parent_id = 'gone' WHERE seq = 2": "parent",
}


@pytest.mark.parametrize("has_copy", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
async def test_what_is_missing_is_found_and_comes_from_the_copy(tmp_path: Path, damage: str, has_copy: bool) -> None:
    path, id, before = await stored(tmp_path, *TEXTS)
    content = path.read_bytes()
    match damage:
        case "half":
            path.write_bytes(content[: len(content) // 2])
        case "beginning":
            path.write_bytes(bytes(16) + content[16:])
        case _:
            change(path, damage)
    os.utime(copy_of(path), (1e9, 1e9))
    if not has_copy:
        copy_of(path).unlink()
    assert DAMAGE[damage] in {fault.kind for fault in check(path).found}
    report = await checked_repair(path, {id: before} if has_copy else {})
    assert report is not None
    assert (report.is_healthy, bool(report.kept_as)) == (has_copy, has_copy)
    if has_copy:
        assert report.restored_from == 1e9
        assert "2001-09-" in report.restored_text


@pytest.mark.parametrize("damage", ENTRY_DAMAGE)
async def test_damage_of_single_entries_is_reported_and_costs_no_other_entry(tmp_path: Path, damage: str) -> None:
    path, id, _ = await stored(tmp_path, *TEXTS)
    async with on_disk(tmp_path) as store:
        await goes_on(store, id, "four", "five", "six")
    before = await read(path, id)
    change(path, damage)
    damaged = path.read_bytes()
    report = repair(path)
    assert (ENTRY_DAMAGE[damage], id) in [(fault.kind, fault.session_id) for fault in report.left]
    assert (report.is_healthy, report.is_file_damaged, report.kept_as) == (False, False, "")
    assert path.read_bytes() == damaged
    entries = await read(path, id)
    assert [entry for entry in entries if entry.id != before[1].id] == [one for one in before if one.id != before[1].id]
    make_copy(path)
    assert check(copy_of(path)).found == report.left


async def test_an_index_that_is_damaged_is_made_anew_with_all_entries(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, *TEXTS)
    async with on_disk(tmp_path) as store:
        await goes_on(store, id, "four")
    before = await read(path, id)
    change(
        path,
        "PRAGMA writable_schema = on",
        "UPDATE sqlite_master SET sql = replace(sql, '(origin)', '(time)') WHERE name = 'entries_by_origin'",
    )
    assert check(path).is_file_damaged
    report = repair(path)
    assert (report.is_healthy, report.restored_from) == (True, 0)
    assert await read(path, id) == before


def copied_with_log(path: Path, folder: Path, changes: str) -> Path:
    """Change a file, and copy it with its log, in which the changes still are."""
    copy = database(folder)
    copy.parent.mkdir(parents=True)
    with closing(apsw.Connection(str(path))) as db:
        db.execute(changes)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    return copy


async def test_the_log_of_a_damaged_file_is_read_and_kept_with_it(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    place = copied_with_log(path, tmp_path / "copy", "PRAGMA foreign_keys = off; DELETE FROM sessions")
    shutil.copy(f"{path}.copy", f"{place}.copy")
    assert check(place).is_file_damaged
    report = repair(place)
    assert report.is_healthy
    assert Path(f"{report.kept_as}-wal").stat().st_size
    assert not Path(f"{place}-wal").exists()
    with closing(apsw.Connection(report.kept_as)) as db:
        assert db.execute("SELECT count(*) FROM sessions").get == 0
    assert texts_of(await read(place, id)) == ["one", "two"]


async def test_no_repair_while_a_session_is_open_or_another_program_writes(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    async with on_disk(tmp_path) as store:
        await store.list()
        change(path, "PRAGMA foreign_keys = off; DELETE FROM sessions")
        before = path.read_bytes()
        lock = SessionLock(path, id)
        lock.acquire()
        with pytest.raises(StorageError, match=f"{id} is open"):
            repair(path)
        lock.release()
        with closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageError, match="Another program is writing"):
                repair(path)
            other.execute("ROLLBACK")
        assert path.read_bytes() == before
        assert repair(path).kept_as
        await goes_on(store, id, "three")  # a store that was open meanwhile goes on in the new file
    assert texts_of(await read(path, id)) == ["one", "two", "three"]
    assert check(path).found == []


async def test_a_file_that_has_lost_its_contents_keeps_its_log_and_its_copy(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    path.write_bytes(b"")
    os.utime(copy_of(path), (1e9, 1e9))
    async with on_disk(tmp_path) as store:  # which makes the daily copy at its end
        log = await store.create(cwd=HERE)
        with pytest.raises(StorageError, match="it is empty"):
            await log.append(said("three")).committed
        await log.close()
    Path(f"{path}-wal").write_bytes(b"what was stored last")
    assert sqlite.can_resume(path, id)
    report = repair(path)
    assert Path(f"{report.kept_as}-wal").read_bytes() == b"what was stored last"
    assert texts_of(await read(path, id)) == ["one", "two"]


WRITE_AT_ONCE = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE; CREATE TABLE more (text); INSERT INTO more VALUES (zeroblob(100000)); COMMIT")
print("stored", flush=True)
"""


async def test_no_program_can_leave_a_log_of_the_damaged_file_beside_the_new_one(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    change(path, "PRAGMA foreign_keys = off; DELETE FROM sessions")
    outputs: list[str] = []

    def write_before_the_replacement(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and str(arguments[1]) == str(path) and not outputs:
            command = [sys.executable, "-c", WRITE_AT_ONCE, str(path)]
            outputs.append(subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr)

    sys.addaudithook(write_before_the_replacement)
    assert repair(path).kept_as
    assert ["database is locked" in output for output in outputs] == [True]
    assert not Path(f"{path}-wal").exists()
    assert texts_of(await read(path, id)) == ["one", "two"]


async def test_two_repairs_at_once_replace_the_file_once(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    path.write_bytes(bytes(16) + path.read_bytes()[16:])
    reports = await asyncio.gather(*(asyncio.to_thread(repair, path) for _ in range(2)))
    assert [report.is_healthy for report in reports] == [True, True]
    assert len(list(path.parent.glob(f"{path.name}.damaged-*"))) == sum(bool(report.kept_as) for report in reports) == 1
    assert texts_of(await read(path, id)) == ["one", "two"]


async def test_a_file_that_cannot_be_replaced_keeps_its_log(tmp_path: Path) -> None:
    path, _, _ = await stored(tmp_path, "one", "two")
    has_failed = False

    def refuse(event: str, arguments: tuple[object, ...]) -> None:  # as for a file that is mounted into a container
        nonlocal has_failed
        if event == "os.rename" and str(arguments[1]) == str(path) and not has_failed:
            has_failed = True
            raise OSError("Device or resource busy")

    with closing(apsw.Connection(str(path))) as other:
        other.execute("PRAGMA foreign_keys = off; DELETE FROM sessions")
        before = path.read_bytes(), Path(f"{path}-wal").read_bytes(), sorted(path.parent.iterdir())
        sys.addaudithook(refuse)
        with pytest.raises(StorageError, match=r"busy.*Nothing was changed"):
            repair(path)
        assert (path.read_bytes(), Path(f"{path}-wal").read_bytes(), sorted(path.parent.iterdir())) == before
        assert repair(path).kept_as


OPEN_SLOWLY = """
import fcntl, sys
with open(sys.argv[1], "rb") as file:
    fcntl.lockf(file, fcntl.LOCK_SH, 1, 1 << 30)  # as SQLite does while it opens a file
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
async def test_a_program_that_stops_while_it_opens_the_file_does_not_hold_up_a_repair(tmp_path: Path) -> None:
    path, _, _ = await stored(tmp_path, "one", "two")
    change(path, "PRAGMA foreign_keys = off; DELETE FROM sessions")
    before = path.read_bytes()
    command = [sys.executable, "-c", OPEN_SLOWLY, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StorageError, match="Another program is writing"):
            repair(path)
        other.stdin.close()
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*damaged*"))
    assert repair(path).kept_as


KILLED_REPAIR = """
import os, sys
from pathlib import Path
from agentcli.infra.sessions.repair import repair

def end(event, arguments):
    if event == "os.rename" and str(arguments[1]) == sys.argv[1]:
        os._exit(9)

sys.addaudithook(end)
repair(Path(sys.argv[1]))
"""


async def test_a_repair_that_is_killed_before_it_replaces_the_file_loses_no_log(tmp_path: Path) -> None:
    path, _, _ = await stored(tmp_path, "one", "two")
    changes = (
        "PRAGMA writable_schema = on; UPDATE sessions SET name = 'in the log'; "
        "UPDATE sqlite_master SET sql = replace(sql, '(origin)', '(time)') WHERE name = 'entries_by_origin'"
    )
    place = copied_with_log(path, tmp_path / "copy", changes)
    assert subprocess.run([sys.executable, "-c", KILLED_REPAIR, str(place)], check=False).returncode == 9
    async with on_disk(tmp_path / "copy") as store:
        with pytest.raises(StorageError, match="its repair was not finished"):
            await store.list()
    assert repair(place).is_healthy
    async with on_disk(tmp_path / "copy") as store:
        assert [info.name for info in await store.list()] == ["in the log"]
    assert not list(place.parent.glob("sessions.db-*.*"))


async def test_a_link_to_the_database_stays_when_its_file_is_replaced(tmp_path: Path) -> None:
    path, id, _ = await stored(tmp_path, "one", "two")
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "elsewhere" / "big.db")
    path.symlink_to(tmp_path / "elsewhere" / "big.db")
    async with on_disk(tmp_path) as store:
        await store.list()
        change(path, "PRAGMA foreign_keys = off; DELETE FROM sessions")
        kept_as = repair(path).kept_as
        await goes_on(store, id, "three")  # a store that was open meanwhile goes on in the new file
    assert path.is_symlink()
    assert Path(kept_as).parent.name == "elsewhere"
    assert texts_of(await read(path, id)) == ["one", "two", "three"]


async def test_what_a_newer_agentcli_wrote_is_not_a_damage_and_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    path, _, _ = await stored(tmp_path, "one", "two")
    change(path, "UPDATE entries SET schema_version = 99 WHERE seq = 2")
    assert check(path).found == []
    path.write_bytes(b"This is no database at all. " * 1_000)
    copy_of(path).unlink()
    for look in (check, repair):
        report = look(path)
        assert (report.is_healthy, report.kept_as, {fault.kind for fault in report.found}) == (False, "", {"file"})
    path.unlink()
    path.mkdir()
    for look in (check, repair):
        with pytest.raises(StorageError, match="cannot be opened"):
            look(path)


# The copy.


async def test_a_copy_is_made_once_a_day_of_a_file_that_was_written_to_and_is_sound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = database(tmp_path)

    async def copied(*bodies: str) -> bool:
        before = copy_of(path).stat().st_mtime if copy_of(path).exists() else 0
        async with on_disk(tmp_path) as store:
            await store.list()
            if bodies:
                await a_session(store, *bodies)
        return copy_of(path).exists() and copy_of(path).stat().st_mtime != before

    assert not await copied()
    assert await copied("one")
    assert stat.S_IMODE(copy_of(path).stat().st_mode) == 0o600
    assert not await copied("two")
    os.utime(copy_of(path), (1e9, 1e9))
    assert not await copied()
    assert await copied("three")
    sound = copy_of(path).read_bytes()
    change(path, "PRAGMA foreign_keys = off; DELETE FROM sessions")
    make_copy(path)
    assert copy_of(path).read_bytes() == sound
    assert "No copy" in caplog.text


async def test_a_large_file_is_copied_by_a_program_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LARGE_BYTES", 0)
    for text in ("one", "two"):
        path, _, _ = await stored(tmp_path, text)
    assert [file.name for file in path.parent.glob("sessions.db.*")] == []
    monkeypatch.setattr(sqlite, "_COPY_DELAY_S", 0.01)
    async with on_disk(tmp_path) as store, asyncio.timeout(20):
        await a_session(store, "three")
        while not copy_of(path).exists():
            await asyncio.sleep(0.01)


async def test_a_full_disk_keeps_the_copy_of_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tiny_disk(tmp_path, "2m") as place:
        path, _, _ = await stored(place, "x" * 150_000)
        sound = copy_of(path).read_bytes()
        os.utime(copy_of(path), (1e9, 1e9))
        fill(place, all_but=150_000)
        await stored(place, "two")
        assert copy_of(path).read_bytes() == sound
        assert "Check that there is room" in caplog.text
        assert not list(path.parent.glob("*.part"))
