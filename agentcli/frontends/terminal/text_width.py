"""How many cells text takes in a terminal, and where the terminal breaks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from wcwidth import wcwidth

from agentcli.frontends.terminal.fragments import Fragment

# Characters on whose width terminals disagree: joiners, variation selectors, flags, skin tones, jamo, Indic clusters.
_UNSURE = re.compile(
    "[\u0900-\u0dff\u1000-\u109f\u1160-\u11ff\u1780-\u17ff\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)
TAB = 8


def is_unsure(text: str) -> bool:
    """Whether a terminal may count other cells for this text than `width` does."""
    return not text.isascii() and _UNSURE.search(text) is not None


def width(text: str) -> int:
    """Cells of a text without line ends."""
    if text.isascii():
        return len(text)
    return sum(max(0, wcwidth(character)) for character in text)


def advance(column: int, text: str, columns: int) -> tuple[int, int]:
    """Where writing `text` (no line ends) from `column` on leads: rows begun by wrapping, and the new column.

    A column equal to `columns` is the terminal's pending wrap: the row is full, the next one has not begun.
    """
    if text.isascii():
        end = column + len(text)
        if end <= columns:
            return 0, end
        rows = (end - 1) // columns
        return rows, end - rows * columns
    rows = 0
    for character in text:
        cells = min(max(0, wcwidth(character)), columns)
        if column + cells > columns:
            rows, column = rows + 1, 0
        column += cells
    return rows, column


def clipped(fragments: Iterable[Fragment], columns: int) -> list[Fragment]:
    """One row: cut at `columns` cells with an ellipsis, nothing after a line end, tabs as single spaces."""
    row: list[Fragment] = []
    left = columns
    for roles, text in fragments:
        text, end, _ = text.replace("\t", " ").partition("\n")
        cells = width(text)
        if cells > left:
            row.append((roles, _fitting(text, left - 1) + "…" if left > 0 else ""))
            return [part for part in row if part[1]]
        row.append((roles, text))
        left -= cells
        if end:
            break
    return [part for part in row if part[1]]


def _fitting(text: str, cells: int) -> str:
    if text.isascii():
        return text[: max(0, cells)]
    for position, character in enumerate(text):
        cells -= max(0, wcwidth(character))
        if cells < 0:
            return text[:position]
    return text


def wrapped_tail(text: str, columns: int, most_rows: int) -> list[str]:
    """The last rows of a text as a terminal would wrap it; looks only at as much of its end as can be shown."""
    rows: list[str] = []
    for line in reversed(text[-columns * most_rows * 2 :].rstrip("\n").split("\n")[-most_rows:]):
        rows = _rows_of(line.expandtabs(TAB), columns) + rows
        if len(rows) >= most_rows:
            break
    return rows[-most_rows:]


def _rows_of(line: str, columns: int) -> list[str]:
    rows, row, column = [], "", 0
    for character in line:
        cells = max(0, wcwidth(character))
        if column + cells > columns and row:
            rows.append(row)
            row, column = "", 0
        row += character
        column += cells
    return [*rows, row]


def row_width(row: Sequence[Fragment]) -> int:
    return sum(width(text) for _, text in row)
