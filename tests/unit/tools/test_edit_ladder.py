"""How file_edit finds what is not written quite as it stands in the file: always one place, always said."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.errors import ToolError
from agentcli.tools.builtin.toolset import Edit
from agentcli.tools.text.apply import apply_edits
from agentcli.tools.text.encoding import DecodedText, decode
from tests.properties import examples
from tests.unit.tools.bench import Bench

LINE_ENDS = "[Matched apart from line ends;"
INDENTATION = "[Matched apart from indentation or the last line end;"
LOOK_ALIKES = "[Matched apart from look-alike characters (quotes, dashes, spaces);"


def edit(content: bytes, old: str, new: str, *, replace_all: bool = False) -> tuple[bytes, str]:
    """The bytes after one edit, and what is said of how it matched."""
    decoded = decode(content)
    assert decoded is not None
    edited, notes = apply_edits(decoded, [Edit(old, new, replace_all)])
    return edited.encoded(edited.text), "".join(notes)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param("a\r\nb\r\n", "a\nb\n", "a\nx\nb\n", "a\r\nx\r\nb\r\n", id="CRLF"),
        pytest.param("a\nb\n", "a\r\nb", "c\r\nd", "c\nd\n", id="LF"),
        pytest.param(
            "a\r\nb\nc\r\nd\n", "a\nb\nc\n", "a\nb\nx\nc\n", "a\r\nb\nx\nc\r\nd\n", id="kept lines keep theirs"
        ),
        pytest.param("a\r\nb\nc\r\nd\n", "a\nb\nc\n", "a\nc\n", "a\r\nc\r\nd\n", id="a line less"),
        pytest.param("x\na\r\nb\r\nc\n", "a\nb", "a\nx\ny\nb", "x\na\r\nx\r\ny\r\nb\r\nc\n", id="as the neighbours"),
    ],
)
def test_line_ends_are_taken_as_the_file_has_them(before: str, old: str, new: str, after: str) -> None:
    content, said = edit(before.encode(), old, new)
    assert content.decode() == after
    assert said.startswith(LINE_ENDS)


def test_an_exact_match_is_edited_and_one_with_other_line_ends_is_not() -> None:
    assert edit(b"a\r\nb\r\n\na\nb\n", "a\nb", "c\nd") == (b"a\r\nb\r\n\nc\nd\n", "")


def test_replace_all_takes_every_line_end_but_nothing_looser() -> None:
    assert edit(b"a\r\nb\r\na\nb\n", "a\nb", "c", replace_all=True) == (b"c\r\nc\n", "")
    with pytest.raises(ToolError, match="Apart from indentation or the last line end it occurs 2 times"):
        edit(b"\ta\n\ta\n", "  a\n", "  b\n", replace_all=True)


def test_a_last_line_without_an_end_stays_without_one() -> None:
    content, said = edit(b"a\nb", "a\nb\n", "a\nc\n")
    assert content == b"a\nc"
    assert "the last line end" in said


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param(
            "\tif x:\n\t\ty()\n",
            "if x:\n    y()\n",
            "if x:\n    z()\nelse:\n    y()\n",
            "\tif x:\n\t\tz()\n\telse:\n\t\ty()\n",
            id="too far left and spaces for tabs",
        ),
        pytest.param(
            "class A:\n    def f():\n        x\n        y\n",
            "def f():\n    x\n    y\n",
            "def f():\n    if x:\n        y\n",
            "class A:\n    def f():\n        if x:\n            y\n",
            id="too far left",
        ),
        pytest.param(
            "def f():\n    x\n    y\n",
            "        def f():\n            x\n",
            "        def f():\n            z\n            x\n",
            "def f():\n    z\n    x\n    y\n",
            id="too far right",
        ),
        pytest.param(
            "def f():\n\tif x:\n\t\ty\n",
            "def f():\n    if x:\n        y\n",
            "def f():\n    if x:\n        while y:\n            z\n",
            "def f():\n\tif x:\n\t\twhile y:\n\t\t\tz\n",
            id="spaces for tabs",
        ),
        pytest.param(
            "a:\n  b:\n    c\n",
            "a:\n\tb:\n\t\tc\n",
            "a:\n\tb:\n\t\tc:\n\t\t\td\n",
            "a:\n  b:\n    c:\n      d\n",
            id="tabs for spaces",
        ),
        pytest.param(
            "a:\n  b:\n    c\n",
            "a:\n    b:\n        c\n",
            "a:\n    b:\n        x\n",
            "a:\n  b:\n    x\n",
            id="four for two",
        ),
        pytest.param("\tx = 1\n", "    x = 1", "    x = 2", "\tx = 2\n", id="one line"),
        pytest.param("\tx\n", "    x", "    if y:\n        x", "\tif y:\n\t\tx\n", id="one line, deeper ones added"),
        pytest.param("a\n  b\n    c\n", "a\n b\n    c\n", "a\n", None, id="not the same everywhere"),
        pytest.param("\ta\n\tb\n", "  a\n    b\n", "  a\n      c\n", None, id="deeper only in old_string"),
        pytest.param("\ta\na\n\ta\n", "a\n  a\n", "a\n  b\n", "\ta\na\n\tb\n", id="the second of two that overlap"),
        pytest.param("  a  \n   \n  b\n", "a\n\nb\n", "a\n\nc\n", "  a  \n   \n  c\n", id="blank lines and ends stay"),
        pytest.param("  a\r\n  b\r\n", "a\nb\n", "a\nc\nb\n", "  a\r\n  c\r\n  b\r\n", id="CRLF too"),
        pytest.param("  a\n  b", "a\nb\n", "a\nc\n", "  a\n  c", id="no last line end"),
        pytest.param("  a\n  b\n  c\n", " a\n b\n", "", "  c\n", id="deleted"),
        pytest.param("  a\n", "a\n b", "x", None, id="longer than the file"),
    ],
)
def test_indentation_is_taken_as_the_file_has_it(before: str, old: str, new: str, after: str | None) -> None:
    if after is None:
        with pytest.raises(ToolError, match="not in the file"):
            edit(before.encode(), old, new)
        return
    content, said = edit(before.encode(), old, new)
    assert content.decode() == after
    assert said.startswith(INDENTATION) or old in before


def test_a_line_whose_indentation_cannot_be_determined_is_an_error() -> None:
    with pytest.raises(ToolError, match="indentation cannot be derived from it: 'deeper'"):
        edit(b"\tx\n\ty\n", "x\ny\n", "x\n    deeper\n")


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param("say “hi”\n", 'say "hi"', 'say "hello"', "say “hello”\n", id="double quotes"),
        pytest.param('say "hi"\n', "say “hi”", "say “ho”", 'say "ho"\n', id="the other way"),
        pytest.param("it’s\n", "it's", "it's not", "it’s not\n", id="apostrophe"),
        pytest.param("1–2—3\n", "1-2-3", "1-2-4", "1–2—4\n", id="dashes"),
        pytest.param("a\u00a0b\u202fc\n", "a b c", "a b d", "a\u00a0b\u202fd\n", id="spaces"),
        pytest.param("“a”\n“b”\n“c”\n", '"a"\n"b"\n"c"', '"a"\n"x"\n"c"', "“a”\n“x”\n“c”\n", id="lines around"),
        pytest.param("“a”\r\n“b”\r\n", '"a"\n"b"\n', '"a"\n"x"\n"b"\n', '“a”\r\n"x"\r\n“b”\r\n', id="CRLF too"),
        pytest.param("“a” b\n", '"a" b', "", "\n", id="deleted"),
    ],
)
def test_characters_that_look_alike_match_and_stay_as_the_file_has_them(
    before: str, old: str, new: str, after: str
) -> None:
    content, said = edit(before.encode(), old, new)
    assert content.decode() == after
    assert said.startswith(LOOK_ALIKES)


def test_look_alikes_match_with_other_indentation_too() -> None:
    content, said = edit("\tsay(“a”)\n\tb()\n".encode(), '  say("a")\n  b()\n', '  say("a")\n  c()\n')
    assert content.decode() == "\tsay(“a”)\n\tc()\n"
    assert said.startswith("[Matched apart from look-alike characters and indentation;")


@pytest.mark.parametrize(
    ("content", "old", "difference"),
    [
        (b"a\r\nb\r\nx\r\na\r\nb\r\n", "a\nb\n", "line ends"),
        (b"\tx\n\ty\n\tx\n", "  x\n", "indentation"),
        ("“a” ‘a’ “a”\n".encode(), '"a"', "look-alike"),
    ],
)
def test_a_looser_match_must_be_the_only_one(content: bytes, old: str, difference: str) -> None:
    with pytest.raises(ToolError, match=f"Apart from {difference}.* it occurs 2 times.*Copy one of these places"):
        edit(content, old, "new")


def test_the_exact_place_wins_over_those_like_it() -> None:
    content, said = edit("“a”\n\"a\"\n'a'\n".encode(), '"a"', '"b"')
    assert content == "“a”\n\"b\"\n'a'\n".encode()
    assert not said


def test_the_model_is_reported_how_it_matched(bench: Bench) -> None:
    path = bench.put("a", "\tx\r\n")
    said = bench.text("file_edit", path="a", old_string="  x\n", new_string="  y\n")
    assert said.endswith(
        "+\ty\n[Matched apart from indentation or the last line end; new_string was indented as the file is.]"
    )
    assert path.read_bytes() == b"\ty\r\n"


def test_of_several_edits_it_is_reported_which_one_matched_how(bench: Bench) -> None:
    bench.put("a", "one “two”\n")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": '"two"', "new_string": "2"}]
    said = bench.text("file_edit", path="a", edits=edits)
    assert "\n[Edit 2 of 2: Matched apart from look-alike" in said
    assert "Edit 1" not in said


# Any bytes, and any part of them.

_PARTS = st.lists(
    st.sampled_from(
        [
            "\n",
            "\r\n",
            "\r",
            "\t",
            "    ",
            " ",
            "a",
            "b(",
            "é",
            "e\u0301",
            "“",
            '"',
            "—",
            "-",
            "\u00a0",
            "…",
            "文",
            "😀",
        ]
    ),
    max_size=12,
).map("".join)
_CODECS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252"])


@examples(500)
@given(head=_PARTS, old=_PARTS, tail=_PARTS, new=_PARTS, codec=_CODECS)
@example(head="a\r\n", old="\nb", tail="\r\n", new="\n", codec="utf-16")
def test_in_any_encoding_only_the_edited_span_changes(head: str, old: str, tail: str, new: str, codec: str) -> None:
    try:
        content = f"{head}<{old}>{tail}".encode(codec)
    except UnicodeEncodeError:
        return
    decoded = decode(content)
    assert decoded is not None
    if decoded.text != f"{head}<{old}>{tail}" or old.replace("\r\n", "\n") == new.replace("\r\n", "\n"):
        return  # a few bytes of Latin-1 can also be read as another encoding
    before, after = decoded.encoded(head + "<"), decoded.encoded_part(">" + tail)
    try:
        decoded.encoded_part(new)
    except ToolError:
        with pytest.raises(ToolError, match="which has no"):
            apply_edits(decoded, [Edit(f"<{old}>", f"<{new}>")])
        return
    edited, _ = edit(content, f"<{old}>", f"<{new}>")
    assert edited.startswith(before)
    assert edited.endswith(after)
    made = edited[len(before) : len(edited) - len(after)].decode(decoded.encoding)
    assert re.split("\r*\n", made) == re.split("\r*\n", new)


@examples(500)
@given(content=st.binary(max_size=60), data=st.data())
def test_in_any_bytes_only_the_edited_span_changes(content: bytes, data: st.DataObject) -> None:
    decoded = decode(content)
    if decoded is None or not decoded.text:
        return
    start = data.draw(st.integers(0, len(decoded.text) - 1))
    end = data.draw(st.integers(start + 1, len(decoded.text)))
    old = decoded.text[start:end]
    if (
        decoded.text.count(old) > 1
        or decoded.text.find(old) < start
        or decoded.text[max(start - 1, 0) : start + 1] == "\r\n"
    ):
        return
    if decoded.text[end - 1 : end + 1] == "\r\n":
        return
    head, tail = decoded.encoded(decoded.text[:start]), decoded.encoded_part(decoded.text[end:])
    assert edit(content, old, "XY")[0] == head + decoded.encoded_part("XY") + tail


@examples(300)
@given(text=_PARTS)
def test_a_text_is_found_with_the_quotes_dashes_and_spaces_of_ascii(text: str) -> None:
    wanted = text.translate(str.maketrans("“—\u00a0", '"- '))
    content = f"<<\n{text}>>\n"
    edited, notes = apply_edits(DecodedText(content, "utf-8"), [Edit(f"<<\n{wanted}>>", f"<<\n{wanted}|>>")])
    assert edited.text == f"<<\n{text}|>>\n"
    assert bool(notes) == (text != wanted)
