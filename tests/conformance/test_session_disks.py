"""What the session database bears: power cuts, disks that fail, files that were damaged."""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentcli.agent.interfaces import SessionStore
from agentcli.conversation.entries import Assistant, Body, ContextNote, Entry, Result, Unreadable, User
from agentcli.errors import StorageError
from agentcli.infra.sessions.files import session_lock
from agentcli.infra.sessions.fsck import Report, check, repair
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text, ToolResult, ToolUse
from tests.conformance.disks import disk
from tests.conformance.power_cuts import cut_power

HERE = Path("/here")


def said(text: str) -> User:
    return User((Text(text),))


async def stored(path: Path, *sessions: tuple[Body, ...]) -> list[str]:
    """The ids of sessions that hold these."""
    store = SqliteSessions(path)
    ids = []
    for bodies in sessions:
        log = await store.create(cwd=HERE)
        for body in bodies:
            await log.append(body).committed
        await log.close()
        ids.append(log.session_id)
    await store.close()
    return ids


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


def some_talk(chance: random.Random, count: int) -> tuple[Body, ...]:
    bodies: list[Body] = []
    for n in range(count):
        bodies += (
            said(f"{n} {chance.random()} {'word ' * chance.choice((1, 20, 400))}"),
            Assistant((Text("Let me see."), ToolUse(f"c{n}", "think", {"n": n})), "p", "m"),
            Result(ToolResult(f"c{n}", "x" * chance.choice((10, 3_000))), "think"),
        )
    return tuple(bodies)


async def a_filled_store(folder: Path, chance: random.Random, entries: int = 15) -> tuple[Path, dict[str, list[Entry]]]:
    """A store of some sessions, of which one is a fork, searched once; with what they hold."""
    path = folder / "sessions.db"
    ids = await stored(path, *(some_talk(chance, entries) for _ in range(4)))
    store = SqliteSessions(path)
    fork, _ = await store.fork(ids[0], cwd=HERE)
    await fork.append(*some_talk(chance, 3)).committed
    await fork.close()
    await store.search("word")
    await store.close()
    return path, {id: await read(path, id) for id in (*ids, fork.session_id)}


async def damaged_and_repaired(path: Path, before: dict[str, list[Entry]]) -> tuple[Report | None, int]:
    """What the repair says, and how many entries are as they were after it; every way a clear answer."""
    damage = path.read_bytes()
    try:
        found = check(path)
        assert path.read_bytes() == damage
        report = repair(path)
    except StorageError as error:
        return (None, 0) if str(path) in str(error) else pytest.fail(f"says no file: {error}")
    intact = 0
    if report.kept_as:
        assert Path(report.kept_as).read_bytes() == damage
        assert not found.is_healthy
        assert check(path).found == report.left
    else:
        assert path.read_bytes() == damage
    for id, entries in before.items():
        try:
            there = {entry.id: entry for entry in await read(path, id)}
        except StorageError:
            continue
        intact += sum(there.get(entry.id) == entry for entry in entries)
    assert not list(path.parent.glob("repair-*"))
    return report, intact


async def flipped(folder: Path, times: int, seed: int) -> None:
    chance = random.Random(seed)
    path, before = await a_filled_store(folder / "whole", chance)
    content, every = path.read_bytes(), sum(map(len, before.values()))
    repaired = 0
    for n in range(times):
        damaged = bytearray(content)
        flips, kept_at_least = (1, 0.5) if n % 3 else (20, 0.1)
        for _ in range(flips):
            damaged[chance.randrange(100, len(damaged))] ^= 1 << chance.randrange(8)
        place = folder / str(n) / "sessions.db"
        place.parent.mkdir()
        place.write_bytes(damaged)
        report, intact = await damaged_and_repaired(place, before)
        repaired += report is not None and bool(report.kept_as)
        assert report is None or not report.is_healthy or intact > every * kept_at_least, (n, intact, every)
    assert repaired  # what lies where nothing is stored is no damage


@pytest.mark.slow
async def test_a_file_with_flipped_bits_is_repaired_or_told_about(tmp_path: Path) -> None:
    await flipped(tmp_path, 12, seed=3)


@pytest.mark.full
@pytest.mark.slow
async def test_files_with_bits_flipped_in_200_places_are_repaired_or_told_about(tmp_path: Path) -> None:
    await flipped(tmp_path, 200, seed=4)


@pytest.mark.slow
async def test_a_file_that_was_cut_off_gives_back_what_is_left_of_it(tmp_path: Path) -> None:
    path, before = await a_filled_store(tmp_path / "whole", random.Random(5))
    content, every = path.read_bytes(), sum(map(len, before.values()))
    best = 0
    for n in range(1, 12):
        place = tmp_path / str(n) / "sessions.db"
        place.parent.mkdir()
        place.write_bytes(content[: len(content) * n // 12 + n])
        _, intact = await damaged_and_repaired(place, before)
        best = max(best, intact)
    assert best > every * 0.6


def break_leaves(path: Path, holding: Callable[[list[int]], bool]) -> None:
    """Overwrite the pages of `entries` that have no children and hold prompts of these numbers."""
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 4096):
        numbers = [int(number) for number in re.findall(rb'"(\d+) xxx', content[at : at + 4096])]
        if content[at] == 0x0A and numbers and holding(numbers):
            content[at : at + 4096] = b"\xa5" * 4096
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        (lambda numbers: 1_000 in numbers, [range(900, 990), range(1_010, 1_100)]),
        (lambda numbers: 900 in numbers or 1_100 in numbers, [range(890), range(910, 1_090), range(1_110, 3_000)]),
        (lambda numbers: min(numbers) > 1_000 and max(numbers) < 2_000, [range(990), range(2_010, 3_000)]),
        (lambda numbers: 2_999 in numbers, [range(2_980)]),
        (lambda numbers: 0 in numbers, [range(20, 3_000)]),
        (lambda numbers: 0 in numbers or 1_000 in numbers or 2_999 in numbers, [range(1_020, 1_500)]),
    ],
    ids=["one", "two", "many", "last", "first", "all over"],
)
async def test_pages_that_cannot_be_read_cost_their_own_entries_only(
    tmp_path: Path, broken: Callable[[list[int]], bool], kept: list[range]
) -> None:
    path = tmp_path / "sessions.db"
    store = SqliteSessions(path)
    log = await store.create(cwd=HERE)
    await log.append(*(said(f"{n} {'x' * 200}") for n in range(3_000))).committed
    await log.close()
    await store.close()
    break_leaves(path, broken)
    with pytest.raises(StorageError, match="damaged"):
        await read(path, log.session_id)
    assert repair(path).is_healthy
    entries = await read(path, log.session_id)
    numbers = [int(text.split()[0]) for text in texts_of(entries)]
    assert len(numbers) < 3_000
    assert numbers == sorted(set(numbers))
    assert not {number for part in kept for number in part} - set(numbers)
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]


async def test_names_in_the_schema_may_be_damaged_too(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    content = path.read_bytes()
    assert content.count(b"parent_id TEXT") == content.count(b"title TEXT") == 1
    path.write_bytes(content.replace(b"parent_id TEXT", b"parelt_id TEXT").replace(b"title TEXT", b"tytle TEXT"))
    assert [fault.kind for fault in check(path).found] == ["file", "file"]
    assert repair(path).is_healthy
    assert texts_of(await read(path, id)) == ["one", "two"]
    store = SqliteSessions(path)
    assert [(info.title, info.cwd) for info in await store.list()] == [("one", "/here")]
    await store.close()


async def test_a_lost_list_of_sessions_is_made_anew_from_their_entries(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    ids = await stored(path, (said("hello there"),), (said("other thing"),))
    change(path, "PRAGMA foreign_keys = off", f"DELETE FROM sessions WHERE id = '{ids[0]}'")
    assert [fault.kind for fault in check(path).found] == ["owner"]
    assert repair(path).is_healthy
    store = SqliteSessions(path)
    found = await store.list()
    await store.close()
    assert {info.id: info.title for info in found} == dict(zip(ids, ("hello there", "other thing"), strict=True))


ONE_CHANGE = {
    "checksum": "UPDATE entries SET body = replace(body, 'three', 'thrxe') WHERE seq = 3",
    "unreadable": "UPDATE entries SET body = '{\"kind\":', checksum = NULL WHERE seq = 3",
    "order": "DELETE FROM entries WHERE seq = 3",
    "parent": "UPDATE entries SET parent_id = 'gone' WHERE seq = 3",
    "source": "UPDATE sessions SET forked_from = 'gone', forked_at = 7",
    "empty": "INSERT INTO sessions SELECT 'ID', '', '', 'title', 0, 0, NULL, NULL, 0, '' FROM sessions",
}


@pytest.mark.parametrize("kind", ONE_CHANGE)
async def test_each_kind_of_fault_is_found_and_repaired(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, tuple(map(said, ("one", "two", "three", "four"))))
    before = await read(path, id)
    assert check(path).found == []
    change(path, ONE_CHANGE[kind].replace("'ID'", f"'{id}-2'"))
    report = check(path)
    assert kind in [fault.kind for fault in report.found]
    assert not report.is_healthy
    assert all(fault.session_id.startswith(id) and fault.session_id in fault.text for fault in report.found)
    repaired = repair(path)
    assert (repaired.is_healthy, repaired.left, check(path).found) == (True, [], [])
    assert Path(repaired.kept_as).name.startswith("sessions.db.damaged-")
    if kind == "empty":
        with pytest.raises(StorageError, match="No session"):
            await read(path, f"{id}-2")
    entries = await read(path, id)
    texts = {
        "checksum": ["one", "two", "thrxe", "four"],
        "order": ["one", "two", "four"],
        "unreadable": ["one", "two", "four"],
    }
    assert texts_of(entries) == texts.get(kind, ["one", "two", "three", "four"])
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    if kind == "unreadable":
        assert isinstance(entries[2].body, ContextNote)
        assert Path(repaired.kept_as).name in entries[2].body.text
        assert entries[2].id == before[2].id


async def test_forks_still_fit_after_a_repair_that_closed_gaps(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (source,) = await stored(path, tuple(map(said, "abcdef")))
    store = SqliteSessions(path)
    entries = await read(path, source)
    fork, _ = await store.fork(source, cwd=HERE, at=entries[4].id)
    await fork.append(said("own")).committed
    await fork.close()
    await store.close()
    change(path, f"DELETE FROM entries WHERE session_id = '{source}' AND seq IN (2, 5)")
    assert {fault.kind for fault in check(path).found} == {"order", "parent", "source"}
    assert repair(path).is_healthy
    assert texts_of(await read(path, source)) == list("acdf")
    shown = await read(path, fork.session_id)
    assert texts_of(shown) == ["a", "c", "d", "own"]
    assert shown[-1].parent_id == shown[-2].id


async def test_a_call_without_a_result_is_told_and_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    asks = [Assistant((ToolUse(id, "think", {}),), "p", "m") for id in ("c1", "c2")]
    await stored(path, (said("one"), asks[0], said("two"), asks[1]))
    report = check(path)
    assert [(fault.kind, fault.entry_id) for fault in report.found] == [("call", "c1")]
    assert report.is_healthy
    assert repair(path).kept_as == ""


async def test_what_a_newer_agentcli_wrote_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two"), said("three")))
    change(
        path, "UPDATE entries SET schema_version = 99 WHERE seq = 2", "UPDATE entries SET parent_id = 'x' WHERE seq = 3"
    )
    report = repair(path)
    assert not report.is_healthy
    assert [fault.kind for fault in report.left] == ["unreadable"]
    entries = await read(path, id)
    assert isinstance(entries[1].body, Unreadable)
    assert "two" in entries[1].body.stored
    assert repair(path).kept_as == ""  # it gets no better


async def test_a_file_of_before_checksums_is_checked_and_brought_up_by_a_repair(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    change(
        path,
        "DROP TABLE words; DROP TABLE indexed; ALTER TABLE entries DROP COLUMN checksum",
        "PRAGMA user_version = 3",
    )
    assert check(path).found == []
    change(path, "UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
    assert repair(path).is_healthy
    assert texts_of(await read(path, id)) == ["one", "two"]
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute("SELECT count(checksum) FROM entries").get == 2


async def test_the_log_of_a_damaged_file_is_read_and_kept_with_it(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    shutil.copytree(tmp_path, tmp_path / "live", ignore=shutil.ignore_patterns("live"))
    place = tmp_path / "copy" / "sessions.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
        place.parent.mkdir()
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{place}{suffix}")
    assert [fault.kind for fault in check(place).found] == ["parent"]
    report = repair(place)
    assert report.is_healthy
    assert Path(f"{report.kept_as}-wal").stat().st_size
    assert not Path(f"{place}-wal").exists()
    with closing(apsw.Connection(report.kept_as)) as db:
        assert db.execute("SELECT parent_id FROM entries WHERE seq = 2").get == "gone"
    assert texts_of(await read(place, id)) == ["one", "two"]


@pytest.mark.slow
async def test_no_repair_while_a_session_is_open_or_another_program_writes(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    (id,) = await stored(path, (said("one"), said("two")))
    change(path, "UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
    before = path.read_bytes()
    lock = session_lock(path, id)
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
    change(path, "UPDATE entries SET parent_id = 'gone' WHERE seq = 2")
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


def test_a_file_that_is_no_database_is_told_and_left(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    path.write_bytes(b"This is no database at all. " * 1_000)
    for look in (check, repair):
        report = look(path)
        assert (report.is_healthy, report.kept_as, {fault.kind for fault in report.found}) == (False, "", {"file"})
    assert path.read_bytes().startswith(b"This is no")
