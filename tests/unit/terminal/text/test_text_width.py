"""Cells of text, and where rows end."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcwidth import wcwidth

from agentcli.frontends.terminal.text.fragments import (
    advance,
    clipped,
    has_disputed_width,
    plain,
    row_width,
    width,
    with_spaces,
    wrapped_tail,
)

# Control characters never get here (see printable.py).
TEXT = st.text(
    st.one_of(
        st.sampled_from("ab \t\n日本🎉\u0301\u200d\ufe0f"),
        st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]),
    )
)
LINE = TEXT.map(lambda text: text.replace("\n", "").replace("\t", ""))


@given(st.lists(st.tuples(st.sampled_from(["", "bold"]), TEXT)), st.integers(0, 300))
def test_a_clipped_row_fits_and_says_that_something_is_missing(fragments: list[tuple[str, str]], columns: int) -> None:
    row = clipped(fragments, columns)
    first_line = plain(fragments).replace("\t", " ").partition("\n")[0]
    assert row_width(row) <= columns
    if width(first_line) <= columns:
        assert plain(row) == first_line
    elif columns:
        assert plain(row).endswith("…")
        assert first_line.startswith(plain(row)[:-1])
        assert row_width(row) >= columns - 1


@pytest.mark.parametrize("parts", [["12345", "6"], ["1234", "5", "6"], ["123456"], ["12345", "日"], ["1234", "日"]])
def test_what_is_cut_between_two_fragments_has_an_ellipsis_too(parts: list[str]) -> None:
    assert plain(clipped([("", part) for part in parts], 5)) == "1234…"


@given(st.integers(1, 40), LINE, st.integers(1, 40))
def test_text_leads_to_the_same_place_in_one_piece_and_in_many(column: int, text: str, columns: int) -> None:
    column = min(column, columns)
    rows, at = 0, column
    for character in text:
        more, at = advance(at, character, columns)
        rows += more
    assert (rows, at) == advance(column, text, columns)
    assert at <= columns


@given(TEXT, st.integers(1, 300), st.integers(1, 6))
@example("日本", 1, 3)
def test_the_end_of_a_text_fits_the_rows_it_is_given(text: str, columns: int, most: int) -> None:
    rows = wrapped_tail(text, columns, most)
    assert len(rows) <= most
    assert all(row_width(row) <= columns for row in rows)


@given(st.integers(1, 2_000), st.integers(1, 60))
def test_a_growing_line_moves_only_when_a_row_is_full(length: int, columns: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(length))
    rows = [text[start : start + columns] for start in range(0, length, columns)]
    assert [*map(plain, wrapped_tail(text, columns, 3))] == rows[-3:]


def test_the_end_of_a_text_is_broken_at_words() -> None:
    assert [*map(plain, wrapped_tail("first I must think about this", 12, 3))] == [
        "first I must",
        "think about",
        "this",
    ]


@given(st.lists(st.text("ab日\u0301\t\n", max_size=6)))
def test_tabs_are_the_same_in_one_piece_and_in_many(parts: list[str]) -> None:
    text, column = "", 0
    for part in parts:
        spaces, column = with_spaces(part, column)
        text += spaces
    assert (text, column) == with_spaces("".join(parts))
    assert "\t" not in text


def test_tabs_stop_at_every_eighth_cell() -> None:
    assert with_spaces("a\tb\n日本\tc\n12345678\td") == ("a       b\n日本    c\n12345678        d", 17)


@pytest.mark.parametrize("text", ["⚠\ufe0f", "👩\u200d🚀", "🇩🇪", "👍🏽", "नमस्ते", "a\xadb", "ᬓᬵ", "\u2028", "☰"])
def test_widths_that_terminals_disagree_on_are_known(text: str) -> None:
    assert has_disputed_width(text)


@pytest.mark.parametrize("text", ["plain", "é", "e\u0301", "日本語", "한국어", "🎉", "ไทย", "עברית", "─│█", "—…“”"])
def test_widths_that_terminals_agree_on_are_sure(text: str) -> None:
    assert not has_disputed_width(text)
    assert width(text) == sum(max(0, wcwidth(character)) for character in text)
