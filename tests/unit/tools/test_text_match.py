"""What a match says is so: no line is glued, lost or left with a foreign end; what stands twice is not one place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.errors import ToolError
from agentcli.tools.builtin.toolset import Edit
from agentcli.tools.text.apply import apply_edits
from agentcli.tools.text.encoding import DecodedText
from agentcli.tools.text.match import find_exact, folded
from tests.properties import examples


def edit(before: str, old: str, new: str, *, replace_all: bool = False) -> tuple[str, str]:
    """The text after one edit, and what is said of how it matched."""
    edited, notes = apply_edits(DecodedText(before, "utf-8"), [Edit(old, new, replace_all)])
    return edited.text, "".join(notes)


@pytest.mark.parametrize(
    ("before", "old", "more", "after"),
    [
        pytest.param(
            "class A:\n    def f(self):\n        return 1",
            "def f(self):\n    return 1\n",
            "def g(self):\n    return 2\n",
            "class A:\n    def f(self):\n        return 1\n    def g(self):\n        return 2",
            id="indentation",
        ),
        pytest.param(
            "class A:\n    def f(self):\n        return 1",
            "def f(self):\n    return 1\n",
            "\ndef g(self):\n    return 2\n",
            "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2",
            id="a blank line between",
        ),
        pytest.param("if a:\r\n\tb", "  b\n", "  c\n", "if a:\r\n\tb\r\n\tc", id="CRLF"),
        pytest.param("x\n\tsay(“a”)", '  say("a")\n', "  b()\n", "x\n\tsay(“a”)\n\tb()", id="look-alikes, indented"),
        pytest.param("x\nsay(“a”)", 'say("a")\n', "b()\n", "x\nsay(“a”)\nb()", id="look-alikes"),
        pytest.param("x\ny", "y\n", "z\n", "x\ny\nz", id="line ends alone"),
        pytest.param("x\n\ty", "    y\n", "\n", "x\n\ty\n", id="a blank line behind"),
    ],
)
def test_lines_put_behind_a_last_line_without_an_end_stand_on_their_own(
    before: str, old: str, more: str, after: str
) -> None:
    assert edit(before, old, old + more)[0] == after


_PIECES = st.lists(
    st.sampled_from(
        ["\n", "\r\n", "\r", "\t", "\x00", " ", "a", "é", "e\u0301", "\u0301", "\u0323", "“", "…", "≠", "한"]
    )
).map("".join)


@examples(300)
@given(text=_PIECES)
@example(text="a\n\u0301")
def test_the_lines_of_a_view_are_those_of_the_text(text: str) -> None:
    view = folded(text)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    starts = [0, *(place + 1 for place, sign in enumerate(view.text) if sign == "\n")]
    cuts = [*map(view.origin, starts), len(text)]
    shown = [text[start:end].removesuffix("\n").removesuffix("\r") for start, end in pairwise(cuts)]
    assert shown == lines


@examples(500)
@given(text=st.text("a\n", max_size=20), start=st.integers(0, 20), length=st.integers(1, 8))
@example(text="aaa", start=0, length=2)
def test_what_counts_as_one_is_what_is_replaced_from_the_left(text: str, start: int, length: int) -> None:
    old = text[start : start + length]
    if not old:
        return
    if (count := text.count(old)) == 1:
        assert edit(text, old, "X")[0] == text.replace(old, "X")
    else:
        with pytest.raises(ToolError, match=f"occurs {count} times"):
            edit(text, old, "X")


@examples(300)
@given(text=st.text("ab", max_size=60), old=st.text("ab", min_size=1, max_size=12))
@example(text="aabaabaaabaabaa", old="aabaabaa")
def test_the_places_are_those_that_a_plain_replace_takes(text: str, old: str) -> None:
    places = find_exact(text, old)
    cuts = [0, *(cut for place in places for cut in (place.start, place.end)), len(text)]
    assert "X".join(text[start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True)) == text.replace(old, "X")


@pytest.mark.slow
def test_a_long_piece_of_a_long_row_is_soon_refused() -> None:
    with pytest.raises(ToolError, match="occurs 10 times"):
        edit("a" * 200_000, "a" * 20_000, "b")


def test_replace_all_takes_places_that_do_not_overlap_from_the_left() -> None:
    assert edit("}\n}\n}\n", "}\n}\n", "X\n", replace_all=True)[0] == "X\n}\n"
    assert edit("}\r\n}\n}\r\n}\n", "}\n}\n", "X\n", replace_all=True)[0] == "X\r\nX\r\n"


def test_an_exact_match_leaves_the_same_text_with_other_line_ends() -> None:
    assert edit("}\n}\n}\r\n", "}\n}\n", "X\n") == ("X\n}\r\n", "")


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param("a\r\nb\r\n", "a\nb\n", "x\na\nb\n", "x\r\na\r\nb\r\n", id="before all"),
        pytest.param("a\r\n", "a\n", "b\nc\n", "b\r\nc\r\n", id="two for one"),
        pytest.param("a\r\n", "a\n", "x\ny\na\n", "x\r\ny\r\na\r\n", id="two before one"),
        pytest.param("a\r\nb", "a\nb", "x\ny\nz", "x\r\ny\r\nz", id="everything"),
        pytest.param(
            "a\r\nb\nc\n", "a\nb\n", "x\na\nb\n", "x\r\na\r\nb\nc\n", id="mixed, as the line it stands before"
        ),
        pytest.param("a\nb\r\nc\r\n", "a\nb\n", "x\na\nb\n", "x\na\nb\r\nc\r\n", id="mixed, before LF"),
    ],
)
def test_a_line_put_before_all_others_gets_the_end_of_the_next(before: str, old: str, new: str, after: str) -> None:
    assert edit(before, old, new)[0] == after


_LINES = st.lists(st.sampled_from(["a", "b", "", " c"]), min_size=1, max_size=5)


@examples(300)
@given(lines=_LINES, new=_LINES, data=st.data())
def test_a_file_with_crlf_alone_gets_no_other_line_end(lines: list[str], new: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    before, old = "\r\n".join([*lines, ""]), "\n".join([*lines[start:end], ""])
    if before.replace("\r\n", "\n").find(old) < sum(len(line) + 1 for line in lines[:start]):
        return  # another place is meant
    try:
        after = edit(before, old, "\n".join([*new, ""]))[0]
    except ToolError:  # it stands there several times, or both are the same
        return
    assert after.split("\r\n") == [*lines[:start], *new, *lines[end:], ""]
