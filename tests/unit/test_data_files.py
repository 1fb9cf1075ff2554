"""Large results on disk: found again after a restart, stored once, cleaned by age and size and never too early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcli.infra.sessions.sqlite import can_resume
from agentcli.infra.state_files import DataFolder, SessionData
from agentcli.settings.structs import DataSettings

HOUR = 3_600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def data(tmp_path: Path, clock: Clock) -> DataFolder:
    return DataFolder(folder=tmp_path / "data", clock=clock)


def texts_in(data: DataFolder) -> list[str]:
    return sorted(path.read_text() for path in data.folder.glob("??/*"))


def test_what_was_kept_is_found_after_a_restart_by_its_session_and_its_forks(data: DataFolder) -> None:
    kept = SessionData(data, "s").store(b"content", "call_1")
    after = DataFolder(folder=data.folder, clock=data.clock)
    assert SessionData(after, "s").find("call_1") == kept.path
    assert (kept.path.read_bytes(), kept.size) == (b"content", 7)
    assert SessionData(after, "fork").find("call_1") is None
    after.share("s", "fork")
    assert SessionData(after, "fork").find("call_1") == kept.path


def test_equal_contents_are_stored_once(data: DataFolder) -> None:
    one, other = SessionData(data, "a").store(b"same", "1"), SessionData(data, "b").store(b"same", "2")
    assert one == other
    assert texts_in(data) == ["same"]


def test_what_was_made_a_day_ago_goes_in_an_hourly_cleaning_though_it_was_read_since(
    data: DataFolder, clock: Clock
) -> None:
    session = SessionData(data, "s")
    session.store(b"old", "1")
    clock.now += 2 * HOUR
    session.store(b"young", "2")
    clock.now += 21 * HOUR
    assert session.find("1")
    clock.now += 1.5 * HOUR
    session.store(b"new", "3")  # the next one kept an hour after the last cleaning cleans
    assert texts_in(data) == ["new", "young"]
    assert session.find("1") is None


def test_what_is_made_again_is_young_again(data: DataFolder, clock: Clock) -> None:
    for call in "12":
        SessionData(data, "s").store(b"same", call)
        clock.now += 23 * HOUR
    data.clean()
    assert texts_in(data) == ["same"]


def test_age_size_and_interval_are_bounds_of_the_caller(tmp_path: Path, clock: Clock) -> None:
    settings = DataSettings(max_age_hours=0.5, max_size_gb=300 / 1024**3, clean_every_minutes=1)
    data = DataFolder(folder=tmp_path / "data", settings=settings, clock=clock)
    session = SessionData(data, "s")
    session.store(b"a" * 100, "1")
    clock.now += HOUR / 4
    session.store(b"b" * 100, "2")
    clock.now += HOUR / 3
    session.store(b"c" * 100, "3")
    assert [text[0] for text in texts_in(data)] == ["b", "c"]
    clock.now += 59
    for number, letter in enumerate(b"def", 4):
        session.store(bytes([letter]) * 100, str(number))
    assert len(texts_in(data)) == 5
    clock.now += 2
    session.store(b"g" * 100, "7")
    assert [text[0] for text in texts_in(data)] == ["f", "g"]


def test_above_the_bound_the_least_recently_used_go_until_four_fifths_are_left(tmp_path: Path, clock: Clock) -> None:
    data = DataFolder(folder=tmp_path / "data", settings=DataSettings(max_size_gb=1_000 / 1024**3), clock=clock)
    session = SessionData(data, "s")
    for number in range(11):
        clock.now += 1
        session.store(str(number).zfill(100).encode(), str(number))
    clock.now += 1
    session.find("0")
    data.clean()
    assert [int(text) for text in texts_in(data)] == [0, 4, 5, 6, 7, 8, 9, 10]


def test_what_a_session_that_can_be_resumed_names_stays_and_the_rest_goes_after_a_day(
    tmp_path: Path, clock: Clock
) -> None:
    outputs, resumable = tmp_path / "jobs", {"kept"}
    data = DataFolder(folder=tmp_path / "data", outputs=outputs, is_resumable=resumable.__contains__, clock=clock)
    for session, text, call in (("kept", b"a", "1"), ("gone", b"b", "1"), ("gone", b"a", "2")):
        SessionData(data, session).store(text, call)
    half_written = data.folder / "ab" / ".cd.x"
    half_written.parent.mkdir(exist_ok=True)
    half_written.touch()
    old = (clock(), clock())
    os.utime(half_written, old)
    clock.now += 25 * HOUR
    for session in ("gone", "kept", "new"):
        (outputs / session).mkdir(parents=True)
        (outputs / session / "job_1.log").write_text("x")
        for path in (outputs / session / "job_1.log", outputs / session):
            os.utime(path, (clock(), clock()) if session == "new" else old)
    data.clean_when_due()
    assert texts_in(data) == ["a"]
    assert sorted(folder.name for folder in outputs.iterdir()) == ["kept", "new"]
    resumable.clear()
    data.clean()
    assert texts_in(data) == []


def test_a_session_is_taken_for_resumable_where_that_cannot_be_determined(tmp_path: Path) -> None:
    assert not can_resume(tmp_path / "none.db", "s")
    damaged = tmp_path / "sessions.db"
    damaged.write_bytes(b"no database" * 100)
    assert can_resume(damaged, "s")
