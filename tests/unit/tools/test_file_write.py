"""file_write: creates, replaces only what was read and has not changed, and never leaves half a file."""

from __future__ import annotations

import gzip
import json
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.tools.bench import Bench


@contextmanager
def full_disk(max_bytes: int) -> Iterator[None]:
    """As if the disk had room for files of `max_bytes` only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
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


def test_a_new_time_alone_is_not_a_change(bench: Bench) -> None:
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


@pytest.mark.parametrize(
    ("before", "content", "after", "kept"),
    [
        pytest.param(b"a\r\nb\r\n", "a\nc\n", b"a\r\nc\r\n", "CRLF line ends", id="CRLF"),
        pytest.param(b"a\r\nb\r\n", "a\r\nc\n", b"a\r\nc\r\n", "CRLF line ends", id="CRLF given too"),
        pytest.param(b"a\r\nb", "c\nd\ne", b"c\r\nd\r\ne", "CRLF line ends", id="no last line end"),
        pytest.param(b"\xef\xbb\xbfa\n", "b\n", b"\xef\xbb\xbfb\n", "utf-8 with its byte order mark", id="BOM"),
        pytest.param(
            b"\xef\xbb\xbfa\n", "\ufeffb\n", b"\xef\xbb\xbfb\n", "utf-8 with its byte order mark", id="BOM given"
        ),
        pytest.param(
            b"\xff\xfe" + "a\r\n".encode("utf-16-le"),
            "✓\n",
            b"\xff\xfe" + "✓\r\n".encode("utf-16-le"),
            "utf-16-le with its byte order mark and CRLF line ends",
            id="UTF-16",
        ),
        pytest.param("héé\na".encode("latin-1"), "héé\nb", b"h\xe9\xe9\nb", "cp1252", id="Latin-1"),
    ],
)
def test_replacing_keeps_encoding_and_line_ends_and_says_so(
    bench: Bench, before: bytes, content: str, after: bytes, kept: str
) -> None:
    path = bench.put("a", before)
    bench.call("file_read", path="a")
    assert bench.text("file_write", path="a", content=content) == f"Replaced a. [The file keeps {kept}.]"
    assert path.read_bytes() == after
    bench.call("file_write", path="a", content=content)  # what was written counts as seen
    assert path.read_bytes() == after


@pytest.mark.parametrize("before", [b"a\nb\n", b"", b"a", b"\0\1binary"])
def test_any_other_file_becomes_what_was_given(bench: Bench, before: bytes) -> None:
    path = bench.put("a", before)
    bench.workspace.files.record(path.resolve(), before)
    assert bench.text("file_write", path="a", content="é\r\nx\n") == "Replaced a."
    assert path.read_bytes() == "é\r\nx\n".encode()


def test_mixed_line_ends_give_way_to_those_given_and_that_is_reported(bench: Bench) -> None:
    path = bench.put("a", b"a\r\nb\n")
    bench.call("file_read", path="a")
    assert "It had LF and CRLF line ends" in bench.text("file_write", path="a", content="a\nc\n")
    assert path.read_bytes() == b"a\nc\n"


def test_a_character_the_encoding_does_not_have_is_an_error(bench: Bench) -> None:
    path = bench.put("a", b"caf\xe9\n")
    bench.workspace.settings.charset = "iso-8859-1"
    bench.call("file_read", path="a")
    error = bench.fails("file_write", path="a", content="✓\n")
    assert "latin-1, which has no '✓'" in str(error)
    assert "iconv" in str(error)
    assert path.read_bytes() == b"caf\xe9\n"


@pytest.mark.parametrize(
    ("name", "given"),
    [("file_write", {"content": "two\n"}), ("file_edit", {"old_string": "one", "new_string": "two"})],
)
def test_a_file_that_changed_after_its_diff_was_approved_is_left_alone(
    bench: Bench, name: str, given: dict[str, str]
) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    bench.preview(name, path="a", **given)
    path.write_text("one\nthe person's\n")
    bench.call("file_read", path="a")
    assert "changed since it was approved" in str(bench.fails(name, path="a", **given))
    assert path.read_text() == "one\nthe person's\n"
    bench.call(name, path="a", **given)  # the next call was not judged before that change


def test_a_file_created_after_its_approval_was_asked_is_left_alone(bench: Bench) -> None:
    bench.preview("file_write", path="a", content="mine\n")
    path = bench.put("a", "the person's\n")
    bench.fails("file_write", path="a", content="mine\n")
    assert path.read_text() == "the person's\n"


TEXTS = Path(__file__).parents[4] / "shared/data/text.jsonl.gz"


@pytest.mark.skipif(not TEXTS.exists(), reason="the shared list of texts is not here")
def test_every_text_of_the_list_survives_writing_reading_and_editing(bench: Bench) -> None:
    with gzip.open(TEXTS, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["input"] for line in file]
    assert len(texts) > 400
    text = "".join(f"<{number}>{text}</{number}>\n" for number, text in enumerate(texts))
    bench.call("file_write", path="a", content=text)
    assert bench.call("file_read", path="a", limit=0).structured["text"] == text
    edits = [
        {"old_string": f"<{number}>{text}</{number}>\n", "new_string": f"<{number}>{text}{text}|</{number}>\n"}
        for number, text in enumerate(texts)
    ]
    said = bench.text("file_edit", path="a", edits=edits)
    assert "Matched apart" not in said
    doubled = "".join(f"<{number}>{text}{text}|</{number}>\n" for number, text in enumerate(texts))
    assert (bench.ws / "a").read_bytes() == doubled.encode()


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


@pytest.mark.parametrize("path", ["a.txt/f", "a.txt/b/f"])
def test_a_path_through_a_file_names_the_file(bench: Bench, path: str) -> None:
    bench.put("a.txt", "x")
    error = bench.fails("file_write", path=path, content="x")
    assert error.kind == "invalid_parameters"
    assert "A part of the path is a file" in str(error)


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


def test_a_missing_last_newline_is_reported_in_the_diff(bench: Bench) -> None:
    diff = bench.call("file_write", path="a", content="x").structured["diff"]
    assert diff.endswith("+x\n\\ No newline at end of file\n")


def test_half_a_surrogate_pair_is_an_error_and_writes_nothing(bench: Bench) -> None:
    error = bench.fails("file_write", path="a", content="a\ud800b")
    assert error.kind == "invalid_parameters"
    assert "ud800" in str(error)
    assert bench.names() == set()


def test_paths_outside_are_not_written_and_make_no_folders(bench: Bench, tmp_path: Path) -> None:
    assert bench.fails("file_write", path="../new/a", content="x").kind == "permission_denied"
    assert not (tmp_path / "new").exists()
