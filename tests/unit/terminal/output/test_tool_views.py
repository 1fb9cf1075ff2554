"""A finished call shows a part of its result, which may be anything."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.agent.events import ToolFinished
from agentcli.frontends.terminal.output import tool_views
from agentcli.frontends.terminal.output.tool_views import MAX_LINE_CHARS, MAX_OUTPUT_LINES, ToolView, duration
from agentcli.frontends.terminal.text.fragments import plain
from agentcli.llm.messages import Base64Source, Image, Text, ToolResult
from tests.rows import each_row

STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

# What has been used against terminals, or just confuses them (ECMA-48, xterm's ctlseqs, the vendors' own sequences).
HOSTILE = [
    "\x1b[2J\x1b[H",  # clear
    "\x1b[3J",  # and the scrollback
    "\x1bc",  # reset
    "\x1b[1A\x1b[2Kanother line",  # the line above says something else
    "\x1b[?1049h",  # alternate screen
    "\x1b[?25l",  # no cursor
    "\x1b[?1000h\x1b[?2004l",  # mouse on, bracketed paste off
    "\x1b[21t",  # the title comes back as typed text
    "\x1b[6n\x1b[c\x1b[5n",  # reports come back as typed text
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJmIH4=\x07",  # the clipboard
    "\x1b]8;;https://example.com\x1b\\a link\x1b]8;;\x1b\\",
    "\x1b]1337;File=inline=1:AAAA\x07",
    "\x1bP+q544e\x1b\\",
    "\x1bP1;1|17/6c730a\x1b\\",  # what a function key types
    "\x1b_Ga=T;AAAA\x1b\\",
    "\x1b^private\x1b\\",
    "\x1bXstring\x1b\\",
    "\x9b2J",
    "\x9d0;title\x9c",
    "\x90q\x9c",
    "\x1b(0lqqk\x1b(B",  # line drawing
    "\x0e\x0f",  # other character sets
    "\x1b[\x1b[31m2J",  # one within another
    "\x1b\x1b[m[2J",
    "\x1b[31",  # no end
    "\x1b]0;no end",
    "\x1b",
    "safe\rrm -rf",
    "safe\b\b\b\brm",
    "\x00\x01\x7f",
    "\u202egnp.exe",  # reads backwards
    "\u2066a\u2069",
]


tool_view = partial(tool_views.tool_view, was_asked=False, is_live=True, unfold_key="Ctrl-O")


def finished(content: Any, name: str = "bash", *, is_error: bool = False, **other: Any) -> ToolFinished:
    return ToolFinished("1", name, ToolResult("1", content, is_error), other.pop("duration_ms", 3.0), **other)


def view(event: ToolFinished, columns: int = 80, **other: bool) -> ToolView:
    return tool_view(event, "title", columns=columns, **other)


def text(event: ToolFinished, columns: int = 80) -> str:
    return plain(view(event, columns).fragments)


NAMES = ("bash", "file_edit", "file_write", "todo", "grep_search", "unknown")


@each_row("hostile", HOSTILE)
@each_row("name", NAMES)
@each_row("is_error", [True, False])
def test_nothing_that_steers_a_terminal_gets_through(hostile: str, name: str, is_error: bool) -> None:
    diff = f"--- a\n+++ b\n@@ -1 +1 @@\n-{hostile}\n+x{hostile}y\n"
    event = finished(
        f"before {hostile} after",
        name,
        is_error=is_error,
        summary=hostile,
        structured={"diff": diff, "output": hostile},
    )
    assert not STEERS.search(text(event))


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from([*HOSTILE, "text", "\n"])).map("".join),
        st.binary().map(lambda junk: junk.decode("latin-1")),
    ),
    st.sampled_from(NAMES),
    st.booleans(),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["diff", "output"]), st.one_of(st.none(), st.text()))),
)
def test_any_output_can_be_shown(said: str, name: str, is_error: bool, columns: int, structured: Any) -> None:
    shown = text(finished(said, name, is_error=is_error, summary=said, structured=structured), columns)
    assert not STEERS.search(shown)
    assert shown.endswith("\n")


def test_the_first_line_says_how_it_went_without_colour() -> None:
    assert text(finished("", "grep_search", summary="12 lines", duration_ms=1500)) == "✓ title · 12 lines · 1.5 s\n"
    assert text(finished("no such file", "file_read", is_error=True)) == "✗ title\n  no such file\n"


@pytest.mark.parametrize("columns", [20, 40, 80, 120])
def test_a_failed_call_shows_its_whole_target_and_the_error_once(columns: int) -> None:
    path = "a/folder/with/a/name/that/is/long/and/a/file/that/is/not/there.py"
    told = f"not_found (ENOENT): {path} does not exist."
    event = finished(told, "file_read", is_error=True, summary=f"{path} does not exist.", error_kind="not_found")
    shown = plain(tool_view(event, f"Read {path}", columns=columns).fragments)
    assert " ".join(shown.split()) == f"✗ Read {path} does not exist."
    failed = finished("one\n[exit code 3]", "bash", is_error=True, summary="exit 3")
    assert plain(tool_view(failed, "Run x", columns=80).fragments) == "✗ Run x · exit 3\n  one\n"
    late = finished("one\n[timeout: Ended after 2 s]", "bash", is_error=True, summary="timed out", error_kind="timeout")
    assert plain(tool_view(late, "Run x", columns=80).fragments) == "✗ Run x\n  one\n  [Ended after 2 s]\n"


def test_a_job_that_was_started_names_where_to_look() -> None:
    event = finished("Started job job_1 …", summary="job_1 started", structured={"job_id": "job_1", "pid": 7})
    assert text(event) == "✓ title · job_1 started · /tasks\n"


def test_the_to_do_list_has_the_signs_of_its_panel() -> None:
    items = [{"content": status, "status": status} for status in ("completed", "in_progress", "pending")]
    event = finished("…", "todo", summary="1 of 3 done", structured={"items": items})
    lines = plain(tool_view(event, "title", columns=80, is_live=False).fragments)
    assert lines == "✓ title · 1 of 3 done\n  ✓ completed\n  ▸ in_progress\n  ○ pending\n"
    assert text(event) == "✓ title · 1 of 3 done\n", "a live screen has the list above its input"


def test_the_rows_of_a_long_changed_line_stand_under_their_own_text() -> None:
    diff = f"--- a\n+++ b\n@@ -1 +1 @@\n-old\n+{'word ' * 12}\n"
    event = finished("…", "file_edit", structured={"diff": diff})
    rows = plain(tool_view(event, "title", columns=40).fragments).split("\n")
    assert rows[2:4] == [f"1 + {'word ' * 7}".rstrip(), "    word word word word word·"]


@pytest.mark.parametrize("columns", [1, 20, 80])
def test_a_long_title_leaves_room_for_the_outcome(columns: int) -> None:
    shown = plain(tool_view(finished("", "x", duration_ms=3000.0), "日本" * 100, columns=columns).fragments)
    assert "".join(shown.split()).endswith("…·3.0s")


def test_an_outcome_that_does_not_fit_is_broken_between_words() -> None:
    event = finished("", summary="no output; applied 1 change", duration_ms=15_400.0)
    shown = plain(tool_view(event, "Run for i in 1 2 3; do echo $i; done", columns=40).fragments)
    assert shown.splitlines()[1] == "  change · 15.4 s"


def test_a_subagent_s_task_comes_before_what_it_used_and_one_that_was_stopped_has_no_tick() -> None:
    used = {"name": "create_subagent", "duration_ms": 5700.0}
    stopped = finished("", summary="stopped · 3 rounds · 3,939 tokens · $0.0091", **used)
    shown = plain(tool_view(stopped, f"general-1: {'task ' * 30}", columns=80).fragments)
    assert shown.startswith(f"■ general-1: {'task ' * 9}")
    assert " · stopped" in shown
    assert len(shown) <= 81
    assert text(finished("", summary="done · 1 round", **used)) == "✓ title · done · 1 round · 5.7 s\n"


def test_of_a_long_output_the_end_is_shown_and_all_of_it_kept() -> None:
    lines = "".join(f"line {n}\n" for n in range(100))
    shown = view(finished(lines))
    assert plain(shown.fragments).splitlines()[1:] == [
        f"  … {100 - MAX_OUTPUT_LINES} more lines (Ctrl-O shows all)",
        *(f"  line {n}" for n in range(95, 100)),
    ]
    assert shown.folded is not None
    assert shown.folded.text == lines


def test_a_short_output_is_shown_in_full() -> None:
    shown = view(finished("fatal: the reason\n" + "more\n" * 6))
    assert "  fatal: the reason\n" in plain(shown.fragments)
    assert shown.folded is None


def test_a_line_without_end_is_cut() -> None:
    shown = text(finished("x" * 1_000_000))
    assert shown.splitlines()[1] == f"  {'x' * MAX_LINE_CHARS}…"


def test_output_of_several_parts_is_joined_and_images_are_named() -> None:
    assert "  one\n  [image]\n" in text(finished((Text("one"), Image(Base64Source("image/png", "eA==")))))


def test_an_edit_shows_its_diff_with_marks_once() -> None:
    event = finished("ok", "file_edit", structured={"diff": "--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\n"})
    assert "- old" in text(event)
    assert "+ new" in text(event)
    again = view(event, was_asked=True)
    assert "old" not in plain(again.fragments)
    assert again.folded is not None
    assert again.folded.is_diff
    long = view(finished("ok", "file_edit", structured={"diff": "--- a\n+++ b\n@@ -0,0 +1,50 @@\n" + "+x\n" * 50}))
    assert plain(long.fragments).endswith("… 20 more lines (Ctrl-O shows all)\n")
    assert long.folded is not None


def test_durations_are_reported_from_a_second_on() -> None:
    said = {0: "", 999: "", 1000: "1.0 s", 59_900: "59.9 s", 61_000: "1 min 1 s", 3_600_000: "60 min 0 s"}
    assert {milliseconds: duration(milliseconds) for milliseconds in said} == said
