"""Lays out a table within the window's columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from wcwidth import iter_graphemes, wcswidth

from agentcli.frontends.terminal.text.fragments import Fragment, merged, plain

Cell = list[Fragment]
"""A cell's text; a line break in it stays one."""

NARROWEST = 8  # columns that a wrapped column gets at least
_SEPARATOR = " │ "
_DELIMITER = re.compile(r"\s*(:?)-+(:?)\s*")
_PIPE = re.compile(r"(?<!\\)((?:\\\\)*)\|")
_WORD = re.compile(r"\n|[^\S\n]+|\S+")


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
    """A cell in lines of at most `columns`, broken between words where that is possible."""
    lines: list[Cell] = [[]]
    word: Cell = []
    space: Fragment = ("", "")
    used = 0

    def place_word() -> None:
        nonlocal used, space, word
        gap, size = _width(space[1]), sum(_width(text) for _, text in word)
        if word and used and used + gap + size > columns:
            lines.append([])
            used = gap = 0
            space = ("", "")
        if word and used:
            lines[-1].append(space)
            used += gap
        for roles, text in word:
            for piece in _broken(text, columns - used, columns) if used + size > columns else [text]:
                length = _width(piece)
                if used and used + length > columns:
                    lines.append([])
                    used = 0
                lines[-1].append((roles, piece))
                used += length
        word, space = [], ("", "")

    for roles, text in cell:
        for part in _WORD.findall(text):
            if part == "\n":
                place_word()
                lines.append([])
                used = 0
            elif part.isspace():
                place_word()
                space = (roles, " ")
            else:
                word.append((roles, part))
    place_word()
    return lines


def _broken(text: str, first: int, columns: int) -> list[str]:
    """A word in pieces that fit, the first one into the room left in its row."""
    pieces: list[str] = []
    graphemes = list(iter_graphemes(text))
    ends = list(accumulate(_width(grapheme) for grapheme in graphemes))
    begin, done, room = 0, 0, first
    for index in range(len(graphemes)):
        if ends[index] - done > room and index > begin:
            pieces.append("".join(graphemes[begin:index]))
            begin, done, room = index, ends[index - 1], columns
    pieces.append("".join(graphemes[begin:]))
    return pieces


def _width(text: str) -> int:
    """Columns on the screen; a control character takes none."""
    if text.isascii() and text.isprintable():
        return len(text)
    width = wcswidth(text)
    return int(width) if width >= 0 else sum(max(0, wcswidth(grapheme)) for grapheme in iter_graphemes(text))
