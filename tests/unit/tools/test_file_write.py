"""file_write: creates, replaces only what was read and has not changed, and never leaves half a file."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.tools.bench import Bench


@contextmanager
def full_disk(most_bytes: int) -> Iterator[None]:
    """As if the disk had room for files of `most_bytes` only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_new_file_is_created_with_its_folders(bench: Bench) -> None:
    output = bench.call("file_write", path="a/b/c.txt", content="one\ntwo\n")
    assert (bench.ws / "a/b/c.txt").read_bytes() == b"one\ntwo\n"
    assert output.content == "Created a/b/c.txt."
    assert output.structured["path"] == "a/b/c.txt"
    assert output.structured["diff"] == "--- a/a/b/c.txt\n+++ b/a/b/c.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    assert output.summary == "+2 -0"


def test_a_new_file_gets_the_mode_the_umask_leaves(bench: Bench) -> None:
    before = os.umask(0o027)
    try:
        bench.call("file_write", path="a", content="x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((bench.ws / "a").stat().st_mode) == 0o640


def test_replacing_a_file_that_was_not_read_is_refused(bench: Bench) -> None:
    path = bench.put("a", "precious\n")
    error = bench.fails("file_write", path="a", content="x")
    assert error.kind == "validation_error"
    assert "file_read" in str(error)
    assert path.read_text() == "precious\n"


def test_a_file_that_was_read_is_replaced(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    output = bench.call("file_write", path="a", content="two\n")
    assert path.read_text() == "two\n"
    assert output.content == "Replaced a."
    assert output.structured["diff"] == "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+two\n"


def test_a_file_that_was_read_under_another_name_counts_as_read(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    (bench.ws / "link").symlink_to("a")
    bench.call("file_read", path="link")
    bench.call("file_write", path=str(path), content="two\n")
    assert path.read_text() == "two\n"


def test_a_file_that_changed_after_it_was_read_is_not_replaced(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    path.write_text("the person's\n")
    error = bench.fails("file_write", path="a", content="x")
    assert "changed since" in str(error)
    assert path.read_text() == "the person's\n"
    bench.call("file_read", path="a")
    bench.call("file_write", path="a", content="two\n")
    assert path.read_text() == "two\n"


def test_a_new_time_alone_is_no_change(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    os.utime(path, (1, 1))
    bench.call("file_write", path="a", content="two\n")
    assert path.read_text() == "two\n"


def test_a_file_this_session_wrote_may_be_replaced_without_reading(bench: Bench) -> None:
    bench.call("file_write", path="a", content="one\n")
    bench.call("file_write", path="a", content="two\n")
    assert (bench.ws / "a").read_text() == "two\n"


def test_a_file_that_was_read_and_edited_may_be_replaced(bench: Bench) -> None:
    bench.put("a", "one\n")
    bench.call("file_read", path="a")
    bench.call("file_edit", path="a", old_string="one", new_string="two")
    bench.call("file_write", path="a", content="three\n")
    assert (bench.ws / "a").read_text() == "three\n"


def test_an_edit_does_not_stand_for_reading_the_rest(bench: Bench) -> None:
    path = bench.put("a", "one\nunseen\n")
    bench.call("file_edit", path="a", old_string="one", new_string="two")
    bench.fails("file_write", path="a", content="x")
    assert path.read_text() == "two\nunseen\n"


def test_an_edit_does_not_hide_a_change_of_the_person(bench: Bench) -> None:
    path = bench.put("a", "one\nlast\n")
    bench.call("file_read", path="a")
    path.write_text("one\nthe person's\n")
    bench.call("file_edit", path="a", old_string="one", new_string="two")
    assert "changed since" in str(bench.fails("file_write", path="a", content="two\nlast\n"))
    assert path.read_text() == "two\nthe person's\n"


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o644, 0o666])
def test_replacing_keeps_the_mode(bench: Bench, mode: int) -> None:
    path = bench.put("a", "one\n")
    path.chmod(mode)
    bench.call("file_read", path="a")
    bench.call("file_write", path="a", content="two\n")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_replacing_as_root_keeps_owner_and_the_setuid_bit(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    os.chown(path, 1234, 4321)
    path.chmod(0o4755)
    bench.call("file_read", path="a")
    bench.call("file_write", path="a", content="two\n")
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o4755)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_replacing_another_owner_s_file_leaves_it_theirs(unprivileged_bench: Bench) -> None:
    path = unprivileged_bench.put("a", "one\n")
    path.chmod(0o666)
    os.setresuid(0, 0, 0)
    os.chown(path, 1234, -1)
    os.setresuid(65_534, 65_534, 0)
    unprivileged_bench.call("file_edit", path="a", old_string="one", new_string="two")
    assert path.read_text() == "two\n"
    assert path.stat().st_uid == 1234


def test_hard_links_stay_together(bench: Bench) -> None:
    path = bench.put("a", "one, and more\n")
    (bench.ws / "b").hardlink_to(path)
    bench.call("file_read", path="a")
    bench.call("file_write", path="a", content="two\n")
    assert (bench.ws / "b").read_text() == "two\n"
    assert path.stat().st_nlink == 2


def test_a_link_inside_stays_a_link_and_its_target_is_written(bench: Bench) -> None:
    path = bench.put("src/a", "one\n")
    (bench.ws / "link").symlink_to("src/a")
    bench.call("file_read", path="link")
    bench.call("file_write", path="link", content="two\n")
    assert (bench.ws / "link").is_symlink()
    assert path.read_text() == "two\n"


def test_a_directory_is_not_replaced(bench: Bench) -> None:
    bench.put("src/a")
    assert "directory" in str(bench.fails("file_write", path="src", content="x"))


def test_a_file_in_place_of_a_folder_is_an_error(bench: Bench) -> None:
    bench.put("a", "x")
    bench.fails("file_write", path="a/b", content="x")
    assert bench.names() == {"a"}


def test_a_fifo_is_not_written_to(bench: Bench) -> None:
    os.mkfifo(bench.ws / "pipe")
    assert "not a regular file" in str(bench.fails("file_write", path="pipe", content="x"))


def test_a_read_only_file_stays_as_it_is(unprivileged_bench: Bench) -> None:
    path = unprivileged_bench.put("a", "one\n")
    path.chmod(0o444)
    unprivileged_bench.call("file_read", path="a")
    error = unprivileged_bench.fails("file_write", path="a", content="x")
    assert error.kind == "permission_denied"
    assert "read-only" in str(error)
    assert path.read_text() == "one\n"
    assert unprivileged_bench.names() == {"a"}


def test_a_file_in_a_read_only_folder_can_still_be_changed(unprivileged_bench: Bench) -> None:
    path = unprivileged_bench.put("src/a", "one\n")
    path.parent.chmod(0o555)
    try:
        unprivileged_bench.call("file_edit", path="src/a", old_string="one", new_string="two")
        assert path.read_text() == "two\n"
        assert unprivileged_bench.fails("file_write", path="src/new", content="x").kind == "permission_denied"
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize("linked", [False, True])
def test_a_full_disk_leaves_the_file_as_it_was(bench: Bench, linked: bool) -> None:
    before = b"old contents\n" * 100
    path = bench.put("a", before)
    if linked:
        (bench.ws / "b").hardlink_to(path)
    bench.call("file_read", path="a")
    names = bench.names()
    with full_disk(4_096):
        error = bench.fails("file_write", path="a", content="new contents\n" * 100_000)
    assert error.kind == "resource_error"
    assert "as it was" in str(error)
    assert path.read_bytes() == before
    assert bench.names() == names


def test_a_full_disk_leaves_no_part_of_a_new_file(bench: Bench) -> None:
    with full_disk(4_096):
        bench.fails("file_write", path="a", content="x" * 100_000)
    assert bench.names() == set()


def test_no_other_files_are_left_behind(bench: Bench) -> None:
    long = "n" * 250
    for _ in range(2):
        bench.call("file_write", path=long, content="x")
    assert bench.names() == {long}


def test_the_preview_is_the_diff_and_writes_nothing(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    assert bench.preview("file_write", path="a", content="two\n").endswith("-one\n+two\n")
    assert bench.preview("file_write", path="new/b", content="x\n").endswith("+x\n")
    assert path.read_text() == "one\n"
    assert bench.names() == {"a"}


def test_the_diff_shows_lines_as_other_tools_see_them(bench: Bench) -> None:
    bench.put("a", "one\x0c two\u2028three\n")
    bench.call("file_read", path="a")
    diff = bench.call("file_write", path="a", content="-- four\n").structured["diff"]
    assert diff.splitlines(keepends=False)[:3] == ["--- a/a", "+++ b/a", "@@ -1 +1 @@"]
    assert diff.endswith("@@ -1 +1 @@\n-one\x0c two\u2028three\n+-- four\n")


def test_the_count_of_lines_is_not_misled_by_what_they_hold(bench: Bench) -> None:
    bench.put("a.sql", "-- comment\n++ plus\nselect\n")
    bench.call("file_read", path="a.sql")
    assert bench.call("file_write", path="a.sql", content="select\n").summary == "+0 -2"


def test_a_missing_last_newline_is_told_in_the_diff(bench: Bench) -> None:
    diff = bench.call("file_write", path="a", content="x").structured["diff"]
    assert diff.endswith("+x\n\\ No newline at end of file\n")


def test_a_broken_character_is_not_a_crash(bench: Bench) -> None:
    bench.call("file_write", path="a", content="a\ud800b")
    assert (bench.ws / "a").read_bytes() == b"a?b"


def test_paths_outside_are_not_written_and_make_no_folders(bench: Bench, tmp_path: Path) -> None:
    assert bench.fails("file_write", path="../new/a", content="x").kind == "permission_denied"
    assert not (tmp_path / "new").exists()
