"""Draws the screen: an append-only transcript, and below it a live region that is redrawn.

All moves are relative to the cursor. New transcript lines, which the terminal wraps, are inserted above the region;
when many arrive at once, the region is erased and drawn again. Codes are those of ECMA-48 and DEC's VT102.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any

from msgspec import Struct
from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import Output
from prompt_toolkit.renderer import Renderer
from prompt_toolkit.styles import DummyStyle

from agentcli.frontends.terminal.text import fragments
from agentcli.frontends.terminal.text.fragments import Fragment, Row, lines_of, merged, plain, row_width, rows_of, width
from agentcli.frontends.terminal.text.theme import Theme

BRACKETED_PASTE, FOCUS_EVENTS, SYNCHRONIZED = 2004, 1004, 2026
MAX_INSERTED_ROWS = 6  # for more rows, drawing the region again is cheaper than moving it
# Nothing is drawn until a window has kept its size this long: tmux reports frequent changes a quarter second late.
SETTLE_S = 0.3
# Erases the cursor's row, then from its second column to the bottom: if this began in the window's first cell, tmux
# would copy the erased text into its scrollback, as if the window were cleared.
ERASE_BELOW = "\r\x1b[K\x1b[C\x1b[J\r"
ERASE_RIGHT, WRAP_OFF, WRAP_ON = "\x1b[K", "\x1b[?7l", "\x1b[?7h"


class Frame(Struct, frozen=True):
    """The live region: its rows, already cut to the width, and the cell of the cursor (row, column)."""

    rows: Sequence[Row]
    cursor: tuple[int, int]


class Screen(Renderer):
    """Replaces prompt_toolkit's renderer. `draw_region` gets columns and maximum rows, `draw_later` seconds."""

    def __init__(
        self,
        output: Output,
        theme: Theme,
        draw_region: Callable[[int, int], Frame],
        *,
        environment: Mapping[str, str],
        draw_later: Callable[[float], None] | None = None,
    ) -> None:
        self._theme, self._draw_region, self._draw_later = theme, draw_region, draw_later
        self._reflows = reflows(environment)
        self.synchronizes = False  # True once the terminal reports that it can
        self._new_lines: list[Fragment] = []  # of the transcript: the next frame prints them
        self._shown_rows: list[Row] = []  # the region's rows as they are on the screen
        self._cursor_row = self._cursor_column = 0  # counted from the region's first cell
        self._drawn_size = self._reported_size = Size(rows=0, columns=0)  # of the window; may still change
        self._resized_at = 0.0  # by `time.monotonic()`; 0 while the window keeps its size
        self._modes_are_on = False  # bracketed paste and focus events
        super().__init__(DummyStyle(), output)

    def print(self, lines: Sequence[Fragment]) -> None:
        """Add lines to the transcript with the next frame; tabs are expanded to spaces."""
        column = 0
        for roles, text in lines:
            text, column = fragments.with_spaces(text, column)
            if text:
                self._new_lines.append((roles, text))
        if column:
            self._new_lines.append(("", "\n"))

    # Called by prompt_toolkit

    def render(self, app: Application[Any], layout: Layout, is_done: bool = False) -> None:
        if is_done:
            self.finish()
            return
        if self._wait_for_resize():
            return
        self._erase_after_resize()
        self._switch_modes(on=True)
        size = self._drawn_size
        frame = self._draw_region(size.columns, max(1, size.rows - 2))  # two rows of the transcript stay
        self._write_frame([*map(list, frame.rows)], frame.cursor)
        self.output.flush()

    def finish(self) -> None:
        """Write all of the transcript, erase the region and leave the cursor at the start of a line."""
        self._erase_after_resize()
        self._write_frame([], (0, 0))
        self.reset()

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Erase the region; the next frame draws it again. Nothing is written while the window is resized."""
        if not leave_alternate_screen and self._draw_later is not None:  # prompt_toolkit's call after a resize
            self._resized_at = time.monotonic()
            return
        self._resized_at = 0.0
        size = self.output.get_size()
        if self._shown_rows:
            self.output.write_raw(up(self._rows_above_cursor(size.columns)) + ERASE_BELOW)
        self._drawn_size = size
        self._leave_region()

    clear = erase  # for Ctrl-L: the transcript stays

    def reset(self, _scroll: bool = False, leave_alternate_screen: bool = True) -> None:
        super().reset(_scroll, leave_alternate_screen)
        self._leave_region()

    def _leave_region(self) -> None:  # it stays on the screen as it is; the next one is drawn below
        self._shown_rows, self._cursor_row, self._cursor_column = [], 0, 0
        self._switch_modes(on=False)
        self.output.flush()

    def request_absolute_cursor_position(self) -> None:
        """Not needed: all moves are relative."""

    def _write_frame(self, rows: list[Row], cursor: tuple[int, int]) -> None:
        """Print the new lines of the transcript, and draw the region below them."""
        lines, self._new_lines = self._reuse_top_rows(self._new_lines), []
        region_rows, line_rows = len(self._shown_rows), rows_of(lines, self._drawn_size.columns)
        has_room = line_rows <= min(self._drawn_size.rows - region_rows - 1, MAX_INSERTED_ROWS)
        if region_rows and not lines:
            out = self._redraw_changed(rows, cursor)
        elif 0 < region_rows <= len(rows) and has_room and not _may_differ_in_width(lines):
            out = [*self._insert(lines, line_rows), *self._redraw_changed(rows, cursor)]
        else:  # no region yet, no room for the lines, or fewer rows, which keep their place if all is drawn at once
            out = self._redraw_all(lines, rows, cursor)
        if self.synchronizes and (lines or len(out) > 8):  # a few codes are drawn too fast to be seen half done
            out = [f"\x1b[?{SYNCHRONIZED}h", *out, f"\x1b[?{SYNCHRONIZED}l"]
        self.output.write_raw("".join(out))

    def _reuse_top_rows(self, lines: list[Fragment]) -> list[Fragment]:
        """Let the region's top rows become transcript if they show its next lines already; return the other lines."""
        new_lines = lines_of(lines)
        both = zip(new_lines, self._shown_rows[: self._cursor_row], strict=False)  # the cursor stays in the region
        same = takewhile(lambda pair: merged(pair[0]) == merged(pair[1]) and not _may_differ_in_width(pair[0]), both)
        if not (count := sum(1 for _ in same)):
            return lines
        self._shown_rows, self._cursor_row = self._shown_rows[count:], self._cursor_row - count
        return [part for line in new_lines[count:] for part in (*line, ("", "\n"))]

    def _insert(self, lines: list[Fragment], line_rows: int) -> list[str]:
        """Return the codes that write lines above the region, which moves down by the `line_rows` that they take."""
        last_row, (roles, last) = len(self._shown_rows) - 1, lines[-1]
        text = self._theme.paint([*lines[:-1], (roles, last.removesuffix("\n"))])
        # Line ends at the bottom scroll the window if it is full; then as many rows are inserted above the region.
        scroll = [down(last_row - self._cursor_row), "\r", "\n" * line_rows]
        insert_rows = [up(last_row + line_rows), f"\x1b[{line_rows}L"]
        return [*scroll, *insert_rows, text, down(1 + self._cursor_row), to_column(self._cursor_column)]

    def _redraw_all(self, lines: list[Fragment], rows: list[Row], cursor: tuple[int, int]) -> list[str]:
        """Return the codes that erase the region, write lines in its place, and draw all of it again below them."""
        out = [up(self._cursor_row), ERASE_BELOW] if self._shown_rows else []
        out += [self._theme.paint(lines), "\n".join(self._painted(row) for row in rows)]
        self._shown_rows, (self._cursor_row, self._cursor_column) = rows, cursor
        if rows:
            out += [up(len(rows) - 1 - self._cursor_row), to_column(self._cursor_column)]
        return out

    def _redraw_changed(self, rows: list[Row], cursor: tuple[int, int]) -> list[str]:
        """Return codes that add rows to the region, repaint rows from their first difference, and erase the surplus."""
        out: list[str] = []
        # The cell of the terminal's cursor while the codes act; a column of -1 is unknown.
        at_row, at_column, old_rows = self._cursor_row, self._cursor_column, self._shown_rows
        if (added := len(rows) - len(old_rows)) > 0:  # line ends at the bottom make room for more rows
            out += [down(len(old_rows) - 1 - at_row), "\n" * added]
            at_row, at_column = len(rows) - 1, 0
            same_below = fragments.common_prefix_length(rows[::-1], old_rows[::-1])
            first_below = len(old_rows) - same_below
            if same_below:  # empty rows are inserted above these, which only move down
                out += [up(same_below + added - 1), f"\x1b[{added}L"]
                at_row = first_below
            old_rows = [*old_rows[:first_below], *([] for _ in range(added)), *old_rows[first_below:]]
        for number, (old_row, row) in enumerate(zip(old_rows, rows, strict=False)):
            if row == old_row:
                continue
            is_shorter = row_width(row) < row_width(old_row)
            # If terminals differ about the width of a character, the column of the first difference is uncertain.
            # When tmux rewraps a line, it treats cells that were erased from the middle on as a part of the line.
            redraws_row = (self._reflows and is_shorter) or _may_differ_in_width(old_row) or _may_differ_in_width(row)
            same_columns, rest = (0, row) if redraws_row else _difference(old_row, row)
            out.append(down(number - at_row))
            out += [to_column(same_columns)] if same_columns != at_column else []
            out += [ERASE_RIGHT if redraws_row else "", self._painted(rest)]
            if is_shorter and not redraws_row:
                out.append(ERASE_RIGHT)
            at_row, at_column = number, -1
        if len(old_rows) > len(rows):
            out += [down(len(rows) - at_row), ERASE_BELOW]
            at_row, at_column = len(rows), 0
        if rows and (at_row != cursor[0] or at_column != cursor[1]):
            out += [down(cursor[0] - at_row), to_column(cursor[1])]
        self._shown_rows, (self._cursor_row, self._cursor_column) = rows, cursor
        return out

    def _painted(self, row: Row) -> str:
        """Paint a row of the region; one that the terminal may count as wider than we do must not wrap."""
        text = self._theme.paint(row)
        return f"{WRAP_OFF}{text}{WRAP_ON}" if _may_differ_in_width(row) else text

    def _wait_for_resize(self) -> bool:
        """Return True, and ask for a later frame, while the window may change its size: rows would be miscounted."""
        if self._draw_later is None:  # a resize is drawn at once
            return False
        now, size = time.monotonic(), self.output.get_size()
        if size != self._reported_size:
            self._resized_at = now if self._reported_size.rows else 0.0  # the first size is not a resize
            self._reported_size = size
        settles_in_s = self._resized_at + SETTLE_S - now if self._resized_at else 0.0
        if settles_in_s > 0:
            self._draw_later(settles_in_s)
        elif self._resized_at:
            self.erase()
        return settles_in_s > 0

    def _erase_after_resize(self) -> None:
        if self.output.get_size() != self._drawn_size:
            self.erase()

    def _rows_above_cursor(self, columns: int) -> int:
        """Count the region's rows above the cursor at another width."""
        # If the terminal might not rewrap its rows, the smaller count is right: erasing more would delete transcript.
        if columns == self._drawn_size.columns or not self._reflows:
            return self._cursor_row
        texts = [plain(row) for row in self._shown_rows[: self._cursor_row + 1]]
        # The cursor's row counts up to the character under the cursor, because the cursor is wrapped with it.
        chars_before_cursor = sum(end <= self._cursor_column for end in accumulate(map(width, texts[-1])))
        texts[-1] = texts[-1][: chars_before_cursor + 1]
        # `advance` returns how many rows a row's text adds when it is wrapped, and a column.
        return self._cursor_row + sum(fragments.advance(0, text, columns)[0] for text in texts)

    def _switch_modes(self, *, on: bool) -> None:
        if self._modes_are_on != on:
            self._modes_are_on = on
            letter = "h" if on else "l"
            self.output.write_raw(f"\x1b[?{BRACKETED_PASTE}{letter}\x1b[?{FOCUS_EVENTS}{letter}")


def down(rows: int) -> str:
    """Move the cursor down, or up for a negative number."""
    count = "" if abs(rows) == 1 else abs(rows)
    return f"\x1b[{count}{'B' if rows > 0 else 'A'}" if rows else ""


def up(rows: int) -> str:
    return down(-rows)


def to_column(column: int) -> str:
    return f"\x1b[{column + 1}G" if column else "\r"


def reflows(environment: Mapping[str, str]) -> bool:
    """Return True if this terminal is known to rewrap lines when its width changes."""
    known = (
        "TMUX", "KITTY_WINDOW_ID", "VTE_VERSION", "WT_SESSION", "ITERM_SESSION_ID", "ALACRITTY_WINDOW_ID",
        "WEZTERM_PANE", "KONSOLE_VERSION", "GHOSTTY_RESOURCES_DIR",
    )  # fmt: skip
    # These do not rewrap, but may run inside a terminal that does, and pass its variables on.
    is_nested = any(map(environment.get, ("XTERM_VERSION", "STY", "INSIDE_EMACS")))
    is_tmux = environment.get("TERM", "").startswith("tmux")  # set even in a session over ssh
    return not is_nested and (is_tmux or any(map(environment.get, known)))


def _difference(old: Row, new: Row) -> tuple[int, Row]:
    """Return the column of the first difference, and the part of the new row from there on, which is to be painted."""
    column = 0
    for number, fragment in enumerate(new):
        before = old[number] if number < len(old) else ("", "")
        if fragment == before:
            column += width(fragment[1])
            continue
        # Other characters than ASCII may combine with the one before, so their fragment is painted as a whole.
        if fragment[0] != before[0] or not (fragment[1].isascii() and before[1].isascii()):
            return column, new[number:]
        same = fragments.common_prefix_length(fragment[1], before[1])
        return column + same, [(fragment[0], fragment[1][same:]), *new[number + 1 :]]
    return column, []


def _may_differ_in_width(text: Sequence[Fragment]) -> bool:
    return any(fragments.has_disputed_width(part) for _, part in text)
