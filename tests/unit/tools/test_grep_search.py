"""grep_search: what ripgrep finds, told so that no path or line is misread."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agentcli.tools.builtin.grep_search import MAX_SHOWN_CHARS
from agentcli.tools.sandbox import find_rg
from tests.unit.tools.bench import Bench


def project(bench: Bench) -> None:
    bench.put(".git/config", "needle\n")
    bench.put(".gitignore", "ignored/\n")
    bench.put("a.py", "import os\nneedle = 1\n\nprint(needle, 'Needle')\n")
    bench.put("src/b.py", "x\n  needle()\n")
    bench.put("src/c.txt", "no\nNEEDLE\n")
    bench.put(".hidden/d.md", "a needle: here\n")
    bench.put("ignored/e.py", "needle\n")
    bench.put("crlf.txt", b"one\r\nneedle\r\n")


def plain_rg(bench: Bench, *arguments: str) -> list[str]:
    """What ripgrep itself prints, for comparison."""
    options = ("--no-config", "--hidden", "--glob=!.git", "--sort=path", "--no-heading", "-H", "-n")
    argv = [find_rg(), *options, *arguments, "."]
    output = subprocess.run(argv, cwd=bench.ws, capture_output=True, check=False).stdout.decode()
    return [line.removeprefix("./").removesuffix("\r") for line in output.split("\n")[:-1]]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"pattern": "needle"}, ["needle"]),
        ({"pattern": "needle", "ignore_case": True}, ["-i", "needle"]),
        ({"pattern": "needle", "glob": "*.py"}, ["-g*.py", "needle"]),
        ({"pattern": "needle", "glob": "!*.py"}, ["-g!*.py", "needle"]),
        ({"pattern": "needle", "type": "md"}, ["-tmd", "needle"]),
        ({"pattern": "^\\s+needle\\(\\)$"}, ["^\\s+needle\\(\\)$"]),
        ({"pattern": "-n"}, ["-e", "-n"]),
        ({"pattern": "o"}, ["o"]),
    ],
)
def test_the_matches_are_those_of_plain_ripgrep(bench: Bench, given: dict[str, object], arguments: list[str]) -> None:
    project(bench)
    expected = plain_rg(bench, *arguments)
    output = bench.call("grep_search", **given)
    assert str(output.content).split("\n") == (expected or ["No matches."])
    assert output.structured["total"] == len(expected)
    assert [f"{m['path']}:{m['line']}:{m['text']}" for m in output.structured["matches"]] == expected


@pytest.mark.parametrize(
    ("given", "text", "total"),
    [
        ({"pattern": "needle\\("}, "src/b.py:2:  needle()", 1),
        ({"pattern": "absent"}, "No matches.", 0),
        ({"pattern": "needle", "output_mode": "files"}, ".hidden/d.md\na.py\ncrlf.txt\nsrc/b.py", 4),
        ({"pattern": "needle", "output_mode": "count"}, ".hidden/d.md:1\na.py:2\ncrlf.txt:1\nsrc/b.py:1", 5),
        ({"pattern": "needle = ", "context": 1}, "a.py-1-import os\na.py:2:needle = 1\na.py-3-", 1),
        ({"pattern": "needle", "path": "src/b.py"}, "src/b.py:2:  needle()", 1),
        ({"pattern": "needle", "path": "ignored/e.py"}, "ignored/e.py:1:needle", 1),
        ({"pattern": "needle", "path": "{ws}/src"}, "src/b.py:2:  needle()", 1),
    ],
)
def test_what_is_found_in_a_project(bench: Bench, given: dict[str, Any], text: str, total: int) -> None:
    project(bench)
    given = {**given, "path": given["path"].replace("{ws}", str(bench.ws))} if "path" in given else given
    output = bench.call("grep_search", **given)
    assert (output.content, output.structured["total"], output.is_error) == (text, total, False)
    shown = [
        f"{match['path']}:{match['line']}:{match['text']}" for match in output.structured["matches"] if "line" in match
    ]
    assert shown == [line for line in text.split("\n") if re.match(r"[^:]+:\d+:", line)]  # context is no match


@pytest.mark.parametrize(
    ("given", "shown"),
    [({}, 100), ({"limit": 1}, 1), ({"limit": 0}, 150), ({"output_level": "brief"}, 10), ({"output_mode": "files"}, 1)],
)
def test_above_the_limit_it_says_how_many_more(bench: Bench, given: dict[str, Any], shown: int) -> None:
    bench.put("a", "hit\n" * 150)
    output = bench.call("grep_search", pattern="hit", **given)
    assert len(output.structured["matches"]) == shown
    total = output.structured["total"]
    assert str(output.content).endswith(f"\n[{total - shown} more]" if total > shown else "a" if total == 1 else ":hit")
    bench.put("b", "hit\n")
    assert bench.text("grep_search", pattern="hit", output_mode="files", limit=1) == "a\n[1 more]"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pattern": "a("}, "unclosed group"),
        ({"pattern": "a", "type": "nonesuch"}, "nonesuch"),
        ({"pattern": "a", "type": "nonesuch"}, "rg --type-list"),
        ({"pattern": "a", "glob": "["}, "glob"),
        ({"pattern": "a\0"}, "null byte"),
        ({"pattern": "a\ud800"}, "surrogates"),
        ({"pattern": "x" * 200_000}, "too long"),
        ({"pattern": "x" * 200_000 + "$"}, "too long"),
        ({"pattern": "a\\nb"}, "set multiline"),
        ({"pattern": "x", "path": "gone"}, "does not exist"),
        ({"pattern": "x", "path": ".."}, "outside the workspace"),
    ],
)
def test_what_cannot_be_searched_is_an_error(bench: Bench, given: dict[str, str], said: str) -> None:
    bench.put("a", "a\n")
    error = bench.fails("grep_search", **given)
    kinds = {"gone": "not_found", "..": "permission_denied"}
    assert error.kind == kinds.get(given.get("path", ""), "invalid_parameters")
    assert said in str(error)


def test_the_last_match_within_the_limit_keeps_its_context(bench: Bench) -> None:
    bench.put("a", "1\nhit\n2\n3\n4\nhit\n5\n")
    bench.put("b", "hit\n6\n")
    text = bench.text("grep_search", pattern="hit", context=1, limit=1)
    assert text == "a-1-1\na:2:hit\na-3-2\n[2 more]"


def test_a_long_line_is_cut_for_the_model_only(bench: Bench) -> None:
    bench.put("a.min.js", "hit" + "x" * 5_000 + "\n")
    output = bench.call("grep_search", pattern="hit")
    assert len(str(output.content)) < MAX_SHOWN_CHARS + 100
    assert len(output.structured["matches"][0]["text"]) == 5_003


def test_multiline_matches_span_lines(bench: Bench) -> None:
    bench.put("a", "x\nbegin\n  middle\nend\n")
    output = bench.call("grep_search", pattern="begin.*end", multiline=True)
    assert output.content == "a:2:begin\na:3:  middle\na:4:end"
    assert [match["text"] for match in output.structured["matches"]] == ["begin", "  middle", "end"]
    assert bench.text("grep_search", pattern="begin.*end") == "No matches."


def test_look_around_and_references_back_are_understood(bench: Bench) -> None:
    bench.put("a", "foobar\nfoobaz\nabab\n")
    assert bench.text("grep_search", pattern="foo(?!bar)") == "a:2:foobaz"
    assert bench.text("grep_search", pattern="(ab)\\1") == "a:3:abab"
    assert bench.text("grep_search", pattern="(?<=foo)baz$") == "a:2:foobaz"
    assert "unclosed group" in str(bench.fails("grep_search", pattern="a($"))


def test_a_glob_that_names_ignored_files_searches_them(bench: Bench) -> None:
    project(bench)
    bench.put(".gitignore", "*.log\nignored/\n")
    bench.put("a.log", "needle\n")
    assert bench.text("grep_search", pattern="needle", glob="*.log") == "a.log:1:needle"
    assert "a.log" not in bench.text("grep_search", pattern="needle")


@pytest.mark.parametrize("glob", ["src/deep/*.py", "deep/*.py", "{ws}/src/**/x.py", "./src/deep/x.*", "!src/y.py"])
def test_a_glob_starts_at_the_path_or_at_the_working_directory(bench: Bench, glob: str) -> None:
    bench.put("src/deep/x.py", "needle\n")
    bench.put("src/y.py", "needle\n")
    text = bench.text("grep_search", pattern="needle", path="src", glob=glob.replace("{ws}", str(bench.ws)))
    assert text == "src/deep/x.py:1:needle"


def test_matches_come_in_the_order_of_their_paths_and_the_first_are_shown(bench: Bench) -> None:
    names = [f"{folder}/{n:02}" for folder in ("a", "a-b", "a/b", "b") for n in range(20)]
    for name in names:
        bench.put(name, "hit\n" * 3)
    argv = [find_rg(), "--no-config", "--files", "--sort=path"]
    in_order = subprocess.run(argv, cwd=bench.ws, capture_output=True, check=True).stdout.decode().split()
    expected = [(name, line) for name in in_order for line in (1, 2, 3)]
    for limit in (0, 1, 50, 100):
        structured = bench.call("grep_search", pattern="hit", limit=limit).structured
        assert [(match["path"], match["line"]) for match in structured["matches"]] == expected[: limit or None]
        assert structured["total"] == len(expected)


def test_unreadable_parts_are_reported(unprivileged_bench: Bench) -> None:
    bench = unprivileged_bench
    bench.put("a", "hit\n")
    bench.put("b", "hit\n").chmod(0)
    assert bench.text("grep_search", pattern="hit") == "a:1:hit\n[1 file or folder could not be read]"


def test_files_that_hold_secrets_neither_show_nor_count(bench: Bench) -> None:
    bench.put(".env", "TOKEN=needle\n")
    bench.put("conf/server.pem", "needle\n\0")
    bench.put("a.py", "needle\n")
    for mode in ("content", "files", "count"):
        output = bench.call("grep_search", pattern="needle", output_mode=mode)
        assert [match["path"] for match in output.structured["matches"]] == ["a.py"]
        assert output.structured["total"] == 1
        assert bench.text("grep_search", pattern="TOKEN", output_mode=mode) == "No matches."


@pytest.mark.parametrize("start", ["", "(?<!x)"])
def test_the_end_of_a_line_is_where_ripgrep_has_it_and_crlf_is_explained(bench: Bench, start: str) -> None:
    bench.put("a", b"foo\r\nbar\r\n")
    assert bench.text("grep_search", pattern=f"{start}foo$").startswith("No matches.\n[$ does not match before CRLF")
    assert bench.text("grep_search", pattern="no$") != "No matches."
    bench.put("b", b"xfoo\nfoo\n")
    assert bench.text("grep_search", pattern=f"{start}\\bfoo$") == "b:2:foo"
    assert bench.text("grep_search", pattern=f"{start}\\bfoo\\r?$") == "a:1:foo\nb:2:foo"


def test_a_file_that_was_not_searched_to_its_end_is_reported(bench: Bench) -> None:
    bench.put("evil", f"{'x' * 60}w\nxxy\n")
    bench.put("fine", "xxy\n")
    text = bench.text("grep_search", pattern="^(?=x)(x+x+)+[yz]")
    assert text.startswith("fine:1:xxy\n[a file was not searched to its end: evil: ")


def test_text_in_other_encodings_is_found(bench: Bench) -> None:
    bench.put("u16", b"\xff\xfe" + "a needle\n".encode("utf-16-le"))
    bench.put("l1", b"caf\xe9 needle\n")
    output = bench.call("grep_search", pattern="needle")
    assert [match["text"] for match in output.structured["matches"]] == ["caf\ufffd needle", "a needle"]


def test_binary_files_are_passed_over(bench: Bench) -> None:
    bench.put("a.bin", b"\0\1needle\n")
    bench.put("b.txt", "needle\n")
    assert bench.text("grep_search", pattern="needle") == "b.txt:1:needle"


def test_of_a_binary_file_nothing_is_shown_from_its_first_nul_on(bench: Bench) -> None:
    bench.put("late", b"needle\n" + b"filler\n" * 20_000 + b"\0needle\n")
    note = "[binary files that match, but are not shown after the first NUL byte: late]"
    assert bench.text("grep_search", pattern="needle") == f"late:1:needle\n{note}"
    assert bench.call("grep_search", pattern="needle").structured["total"] == 1
    bench.put("early", b"\0needle\n")
    output = bench.call("grep_search", pattern="needle", path="early")
    assert output.structured == {"matches": [], "total": 0}
    assert output.content == f"No matches.\n{note.replace('late', 'early')}"


@pytest.mark.parametrize("name", ["with space:1:x", "new\nline", "-e", "文件", "!a", "{a,b}"])
def test_odd_names_come_through(bench: Bench, name: str) -> None:
    bench.put(name, "needle\n")
    expected = [{"path": name, "line": 1, "text": "needle"}]
    assert bench.call("grep_search", pattern="needle").structured["matches"] == expected
    assert bench.call("grep_search", pattern="needle", path=name).structured["matches"] == expected


def test_a_name_that_is_not_utf_8_can_be_shown_and_sent(bench: Bench) -> None:
    Path(os.fsdecode(os.fsencode(bench.ws) + b"/caf\xe9")).write_text("needle\n")
    output = bench.call("grep_search", pattern="needle")
    assert output.content == r"$'caf\xe9':1:needle"
    json.dumps([output.content, output.structured], ensure_ascii=False).encode()


def test_a_fifo_is_an_error_and_does_not_wait_for_a_writer(bench: Bench) -> None:
    os.mkfifo(bench.ws / "pipe")
    bench.put("a", "needle\n")
    started = time.monotonic()
    assert "not a regular file" in str(bench.fails("grep_search", pattern="needle", path="pipe"))
    assert bench.text("grep_search", pattern="needle") == "a:1:needle"
    assert time.monotonic() - started < 30


def test_links_out_of_the_workspace_are_not_followed(bench: Bench) -> None:
    (bench.folder / "outside").mkdir()
    (bench.folder / "outside/secret").write_text("needle\n")
    (bench.ws / "link").symlink_to("../outside")
    assert bench.text("grep_search", pattern="needle") == "No matches."
    assert bench.fails("grep_search", pattern="needle", path="link/secret").kind == "permission_denied"


def test_a_configuration_of_the_person_s_ripgrep_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rgrc").write_text("--ignore-case\n")
    bench = Bench(tmp_path, {"RIPGREP_CONFIG_PATH": str(tmp_path / "rgrc")})
    bench.put("a", "NEEDLE\n")
    assert bench.text("grep_search", pattern="needle") == "No matches."
