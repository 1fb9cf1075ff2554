"""The screen: a transcript that is only ever appended to, and below it a live region that is redrawn.

All moves are relative to the cursor, which stays in the input; nothing above the region is ever rewritten. New text is
written behind the text before it, so that the terminal itself wraps long lines; the region is pushed down by inserted
rows, or, when much arrives at once, erased and drawn again. Codes are those of ECMA-48 and DEC's VT102; a line end goes
out as a bare newline, of which the terminal driver makes return and newline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct
from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import Output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.styles import DummyStyle

from agentcli.frontends.terminal.text.fragments import Fragment, Row, plain
from agentcli.frontends.terminal.text.text_width import advance, is_unsure, row_width, width, with_spaces
from agentcli.frontends.terminal.text.theme import Theme

BRACKETED_PASTE, FOCUS_EVENTS, SYNCHRONIZED = 2004, 1004, 2026
LONGEST_INSERT = 6  # rows; for more, drawing the region again costs less than moving it
# How long a window must have kept its size: tmux tells of it a quarter of a second late when it changes often.
SETTLE_S = 0.3
# From the cursor's row down. Not from the first column: tmux takes that in the first row for the wish to clear the
# window, and keeps in its scrollback what it clears.
ERASE_BELOW = "\r\x1b[K\x1b[C\x1b[J\r"
WRAP_OFF, WRAP_ON = "\x1b[?7l", "\x1b[?7h"


class Frame(Struct, frozen=True):
    """The live region: its rows, already cut to the width, and the cell of the cursor (row, column)."""

    rows: Sequence[Row]
    cursor: tuple[int, int]


class Screen(Renderer):
    """prompt_toolkit's renderer, replaced: `draw_region` gives the rows for a size (columns, most rows)."""

    def __init__(
        self,
        output: Output,
        theme: Theme,
        draw_region: Callable[[int, int], Frame],
        environment: Mapping[str, str],
        draw_later: Callable[[float], None] | None = None,
    ) -> None:
        """`draw_later` has the screen rendered again after so many seconds; without it a resize is drawn at once."""
        self._theme = theme
        self._draw_region = draw_region
        self._reflows = reflows(environment)
        self.synchronizes = False  # until the terminal says so
        self._waiting: list[Fragment] = []  # text for the transcript that is not on the screen yet
        self._held: list[Fragment] = []  # of it, a line of unsure width that has no end yet
        self._rows: list[Row] = []
        self._row = self._column = 0
        self._size = Size(rows=0, columns=0)
        self._draw_later = draw_later
        self._resized_at = 0.0  # seconds; 0 when the window rests
        self._size_seen = self._size
        self._printed_column = 0  # cells of the last printed line, wrapped or not
        self._modes_are_on = False
        super().__init__(DummyStyle(), output)

    # The transcript

    def print(self, fragments: Sequence[Fragment]) -> None:
        """Add to the transcript with the next frame; tabs become the spaces up to their stop."""
        for roles, text in fragments:
            text, self._printed_column = with_spaces(text, self._printed_column)
            if text:
                self._waiting.append((roles, text))

    @property
    def held_text(self) -> str:
        """The end of the transcript that waits for the end of its line."""
        return "".join(text for _, text in self._held)

    @property
    def at_line_start(self) -> bool:
        last = next((text for _, text in reversed(self._held + self._waiting) if text), "")
        return last.endswith("\n") if last else self._tail is None

    # What prompt_toolkit calls

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        if is_done:
            self.finish()
            return
        if self._is_resizing():
            return
        self._fit()
        self._switch_modes(on=True)
        self._show(self._draw_region(self._size.columns, max(1, self._size.rows - 2)))
        self.output.flush()

    def finish(self) -> None:
        """Write all of the transcript, take the region away and leave the cursor at the start of a line."""
        self._fit()
        self._waiting = self._held + self._waiting
        self._held = []
        if not self.at_line_start:
            self._waiting.append(("", "\n"))
        self._show(Frame([], (0, 0)), is_last=True)
        self.reset()

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Take the region away; what comes next draws it again where it stood.

        Before another program gets the terminal. A window that is resized is let alone until it rests.
        """
        if not leave_alternate_screen and self._draw_later is not None:  # how a resize calls
            self._resized_at = time.monotonic()
            return
        self._resized_at = 0.0
        size = self.output.get_size()
        if self._rows:
            above, wraps = self._rows_above_cursor(size.columns)
            if wraps or above + 1 >= size.rows:
                self._start_line()  # the row above the region may have left the window
            self._write([_up(above), ERASE_BELOW])
        self._rows, self._row, self._column = [], 0, 0
        if size.columns != self._size.columns:
            self._resize_tail(size.columns)
        self._size = size
        self._switch_modes(on=False)
        self.output.flush()

    def hand_over(self) -> None:
        """Before another program writes: the transcript is written whole, the line in progress ends here."""
        self.finish()

    def clear(self) -> None:
        """Draw the region again (Ctrl-L); the transcript stays where it is."""
        self.erase()

    def reset(self, _scroll: bool = False, leave_alternate_screen: bool = True) -> None:
        super().reset(_scroll, leave_alternate_screen)
        self._start_line()
        self._rows, self._row, self._column = [], 0, 0
        self._switch_modes(on=False)
        self.output.flush()

    def request_absolute_cursor_position(self) -> None:
        """Not needed: all moves are relative."""

    # Drawing

    def _show(self, frame: Frame, *, is_last: bool = False) -> None:
        if self._size.rows < 2:
            self._start_line()  # the region's row is all there is in the window
        text = self._text_to_write(is_last=is_last)
        rows = [list(row) for row in frame.rows]
        before = len(self._rows)
        if not text:
            out = self._redraw_changed(rows, frame.cursor) if rows or before else []
        else:
            begun = self._rows_begun(text)
            room = self._size.rows - before - 1
            # A region that shrinks as text comes stays at its place only when both happen in one go.
            is_simple = 0 < before <= len(rows) and begun <= min(room, LONGEST_INSERT) and not _unsure(text)
            if text == [("", "\n")] and self._tail is not None:  # ends the line and shows nothing
                self._start_line()
                out = self._redraw_changed(rows, frame.cursor)
            elif is_simple:
                out = self._insert(text, begun)
                out += self._redraw_changed(rows, frame.cursor)
            else:
                out = self._redraw_all(text, rows, frame.cursor)
        if self.synchronizes and (text or len(out) > 8):
            out = [f"\x1b[?{SYNCHRONIZED}h", *out, f"\x1b[?{SYNCHRONIZED}l"]
        self._write(out)

    def _insert(self, text: list[Fragment], begun: int) -> list[str]:
        """Text behind the transcript's end, the region moved down by the rows it begins."""
        height = len(self._rows)
        out = []
        if begun:
            below = height - 1 - self._row
            out += [_down(below), "\r", "\n" * begun, _up(height - 1 + begun), f"\x1b[{begun}L"]
            up = 1 if self._tail is not None else 0
        else:
            up = self._row + 1
        if self._tail is not None:
            out += [_up(up), *self._go_to_tail()]
        out.append(self._written(text))
        out += [_down(1 + self._row), _to(self._column)]
        return out

    def _redraw_all(self, text: list[Fragment], rows: list[Row], cursor: tuple[int, int]) -> list[str]:
        out = [_up(self._row), ERASE_BELOW] if self._rows else []
        if self._tail is not None:
            out += [_up(1), *self._go_to_tail()]
        out += [self._written(text), "\n"]
        out.append("\n".join(self._painted(row) for row in rows))
        self._rows = rows
        if rows:
            self._row, self._column = cursor
            out += [_up(len(rows) - 1 - self._row), _to(self._column)]
        else:
            self._row = self._column = 0
        return out

    def _redraw_changed(self, rows: list[Row], cursor: tuple[int, int]) -> list[str]:
        """The rows that differ from those on the screen, from their first difference on."""
        out: list[str] = []
        at = self._row
        column = self._column
        before = self._rows
        if len(rows) > len(before) > 0:
            out += [_down(len(before) - 1 - at), "\n" * (len(rows) - len(before))]
            at, column = len(rows) - 1, 0
        for number, row in enumerate(rows):
            old = before[number] if number < len(before) else []
            if row == old and before:
                continue
            # tmux takes cells erased from the middle on for a part of the line when it wraps it anew.
            shrinks = self._reflows and row_width(old) > row_width(row)
            is_guess = shrinks or _unsure(old) or _unsure(row)
            same, rest = (0, row) if is_guess or number >= len(before) else _difference(old, row)
            if before or number == 0:
                out += [_vertical(number - at)]
            else:
                out.append("\n" * (number - at))
                column = 0
            out += [_to(same) if same != column else "", "\x1b[K" if is_guess else "", self._painted(rest)]
            if not is_guess and row_width(old) > row_width(row):
                out.append("\x1b[K")
            at, column = number, -1
        if len(before) > len(rows):
            out += [_vertical(len(rows) - at), ERASE_BELOW]
            at, column = len(rows), 0
        if rows:
            if at != cursor[0] or column != cursor[1]:
                out += [_vertical(cursor[0] - at), _to(cursor[1])]
            self._row, self._column = cursor
        else:
            self._row = self._column = 0
        self._rows = rows
        return out

    def _painted(self, row: Row) -> str:
        """A row of the region; one that a terminal may find too long must not go on in the next."""
        text = self._theme.paint(row)
        return f"{WRAP_OFF}{text}{WRAP_ON}" if _unsure(row) else text

    # The end of the transcript

    def _start_line(self) -> None:
        self._tail: int | None = None  # the column behind an unfinished line, None when there is none
        self._tail_end: Fragment = ("", "")  # its last character, with the marks on it
        self._line: list[str] = []  # the unfinished line

    def _text_to_write(self, *, is_last: bool) -> list[Fragment]:
        """What can be written now: all but an unfinished line on whose width terminals disagree.

        Such a line is written whole: from its middle nobody could say where to go on.
        """
        text, self._waiting, self._held = self._held + self._waiting, [], []
        if is_last or not text:
            return text
        for position in range(len(text) - 1, -1, -1):
            roles, part = text[position]
            end = part.rfind("\n") + 1
            unfinished = [(roles, part[end:]), *text[position + 1 :]] if end else []
            if end or position == 0:
                line = unfinished if end else text
                if any(is_unsure(said) for _, said in line):
                    self._held = [fragment for fragment in line if fragment[1]]
                    text = [*text[:position], (roles, part[:end])] if end else []
                break
        return [fragment for fragment in text if fragment[1]]

    def _rows_begun(self, text: Sequence[Fragment]) -> int:
        """How many rows `text` begins below the transcript's last row."""
        begun, tail = 0, self._tail
        for _, part in text:
            lines = part.split("\n")
            for number, line in enumerate(lines):
                if number:
                    begun, tail = begun + (tail is None), None
                if line:
                    begun += tail is None
                    rows, tail = advance(tail or 0, line, self._size.columns)
                    begun += rows
        return begun

    def _written(self, text: Sequence[Fragment]) -> str:
        """`text` painted, from where the transcript ends; its last line end is left out until a line follows it."""
        parts: list[Fragment] = []
        is_first_row = self._tail is None  # the cursor stands at the start of a fresh row
        for roles, part in text:
            for number, line in enumerate(part.split("\n")):
                if number:
                    if self._tail is None:
                        if not is_first_row:
                            parts.append((roles, "\n"))
                        is_first_row = False
                    self._start_line()
                if not line:
                    continue
                if self._tail is None:
                    if not is_first_row:
                        parts.append((roles, "\n"))
                    is_first_row = False
                _, self._tail = advance(self._tail or 0, line, self._size.columns)
                self._line.append(line)
                last = _last_character(line)
                self._tail_end = (roles, last) if width(last) else (self._tail_end[0], self._tail_end[1] + last)
                parts.append((roles, line))
        return self._theme.paint(parts)

    def _go_to_tail(self) -> list[str]:
        """From its row to the end of the unfinished line."""
        assert self._tail is not None
        if self._tail < self._size.columns:
            return [_to(self._tail)]
        # The row is full: only writing its last cell again makes the terminal wrap what follows softly.
        roles, last = self._tail_end
        return [_to(max(0, self._size.columns - width(last))), self._theme.paint([(roles, last)])]

    # Sizes and modes

    def _is_resizing(self) -> bool:
        """True while the window may still have another size than the one that is told.

        Nothing is written then: moves would count rows as they no longer are. Once it rests, they can be computed.
        """
        if self._draw_later is None:
            return False
        now, size = time.monotonic(), self.output.get_size()
        if size != self._size_seen:
            is_first = not self._size_seen.rows
            self._size_seen, self._resized_at = size, 0.0 if is_first else now
        if not self._resized_at:
            return False
        if (left := self._resized_at + SETTLE_S - now) > 0:
            self._draw_later(left)
            return True
        self.erase()
        return False

    def _fit(self) -> None:
        if self.output.get_size() != self._size:
            self.erase()

    def _rows_above_cursor(self, columns: int) -> tuple[int, bool]:
        """Of the region, in a window of so many columns, and whether any row of the region is wrapped there.

        Rather too few than too many: above is the transcript.
        """
        if columns == self._size.columns or not self._reflows:
            return self._row, False
        texts = [plain(row) for row in self._rows]
        wraps = [advance(0, text, columns)[0] for text in texts]
        wraps_before_cursor, _ = advance(0, _through(texts[self._row], self._column), columns)
        return self._row + sum(wraps[: self._row]) + wraps_before_cursor, any(wraps)

    def _resize_tail(self, columns: int) -> None:
        if self._tail is None:
            return
        if self._reflows:
            _, self._tail = advance(0, "".join(self._line), columns)
        else:
            self._start_line()  # where the line ends now is the terminal's secret: it goes on in a new row

    def _switch_modes(self, *, on: bool) -> None:
        if self._modes_are_on != on:
            self._modes_are_on = on
            letter = "h" if on else "l"
            self.output.write_raw(f"\x1b[?{BRACKETED_PASTE}{letter}\x1b[?{FOCUS_EVENTS}{letter}")

    def _write(self, parts: Sequence[str]) -> None:
        if text := "".join(parts):
            self.output.write_raw(text)


def reflows(environment: Mapping[str, str]) -> bool:
    """Whether this terminal is known to wrap lines anew when its width changes."""
    known = (
        "TMUX", "KITTY_WINDOW_ID", "VTE_VERSION", "WT_SESSION", "ITERM_SESSION_ID", "ALACRITTY_WINDOW_ID",
        "WEZTERM_PANE", "KONSOLE_VERSION", "GHOSTTY_RESOURCES_DIR",
    )  # fmt: skip
    within = ("XTERM_VERSION", "STY", "INSIDE_EMACS")  # terminals that run in others and leave such marks of them
    is_tmux = environment.get("TERM", "").startswith("tmux")  # also from another machine
    return (is_tmux or any(environment.get(name) for name in known)) and not any(
        environment.get(name) for name in within
    )


def _difference(old: Row, new: Row) -> tuple[int, Row]:
    """The column of the first difference, and the new row from there on."""
    column = 0
    for number, fragment in enumerate(new):
        before = old[number] if number < len(old) else ("", "")
        if fragment == before:
            column += width(fragment[1])
            continue
        if fragment[0] != before[0] or not (fragment[1].isascii() and before[1].isascii()):
            return column, new[number:]
        same = next(
            (n for n, (a, b) in enumerate(zip(fragment[1], before[1], strict=False)) if a != b),
            min(len(fragment[1]), len(before[1])),
        )
        return column + same, [(fragment[0], fragment[1][same:]), *new[number + 1 :]]
    return column, []


def _unsure(text: Sequence[Fragment]) -> bool:
    return any(is_unsure(part) for _, part in text)


def _last_character(text: str) -> str:
    """With the marks on it; all of the text when it is made of marks."""
    start = len(text) - 1
    while start and not width(text[start]):
        start -= 1
    return text[start:]


def _through(text: str, column: int) -> str:
    """Up to the character that stands in a column, and with it."""
    return text[: 1 + sum(end <= column for end in accumulate(map(width, text)))]


def _up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 1 else "\x1b[A" if rows == 1 else ""


def _down(rows: int) -> str:
    return f"\x1b[{rows}B" if rows > 1 else "\x1b[B" if rows == 1 else ""


def _vertical(rows: int) -> str:
    return _down(rows) if rows > 0 else _up(-rows)


def _to(column: int) -> str:
    return f"\x1b[{column + 1}G" if column else "\r"
