"""file_read: text as numbered lines, media as blocks, and a clear word about everything else."""

from __future__ import annotations

import json
import os
import socket
import zlib
from pathlib import Path

import pytest

from agentcli.infra.sandbox.local import LocalSandbox
from agentcli.tools.builtin.file_read import MAX_KEPT_BYTES, MAX_TEXT_BYTES
from agentcli.tools.builtin.files import HOW_TO_NAME_CHARSET
from agentcli.tools.observation import MAX_LINE_CHARS, PAGE_BYTES
from tests.unit.tools.bench import Bench


def test_lines_are_numbered_from_one_with_a_tab(bench: Bench) -> None:
    bench.put("a.py", "import os\n\n\tprint()\n")
    output = bench.call("file_read", path="a.py")
    assert output.content == "1\timport os\n2\t\n3\t\tprint()"
    assert output.structured == {"text": "import os\n\n\tprint()\n", "total_lines": 3, "encoding": "utf-8"}
    assert not output.is_error


def test_offset_and_limit_choose_lines_and_the_result_says_how_to_continue(bench: Bench) -> None:
    bench.put("a", "".join(f"line {n}\n" for n in range(1, 11)))
    output = bench.call("file_read", path="a", offset=3, limit=2)
    assert output.content == "3\tline 3\n4\tline 4\n[lines 3-4 of 10; continue with offset=5]"
    assert output.structured["text"] == "line 3\nline 4\n"
    assert output.structured["total_lines"] == 10


def test_the_last_lines_do_not_ask_to_continue(bench: Bench) -> None:
    bench.put("a", "1\n2\n3")
    output = bench.call("file_read", path="a", offset=2)
    assert output.content == "2\t2\n3\t3"
    assert output.structured["text"] == "2\n3"


@pytest.mark.parametrize("lines", [2_001, 4_000])
def test_without_a_limit_two_thousand_lines_are_shown(bench: Bench, lines: int) -> None:
    bench.put("a", "x\n" * lines)
    shown = bench.text("file_read", path="a").split("\n")
    assert shown[1_999] == "2000\tx"
    assert shown[2_000:] == [f"[lines 1-2000 of {lines}; continue with offset=2001]"]


def test_limit_zero_means_all_lines(bench: Bench) -> None:
    bench.put("a", "a longer line than before\n" * 5_000)
    output = bench.call("file_read", path="a", limit=0)
    assert output.structured["text"] == "a longer line than before\n" * 5_000
    assert isinstance(output.content, str)
    assert output.content.endswith("5000\ta longer line than before")


def test_long_lines_stop_at_a_page_and_reading_on_gives_the_rest_of_the_file(bench: Bench) -> None:
    text = "".join(f"{n} {'x' * 300}\n" for n in range(1, 301))
    bench.put("a", text)
    read, offset = "", 1
    while offset <= 300:
        output = bench.call("file_read", path="a", offset=offset)
        assert len(output.content) < PAGE_BYTES + 200
        read += output.structured["text"]
        lines = output.structured["text"].count("\n")
        assert lines > 0
        offset += lines
    assert read == text


def test_a_page_is_counted_in_bytes(bench: Bench) -> None:
    bench.put("a", f"{'文' * 100}\n" * 1_000)
    content = bench.text("file_read", path="a")
    assert PAGE_BYTES - 400 < len(content.encode()) < PAGE_BYTES + 100


def test_the_rest_of_a_line_of_megabytes_is_left_out_and_counted(bench: Bench) -> None:
    bench.put("a.js", "x" * 3_000_000 + "\nnext\n")
    output = bench.call("file_read", path="a.js")
    first, second = str(output.content).split("\n")
    assert first.endswith(
        f"[{MAX_KEPT_BYTES - MAX_LINE_CHARS:,} more characters][and {3_000_000 - MAX_KEPT_BYTES:,} bytes behind them]"
    )
    assert second == "2\tnext"
    assert output.structured["total_lines"] == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(("sign", "ahead"), [("日", ""), ("日", "x"), ("é", "x"), ("😀", "xyz")])
def test_an_endless_line_ends_at_a_whole_character(bench: Bench, encoding: str, sign: str, ahead: str) -> None:
    text = f"a b c {ahead}" * 20_000 + sign * 700_000
    bench.put("a", f"{text}\nnext\n".encode(encoding))
    output = bench.call("file_read", path="a")
    line, following = str(output.structured["text"]).removesuffix("\n").split("\n")
    assert text.startswith(line)
    kept = len(line.encode())
    assert MAX_KEPT_BYTES - len(sign.encode()) < kept <= MAX_KEPT_BYTES
    assert f"[and {len(text.encode()) - kept:,} bytes behind them]\n2\tnext" in str(output.content)
    assert following == "next"


@pytest.mark.parametrize(
    "head", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\x08\0\0\0WEBPVP8 ", b"%PDF-1.7\n"]
)
def test_what_is_reported_of_broken_media_names_no_object_of_the_program(bench: Bench, head: bytes) -> None:
    bench.put("a", head + bytes(40))
    said = str(bench.fails("file_read", path="a"))
    assert said.startswith("a is a broken ")
    assert "object at 0x" not in said


def test_an_endless_line_of_half_characters_is_shown(bench: Bench) -> None:
    bench.put("a", b"\xff\xfe" + "\ud800".encode("utf-16-le", "surrogatepass") * 700_000)
    assert str(bench.call("file_read", path="a").structured["text"]) == "\ufffd" * (MAX_KEPT_BYTES // 3)


@pytest.mark.slow
def test_more_than_a_session_can_hold_is_not_given_at_once_but_line_by_line(bench: Bench) -> None:
    lines = MAX_TEXT_BYTES // 1_000 + 2
    bench.put("big.log", (b"x" * 999 + b"\n") * lines)
    error = bench.fails("file_read", path="big.log", limit=0)
    assert error.kind == "validation_error"
    assert "give a limit" in str(error)
    assert bench.text("file_read", path="big.log", offset=lines) == f"{lines}\t{'x' * 999}"


@pytest.mark.slow
def test_a_choice_of_too_many_short_lines_is_refused(bench: Bench) -> None:
    bench.put("short", "\n" * 1_000_001)
    error = bench.fails("file_read", path="short", limit=0)
    assert error.kind == "validation_error"
    assert "1,000,000 lines" in str(error)
    assert bench.call("file_read", path="short", limit=0, offset=1_000_000).structured["total_lines"] == 1_000_001


def test_an_offset_past_the_end_says_how_many_lines_there_are(bench: Bench) -> None:
    bench.put("a", "1\n2\n")
    error = bench.fails("file_read", path="a", offset=3)
    assert error.kind == "invalid_parameters"
    assert "2 lines" in str(error)


def test_an_empty_file_is_reported_to_be_empty(bench: Bench) -> None:
    bench.put("a")
    output = bench.call("file_read", path="a")
    assert "empty" in str(output.content)
    assert output.structured == {"text": "", "total_lines": 0, "encoding": "utf-8"}


def test_a_very_long_line_is_cut_for_the_model_but_not_in_the_raw_text(bench: Bench) -> None:
    line = "y" * (MAX_LINE_CHARS + 500)
    bench.put("a", line + "\n")
    output = bench.call("file_read", path="a")
    assert "[500 more characters]" in str(output.content)
    assert output.structured["text"] == line + "\n"


GUESSED = f"[The file is not UTF-8. It was read as %s, which is a guess. {HOW_TO_NAME_CHARSET}]"


@pytest.mark.parametrize(
    ("content", "shown", "raw", "encoding"),
    [
        pytest.param(b"a\r\nb\r\n", "1\ta\n2\tb", "a\r\nb\r\n", "utf-8", id="CRLF"),
        pytest.param(b"a\r\nb\n", "1\ta\n2\tb", "a\r\nb\n", "utf-8", id="mixed"),
        pytest.param(b"\xef\xbb\xbfa\n", "1\ta", "a\n", "utf-8", id="BOM"),
        pytest.param("é✓\n".encode(), "1\té✓", "é✓\n", "utf-8", id="UTF-8"),
        pytest.param(b"\xff\xfe" + "é\r\n".encode("utf-16-le"), "1\té", "é\r\n", "utf-16-le", id="UTF-16 LE"),
        pytest.param(b"\xfe\xff" + "é\n".encode("utf-16-be"), "1\té", "é\n", "utf-16-be", id="UTF-16 BE"),
        pytest.param(b"\xff\xfe\0\0" + "é\n".encode("utf-32-le"), "1\té", "é\n", "utf-32-le", id="UTF-32 LE"),
        pytest.param(b"caf\xe9\n", f"1\tcafé\n{GUESSED % 'cp1252'}", "café\n", "cp1252", id="Latin-1"),
        pytest.param(b"\x93caf\xe9\x94\n", f"1\t“café”\n{GUESSED % 'cp1252'}", "“café”\n", "cp1252", id="Windows-1252"),
        pytest.param(
            b"\x81caf\xe9\n", f"1\t\ufffdcafé\n{GUESSED % 'cp1252'}", "\ufffdcafé\n", "cp1252", id="not Windows-1252"
        ),
        pytest.param(
            "naïve ✓✓✓✓\n".encode() + b"\xff\n",
            "1\tnaïve ✓✓✓✓\n2\t\ufffd",
            "naïve ✓✓✓✓\n\ufffd\n",
            "utf-8",
            id="broken",
        ),
        pytest.param(b"\xff\xfe" + b"\x00\xd8a\0", "1\t\ufffda", "\ufffda", "utf-16-le", id="half a pair"),
        pytest.param(
            "a\u2028b\x0cc\x85d\n".encode(), "1\ta\u2028b\x0cc\x85d", "a\u2028b\x0cc\x85d\n", "utf-8", id="odd"
        ),
    ],
)
def test_text_is_read_whatever_its_line_ends_and_encoding(
    bench: Bench, content: bytes, shown: str, raw: str, encoding: str
) -> None:
    bench.put("a", content)
    output = bench.call("file_read", path="a")
    assert output.content == shown
    assert output.structured["text"] == raw
    assert output.structured["encoding"] == encoding


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x7fELF\x02\x01\x01\0\0\0", id="NUL"),
        pytest.param(zlib.compress(b"no NUL has to be in here " * 9), id="control characters"),
        pytest.param(b"\xff\xfea", id="half a UTF-16 character"),
        pytest.param(b"hello\0world\n", id="ASCII with a NUL"),
        pytest.param(b"a\0b\n", id="little ASCII with a NUL"),
        pytest.param(b"hello\0world\n" * 9_000, id="ASCII with NULs at odd places"),
        pytest.param(b"\xe9\0b\n", id="Latin-1 with a NUL"),
        pytest.param("naïve\0ab".encode(), id="UTF-8 with a NUL"),
        pytest.param("a\r\né\n".encode("utf-16-le"), id="UTF-16 without a byte order mark"),
    ],
)
def test_a_binary_file_is_an_error_that_names_what_to_use(bench: Bench, content: bytes) -> None:
    bench.put("a.bin", content)
    error = bench.fails("file_read", path="a.bin")
    assert error.kind == "validation_error"
    assert "binary" in str(error)
    assert "bash" in str(error)


def test_text_that_only_names_itself_an_image_is_text(bench: Bench) -> None:
    bench.put("a.png", "just words\n")
    assert bench.text("file_read", path="a.png") == "1\tjust words"


def test_a_directory_is_an_error_that_names_file_list(bench: Bench) -> None:
    bench.put("src/a.py")
    error = bench.fails("file_read", path="src")
    assert error.kind == "invalid_parameters"
    assert "file_list" in str(error)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("src/Settings.py", "There is src/settings.py."),
        ("settings.py", "There is src/settings.py."),
        ("gone/folder/other.py", "There is src/other.py."),
        ("src/nothing_like_it.py", "does not exist."),
    ],
)
def test_a_missing_file_is_an_error_with_names_like_it(bench: Bench, path: str, said: str) -> None:
    bench.put("src/settings.py")
    bench.put("src/other.py")
    for name, more in (("file_read", {}), ("file_edit", {"old_string": "a", "new_string": "b"})):
        error = bench.fails(name, path=path, **more)
        assert error.kind == "not_found"
        assert str(error).endswith(said)


@pytest.mark.parametrize("path", ["gone.py", "gone/a.py", "a.py/b.py", "~root/x"])
def test_a_missing_path_is_an_error_not_a_crash(bench: Bench, path: str) -> None:
    bench.put("a.py")
    assert bench.fails("file_read", path=path).kind == "not_found"


def test_a_fifo_is_an_error_and_does_not_wait_for_a_writer(bench: Bench) -> None:
    os.mkfifo(bench.ws / "pipe")
    assert "not a regular file" in str(bench.fails("file_read", path="pipe"))


def test_a_socket_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.ws)  # a socket's path may be 107 bytes long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        assert "not a regular file" in str(bench.fails("file_read", path="s"))


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/proc/self/root/etc/passwd", "/etc/passwd"])
def test_devices_and_files_of_the_system_are_outside_the_workspace(bench: Bench, path: str) -> None:
    assert bench.fails("file_read", path=path).kind == "permission_denied"


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="this system has no /proc")
def test_a_file_of_proc_is_read_though_its_size_is_unknown(bench: Bench) -> None:
    bench.workspace.sandbox = LocalSandbox([Path("/proc")], environment={}, job_folder=bench.folder / "jobs")
    assert bench.call("file_read", path="/proc/version").structured["text"] == Path("/proc/version").read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a device")
def test_a_device_inside_the_workspace_is_an_error(bench: Bench) -> None:
    try:
        os.mknod(bench.ws / "zero", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine makes no devices")
    assert "not a regular file" in str(bench.fails("file_read", path="zero"))


def test_a_file_without_read_permission_is_an_error_that_says_so(unprivileged_bench: Bench) -> None:
    unprivileged_bench.put("secret", "x").chmod(0)
    error = unprivileged_bench.fails("file_read", path="secret")
    assert error.kind == "permission_denied"
    assert "Permission denied" in str(error)


@pytest.mark.parametrize("name", ["file_read", "file_list", "grep_search", "file_edit", "file_write"])
def test_a_folder_that_may_not_be_entered_is_a_tool_s_error(unprivileged_bench: Bench, name: str) -> None:
    folder = unprivileged_bench.put("closed/a", "x").parent
    folder.chmod(0)
    more = {
        "grep_search": {"pattern": "x"},
        "file_write": {"content": ""},
        "file_edit": {"old_string": "x", "new_string": ""},
    }
    try:
        assert unprivileged_bench.fails(name, path="closed/a", **more.get(name, {})).kind == "permission_denied"
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("path", ["../outside.txt", "sub/../../outside.txt", "link.txt", "linked/outside.txt"])
def test_paths_that_lead_out_of_the_workspace_are_refused(bench: Bench, path: str) -> None:
    (bench.folder / "outside.txt").write_text("secret")
    bench.put("sub/a")
    (bench.ws / "link.txt").symlink_to("../outside.txt")
    (bench.ws / "linked").symlink_to("..")
    error = bench.fails("file_read", path=path)
    assert error.kind == "permission_denied"
    assert "outside the workspace" in str(error)
    assert bench.fails("file_write", path=path, content="").kind == "permission_denied"
    assert (bench.folder / "outside.txt").read_text() == "secret"


def test_a_neighbour_whose_name_begins_like_the_workspace_is_outside(bench: Bench) -> None:
    (bench.folder / "ws2").mkdir()
    (bench.folder / "ws2/a").write_text("x")
    assert bench.fails("file_read", path=str(bench.folder / "ws2/a")).kind == "permission_denied"


def test_a_dangling_link_out_of_the_workspace_cannot_be_written_through(bench: Bench) -> None:
    (bench.ws / "link").symlink_to(bench.folder / "new.txt")
    assert bench.fails("file_write", path="link", content="x").kind == "permission_denied"
    assert not (bench.folder / "new.txt").exists()


def test_absolute_paths_and_links_inside_the_workspace_are_read(bench: Bench) -> None:
    path = bench.put("src/a", "hello\n")
    (bench.ws / "link").symlink_to("src/a")
    for name in (str(path), "src/../src/a", "link", "./src//a"):
        assert bench.text("file_read", path=name) == "1\thello"


def test_a_workspace_reached_through_a_link_is_the_same_workspace(tmp_path: Path) -> None:
    (tmp_path / "real/ws").mkdir(parents=True)
    (tmp_path / "alias").symlink_to("real")
    bench = Bench(tmp_path / "alias")
    bench.put("a", "hello\n")
    assert bench.text("file_read", path="a") == "1\thello"
    assert bench.text("file_read", path=str(tmp_path / "real/ws/a")) == "1\thello"
    assert "does not exist" in str(bench.fails("file_read", path="b"))


def test_a_loop_of_links_is_an_error(bench: Bench) -> None:
    (bench.ws / "a").symlink_to("b")
    (bench.ws / "b").symlink_to("a")
    assert bench.fails("file_read", path="a").kind == "invalid_parameters"


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 300, "d/" * 3_000, "~nobody-of-that-name/a"])
@pytest.mark.parametrize("name", ["file_read", "file_edit", "file_list", "grep_search"])
def test_a_path_the_system_cannot_have_is_a_tool_s_error(bench: Bench, name: str, path: str) -> None:
    more = {"grep_search": {"pattern": "x"}, "file_edit": {"old_string": "x", "new_string": ""}}
    is_only_missing = path.startswith(("~", "d/")) or (len(path) == 300 and name in ("file_list", "grep_search"))
    kind = "not_found" if is_only_missing else "invalid_parameters"
    assert bench.fails(name, path=path, **more.get(name, {})).kind == kind


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "x" * 300, "d/" * 3_000])
def test_a_path_the_system_cannot_have_is_not_written(bench: Bench, path: str) -> None:
    assert bench.fails("file_write", path=path, content="").kind == "invalid_parameters"


@pytest.mark.parametrize(
    "name", ["...", "a..b", "-rf", "$HOME", "with 'quotes' and \"more\"", "文件.py", "~no-such-person", "a\nb"]
)
def test_odd_names_are_names(bench: Bench, name: str) -> None:
    bench.call("file_write", path=name, content="one\n")
    assert bench.text("file_read", path=name) == "1\tone"
    assert bench.names() == {name}


PATHS = Path(__file__).parents[4] / "shared/data/paths.jsonl"


@pytest.mark.skipif(not PATHS.exists(), reason="the shared list of paths is not here")
def test_no_path_of_the_list_reads_anything_outside(bench: Bench) -> None:
    rows = [json.loads(line) for line in PATHS.read_text("utf-8").split("\n") if line]
    outside = [row["input"] for row in rows if row["op"] == "read" and row["expected"] != "allow"]
    assert len(outside) > 30
    for path in outside:
        assert bench.fails("file_read", path=path.replace("/ws", str(bench.ws))).kind != "internal_error"
