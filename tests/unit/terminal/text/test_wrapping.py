"""Prose broken at words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.terminal.text.fragments import Fragment, merged, plain, width, wrap_line, wrapped
from agentcli.frontends.terminal.text.markdown import MarkdownStream
from tests.properties import examples


def markdown(source: str, columns: int, *, wraps: bool = True) -> list[str]:
    stream = MarkdownStream(width=lambda: columns, wraps=wraps)
    return plain([*stream.feed(source), *stream.close()]).removesuffix("\n").split("\n")


def rows(text: str, columns: int, hang: int | None = None) -> list[str]:
    return plain(wrapped([("", text)], columns, hang=hang)).split("\n")


def test_rows_end_between_words() -> None:
    assert markdown("one two three four", 9) == ["one two", "three", "four"]
    assert markdown("one two **three four** five", 13) == ["one two three", "four five"]
    assert markdown("one two three four", 9, wraps=False) == ["one two three four"]


def test_rows_of_lists_and_quotes_hang_from_their_marks() -> None:
    assert markdown("- one two three", 9) == ["- one two", "  three"]
    assert markdown("10. one two three", 11) == ["10. one two", "    three"]
    assert markdown("- [x] one two three", 13) == ["- [x] one two", "      three"]
    assert markdown("- a\n  - one two three", 11) == ["- a", "  - one two", "    three"]
    assert markdown("> one two three", 9) == ["> one two", "> three"]
    assert markdown("> - one two three", 11) == ["> - one two", ">   three"]


def test_code_and_addresses_stay_whole() -> None:
    code = "print('a line that is longer than the window')"
    assert markdown(f"```\n{code}\n```", 20) == [code]
    assert markdown("see https://example.com/a/b/c/d/e now", 20) == ["see https://example.com/a/b/c/d/e now"]
    address = "https://example.com/a/b/c/d/e"
    assert markdown(f"at the end of a row {address}", 24) == ["at the end of a row", address]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("这是中文，标点。", ["这是中", "文，标", "点。"]),
        ("这是中，文", ["这是", "中，文"]),
        ("这是（中）文", ["这是", "（中）", "文"]),
        ("日本ー語です", ["日本ー", "語です"]),
        ("**日本**語です", ["日本語", "です"]),
        ("日本abc語", ["日本", "abc語"]),
    ],
)
def test_scripts_without_spaces_break_between_characters_but_not_before_punctuation(
    text: str, expected: list[str]
) -> None:
    assert markdown(text, 6 if "（" not in text else 7) == expected


def test_a_list_of_names_hangs_from_its_second_column() -> None:
    assert rows("  /model NAME  choose the model that answers", 32) == [
        "  /model NAME  choose the model",
        "               that answers",
    ]
    assert rows("  /model  [NAME]  choose the model that answers", 30) == [
        "  /model [NAME]",
        "    choose the model that",
        "    answers",
    ]
    assert rows("✗ one two three", 9) == ["✗ one two", "  three"]
    assert rows("one two three", 9, hang=2) == ["one two", "  three"]
    assert rows("  one two three", 9) == ["  one two", "  three"]


@examples(200)
@given(
    st.lists(st.tuples(st.sampled_from(["", "bold"]), st.text("ab é日。（ \t-", max_size=12)), max_size=20),
    st.integers(2, 30),
)
def test_nothing_is_lost_and_no_row_that_begins_with_a_fitting_word_is_too_long(
    text: list[Fragment], columns: int
) -> None:
    out = wrap_line(text, columns)
    shown = plain(out)
    assert "".join(shown.split()) == "".join(plain(text).split())
    for row in shown.split("\n"):
        if row.strip() == row and "\t" not in row and all(width(word) <= columns for word in row.split(" ")):
            assert width(row) <= columns
    assert all(part for _, part in merged(out))
