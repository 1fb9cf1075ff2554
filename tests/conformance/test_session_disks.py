"""What the session database bears: power cuts, disks that fail, files that were damaged."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentcli.agent.interfaces import SessionStore
from agentcli.conversation.entries import Body, ContextNote, Entry, Unreadable, User
from agentcli.errors import StorageError
from agentcli.infra.sessions import sqlite
from agentcli.infra.sessions.database import lock_session
from agentcli.infra.sessions.fsck import CheckReport, check, make_copy, repair, replace_damaged
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text
from tests.conformance.disks import disk, tiny_disk
from tests.conformance.power_cuts import cut_power

HERE = Path("/here")


def said(text: str) -> User:
    return User((Text(text),))


async def stored(path: Path, *sessions: tuple[Body, ...]) -> list[str]:
    """The ids of sessions that hold these."""
    store = SqliteSessions(path)
    ids = [await a_session(store, *bodies) for bodies in sessions]
    await store.close()
    return ids


async def a_session(store: SqliteSessions, *bodies: Body) -> str:
    log = await store.create(cwd=HERE)
    for body in bodies:
        await log.append(body).committed
    await log.close()
    return log.session_id


async def read(path: Path, session_id: str) -> list[Entry]:
    store: SessionStore = SqliteSessions(path)
    try:
        return (await store.load(session_id))[1]
    finally:
        await store.close()


def texts_of(entries: list[Entry]) -> list[str]:
    return [entry.body.text for entry in entries if isinstance(entry.body, User)]


def change(path: Path, *statements: str) -> None:
    with closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)


# Power.


@pytest.mark.slow
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    found = cut_power(tmp_path, cuts=20, seed=1)
    assert (found.cuts, found.lost, found.unreadable) == (20, 0, [])
    assert found.acknowledged > 500


@pytest.mark.slow
def test_power_cuts_again_and_again_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    found = cut_power(tmp_path, cuts=60, seed=2)
    assert (found.cuts, found.lost, found.unreadable) == (60, 0, [])


# Disks that fail.


def io_error() -> Exception:
    error = apsw.IOError("the disk did not do it")
    error.extendedresult = apsw.SQLITE_IOERR_WRITE
    return error


FAILURES: dict[str, tuple[Callable[[], Exception], str]] = {
    "EIO": (io_error, "could not be written|sessions.db: "),
    "ENOSPC": (lambda: apsw.FullError("no room"), "disk is full"),
}


async def fails_at(folder: Path, first: int, last: int, failure: Callable[[], Exception]) -> tuple[bool, list[str]]:
    """Append while the writes and syncs of these numbers fail; True if there were so many, and what was told."""
    steps, acknowledged, told = 0, [], []

    def fail(step: str, name: str) -> None:
        nonlocal steps
        steps += 1
        if first <= steps <= last:
            raise failure()

    path = folder / "sessions.db"
    with disk() as failing:
        failing.before_each = fail
        store = SqliteSessions(path)
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
    entries = await read(path, log.session_id)
    assert [text[0] for text in texts_of(entries)] == list("0123456")
    assert set(acknowledged) <= {entry.id for entry in entries}
    assert check(path).found == []
    return steps >= first, told


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 15])
@pytest.mark.parametrize("kind", FAILURES)
async def test_a_disk_that_fails_at_any_write_or_sync_is_told_and_loses_nothing(
    tmp_path: Path, kind: str, length: int
) -> None:
    failure, says = FAILURES[kind]
    every: list[str] = []
    first, is_there = 1, True
    while is_there:
        is_there, told = await fails_at(tmp_path / str(first), first, first + length - 1, failure)
        every += told
        first += 1
    assert first > 60
    assert len(every) > 40
    assert [text for text in every if not any(part in text for part in says.split("|"))] == []


async def test_a_disk_that_fails_once_is_told_and_loses_nothing(tmp_path: Path) -> None:
    for kind, (failure, _) in FAILURES.items():
        told = [await fails_at(tmp_path / kind / str(first), first, first, failure) for first in range(5, 60, 12)]
        assert any(texts for _, texts in told)


# Damage.


async def a_filled_store(folder: Path, chance: random.Random) -> tuple[Path, dict[str, list[Entry]]]:
    """A store of some sessions, of which one is a fork, with a copy; and what it holds."""
    path = folder / "sessions.db"
    lengths = (1, 20, 400)
    talks = [[said(f"{n} {chance.random()} {'word ' * chance.choice(lengths)}") for n in range(30)] for _ in range(3)]
    store = SqliteSessions(path)
    ids = [await a_session(store, *talk) for talk in talks]
    fork, _ = await store.fork(ids[0], cwd=HERE)
    await fork.append(*talks[1]).committed
    await fork.close()
    await store.search("word")
    await store.close()
    return path, {id: await read(path, id) for id in (*ids, fork.session_id)}


async def checked_repair(path: Path, before: dict[str, list[Entry]]) -> CheckReport | None:
    """What the repair says; every way ends in a sound file with every entry, or in a clear answer."""
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


async def flipped(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    path, before = await a_filled_store(folder / "whole", chance)
    content, repaired = path.read_bytes(), 0
    for n in range(times):
        damaged = bytearray(content)
        for _ in range(1 if n % 3 else 20):
            damaged[chance.randrange(100, len(damaged))] ^= 1 << chance.randrange(8)
        place = folder / str(n) / "sessions.db"
        place.parent.mkdir()
        shutil.copy2(f"{path}.copy", f"{place}.copy")
        place.write_bytes(damaged)
        report = await checked_repair(place, before)
        repaired += report is not None and bool(report.kept_as)
        assert report is None or report.is_healthy
    assert repaired  # what lies where nothing is stored is no damage


@pytest.mark.slow
async def test_a_file_with_flipped_bits_is_restored(tmp_path: Path) -> None:
    await flipped(tmp_path, 12, seed=3)


@pytest.mark.full
@pytest.mark.slow
async def test_files_with_bits_flipped_in_200_places_are_restored(tmp_path: Path) -> None:
    await flipped(tmp_path, 200, seed=4)


async def test_a_file_that_was_cut_off_is_restored_from_its_copy_or_left_without_one(tmp_path: Path) -> None:
    path, before = await a_filled_store(tmp_path, random.Random(5))
    os.utime(f"{path}.copy", (1e9, 1e9))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    report = await checked_repair(path, before)
    assert report is not None
    assert report.restored_from == 1e9
    assert "2001-09-" in report.restored_text
    Path(f"{path}.copy").unlink()
    path.write_bytes(content[: len(content) // 2])
    report = await checked_repair(path, before)
    assert report is not None
    assert (report.is_healthy, report.kept_as) == (False, "")


async def test_what_another_program_has_restored_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"),))
    before = await read(path, id)
    path.write_bytes(bytes(16) + path.read_bytes()[16:])
    assert "is restored from the copy" in replace_damaged(path)
    assert replace_damaged(path) == ""
    assert await read(path, id) == before


async def test_what_was_stored_after_the_copy_outlives_damage_of_single_entries(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, tuple(map(said, ("one", "two", "three"))))
    store = SqliteSessions(path)
    log, _ = await store.open(id)
    await log.append(said("four"), said("five"), said("six")).committed
    await log.close()
    await store.close()
    before = await read(path, id)
    for text in ("two", "five"):
        change(path, f"UPDATE entries SET body = replace(body, '{text}', 'xxx') WHERE body LIKE '%{text}%'")
    report = check(path)
    assert [(fault.kind, fault.session_id) for fault in report.found] == [("checksum", id)] * 2
    repaired = repair(path)
    assert (repaired.is_healthy, repaired.restored_from, check(path).found) == (True, 0, [])
    entries = await read(path, id)
    assert [entry.id for entry in entries] == [entry.id for entry in before]
    assert texts_of(entries) == ["one", "two", "three", "four", "six"]
    assert isinstance(entries[4].body, ContextNote)
    assert Path(repaired.kept_as).name in entries[4].body.text


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("DELETE FROM entries WHERE seq = 2", "order"),
        ("PRAGMA foreign_keys = off; DELETE FROM sessions", "file"),
        ("DROP TABLE entries", "file"),
    ],
)
async def test_what_is_missing_is_found_and_comes_from_the_copy(tmp_path: Path, damage: str, kind: str) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two"), said("three")))
    before = await read(path, id)
    change(path, damage)
    assert kind in {fault.kind for fault in check(path).found}
    assert repair(path).is_healthy
    assert await read(path, id) == before


async def test_a_damaged_file_is_not_copied_over_a_sound_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "sessions.db"
    await stored(path, (said("one"),))
    copy = Path(f"{path}.copy")
    sound = copy.read_bytes()
    change(path, "UPDATE entries SET body = replace(body, 'one', 'xxx')")
    make_copy(path)
    assert copy.read_bytes() == sound
    assert "No copy" in caplog.text


async def test_a_copy_is_made_once_a_day_of_a_file_that_was_written_to(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    copy = Path(f"{path}.copy")

    async def copied(*bodies: Body) -> bool:
        before = copy.stat().st_mtime if copy.exists() else 0
        store = SqliteSessions(path)
        await store.list()
        if bodies:
            await a_session(store, *bodies)
        await store.close()
        return copy.exists() and copy.stat().st_mtime != before

    assert not await copied()
    assert await copied(said("one"))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert not await copied(said("two"))
    os.utime(copy, (1e9, 1e9))
    assert not await copied()
    assert await copied(said("three"))


async def test_a_large_file_is_copied_by_a_program_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sessions.db"
    monkeypatch.setattr(sqlite, "_LARGE", 0)
    for text in ("one", "two"):
        await stored(path, (said(text),))
    assert [file.name for file in tmp_path.glob("sessions.db.*")] == []
    monkeypatch.setattr(sqlite, "_COPY_DELAY_S", 0.01)
    store = SqliteSessions(path)
    await a_session(store, said("three"))
    async with asyncio.timeout(20):
        while not Path(f"{path}.copy").exists():
            await asyncio.sleep(0.01)
    await store.close()


async def test_a_full_disk_keeps_the_copy_of_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tiny_disk(tmp_path, "2m") as place:
        path = place / "sessions.db"
        await stored(path, (said("x" * 150_000),))
        sound = Path(f"{path}.copy").read_bytes()
        os.utime(f"{path}.copy", (1e9, 1e9))
        (place / "filler").write_bytes(bytes(shutil.disk_usage(place).free - 150_000))
        await stored(path, (said("two"),))
        assert Path(f"{path}.copy").read_bytes() == sound
        assert "see that there is room" in caplog.text
        assert not list(place.glob("*.part"))


async def test_an_entry_whose_parent_is_gone_follows_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two"), said("three")))
    before = await read(path, id)
    Path(f"{path}.copy").unlink()
    change(path, "UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
    assert [fault.kind for fault in check(path).found] == ["parent"]
    assert repair(path).is_healthy
    assert await read(path, id) == before


async def test_what_a_newer_agentcli_wrote_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    change(path, "UPDATE entries SET schema_version = 99 WHERE seq = 2")
    assert check(path).found == []
    entries = await read(path, id)
    assert isinstance(entries[1].body, Unreadable)


async def test_the_log_of_a_damaged_file_is_read_and_kept_with_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    place = tmp_path / "copy" / "sessions.db"
    place.parent.mkdir()
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE entries SET checksum = 7 WHERE seq = 2")
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{place}{suffix}")
    shutil.copy(f"{path}.copy", f"{place}.copy")
    assert [fault.kind for fault in check(place).found] == ["checksum"]
    report = repair(place)
    assert report.is_healthy
    assert Path(f"{report.kept_as}-wal").stat().st_size
    assert not Path(f"{place}-wal").exists()
    with closing(apsw.Connection(report.kept_as)) as db:
        assert db.execute("SELECT checksum FROM entries WHERE seq = 2").get == 7
    assert texts_of(await read(place, id)) == ["one", "two"]


@pytest.mark.slow
async def test_no_repair_while_a_session_is_open_or_another_program_writes(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    change(path, "UPDATE entries SET checksum = 7 WHERE seq = 2")
    before = path.read_bytes()
    lock = lock_session(path, id)
    with pytest.raises(StorageError, match=f"{id} is open"):
        repair(path)
    lock.release()
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="written by another program"):
            repair(path)
        other.execute("ROLLBACK")
    assert path.read_bytes() == before
    assert repair(path).is_healthy


async def test_a_store_that_was_open_during_a_repair_goes_on_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    store = SqliteSessions(path)
    await store.list()
    change(path, "UPDATE entries SET checksum = 7 WHERE seq = 2")
    assert repair(path).kept_as
    log, _ = await store.open(id)
    await log.append(said("three")).committed
    await log.close()
    await store.close()
    assert texts_of(await read(path, id)) == ["one", "two", "three"]
    assert check(path).found == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
async def test_a_file_that_may_not_be_read_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    await stored(path, (said("one"),))
    path.chmod(0)
    for refused in (check, repair):
        with pytest.raises(StorageError, match="cannot be opened"):
            refused(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0


def test_a_file_that_is_no_database_is_reported_and_left(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"This is no database at all. " * 1_000)
    for look in (check, repair):
        report = look(path)
        assert (report.is_healthy, report.kept_as, {fault.kind for fault in report.found}) == (False, "", {"file"})
    assert path.read_bytes().startswith(b"This is no")
