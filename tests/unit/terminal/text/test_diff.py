"""A unified diff is shown with numbers, marks and changed words, and cut where it is long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.tools.text.diff import unified_diff

BEFORE = "".join(f"line {n}\n" for n in range(1, 31))
AFTER = BEFORE.replace("line 5\n", "line five\n").replace("line 20\n", "line 20\nnew\n").replace("line 30\n", "")


def shown(diff: str, width: int = 80, most_lines: int | None = None) -> str:
    return text_of(diff_fragments(diff, width=width, most_lines=most_lines))


def text_of(fragments: list[Fragment]) -> str:
    return "".join(text for _, text in fragments)


def parts(before: str, after: str, role: str) -> list[str]:
    return [
        text
        for roles, text in diff_fragments(unified_diff("f", before, after), width=80, most_lines=None)
        if role in roles.split()
    ]


def test_a_diff_has_a_number_a_sign_and_a_mark_between_hunks() -> None:
    assert shown(unified_diff("f", BEFORE, AFTER)) == (
        " 2   line 2\n"
        " 3   line 3\n"
        " 4   line 4\n"
        " 5 - line 5\n"
        " 5 + line five\n"
        " 6   line 6\n"
        " 7   line 7\n"
        " 8   line 8\n"
        "⋯\n"
        "18   line 18\n"
        "19   line 19\n"
        "20   line 20\n"
        "21 + new\n"
        "22   line 21\n"
        "23   line 22\n"
        "24   line 23\n"
        "⋯\n"
        "28   line 27\n"
        "29   line 28\n"
        "30   line 29\n"
        "30 - line 30\n"
    )


def test_a_very_narrow_terminal_shows_no_number() -> None:
    diff = unified_diff("f", "a\nb\n", "a\nc\n")
    assert shown(diff, 60) == shown(diff, 24) == "1   a\n2 - b\n2 + c\n"
    assert shown(diff, 23) == shown(diff, 1) == "  a\n- b\n+ c\n"


def test_a_new_file_and_a_deleted_one() -> None:
    assert shown(unified_diff("f", "", "a\nb\n")) == "1 + a\n2 + b\n"
    assert shown(unified_diff("f", "a\nb\n", "")) == "1 - a\n2 - b\n"
    assert shown("") == ""


def test_unchanged_blank_lines_at_the_edges_are_left_out() -> None:
    assert shown(unified_diff("f", "a\n\nb\n\nc\n", "a\n\nB\n\nc\n")) == "1   a\n2\n3 - b\n3 + B\n4\n5   c\n"
    assert shown(unified_diff("f", "x\n\n\n\nb\n\n\nc\n\n", "x\n\n\n\nB\n\n\nc\n\n")) == ("5 - b\n5 + B\n6\n7\n8   c\n")
    assert shown(unified_diff("f", "\n\nb\n", "\n\n\nb\n")).count("+") == 1


def test_each_part_has_its_role() -> None:
    fragments = diff_fragments(unified_diff("f", "x\nfoo bar\n", "x\nfoo baz\n"), width=80, most_lines=None)
    assert [fragment for fragment in fragments if fragment != ("", "\n")] == [
        ("line_number", "1 "),
        ("", "  "),
        ("", "x"),
        ("line_number", "2 "),
        ("removed_sign", "- "),
        ("removed", "foo "),
        ("removed removed_word", "bar"),
        ("line_number", "2 "),
        ("added_sign", "+ "),
        ("added", "foo "),
        ("added added_word", "baz"),
    ]


def test_lines_have_the_colours_of_the_language_that_the_name_tells() -> None:
    fragments = diff_fragments(
        unified_diff("src/a.py", "def f():\n    return 1\n", "def f():\n    return 'one'\n"), width=80, most_lines=None
    )
    assert ("keyword", "def ") in fragments
    assert ("removed keyword", "return ") in fragments
    assert ("added added_word string", "'one'") in fragments


def test_words_that_differ_are_marked_in_lines_that_are_similar() -> None:
    assert parts("call(one, two)\n", "call(one, three)\n", "removed_word") == ["two"]
    assert parts("call(one, two)\n", "call(one, three)\n", "added_word") == ["three"]
    assert parts("self.value = 1\n", "self.other = 2\n", "added_word") == ["other", "2"]
    assert parts("a b keep keep\n", "c d keep keep\n", "added_word") == ["c d"]
    assert parts("return value\n", "return value + 1\n", "added_word") == [" + 1"]
    assert parts("all of this\n", "nothing alike there\n", "added_word") == []


def test_lines_that_replace_others_are_compared_one_by_one() -> None:
    before, after = "aa bb cc\ndd ee ff\n", "aa bb xx\ndd ee yy\nmore\n"
    assert parts(before, after, "removed_word") == ["cc", "ff"]
    assert parts(before, after, "added_word") == ["xx", "yy"]


def test_very_long_lines_are_not_compared() -> None:
    long = "word " * 200
    assert parts(f"{long}a\n", f"{long}b\n", "added_word") == []


def test_a_change_of_white_space_at_the_end_can_be_seen() -> None:
    assert shown(unified_diff("f", "a  \nb\n", "a\nb\t\n"), 23) == "- a··\n- b\n+ a\n+ b·······\n"


def test_no_line_ends_in_spaces() -> None:
    assert shown(unified_diff("f", "a\n\nb  \n", "a\n\nb  \nc\n\n")) == "1   a\n2\n3   b\n4 + c\n5 +\n"


def test_tabs_are_spaces_from_the_start_of_the_line() -> None:
    assert shown(unified_diff("f", "", "\ta\tb\n"), 20) == "+         a       b\n"


def test_what_could_steer_the_terminal_is_shown_and_breaks_no_line() -> None:
    assert shown(unified_diff("f", "", "a\x07b\x1b[2Jc\rd\n"), 20) == "+ a\\x07b\\x1b[2Jc\\rd\n"


def test_lines_like_those_that_name_files_are_lines_inside_a_hunk() -> None:
    assert shown(unified_diff("f", "-- old\n", "++ new\n"), 20) == "- -- old\n+ ++ new\n"


def test_a_missing_newline_is_said() -> None:
    assert shown(unified_diff("f", "a b\n", "a c"), 20) == "- a b\n+ a c\n  \\ No newline at end of file\n"
    assert parts("aa bb", "aa cc", "added_word") == ["cc"]


def test_what_is_too_much_is_counted() -> None:
    diff = unified_diff("f", "", "".join(f"{n}\n" for n in range(20)))
    assert shown(diff, 20, 8) == "".join(f"+ {n}\n" for n in range(8)) + "… 12 more lines\n"
    assert shown(diff, 20, 19).endswith("+ 18\n… 1 more line\n")
    assert shown(diff, 20, 20).endswith("+ 19\n")
    assert shown(diff, 20, 0) == "… 20 more lines\n"
    assert ("muted", "… 12 more lines") in diff_fragments(diff, width=20, most_lines=8)
    assert ("muted", "… 12 more lines: look") in diff_fragments(diff, width=20, most_lines=8, rest=": look")


def test_a_diff_of_several_files_or_a_hunk_alone_is_shown_too() -> None:
    two = unified_diff("f", "a\n", "b\n") + unified_diff("g", "c\n", "d\n")
    assert shown(two, 20) == "- a\n+ b\n⋯\n- c\n+ d\n"
    assert shown("@@ -7 +7 @@\n-a\n+b", 80) == "7 - a\n7 + b\n"


lines = st.text(
    st.characters(exclude_characters="\n", exclude_categories=["Cs"]) | st.sampled_from("\t\r\x1b[ x"), max_size=12
)
texts = st.lists(lines, max_size=12).map("\n".join)


@given(before=texts, after=texts, width=st.integers(1, 300))
def test_every_changed_line_is_there_at_any_width(before: str, after: str, width: int) -> None:
    diff = unified_diff("f", before, after)
    rows = shown(diff, width).split("\n")
    assert not any(row.endswith((" ", "\t")) for row in rows)
    changed = [line for line in diff.split("\n")[2:] if line.startswith(("+", "-"))]
    for line in changed:
        text = exposed(line[1:].removesuffix("\r")).expandtabs(8)
        kept = text.rstrip()
        wanted = f"{line[0]} {kept}{'·' * (len(text) - len(kept))}".rstrip()
        assert any(row.endswith(wanted) for row in rows)
    assert text_of(diff_fragments(diff, width=width, most_lines=3)).count("\n") <= 4


@given(
    text=st.lists(
        st.sampled_from(["@@ -1,2 +1 @@", "@@ -0,0 +1 @@", "@@", "--- a", "+++ b", "\\ No", "+", "-", ""]) | lines
    ).map("\n".join),
    width=st.integers(1, 300),
    most_lines=st.none() | st.integers(0, 5),
)
def test_text_that_is_no_diff_is_shown_somehow(text: str, width: int, most_lines: int | None) -> None:
    assert "\x1b" not in shown(text, width, most_lines)


@pytest.mark.slow
def test_a_huge_diff_takes_a_moment() -> None:
    hunks = [
        f"@@ -{n},100 +{n},100 @@\n" + f"-a {'x y ' * 12}{n} b\n" * 100 + f"+c {'y x ' * 12}{n} d\n" * 100
        for n in range(1, 50_000, 1_000)
    ]
    diff = "--- a/f\n+++ b/f\n" + "".join(hunks)
    start = time.process_time()
    diff_fragments(diff, width=100, most_lines=None)
    assert time.process_time() - start < 15  # about 0.1 s; what grows with the square takes minutes
