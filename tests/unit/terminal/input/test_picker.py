"""The list to choose from, in any window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentcli.frontends.terminal.input.prompt import MAX_OPTIONS, Picker
from agentcli.frontends.terminal.text.fragments import plain, row_width

TEXT = st.one_of(st.text(), st.text("日本🎉a\u0301\x1b[31m\x07\t\n"))


def picker(count: int = 20) -> Picker:
    return Picker("Pick", [(f"option {n}", f"detail {n % 3}") for n in range(count)])


def shown(chooser: Picker, columns: int = 80, most: int = 20) -> list[str]:
    return [plain(row) for row in chooser.rows(columns, most)]


@given(
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=12),
    TEXT,
    st.integers(-30, 30),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
    st.integers(-1, 12),
)
def test_rows_fit_any_window_whatever_they_say(
    title: str, options: list[tuple[str, str]], typed: str, by: int, columns: int, most: int
) -> None:
    chooser = Picker(title, options)
    chooser.type(typed)
    chooser.move(by)
    rows = chooser.rows(columns, most)
    assert len(rows) <= max(0, most)
    assert all(row_width(row) <= columns for row in rows)
    text = "".join(plain(row) for row in rows)
    assert not any(character < " " or "\x7f" <= character < "\xa0" for character in text)


@given(st.integers(1, 40), st.lists(st.integers(-50, 50)), st.integers(3, 20))
def test_the_chosen_option_is_always_in_sight(count: int, moves: list[int], most: int) -> None:
    chooser = picker(count)
    at = 0
    for by in moves:
        chooser.move(by)
        at = (at + by) % count
        assert chooser.marked_index == at
        marked = [line for line in shown(chooser, most=most) if line.startswith("❯")]
        assert [" ".join(line.split()) for line in marked] == [f"❯ option {at} detail {at % 3}"]


def test_typing_narrows_and_backspace_widens() -> None:
    chooser = picker()
    chooser.move(5)
    for letter in "OPTION 1":
        chooser.type(letter)
    assert [chooser.matching_indices[0], chooser.marked_index] == [1, 1]
    chooser.type("7")
    assert chooser.matching_indices == [17]
    chooser.type("x")
    assert chooser.marked_index is None
    assert "  no match" in shown(chooser)
    chooser.move(1)
    chooser.type("")
    assert chooser.marked_index == 17
    for _ in range(20):
        chooser.type("")
    assert len(chooser.matching_indices) == 20


def test_all_words_count_in_any_order_and_the_last_row_says_how_many_there_are() -> None:
    chooser = picker()
    assert len(shown(chooser, most=30)) == MAX_OPTIONS + 2
    chooser.type("2 detail opt")
    assert chooser.matching_indices == [2, 5, 8, 11, 12, 14, 17]
    assert shown(chooser, most=30)[-1] == "  7 choices · Enter to select · Esc to cancel"


def test_only_a_detail_that_was_cut_is_repeated_in_full_below_the_marked_option() -> None:
    options = [("small", "✓ key      1M  $2 in"), ("large", "✓ key    200k  $9 in")]
    assert sum("$2" in plain(row) for row in Picker("Pick", options).rows(60, 20)) == 1
    assert sum("$2" in plain(row) for row in Picker("Pick", options).rows(26, 20)) == 1


def test_a_paste_narrows_the_list_unless_nothing_matches_it() -> None:
    chooser = picker()
    assert chooser.paste("option 1")
    before = shown(chooser)
    assert not chooser.paste("-a-secret")
    assert shown(chooser) == before
