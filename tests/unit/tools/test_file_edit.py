"""file_edit: changes what is named, and no other byte."""

from __future__ import annotations

import os
import re
import stat

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentcli.errors import ToolError
from agentcli.tools.builtin.files import MAX_EDITABLE_BYTES
from agentcli.tools.builtin.toolset import Edit
from agentcli.tools.text.apply import apply_edits, describe_nearest
from agentcli.tools.text.encoding import DecodedText, decode
from tests.properties import examples
from tests.unit.tools.bench import Bench


def test_a_unique_string_is_replaced_and_the_diff_is_the_answer(bench: Bench) -> None:
    path = bench.put("a.py", "one\ntwo\nthree\n")
    output = bench.call("file_edit", path="a.py", old_string="two", new_string="2")
    assert path.read_text() == "one\n2\nthree\n"
    assert output.content == "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert output.structured == {"path": "a.py", "diff": output.content}
    assert output.summary == "+1 -1"


def test_a_string_that_stands_twice_is_refused_with_its_lines(bench: Bench) -> None:
    path = bench.put("a", "x = 1\ny\nx = 1\n")
    error = bench.fails("file_edit", path="a", old_string="x = 1", new_string="x = 2")
    assert "2 times (lines 1, 3)" in str(error)
    assert "replace_all" in str(error)
    assert path.read_text() == "x = 1\ny\nx = 1\n"


def test_replace_all_replaces_every_one(bench: Bench) -> None:
    path = bench.put("a", "ab ab\nab")
    bench.call("file_edit", path="a", old_string="ab", new_string="abab", replace_all=True)
    assert path.read_text() == "abab abab\nabab"


def test_replacing_by_nothing_deletes(bench: Bench) -> None:
    path = bench.put("a", "one\ntwo\nthree\n")
    bench.call("file_edit", path="a", old_string="two\n", new_string="")
    assert path.read_text() == "one\nthree\n"


def test_several_edits_apply_one_after_the_other(bench: Bench) -> None:
    path = bench.put("a", "one two\n")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "1 two", "new_string": "12"}]
    bench.call("file_edit", path="a", edits=edits)
    assert path.read_text() == "12\n"


def test_of_several_edits_none_is_written_when_one_does_not_apply(bench: Bench) -> None:
    path = bench.put("a", "one\ntwo\n")
    edits = [{"old_string": "one", "new_string": "1"}, {"old_string": "three", "new_string": "3"}]
    error = bench.fails("file_edit", path="a", edits=edits)
    assert "Edit 2 of 2" in str(error)
    assert path.read_text() == "one\ntwo\n"


def test_an_edit_of_several_may_replace_all(bench: Bench) -> None:
    path = bench.put("a", "a a b\n")
    edits = [{"old_string": "a", "new_string": "c", "replace_all": True}, {"old_string": "b", "new_string": "d"}]
    bench.call("file_edit", path="a", edits=edits)
    assert path.read_text() == "c c d\n"


@pytest.mark.parametrize("given", [{}, {"old_string": "a"}, {"new_string": "a"}, {"edits": []}])
def test_a_call_without_an_edit_says_what_is_needed(bench: Bench, given: dict[str, object]) -> None:
    bench.put("a", "a")
    error = bench.fails("file_edit", path="a", **given)
    assert error.kind == "invalid_parameters"
    assert "old_string and new_string, or edits" in str(error)


@pytest.mark.parametrize(
    "beside", [{"old_string": "one", "new_string": "1"}, {"old_string": "one"}, {"new_string": "1"}]
)
def test_an_edit_beside_several_is_an_error_and_not_passed_over(bench: Bench, beside: dict[str, str]) -> None:
    path = bench.put("a", "one\ntwo\n")
    error = bench.fails("file_edit", path="a", edits=[{"old_string": "two", "new_string": "2"}], **beside)
    assert error.kind == "invalid_parameters"
    assert "put this one into edits, too" in str(error)
    assert path.read_text() == "one\ntwo\n"


def test_empty_strings_beside_several_edits_say_nothing(bench: Bench) -> None:
    path = bench.put("a", "one\ntwo\n")
    edits = [{"old_string": "two", "new_string": "2"}]
    bench.call("file_edit", path="a", edits=edits, old_string="", new_string="")
    assert path.read_text() == "one\n2\n"


def test_the_same_old_and_new_string_is_an_error(bench: Bench) -> None:
    bench.put("a", "one\r\n")
    assert "the same" in str(bench.fails("file_edit", path="a", old_string="one\n", new_string="one\n"))
    error = bench.fails("file_edit", path="a", old_string="one\n", new_string="one\r\n")
    assert "line ends alone" in str(error)


def test_an_empty_old_string_is_an_error_that_names_file_write(bench: Bench) -> None:
    bench.put("a", "one")
    assert "file_write" in str(bench.fails("file_edit", path="a", old_string="", new_string="x"))


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        pytest.param(
            b"a\r\nb\r\nc\r\n", "a\nb", "a\nx\nb", b"a\r\nx\r\nb\r\nc\r\n", id="LF in the call, CRLF in the file"
        ),
        pytest.param(b"a\nb\n", "a\r\nb", "a\r\nx", b"a\nx\n", id="CRLF in the call, LF in the file"),
        pytest.param(b"a\r\nb\r\n", "\nb", "\nc", b"a\r\nc\r\n", id="begins with a line break"),
        pytest.param(b"a\r\nb\r\n", "\n", "\n\n", None, id="a line break alone, twice"),
        pytest.param(b"a\r\nb", "\n", "\n\n", b"a\r\n\r\nb", id="a line break alone"),
        pytest.param(b"a\r\nb\r\n", "a\n", "a\n\n", b"a\r\n\r\nb\r\n", id="ends with a line break"),
        pytest.param(b"a\r\nb\n", "a", "a\nx", b"a\r\nx\r\nb\n", id="mixed, in a CRLF line"),
        pytest.param(b"a\r\nb\nc\r\n", "b", "b\nx", b"a\r\nb\nx\nc\r\n", id="mixed, in an LF line"),
        pytest.param(b"a\r\nb\nc\r\n", "a\nb\nc", "1\n2\n3", b"1\r\n2\n3\r\n", id="mixed, each end is kept"),
        pytest.param(b"a\r\nb\r\n", "a\r\nb\r\n", "a\nb\n", b"a\nb\n", id="CRLF becomes LF where that is asked for"),
        pytest.param(b"a\nb\n", "a\nb", "a\r\nc", b"a\r\nc\n", id="LF becomes CRLF where that is asked for"),
        pytest.param(
            b"A\nk1\r\nk2\nB\n", "A\nk1\r\nk2\nB\n", "k1\r\nk2\nB2\n", b"k1\r\nk2\nB2\n", id="mixed, as they stand"
        ),
        pytest.param(
            b"A\nk1\r\nk2\nB\n",
            "A\nk1\nk2\nB\n",
            "A2\nNEW\nk1\nk2\nB2\n",
            b"A2\nNEW\nk1\r\nk2\nB2\n",
            id="mixed, lines that stay keep theirs",
        ),
        pytest.param(b"a\r\nb\r\nc", "c", "c\nd", b"a\r\nb\r\nc\r\nd", id="in a last line without an end"),
        pytest.param(b"a\r\nb\r\n", "a\nb\n", "", b"", id="everything"),
        pytest.param(b"a\rb\r\nc\r\n", "c", "d", b"a\rb\r\nd\r\n", id="a lone CR stays"),
        pytest.param(b"a\r\r\nb\r\n", "b", "c", b"a\r\r\nc\r\n", id="a doubled CR stays"),
        pytest.param(b"one\ntwo", "two", "2", b"one\n2", id="no last newline"),
        pytest.param(b"one\ntwo", "one", "1", b"1\ntwo", id="no last newline, edit before"),
        pytest.param(b"\xef\xbb\xbfone\n", "one", "two", b"\xef\xbb\xbftwo\n", id="BOM"),
        pytest.param(b"\xef\xbb\xbfone\r\n", "one\n", "two\n", b"\xef\xbb\xbftwo\r\n", id="BOM and CRLF"),
        pytest.param(b"caf\xe9 a\n", "caf\xe9 a", "caf\xe9 b", b"caf\xe9 b\n", id="Latin-1"),
        pytest.param(
            b"\xff\xfe" + "é\r\na\r\n".encode("utf-16-le"),
            "a\n",
            "✓\nb\n",
            b"\xff\xfe" + "é\r\n✓\r\nb\r\n".encode("utf-16-le"),
            id="UTF-16 LE",
        ),
        pytest.param(
            b"\xfe\xff" + "a\n".encode("utf-16-be"), "a", "b", b"\xfe\xff" + "b\n".encode("utf-16-be"), id="UTF-16 BE"
        ),
        pytest.param("a\u2028b\x0cc\n".encode(), "c", "d", "a\u2028b\x0cd\n".encode(), id="other separators"),
    ],
)
def test_bytes_outside_the_edit_stay(bench: Bench, before: bytes, old: str, new: str, after: bytes | None) -> None:
    path = bench.put("a", before)
    if after is None:
        bench.fails("file_edit", path="a", old_string=old, new_string=new)
        after = before
    else:
        bench.call("file_edit", path="a", old_string=old, new_string=new)
    assert path.read_bytes() == after


def test_a_character_the_encoding_does_not_have_is_an_error(bench: Bench) -> None:
    path = bench.put("a", b"caf\xe9\n")
    error = bench.fails("file_edit", path="a", old_string="caf", new_string="✓")
    assert "cp1252" in str(error)
    assert path.read_bytes() == b"caf\xe9\n"


def test_a_lone_surrogate_is_an_error_not_a_crash(bench: Bench) -> None:
    bench.put("a", b"a\n")
    bench.fails("file_edit", path="a", old_string="a", new_string="\ud800")


def test_the_mode_stays(bench: Bench) -> None:
    path = bench.put("run.sh", "echo one\n")
    path.chmod(0o755)
    bench.call("file_edit", path="run.sh", old_string="one", new_string="two")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_a_file_that_changed_is_edited_as_it_is_now(bench: Bench) -> None:
    path = bench.put("a", "one\ntwo\n")
    bench.call("file_read", path="a")
    path.write_text("zero\none\ntwo\n")
    bench.call("file_edit", path="a", old_string="two", new_string="2")
    assert path.read_text() == "zero\none\n2\n"


def test_a_string_that_went_away_is_an_error(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    bench.call("file_read", path="a")
    path.write_text("other\n")
    assert bench.fails("file_edit", path="a", old_string="one", new_string="x").kind == "not_found"


def test_the_error_shows_the_nearest_lines_with_numbers(bench: Bench) -> None:
    bench.put("a.py", "import os\n\ndef total(items):\n    return sum(items)\n")
    error = bench.fails("file_edit", path="a.py", old_string="def total(item):\n    return", new_string="x")
    assert error.kind == "not_found"
    assert "3\tdef total(items):\n4\t    return sum(items)" in str(error)


@pytest.mark.parametrize("lines", [50, 100_000])
def test_the_nearest_lines_are_where_most_of_the_lines_sought_stand(lines: int) -> None:
    block = "    for item in items:\n        total += item\n    return total\n"
    text = "x = 1\n" * lines + f"def first(items):\n{block}" + "y = 2\n" * lines + f"def second(items):\n{block}"
    wanted = f"def second(items):\n{block.replace('+=', '=+')}"
    assert f"nearest lines are:\n{2 * lines + 5}\tdef second(items):\n" in describe_nearest(text, wanted)


def test_a_word_that_is_off_is_found_in_a_long_file() -> None:
    text = "".join(f"value_{number} = compute_{number}(argument)\n" for number in range(30_000))
    assert "\n25001\tvalue_25000 = compute_25000(argument)" in describe_nearest(
        text, "value_25000 = compute_25000(arguments)"
    )


def test_bytes_that_are_not_utf_8_are_shown_as_a_sign_and_stay(bench: Bench) -> None:
    path = bench.put("a", "née ✓✓✓ ".encode() + b"\xff\xfe one\n")
    output = bench.call("file_edit", path="a", old_string="one", new_string="two")
    assert path.read_bytes() == "née ✓✓✓ ".encode() + b"\xff\xfe two\n"
    assert "+née ✓✓✓ \ufffd\ufffd two" in str(output.content)
    bench.call("file_edit", path="a", old_string="✓ \ufffd\ufffd two", new_string="✓ \ufffd\ufffd three")
    assert path.read_bytes() == "née ✓✓✓ ".encode() + b"\xff\xfe three\n"


def test_the_sign_for_such_bytes_does_not_take_their_place(bench: Bench) -> None:
    before = "née née ✓✓✓ ".encode() + b"\xff one\n"
    path = bench.put("a", before)
    error = bench.fails("file_edit", path="a", old_string="✓ \ufffd one", new_string="\ufffd two ✓")
    assert "no characters" in str(error)
    bench.call("file_read", path="a")
    assert "no characters" in str(bench.fails("file_write", path="a", content="née née ✓✓✓ \ufffd two\n"))
    assert path.read_bytes() == before


def test_a_file_too_large_to_be_edited_is_an_error_that_says_what_to_use(bench: Bench) -> None:
    with bench.put("a").open("wb") as file:
        file.truncate(MAX_EDITABLE_BYTES + 1)
    error = bench.fails("file_edit", path="a", old_string="a", new_string="b")
    assert error.kind == "validation_error"
    assert "sed -i" in str(error)


def test_the_error_says_when_nothing_is_similar(bench: Bench) -> None:
    bench.put("a", "alpha\n")
    assert "Nothing in it is similar" in str(bench.fails("file_edit", path="a", old_string="0123456", new_string="x"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        pytest.param("x = 1;" * 300_000, "x = 1; x = 1;" * 30, id="one line of megabytes"),
        pytest.param("x = 1\n" * 19_000, "x  = 1\n" * 19_000, id="thousands of lines"),
        pytest.param("word " * 30 + "\n" + ("other words " * 10 + "\n") * 19_000, "word, " * 30, id="a long file"),
    ],
)
def test_the_nearest_lines_are_found_soon_and_fit_a_page(text: str, wanted: str) -> None:
    assert len(describe_nearest(text, wanted)) < 31_000


@pytest.mark.parametrize("content", [b"\0\1\2", b"\xff\xfea"])
def test_a_binary_file_is_not_edited(bench: Bench, content: bytes) -> None:
    bench.put("a", content)
    assert "binary" in str(bench.fails("file_edit", path="a", old_string="a", new_string="b"))


def test_a_missing_file_and_a_directory_are_errors(bench: Bench) -> None:
    bench.put("src/a")
    assert bench.fails("file_edit", path="gone", old_string="a", new_string="b").kind == "not_found"
    assert "directory" in str(bench.fails("file_edit", path="src", old_string="a", new_string="b"))


def test_the_preview_is_the_diff_and_an_edit_that_cannot_apply_fails_there(bench: Bench) -> None:
    path = bench.put("a", "one\n")
    assert bench.preview("file_edit", path="a", old_string="one", new_string="two").endswith("-one\n+two\n")
    assert path.read_text() == "one\n"
    with pytest.raises(ToolError, match="not in the file"):
        bench.preview("file_edit", path="a", old_string="two", new_string="x")


def test_no_other_file_is_left_behind(bench: Bench) -> None:
    bench.put("a", "one\n")
    bench.call("file_edit", path="a", old_string="one", new_string="two")
    assert os.listdir(bench.ws) == ["a"]


def test_many_places_in_a_large_file_are_soon_replaced() -> None:
    text = "name = value\r\n" * 40_000
    after = edited(text, [Edit("name", "other\nname", replace_all=True)])
    assert after == "other\r\nname = value\r\n" * 40_000


# Lines of few letters, so that a string often stands in several places or across line ends.
_WORDS = st.text("ab é", max_size=4)
_ENDS = st.sampled_from(["\n", "\r\n"])
_FILES = st.lists(st.tuples(_WORDS, _ENDS), max_size=8).flatmap(
    lambda lines: _WORDS.map(lambda last: "".join(map("".join, lines)) + last)
)
_ENCODINGS = st.sampled_from(
    [
        ("utf-8", b""),
        ("utf-8", b"\xef\xbb\xbf"),
        ("latin-1", b""),
        ("utf-16-le", b"\xff\xfe"),
        ("utf-16-be", b"\xfe\xff"),
    ]
)
_STRINGS = st.text("ab é\n", max_size=6)


def edited(text: str, edits: list[Edit]) -> str:
    """A UTF-8 file's text after edits; its bytes must say the same."""
    return apply_edits(DecodedText(text, "utf-8"), edits)[0].text


def lf(text: str) -> str:
    return text.replace("\r\n", "\n")


@examples(500)
@given(text=_FILES, start=st.integers(0, 20), length=st.integers(1, 6), new=_STRINGS, replace_all=st.booleans())
@example(text="a\r\nb\r\n", start=1, length=2, new="\n\nb", replace_all=False)
@example(text="a\r\n\r\n\r\nb", start=1, length=2, new="\n", replace_all=True)
@example(text="a\r\nb\na\nb\n", start=0, length=4, new="", replace_all=False)
def test_an_edit_is_the_plain_replace_on_text_with_lf_ends(
    text: str, start: int, length: int, new: str, replace_all: bool
) -> None:
    old = lf(text)[start : start + length]
    overlapping = len(re.findall(f"(?={re.escape(old)})", lf(text))) != lf(text).count(old)
    if not old or old == new or overlapping:
        return
    exact = [found.start() for found in re.finditer(f"(?<!\r(?=\n)){re.escape(old)}", text)]
    count = lf(text).count(old)
    if replace_all or count == 1:
        after = edited(text, [Edit(old, new, replace_all)])
        assert lf(after) == lf(text).replace(old, new)
        assert "\r" not in after.replace("\r\n", "")
    elif len(exact) == 1:  # the others have other line ends
        after = edited(text, [Edit(old, new)])
        head, tail = text[: exact[0]], text[exact[0] + len(old) :]
        assert (after[: len(head)], after[len(after) - len(tail) :]) == (head, tail)
        assert lf(after) == lf(head) + new + lf(tail)
    else:
        with pytest.raises(ToolError, match=f"occurs {len(exact) or count} times"):
            edited(text, [Edit(old, new)])


@examples(250)
@given(before=_FILES, old=_STRINGS, after=_FILES, new=_STRINGS, end=_ENDS)
def test_text_before_and_after_an_edit_keeps_its_line_ends(
    before: str, old: str, after: str, new: str, end: str
) -> None:
    assume(old != new)
    text = f"{before}<{old.replace(chr(10), end)}>{after}"
    made = edited(text, [Edit(f"<{old}>", f"<{new}>")])
    assert made.startswith(f"{before}<")
    assert made.endswith(f">{after}")


@examples(200)
@given(before=_FILES, after=_FILES, encoding=_ENCODINGS)
def test_an_edit_of_a_file_changes_no_byte_outside_it(before: str, after: str, encoding: tuple[str, bytes]) -> None:
    name, bom = encoding
    head, tail = f"{before}é".encode(name), after.encode(name)
    content = bom + head + "<old>".encode(name) + tail
    decoded = decode(content)
    assert decoded is not None
    edited, _ = apply_edits(decoded, [Edit("<old>", "")])
    assert edited.encoded(edited.text) == bom + head + tail


def test_a_byte_order_mark_that_does_not_exist_is_not_found(bench: Bench) -> None:
    bench.put("a", "one\n")
    assert bench.fails("file_edit", path="a", old_string="\ufeffone", new_string="1").kind == "not_found"


@examples(300)
@given(content=st.binary(max_size=60) | st.binary(max_size=20).map(lambda tail: b"\xff\xfe" + tail))
@example(content=b"\xff\xfe\0\0a\0\0\0")
@example(content=b"\xef\xbb\xbf\xef\xbb\xbfa")
@example(content=b"\xfe\xff\xfe\xff")
def test_decoded_text_encodes_to_the_same_bytes(content: bytes) -> None:
    decoded = decode(content)
    assert decoded is None or decoded.encoded(decoded.text) == content


def test_decode_names_the_encoding_and_keeps_the_bom() -> None:
    assert decode(b"\xef\xbb\xbfa") == DecodedText("a", "utf-8", b"\xef\xbb\xbf")
    assert decode(b"a") == DecodedText("a", "utf-8")
    assert decode(b"\xe9") == DecodedText("é", "cp1252", is_certain=False)
