"""The transcript and the live region as a terminal shows them, in windows of any size, whatever is printed when."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import DummyOutput
from wcwidth import wcwidth

from agentcli.frontends.terminal.output.screen import Frame, Screen, reflows
from agentcli.frontends.terminal.text.fragments import Fragment, clipped, plain, width
from agentcli.frontends.terminal.text.theme import PALETTES, ROLES, Theme
from tests.properties import examples

REFLOWING = {"TMUX": "/tmp/tmux,1,0"}
Cell = tuple[Any, int]  # what pyte shows in it, and how many columns it takes
Line = list[Cell]


class Terminal(pyte.Screen):
    """pyte with a scrollback, wide characters that never stand across the edge, and a memory of which rows are wrapped.

    `reflows` wraps lines anew when the width changes, as tmux 3.4 does; else rows are cut.
    """

    def __init__(self, columns: int, lines: int, *, reflows: bool = False) -> None:
        self.scrollback: list[Any] = []
        self.reflows = reflows
        self.written = ""
        super().__init__(columns, lines)
        self._stream = pyte.Stream(self)

    def feed(self, text: str) -> None:
        self.written += text
        self._stream.feed(text.replace("\n", "\r\n"))

    def draw(self, data: str) -> None:
        for character in data:
            cells = min(max(0, wcwidth(character)), self.columns)
            if not cells:
                self._combine(character)
                continue
            if self.cursor.x + cells > self.columns:
                self.carriage_return()
                self.linefeed()
                self.buffer[self.cursor.y].continues = True
            row, x = self.buffer[self.cursor.y], self.cursor.x
            if x and row[x].data == "":  # the other half of a wide character goes
                row[x - 1] = row[x - 1]._replace(data=" ")
            if x + cells < self.columns and row[x + cells].data == "":
                row[x + cells] = row[x + cells]._replace(data=" ")
            super().draw(character)
            row.used = max(getattr(row, "used", 0), self.cursor.x)

    def _combine(self, mark: str) -> None:
        row, x = self.buffer[self.cursor.y], self.cursor.x - 1
        if x > 0 and row[x].data == "":
            x -= 1
        if x >= 0:
            row[x] = row[x]._replace(data=row[x].data + mark)

    def index(self) -> None:
        if self.cursor.y == self.lines - 1:
            self.scrollback.append(self.buffer[0])
        super().index()

    def erase_in_display(self, how: int = 0, *args: Any, **kwargs: Any) -> None:
        super().erase_in_display(how, *args, **kwargs)
        for y in range(self.cursor.y + 1, self.lines):
            self.buffer[y].continues, self.buffer[y].used = False, 0

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        super().erase_in_line(how, private)
        row = self.buffer[self.cursor.y]
        row.used = min(getattr(row, "used", 0), self.cursor.x)
        if self.cursor.x == 0:
            row.continues = False

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        assert lines is not None
        assert columns is not None
        rows = [*self.scrollback, *(self.buffer[y] for y in range(self.lines))]
        at = len(self.scrollback) + self.cursor.y
        top = len(self.scrollback)
        if columns != self.columns and self.reflows:
            rows, at, self.cursor.x = self._rewrapped(rows, at, columns)
            top = max(0, min(at, len(rows) - self.lines))
        elif columns < self.columns:
            for row in rows[top:]:
                for x in [x for x in row if x >= columns]:
                    del row[x]
        if self.reflows and lines > self.lines:
            top = max(0, top - (lines - self.lines))
        top = max(top, at - lines + 1)  # rows below the cursor go first
        self.scrollback = rows[:top]
        self.buffer.clear()
        for y, row in enumerate(rows[top : top + lines]):
            self.buffer[y] = row
        self.lines, self.columns = lines, columns
        self.cursor.y, self.cursor.x = at - top, min(self.cursor.x, columns - 1)

    def _rewrapped(self, rows: list[Any], at: int, columns: int) -> tuple[list[Any], int, int]:
        """All rows at another width; where the cursor is then. It stays on its cell, or at the end of its line."""
        wrapped: list[Any] = []
        cursor = (0, 0)
        line: Line = []
        for number, row in enumerate(rows):
            cells = _cells(row, min(self.columns, getattr(row, "used", 0)), trimmed=False)
            if number == at:
                sought: float = len(line) + _index_at(cells, self.cursor.x)
                if self.cursor.x >= sum(size for _, size in cells):
                    sought = float("inf")
            line += cells
            if number + 1 < len(rows) and getattr(rows[number + 1], "continues", False):
                continue
            has_cursor = wrapped_from(rows, number) <= at <= number
            row_at, x = len(wrapped), 0
            wrapped.append(self._new_row(continues=False))
            for index, (char, size) in enumerate(line):
                size = min(size, columns)
                if x + size > columns:
                    wrapped.append(self._new_row(continues=True))
                    row_at, x = row_at + 1, 0
                if has_cursor and index == sought:
                    cursor = (row_at, x)
                wrapped[-1][x] = char
                if size == 2:
                    wrapped[-1][x + 1] = char._replace(data="")
                x += size
                wrapped[-1].used = x
            if has_cursor and sought >= len(line):
                cursor = (row_at, x)
            line = []
        return wrapped, *cursor

    def _new_row(self, *, continues: bool) -> Any:
        self.buffer.pop(-1, None)
        row = self.buffer[-1]
        del self.buffer[-1]
        row.continues, row.used = continues, 0
        return row

    @property
    def all_rows(self) -> list[tuple[Line, bool]]:
        """From the first in the scrollback to the last of the window: the cells, and whether it goes on a row."""
        rows = [*self.scrollback, *(self.buffer[y] for y in range(self.lines))]
        return [(_cells(row, self.columns), getattr(row, "continues", False)) for row in rows]

    @property
    def texts(self) -> list[str]:
        return [_text(cells) for cells, _ in self.all_rows]

    @property
    def cursor_row(self) -> int:
        return len(self.scrollback) + self.cursor.y


def wrapped_from(rows: Sequence[Any], number: int) -> int:
    """The first row of a line whose last row this is."""
    while number and getattr(rows[number], "continues", False):
        number -= 1
    return number


def _cells(row: Any, columns: int, *, trimmed: bool = True) -> Line:
    """The row's characters, without blanks at its end."""
    cells: Line = []
    x = 0
    while x < columns:
        wide = row[x + 1].data == "" if x + 1 < columns else False
        cells.append((row[x], 2 if wide else 1))
        x += cells[-1][1]
    while trimmed and cells and cells[-1][0].data == " " and not cells[-1][0].reverse and not cells[-1][0].underscore:
        cells.pop()
    return cells


def _index_at(cells: Line, column: int) -> int:
    for index, (_, size) in enumerate(cells):
        column -= size
        if column < 0:
            return index
    return len(cells)


def _text(cells: Line) -> str:
    return "".join(char.data for char, _ in cells)


class Output(DummyOutput):
    def __init__(self, columns: int, rows: int) -> None:
        self.size = Size(rows=rows, columns=columns)
        self.data = ""

    def get_size(self) -> Size:
        return self.size

    def write_raw(self, data: str) -> None:
        self.data += data


@dataclass
class Stage:
    """A screen, and the terminal it is on."""

    columns: int = 20
    rows: int = 8
    palette: str = "none"
    environment: dict[str, str] = field(default_factory=dict)
    frame: Callable[[int, int], Frame] = lambda columns, most: Frame([[("", "> "[:columns])]], (0, 0))

    def __post_init__(self) -> None:
        self.output = Output(self.columns, self.rows)
        self.said: list[Fragment] = []
        self.size_shown, self.was_resized = self.output.size, False
        self.theme = Theme(self.palette)
        self.screen = Screen(self.output, self.theme, self._drawn, environment=self.environment)
        self.terminal = Terminal(self.columns, self.rows, reflows=reflows(self.environment))

    def _drawn(self, columns: int, most: int) -> Frame:
        return self.frame(columns, most)

    def print(self, *texts: str | Fragment) -> None:
        fragments = [("", text) if isinstance(text, str) else text for text in texts]
        self.screen.print(fragments)
        self.said += with_spaces(fragments)
        if plain(self.said) and not plain(self.said).endswith("\n"):
            self.said.append(("", "\n"))

    def show(self) -> str:
        """Draw a frame; gives what was written."""
        if self.was_resized and self.output.size == self.size_shown:
            self.screen.erase()  # the signal says so, when the size no longer does
        self.size_shown, self.was_resized = self.output.size, False
        self.screen.render(cast("Any", None), cast("Layout", None))
        return self._flush()

    def _flush(self) -> str:
        data, self.output.data = self.output.data, ""
        self.terminal.feed(data)
        return data

    def finish(self) -> None:
        self.screen.finish()
        self._flush()

    def resize(self, columns: int, rows: int, *, is_told: bool = True) -> None:
        """The window changes; the program is told, as by SIGWINCH, or sees it at the next frame."""
        self.output.size = Size(rows=rows, columns=columns)
        self.was_resized = not is_told
        self.terminal.resize(rows, columns)
        if is_told:
            self.screen.erase()
            self._flush()

    @property
    def transcript(self) -> list[tuple[Line, bool]]:
        """The rows above the region."""
        return self.terminal.all_rows[: self.top]

    @property
    def top(self) -> int:
        return self.terminal.cursor_row - self.shown.cursor[0]

    @property
    def most(self) -> int:
        return max(1, self.output.size.rows - 2)

    @property
    def shown(self) -> Frame:
        return self.frame(self.output.size.columns, self.most)


def drawn(text: str, columns: int, rows: int = 1) -> list[tuple[Line, bool]]:
    """The rows of a text that is written in one go."""
    terminal = Terminal(columns, rows)
    terminal.feed(text)
    return terminal.all_rows[: terminal.cursor_row + 1]


def expected_transcript(stage: Stage) -> list[tuple[Line, bool]]:
    return drawn(stage.theme.paint(stage.said), stage.output.size.columns)[:-1]


def with_spaces(fragments: Sequence[Fragment]) -> list[Fragment]:
    column, result = 0, []
    for roles, text in fragments:
        said = ""
        for character in text:
            if character == "\t":
                character = " " * (8 - column % 8)
            column = 0 if character == "\n" else column + width(character)
            said += character
        result.append((roles, said))
    return result


def check(stage: Stage) -> None:
    """The transcript as if written in one go, the region below it, the cursor where the frame says, nothing below."""
    frame, columns = stage.shown, stage.output.size.columns
    expected = expected_transcript(stage)
    assert shown_rows(stage.transcript) == shown_rows(expected)
    assert stage.transcript == expected
    below = stage.terminal.all_rows[stage.top :]
    region = [drawn(stage.theme.paint(row), columns)[0][0] for row in frame.rows]
    assert [_text(cells) for cells, _ in below[: len(region)]] == [_text(cells) for cells in region]
    assert [cells for cells, _ in below[: len(region)]] == region
    assert not any(cells or continues for cells, continues in below[len(region) :])
    assert not any(continues for _, continues in below)
    assert min(stage.terminal.cursor.x, columns - 1) == frame.cursor[1]
    assert len(region) <= stage.most
    assert not re.search(r"\x1b\[[23]J|\x1b\[\d*;\d*H|\x1bc", stage.terminal.written)


def shown_rows(rows: Sequence[tuple[Line, bool]]) -> list[str]:
    return [("⤷" if continues else "") + _text(cells) for cells, continues in rows]


# What is printed

LETTERS = st.sampled_from("abcXYZ019 .,-(){}" * 3 + "éß–日本語한글🎉🚀")
MARKED = st.sampled_from(["e\u0301", "a\u0308\u0323", "日\u3099", "x\u0336"])
WORDS = st.one_of(
    st.text(LETTERS, max_size=12),
    st.lists(MARKED, max_size=5).map("".join),
    st.integers(1, 700).map(lambda n: "x" * n),
    st.integers(1, 40).map(lambda n: "日" * n),
    st.sampled_from(["\n", "\n\n", "\t", "a\tb", "日\tb\n", "  \n", "\n" * 9, "", "line\n" * 12]),
)
STYLES = st.one_of(st.just(""), st.sampled_from(ROLES), st.lists(st.sampled_from(ROLES), max_size=2).map(" ".join))
FRAGMENTS = st.lists(st.tuples(STYLES, WORDS), max_size=4)


@st.composite
def regions(draw: st.DrawFn) -> Callable[[int, int], Frame]:
    """Draws a live region of some rows in any window."""
    rows = draw(
        st.lists(st.lists(st.tuples(STYLES, st.text(LETTERS, max_size=30)), max_size=3), min_size=1, max_size=9)
    )
    fill = draw(st.integers(0, 70))
    row, column = draw(st.integers(0, 99)), draw(st.integers(0, 300))

    def frame(columns: int, most: int) -> Frame:
        some = [clipped(cells, columns) for cells in [*rows, *([[("muted", "fill " * 9)]] * fill)][:most]]
        return Frame(some, (row % len(some), column % columns))

    return frame


STEPS = st.lists(st.one_of(FRAGMENTS, regions(), st.none(), st.integers(1, 5)), max_size=16)
SIZES = st.tuples(st.one_of(st.integers(1, 12), st.integers(1, 300)), st.one_of(st.integers(2, 8), st.integers(2, 60)))


def play(stage: Stage, steps: Sequence[Any], *, shows: bool = True) -> None:
    """Fragments are printed, a function becomes the region, of which a number prints rows, None shows a frame."""
    for step in steps:
        if isinstance(step, int):
            rows = stage.frame(stage.columns, stage.rows).rows[:step]
            stage.print(*(part for row in rows for part in (*row, ("", "\n"))))
        elif callable(step):
            stage.frame = step
        elif step is None:
            stage.show()
        else:
            stage.print(*step)
    if shows:
        stage.show()


@pytest.mark.slow
@examples(200)
@given(SIZES, st.sampled_from(sorted(PALETTES)), STEPS, st.booleans())
def test_frames_at_any_time_leave_the_transcript_as_if_written_in_one_go(
    size: tuple[int, int], palette: str, steps: list[Any], synchronizes: bool
) -> None:
    stage = Stage(*size, palette=palette)
    stage.screen.synchronizes = synchronizes
    play(stage, steps)
    check(stage)
    assert stage.show() == ""


@examples(200)
@given(SIZES, STEPS)
def test_finishing_leaves_the_transcript_alone_and_the_cursor_below_it(size: tuple[int, int], steps: list[Any]) -> None:
    stage = Stage(*size)
    play(stage, steps)
    stage.finish()
    rows = stage.terminal.all_rows
    at = stage.terminal.cursor_row
    assert rows[:at] == expected_transcript(stage)
    assert stage.terminal.cursor.x == 0
    assert not any(cells for cells, _ in rows[at:])


RESIZED = st.lists(
    st.one_of(FRAGMENTS, regions(), st.none(), st.tuples(st.just("size"), SIZES, st.booleans())), max_size=16
)


@examples(200)
@given(SIZES, RESIZED, st.sampled_from([REFLOWING, {}]))
def test_no_text_is_lost_when_the_window_changes(
    size: tuple[int, int], steps: list[Any], environment: dict[str, str]
) -> None:
    stage = Stage(*size, environment=environment)
    is_cut = size[0] == 1  # by the terminal
    for step in steps:
        if isinstance(step, tuple):
            _, (columns, rows), is_told = step
            is_cut |= columns == 1 or (columns < stage.terminal.columns and not stage.terminal.reflows)
            stage.resize(columns, rows, is_told=is_told)
        else:
            play(stage, [step], shows=False)
    stage.show()
    columns = stage.terminal.columns
    assert stage.terminal.cursor.x == stage.shown.cursor[1]
    region = [drawn(stage.theme.paint(row), columns)[0][0] for row in stage.shown.rows]
    below = stage.terminal.all_rows[stage.top :][: len(region)]
    assert [_text(cells) for cells, _ in below] == [_text(cells) for cells in region]
    if not is_cut:
        remains = iter(letters("".join(stage.terminal.texts[: stage.top])))
        assert all(character in remains for character in letters(plain(stage.said))), "each character, in its order"


def letters(text: str) -> str:
    return "".join(text.split())


@st.composite
def small_regions(draw: st.DrawFn) -> Callable[[int, int], Frame]:
    texts = draw(st.lists(st.text(LETTERS, max_size=25), min_size=1, max_size=3))
    row, column = draw(st.integers(0, 9)), draw(st.integers(0, 30))

    def frame(columns: int, most: int) -> Frame:
        rows = [clipped([("", text)], columns) for text in texts]
        return Frame(rows, (row % len(rows), column % columns))

    return frame


ROOMY = st.tuples(st.just("size"), st.tuples(st.integers(4, 90), st.integers(30, 50)), st.booleans())


@examples(200)
@given(ROOMY, st.lists(st.one_of(FRAGMENTS, small_regions(), st.none(), ROOMY), max_size=16))
def test_a_resize_leaves_no_trace_in_terminals_that_rewrap(first: Any, steps: list[Any]) -> None:
    stage = Stage(*first[1], environment=REFLOWING)
    play(stage, [[("", "line\n" * 60)]])
    for step in steps:
        if isinstance(step, tuple):
            stage.resize(*step[1], is_told=step[2])
        else:
            play(stage, [step], shows=False)
    stage.show()
    check(stage)


@pytest.mark.parametrize("environment", [REFLOWING, {}])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_window_of_hardly_any_rows_loses_nothing(rows: int, environment: dict[str, str]) -> None:
    stage = Stage(12, rows, environment=environment)
    stage.print("one")
    stage.show()
    stage.print(" and two ")
    stage.show()
    stage.resize(12, 1)
    stage.print("three\nfour")
    stage.show()
    stage.resize(12, 5)
    stage.print(" five")
    stage.show()
    assert letters("".join(stage.terminal.texts)) == "oneandtwothreefourfive>"


# Single cases


def one_row(text: str) -> Callable[[int, int], Frame]:
    return lambda columns, most: Frame([[("", text)]], (0, 0))


def test_tabs_reach_their_stop_behind_wide_characters_too() -> None:
    stage = Stage(40)
    stage.print("日本\tx\n", "日", "本\tx\n", "e\u0301\tx")
    stage.show()
    assert stage.terminal.texts[:3] == ["日本    x", "日本    x", "e\u0301       x"]


def test_what_is_printed_before_the_first_frame_is_there_at_the_end() -> None:
    stage = Stage()
    stage.print("too early\nto be shown")
    stage.finish()
    assert stage.terminal.texts[:3] == ["too early", "to be shown", ""]
    assert stage.output.size.columns == 20


def test_a_row_of_unsure_width_cannot_reach_into_the_next() -> None:
    stage = Stage(10, frame=one_row("⚠\ufe0f " * 5))
    assert "\x1b[?7l⚠\ufe0f ⚠\ufe0f ⚠\ufe0f ⚠\ufe0f ⚠\ufe0f \x1b[?7h" in stage.show()
    stage.frame = one_row("⚠\ufe0f ok")
    assert "\x1b[K\x1b[?7l⚠\ufe0f ok\x1b[?7h" in stage.show()


def test_a_line_is_wrapped_by_the_terminal() -> None:
    stage = Stage(10)
    stage.print("a line of ", "thirty-one characters\n")
    stage.show()
    assert shown_rows(stage.transcript) == ["a line of", "⤷thirty-one", "⤷ character", "⤷s"]


def test_erasing_at_the_top_of_the_window_does_not_clear_it() -> None:
    """tmux keeps what `ESC[J` at the first column of the first row erases."""
    stage = Stage()
    stage.show()
    stage.screen.erase()
    stage.print("line\n" * 20)
    stage.show()
    stage.finish()
    assert "\r\x1b[J" not in stage.terminal.written
    assert stage.terminal.written.count("\x1b[K\x1b[C\x1b[J") == 2


def test_another_program_gets_the_terminal_without_our_modes_and_on_a_line_of_its_own() -> None:
    stage = Stage()
    assert stage.show().startswith("\x1b[?2004h\x1b[?1004h")
    stage.print("a line without an end")
    stage.show()
    stage.screen.erase()
    stage.terminal.feed(stage.output.data)
    assert stage.output.data.endswith("\x1b[?2004l\x1b[?1004l")
    stage.output.data = ""
    stage.terminal.feed("its output\n")
    stage.screen.reset()
    stage.print(" goes on")
    assert stage.show().startswith("\x1b[?2004h\x1b[?1004h")
    assert stage.terminal.texts[:4] == ["a line without an en", "d", "its output", " goes on"]


def test_after_ctrl_l_the_region_is_drawn_again_in_its_place() -> None:
    stage = Stage()
    stage.print("text\n")
    stage.show()
    stage.screen.clear()
    assert stage.show()
    assert stage.terminal.texts[:3] == ["text", ">", ""]


def test_frames_are_bracketed_where_the_terminal_synchronizes() -> None:
    stage = Stage()
    stage.screen.synchronizes = True
    stage.print("text\nmore\n")
    written = stage.show()
    assert written.count("\x1b[?2026h") == written.count("\x1b[?2026l") <= 1


def test_typing_a_letter_writes_that_letter() -> None:
    stage = Stage(frame=lambda columns, most: Frame([[("prompt", "› "), ("", "a")]], (0, 3)))
    stage.show()
    stage.frame = lambda columns, most: Frame([[("prompt", "› "), ("", "ab")]], (0, 4))
    assert stage.show() == "b\x1b[5G"


def test_rows_that_are_printed_where_they_stand_are_not_written_again() -> None:
    stage = Stage(frame=lambda columns, most: Frame([[("bold", "one")], [("", "two")], [("", "> ")]], (2, 2)))
    stage.show()
    stage.print(("bold", "one"), "\ntwo\n")
    stage.frame = lambda columns, most: Frame([[("", "> ")]], (0, 2))
    assert stage.show() == ""
    check(stage)


@pytest.mark.parametrize(
    ("environment", "known"),
    [
        ({"TMUX": "x"}, True),
        ({"KITTY_WINDOW_ID": "1"}, True),
        ({}, False),
        ({"VTE_VERSION": "7000", "XTERM_VERSION": "XTerm(390)"}, False),
        ({"KITTY_WINDOW_ID": "1", "STY": "1.screen"}, False),
    ],
)
def test_terminals_that_rewrap_are_known(environment: dict[str, str], known: bool) -> None:
    assert reflows(environment) is known


def test_a_row_that_grew_longer_than_the_window_takes_nothing_from_the_transcript() -> None:
    stage = Stage(30, 12, environment=REFLOWING, frame=lambda c, m: Frame([[("", "x" * 20)]], (0, min(20, c - 1))))
    stage.print("complete\n")
    stage.show()
    stage.resize(20, 12)
    stage.show()
    assert stage.terminal.texts[:2] == ["complete", "x" * 20]
