"""A unified diff is shown with numbers, marks and changed words, and cut where it is long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.printable import escape_hidden
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.tools.text.diff import unified_diff

BEFORE = "".join(f"line {n}\n" for n in range(1, 31))
AFTER = BEFORE.replace("line 5\n", "line five\n").replace("line 20\n", "line 20\nnew\n").replace("line 30\n", "")


def shown(diff: str, width: int = 80, max_lines: int | None = None) -> str:
    return text_of(diff_fragments(diff, width=width, max_lines=max_lines))


def text_of(fragments: list[Fragment]) -> str:
    return "".join(text for _, text in fragments)


def parts(before: str, after: str, role: str) -> list[str]:
    return [
        text
        for roles, text in diff_fragments(unified_diff("f", before, after), width=80, max_lines=None)
        if role in roles.split()
    ]


def test_a_diff_has_a_number_a_sign_and_a_mark_between_hunks() -> None:
    rows = " 2   line 2| 3   line 3| 4   line 4| 5 - line 5| 5 + line five| 6   line 6| 7   line 7| 8   line 8|⋯"
    rows += "|18   line 18|19   line 19|20   line 20|21 + new|22   line 21|23   line 22|24   line 23|⋯"
    rows += "|28   line 27|29   line 28|30   line 29|30 - line 30|"
    assert shown(unified_diff("f", BEFORE, AFTER)) == rows.replace("|", "\n")


def test_a_very_narrow_terminal_shows_no_number() -> None:
    diff = unified_diff("f", "a\nb\n", "a\nc\n")
    assert shown(diff, 60) == shown(diff, 24) == "1   a\n2 - b\n2 + c\n"
    assert shown(diff, 23) == shown(diff, 1) == "  a\n- b\n+ c\n"


@pytest.mark.parametrize(
    ("before", "after", "columns", "rows"),
    [
        ("", "a\nb\n", 80, "1 + a\n2 + b\n"),
        ("a\nb\n", "", 80, "1 - a\n2 - b\n"),
        ("a", "a", 80, ""),
        # No line ends in spaces.
        ("a\n\nb\n\nc\n", "a\n\nB\n\nc\n", 80, "1   a\n2\n3 - b\n3 + B\n4\n5   c\n"),
        ("x\n\n\n\nb\n\n\nc\n\n", "x\n\n\n\nB\n\n\nc\n\n", 80, "2\n3\n4\n5 - b\n5 + B\n6\n7\n8   c\n"),
        ("a\n\nb  \n", "a\n\nb  \nc\n\n", 80, "1   a\n2\n3   b\n4 + c\n5 +\n"),
        ("a  \nb\n", "a\nb\t\n", 23, "- a··\n- b\n+ a\n+ b·······\n"),  # a change of white space can be seen
        ("", "\ta\tb\n", 20, "+         a       b\n"),
        ("", "a\x07b\x1b[2Jc\rd\n", 20, "+ a\\x07b\\x1b[2Jc\\rd\n"),
        ("-- old\n", "++ new\n", 20, "- -- old\n+ ++ new\n"),  # like the lines that name files
        ("a b\n", "a c", 20, "- a b\n+ a c\n  \\ No newline at end of file\n"),
    ],
)
def test_lines_are_shown_as_they_are(before: str, after: str, columns: int, rows: str) -> None:
    assert shown(unified_diff("f", before, after), columns) == rows


def test_a_blank_line_that_was_added_is_shown() -> None:
    assert shown(unified_diff("f", "\n\nb\n", "\n\n\nb\n")).count("+") == 1


def test_each_part_has_its_role() -> None:
    fragments = diff_fragments(unified_diff("f", "x\nfoo bar\n", "x\nfoo baz\n"), width=80, max_lines=None)
    assert [fragment for fragment in fragments if fragment != ("", "\n")] == [
        ("line_number", "1 "), ("", "  "), ("", "x"),
        ("line_number", "2 "), ("removed_sign", "- "), ("removed", "foo "), ("removed removed_word", "bar"),
        ("line_number", "2 "), ("added_sign", "+ "), ("added", "foo "), ("added added_word", "baz"),
    ]  # fmt: skip


def test_lines_have_the_colours_of_the_language_that_the_name_tells() -> None:
    fragments = diff_fragments(
        unified_diff("src/a.py", "def f():\n    return 1\n", "def f():\n    return 'one'\n"), width=80, max_lines=None
    )
    assert ("keyword", "def ") in fragments
    assert ("removed keyword", "return ") in fragments
    assert ("added added_word string", "'one'") in fragments


@pytest.mark.parametrize(
    ("before", "after", "removed", "added"),
    [
        ("call(one, two)\n", "call(one, three)\n", ["two"], ["three"]),
        ("call(self.value, 1)\n", "call(self.other, 2)\n", ["value, 1"], ["other, 2"]),
        ("self.value = 1\n", "self.other = 2\n", [], []),
        ("a b keep keep\n", "c d keep keep\n", ["a b"], ["c d"]),
        ("return value\n", "return value + 1\n", [], [" + 1"]),
        ("all of this\n", "nothing alike there\n", [], []),
        ("aa bb cc\ndd ee ff\n", "aa bb xx\ndd ee yy\nmore\n", ["cc", "ff"], ["xx", "yy"]),
        ("word " * 200 + "a\n", "word " * 200 + "b\n", [], []),  # too long to be compared
        ("aa bb", "aa cc", ["bb"], ["cc"]),
    ],
)
def test_words_that_differ_are_marked_in_lines_that_are_similar(
    before: str, after: str, removed: list[str], added: list[str]
) -> None:
    assert parts(before, after, "removed_word") == removed
    assert parts(before, after, "added_word") == added


def test_what_is_too_much_is_counted() -> None:
    diff = unified_diff("f", "", "".join(f"{n}\n" for n in range(20)))
    assert shown(diff, 20, 8) == "".join(f"+ {n}\n" for n in range(8)) + "… 12 more lines\n"
    assert shown(diff, 20, 19).endswith("+ 18\n… 1 more line\n")
    assert shown(diff, 20, 20).endswith("+ 19\n")
    assert shown(diff, 20, 0) == "… 20 more lines\n"
    assert ("muted", "… 12 more lines") in diff_fragments(diff, width=20, max_lines=8)
    assert ("muted", "… 12 more lines: look") in diff_fragments(diff, width=20, max_lines=8, hint=": look")


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
        text = escape_hidden(line[1:].removesuffix("\r")).expandtabs(8)
        kept = text.rstrip()
        wanted = f"{line[0]} {kept}{'·' * (len(text) - len(kept))}".rstrip()
        assert any(row.endswith(wanted) for row in rows)
    assert text_of(diff_fragments(diff, width=width, max_lines=3)).count("\n") <= 4


@given(
    text=st.lists(
        st.sampled_from(["@@ -1,2 +1 @@", "@@ -0,0 +1 @@", "@@", "--- a", "+++ b", "\\ No", "+", "-", ""]) | lines
    ).map("\n".join),
    width=st.integers(1, 300),
    max_lines=st.none() | st.integers(0, 5),
)
def test_text_that_is_not_a_diff_is_shown_somehow(text: str, width: int, max_lines: int | None) -> None:
    assert "\x1b" not in shown(text, width, max_lines)


@pytest.mark.slow
def test_a_huge_diff_takes_a_moment() -> None:
    hunks = [
        f"@@ -{n},100 +{n},100 @@\n" + f"-a {'x y ' * 12}{n} b\n" * 100 + f"+c {'y x ' * 12}{n} d\n" * 100
        for n in range(1, 50_000, 1_000)
    ]
    diff = "--- a/f\n+++ b/f\n" + "".join(hunks)
    start = time.process_time()
    diff_fragments(diff, width=100, max_lines=None)
    assert time.process_time() - start < 15  # about 0.1 s; what grows with the square takes minutes
