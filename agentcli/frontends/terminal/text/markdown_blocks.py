"""Reads the source of Markdown blocks: the kind of a line, the rows of a table; and lays tables out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from wcwidth import wcswidth

from agentcli.frontends.terminal.text.fragments import Fragment, lines_of, merged, plain, without_end_blanks, wrap_line

MAX_MARK_CHARS = 400  # in which a line's kind must show; else it is text
SPACES = re.compile(r"[ \t]*")
FENCE = re.compile(r"(`{3,}|~{3,})")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}[ \t]*")
_ITEM = re.compile(r"([-*+]|[0-9]{1,9}[.)])(?=[ \t]|$)")
_MARKER = re.compile(_ITEM.pattern + r"[ \t]?(?:\[[ xX]\](?:[ \t]|$))?")  # with a task's box and the space behind it
_HEADING = re.compile(r"#{1,6}(?=[ \t]|$)")


@dataclass(slots=True)
class Line:
    """The kind of a line, and the marks before its content."""

    kind: str  # "text", "blank", "heading", "rule", "fence", "code", "table"
    prefix: list[Fragment] = field(default_factory=list)
    depth: int = 0  # quote marks
    start: int = 0  # of the content, in the source
    column: int = 0  # of the content, on the screen
    inner: int = 0  # that column, counted from the last quote mark
    item: int | None = None  # the column of the text of the first list item that begins here


def read_line(text: str, *, paragraph: int | None, in_list: bool) -> Line:
    """Read the marks of a line; `paragraph` is the number of quote marks before the open paragraph, if there is one."""
    head, is_cut = text[:MAX_MARK_CHARS], len(text) > MAX_MARK_CHARS
    line = Line("text")
    at = container = 0
    while True:
        space = SPACES.match(head, at)
        assert space is not None
        line.start = space.end()
        # Tabs stop at every fourth column (CommonMark 0.31, section 2.2).
        line.column = len((" " * line.column + space[0]).expandtabs(4))
        indentation = line.column - container
        if line.start == len(head):
            line.prefix.append(("", space[0] if is_cut else ""))
            line.kind = "blank" if line.item is None and not is_cut else "text"
            return line
        in_paragraph = paragraph is not None and line.item is None and line.depth <= paragraph
        is_indented = indentation >= 4 and not in_list
        if is_indented and line.item is None and not in_paragraph:
            line.kind, line.start = "code", at
            return line
        line.inner += indentation
        line.prefix.append(("", space[0]))
        if is_indented and in_paragraph:
            return line
        if head[line.start] == ">":
            at = line.start + (2 if head.startswith(" ", line.start + 1) else 1)
            line.depth += 1
            line.inner = 0
            line.prefix.append(("marker", "> "))
        else:
            line.kind = _kind_of(head, line.start, in_paragraph=in_paragraph, in_list=in_list)
            if line.kind != "item":
                line.kind = "text" if is_cut and line.kind == "rule" else line.kind
                return line
            marker = _MARKER.match(head, line.start)
            assert marker is not None, "an item begins with its marker"
            at = marker.end()
            line.prefix.append(("marker", marker[0]))
            line.inner += at - line.start
            if line.item is None:
                line.item = line.column + marker[0].find(" ") + 1
        container = line.column = line.column + at - line.start


def _kind_of(head: str, start: int, *, in_paragraph: bool, in_list: bool) -> str:
    """Return the kind of the line from `start` on, or "item" for a list marker."""
    if _RULE.fullmatch(head, start):
        return "rule"
    match head[start]:
        case "#":
            return "heading" if _HEADING.match(head, start) else "text"
        case "`" | "~":
            return "fence" if FENCE.match(head, start) else "text"
        case "|":
            return "table"
        case _:
            item = _ITEM.match(head, start)
            if item is None or not in_paragraph or in_list:
                return "item" if item else "text"
            is_empty = not head[item.end() :].strip(" \t")
            return "item" if not is_empty and (item[1][0] in "-*+" or item[1][:-1] == "1") else "text"


Cell = list[Fragment]
"""A cell's text; a line break in it stays one."""

MIN_COLUMNS = 8  # that a wrapped column gets
_DELIMITER = re.compile(r"\s*(:?)-+(:?)\s*")
_PIPE = re.compile(r"(?<!\\)((?:\\\\)*)\|")


def split_row(source: str) -> list[str]:
    """Return the cells of a row's source, without the pipes around them and with `\\|` as a plain pipe."""
    inner = _PIPE.sub("\\1\0", source.strip()).removeprefix("\0").removesuffix("\0")
    return [cell.strip().replace("\\|", "|") for cell in inner.split("\0")]


def alignments(source: str) -> list[str] | None:
    """Return "", "left", "right" or "center" for each column; None if this is not the line below a table's header."""
    matches = [_DELIMITER.fullmatch(cell) for cell in split_row(source)]
    sides = {("", ""): "", (":", ""): "left", ("", ":"): "right", (":", ":"): "center"}
    found = [sides[match[1], match[2]] for match in matches if match is not None]
    return found if len(found) == len(matches) else None


def table_lines(
    header: Sequence[Cell], rows: Sequence[Sequence[Cell]], sides: Sequence[str], width: int
) -> list[list[Fragment]]:
    """Return the lines of a table in at most `width` columns; if they do not fit, `header: value` lines of each row."""
    natural = [
        max([1, *(_width(line) for row in (header, *rows) for line in plain(row[column]).split("\n"))])
        for column in range(len(header))
    ]
    widths = _fitted(natural, width - 3 * (len(header) - 1))
    if widths is None:
        return _record_lines(header, rows)
    titles = [[("table_header", text) for _, text in cell] for cell in header]
    rule = "─┼─".join("─" * columns for columns in widths)
    lines = _row_lines(titles, widths, sides)
    lines.append([("table_rule", rule)])
    for row in rows:
        lines += _row_lines(row, widths, sides)
    return lines


def _fitted(natural: list[int], available: int) -> list[int] | None:
    """Return the columns' widths: wide columns share the room that the others leave. None if there is too little."""
    if sum(natural) <= available:
        return natural
    if sum(min(columns, MIN_COLUMNS) for columns in natural) > available:
        return None
    widths = list(natural)
    wide = sorted(range(len(natural)), key=lambda column: natural[column])
    left = available
    for place, column in enumerate(wide):
        share = left // (len(wide) - place)
        widths[column] = min(natural[column], max(share, min(natural[column], MIN_COLUMNS)))
        left -= widths[column]
    return widths


def _row_lines(row: Sequence[Cell], widths: list[int], sides: Sequence[str]) -> list[list[Fragment]]:
    cells = [_wrapped(cell, columns) for cell, columns in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=list[Fragment]()):
        line: list[Fragment] = []
        for part, columns, side in zip(parts, widths, sides, strict=True):
            spare = columns - _width(plain(part))
            before = {"right": spare, "center": spare // 2}.get(side, 0)
            separator = [("", " "), ("table_rule", "│"), ("", " ")] if line else []
            line += [*separator, ("", " " * before), *part, ("", " " * (spare - before))]
        lines.append(without_end_blanks(merged(line)))
    return lines


def _record_lines(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[list[Fragment]]:
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
