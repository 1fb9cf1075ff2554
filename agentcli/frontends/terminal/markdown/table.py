"""Lays out a table within the window's columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wcwidth import wcswidth

from agentcli.frontends.terminal.text.fragments import Fragment, lines_of, merged, plain
from agentcli.frontends.terminal.text.wrapping import wrap_line

Cell = list[Fragment]
"""A cell's text; a line break in it stays one."""

NARROWEST = 8  # columns that a wrapped column gets at least
_SEPARATOR = " │ "
_DELIMITER = re.compile(r"\s*(:?)-+(:?)\s*")
_PIPE = re.compile(r"(?<!\\)((?:\\\\)*)\|")


def split_row(source: str) -> list[str]:
    """The cells of a row's source, without the pipes around them and with `\\|` as a plain pipe."""
    inner = _PIPE.sub("\\1\0", source.strip()).removeprefix("\0").removesuffix("\0")
    return [cell.strip().replace("\\|", "|") for cell in inner.split("\0")]


def alignments(source: str) -> list[str] | None:
    """For each column "", "left", "right" or "center", when this is the line below a table's header."""
    found = [_DELIMITER.fullmatch(cell) for cell in split_row(source)]
    sides = {("", ""): "", (":", ""): "left", ("", ":"): "right", (":", ":"): "center"}
    matches = [match for match in found if match is not None]
    return [sides[match[1], match[2]] for match in matches] if len(matches) == len(found) else None


def table_lines(
    header: Sequence[Cell], rows: Sequence[Sequence[Cell]], aligned: Sequence[str], width: int
) -> list[list[Fragment]]:
    """The lines of a table in at most `width` columns; where columns do not fit, `header: value` lines for each row."""
    natural = [
        max([1, *(_width(line) for row in (header, *rows) for line in plain(row[column]).split("\n"))])
        for column in range(len(header))
    ]
    widths = _fitted(natural, width - len(_SEPARATOR) * (len(header) - 1))
    if widths is None:
        return _records(header, rows)
    titles = [[("table_header", text) for _, text in cell] for cell in header]
    rule = "─┼─".join("─" * columns for columns in widths)
    lines = _row_lines(titles, widths, aligned)
    lines.append([("table_rule", rule)])
    for row in rows:
        lines += _row_lines(row, widths, aligned)
    return lines


def _fitted(natural: list[int], available: int) -> list[int] | None:
    """The columns' widths: wide columns share the room that the others leave. None when that is too little."""
    if sum(natural) <= available:
        return natural
    if sum(min(columns, NARROWEST) for columns in natural) > available:
        return None
    widths = list(natural)
    wide = sorted(range(len(natural)), key=lambda column: natural[column])
    left = available
    for place, column in enumerate(wide):
        share = left // (len(wide) - place)
        widths[column] = min(natural[column], max(share, min(natural[column], NARROWEST)))
        left -= widths[column]
    return widths


def _row_lines(row: Sequence[Cell], widths: list[int], aligned: Sequence[str]) -> list[list[Fragment]]:
    cells = [_wrapped(cell, columns) for cell, columns in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(len(cell) for cell in cells)):
        line: list[Fragment] = []
        gap = ""  # spaces and separators are one fragment, and none end a line
        for column, cell in enumerate(cells):
            if column:
                line.append(("", gap))
                line.append(("table_rule", _SEPARATOR.rstrip()))
                gap = " "
            part = cell[number] if number < len(cell) else []
            spare = widths[column] - _width(plain(part))
            before = spare if aligned[column] == "right" else spare // 2 if aligned[column] == "center" else 0
            if part:
                line.append(("", gap + " " * before))
                line += part
                gap = " " * (spare - before)
            else:
                gap += " " * spare
        lines.append(merged(line))
    return lines


def _records(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[list[Fragment]]:
    names = [plain(cell).replace("\n", " ") for cell in header]
    if not rows:
        return [[("table_header", name)] for name in names if name]
    lines: list[list[Fragment]] = []
    for number, row in enumerate(rows):
        if number:
            lines.append([("table_rule", "──")])
        for name, cell in zip(names, row, strict=True):
            title = [("table_header", f"{name}: ")] if name else []
            lines.append(merged([*title, *((roles, text.replace("\n", " ")) for roles, text in cell)]))
    return lines


def _wrapped(cell: Cell, columns: int) -> list[Cell]:
    """Return a cell in lines of at most `columns`, broken between words where that is possible."""
    lines: list[Cell] = []
    for line in lines_of(cell, keeps_last=True):
        fits = _width(plain(line)) <= columns
        lines += [line] if fits else lines_of(wrap_line(line, columns, breaks_words=True), keeps_last=True)
    return lines


def _width(text: str) -> int:
    """Return the columns on the screen, where joined characters count once."""
    return len(text) if text.isascii() else max(0, wcswidth(text))
