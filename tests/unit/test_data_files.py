"""Large results on disk: found again after a restart, stored once, cleaned by age and size and never too early."""

from __future__ import annotations

import os
from pathlib import Path

from agentcli.infra.data_files import DataFolder, Retention
from agentcli.infra.sessions.sqlite import can_resume

HOUR = 3_600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


def files_in(folder: Path) -> list[str]:
    return sorted(path.read_text() for path in folder.glob("??/*"))


def test_what_was_kept_is_found_after_a_restart(tmp_path: Path) -> None:
    before = DataFolder(tmp_path / "data", clock=(clock := Clock()))
    kept = before.of_session("s").store(b"content", "call_1")
    clock.now += 60
    after = DataFolder(tmp_path / "data", clock=clock)
    found = after.of_session("s").find("call_1")
    assert found is not None
    assert (found.path, found.hash, found.size, found.created) == (kept.path, kept.hash, 7, kept.created)
    assert found.accessed == kept.accessed + 60
    assert found.path.read_bytes() == b"content"
    assert after.of_session("other").find("call_1") is None


def test_equal_contents_are_stored_once(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    one, other = data.of_session("a").store(b"same", "1"), data.of_session("b").store(b"same", "2")
    assert one.path == other.path
    assert files_in(tmp_path / "data") == ["same"]


def test_a_file_that_is_there_is_taken_over(tmp_path: Path) -> None:
    source = tmp_path / "output"
    source.write_bytes(b"x" * 3_000_000)
    data = DataFolder(tmp_path / "data")
    kept = data.of_session("s").adopt(source, "1")
    assert not source.exists()
    assert kept.size == 3_000_000
    assert kept.hash == data.of_session("s").store(b"x" * 3_000_000, "2").hash


def test_what_was_made_a_day_ago_goes_in_an_hourly_cleaning_though_it_was_read_since(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data", clock=(clock := Clock()))
    session = data.of_session("s")
    session.store(b"old", "1")
    clock.now += 2 * HOUR
    session.store(b"young", "2")
    clock.now += 21 * HOUR
    assert session.find("1")
    clock.now += 1.5 * HOUR
    session.store(b"new", "3")  # the next one kept an hour after the last cleaning cleans
    assert files_in(tmp_path / "data") == ["new", "young"]
    assert session.find("1") is None


def test_what_is_made_again_is_young_again(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data", clock=(clock := Clock()))
    data.of_session("s").store(b"same", "1")
    clock.now += 23 * HOUR
    data.of_session("s").store(b"same", "2")
    clock.now += 23 * HOUR
    data.clean()
    assert files_in(tmp_path / "data") == ["same"]


def test_age_size_and_interval_are_bounds_of_the_caller(tmp_path: Path) -> None:
    bounds = Retention(max_age_hours=0.5, max_size_gb=300 / 1024**3, clean_every_minutes=1)
    data = DataFolder(tmp_path / "data", bounds=bounds, clock=(clock := Clock()))
    session = data.of_session("s")
    session.store(b"a" * 100, "1")
    clock.now += HOUR / 4
    session.store(b"b" * 100, "2")
    clock.now += HOUR / 3
    session.store(b"c" * 100, "3")
    assert [text[0] for text in files_in(tmp_path / "data")] == ["b", "c"]
    clock.now += 59
    for number, letter in enumerate(b"def", 4):
        session.store(bytes([letter]) * 100, str(number))
    assert len(files_in(tmp_path / "data")) == 5
    clock.now += 2
    session.store(b"g" * 100, "7")
    assert [text[0] for text in files_in(tmp_path / "data")] == ["f", "g"]


def test_what_a_session_that_can_be_resumed_names_stays(tmp_path: Path) -> None:
    resumable = {"kept"}
    data = DataFolder(tmp_path / "data", is_resumable=resumable.__contains__, clock=(clock := Clock()))
    data.of_session("kept").store(b"a", "1")
    data.of_session("gone").store(b"b", "1")
    data.of_session("gone").store(b"a", "2")
    clock.now += 25 * HOUR
    data.clean()
    assert files_in(tmp_path / "data") == ["a"]
    resumable.clear()
    data.clean()
    assert files_in(tmp_path / "data") == []


def test_above_the_bound_the_least_recently_used_go_until_four_fifths_are_left(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data", bounds=Retention(max_size_gb=1_000 / 1024**3), clock=(clock := Clock()))
    session = data.of_session("s")
    for number in range(11):
        clock.now += 1
        session.store(str(number).zfill(100).encode(), str(number))
    clock.now += 1
    session.find("0")
    data.clean()
    left = [int(text) for text in files_in(tmp_path / "data")]
    assert left == [0, 4, 5, 6, 7, 8, 9, 10]


def test_a_fork_finds_what_its_origin_kept(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data")
    data.of_session("origin").store(b"a", "1")
    data.share("origin", "fork")
    found = data.of_session("fork").find("1")
    assert found is not None
    assert found.path.read_bytes() == b"a"


def test_what_a_crash_left_half_written_goes(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "data", clock=(clock := Clock()))
    data.folder.mkdir()
    left = data.folder / ".new.abc"
    left.touch()
    os.utime(left, (clock.now, clock.now))
    clock.now += 25 * HOUR
    data.clean()
    assert not left.exists()


def test_a_session_is_taken_for_resumable_where_that_cannot_be_told(tmp_path: Path) -> None:
    assert not can_resume(tmp_path / "none.db", "s")
    damaged = tmp_path / "sessions.db"
    damaged.write_bytes(b"no database" * 100)
    assert can_resume(damaged, "s")


def test_what_commands_of_lost_sessions_wrote_goes_after_a_day(tmp_path: Path) -> None:
    outputs = tmp_path / "jobs"
    for session in ("lost", "stored", "new"):
        (outputs / session).mkdir(parents=True)
        (outputs / session / "job_1.log").write_text("x")
    clock = Clock()
    for path in (outputs / "lost", outputs / "lost/job_1.log", outputs / "stored", outputs / "stored/job_1.log"):
        os.utime(path, (clock() - 48 * HOUR, clock() - 48 * HOUR))
    for path in (outputs / "new", outputs / "new/job_1.log"):
        os.utime(path, (clock(), clock()))
    data = DataFolder(tmp_path / "data", outputs=outputs, is_resumable="stored".__eq__, clock=clock)
    data.clean_when_due()
    assert sorted(folder.name for folder in outputs.iterdir()) == ["new", "stored"]
