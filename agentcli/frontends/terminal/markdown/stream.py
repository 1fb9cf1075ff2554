"""Prints Markdown while it comes in, close to its source: a copy from the screen is the text without marks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentcli.frontends.terminal.markdown.inline import InlineScanner
from agentcli.frontends.terminal.markdown.line_kinds import (
    FENCE,
    LABEL,
    LONGEST_START,
    SPACES,
    Line,
    column_after,
    start_of_line,
)
from agentcli.frontends.terminal.markdown.links import as_address, normalized
from agentcli.frontends.terminal.markdown.table import Cell, alignments, split_row, table_lines
from agentcli.frontends.terminal.text.fragments import Fragment, merged, plain
from agentcli.frontends.terminal.text.highlight import CodeHighlighter
from agentcli.frontends.terminal.text.wrapping import UNBOUNDED, WordWrap

RULE = "─" * 24

_DEFINITION = re.compile(
    r"""[ \t]*(?:<([^<>]*)>|([^\s<]\S*))(?:[ \t]+(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)))?[ \t]*"""
)
_QUOTE_MARK = re.compile(r"[ \t]*>[ ]?")
_BREAK_TAG = re.compile(r"<br[ \t]*/?>", re.IGNORECASE)


@dataclass(slots=True)
class _Fence:
    marks: str
    depth: int
    column: int
    highlighter: CodeHighlighter


@dataclass(slots=True)
class _Table:
    lines: list[tuple[Line, str]]
    aligned: list[str] | None = None  # None while there is only a possible header
    shown: tuple[int, int, list[list[Fragment]]] | None = None  # laid out for so many lines and columns


class MarkdownStream:
    """Turns Markdown that comes in pieces into text with roles, which is printed once and never changed.

    The output depends on the whole text alone, not on where it was cut. A line is given out once its kind is
    certain, a word once its roles are, a line of code once it is whole, a table once it has ended.

    Prose is broken at words, code is not. Blank lines are as in the source, but never two together. Differences from
    CommonMark (0.31) and GFM follow from never taking printed text back: a line under a paragraph cannot make it
    a heading (`---` is a rule), a table's lines begin with `|`, a reference link's definition comes before it, and
    an opener is closed within `inline.LONGEST_HOLD` characters.
    """

    def __init__(self, *, width: Callable[[], int], wraps: bool = True) -> None:
        """`width` gives the screen's columns; without `wraps` the terminal breaks prose, and only tables are fitted."""
        self._width = width
        self._out: list[Fragment] = []
        self._references: dict[str, str] = {}
        self._wrap = WordWrap(self._give, width if wraps else lambda: UNBOUNDED)
        self._put = self._wrap.put
        self._scanner = InlineScanner(self._wrap.add, self._references)
        self._head = ""  # a line whose kind is not certain
        self._whole: list[str] | None = None  # a line that must be whole, in pieces
        self._line: Line | None = None  # the kind of the current line, once it is certain
        self._paragraph: int | None = None  # quote marks before the paragraph that is open
        self._fence: _Fence | None = None
        self._table: _Table | None = None
        self._list: int | None = None  # the column of the outermost item's text
        self._blank: int | None = None  # quote marks of a blank line that has not been printed
        self._depth = 0  # quote marks of the last line
        self._printed = False
        self._line_is_open = False
        self._newlines = 0  # of empty lines, which are printed when something follows

    def feed(self, text: str) -> list[Fragment]:
        """The fragments that are certain now."""
        if "\n" not in text:
            if text:
                self._piece(text)
        else:
            first, *rest = text.split("\n")
            self._piece(first)
            for piece in rest:
                self._end_line()
                self._piece(piece)
        return self._taken()

    def close(self) -> list[Fragment]:
        """The rest. The whole output ends with one line break, if there is any."""
        if self._head or self._whole or self._line:
            self._end_line()
        self._end_table()
        self._end_paragraph()
        return self._taken()

    @property
    def pending(self) -> str:
        """The source of the text held back, but for a table, which is in `table`."""
        table = self._table
        if table is not None and table.aligned is not None:
            return ""
        header = "".join(f"{plain(line.prefix)}{text}\n" for line, text in table.lines) if table else ""
        return self._wrap.held + self._scanner.held + header + self._head + "".join(self._whole or ())

    @property
    def table(self) -> list[list[Fragment]]:
        """The lines of the unfinished table, as they would be printed if it ended here."""
        table = self._table
        if table is None or table.aligned is None:
            return []
        width, count = self._width(), len(table.lines)
        # A long table is laid out again only when it has grown by a twentieth: the work stays linear.
        if table.shown is None or table.shown[1] != width or count > table.shown[0] * 1.05:
            gap: list[list[Fragment]] = [[]] if self._blank is not None and self._printed else []
            table.shown = count, width, gap + self._table_lines(table)
        return table.shown[2]

    def _taken(self) -> list[Fragment]:
        out = merged(self._out)
        self._out = []
        return out

    def _give(self, roles: str, text: str) -> None:
        """Print a part of a line, or a line break as a text of its own."""
        if text == "\n":
            if self._line_is_open:
                self._out.append(("", text))
                self._line_is_open = False
            elif self._printed:
                self._newlines += 1
        elif text:
            if self._newlines:
                self._out.append(("", "\n" * self._newlines))
                self._newlines = 0
            self._out.append((roles, text))
            self._line_is_open = self._printed = True

    def _piece(self, text: str) -> None:
        if not text:
            return
        if self._whole is not None:
            self._whole.append(text)
        elif self._line is not None:
            self._scanner.feed(text)
        elif self._fence is not None:
            self._whole = [text]
        else:
            self._head += text
            line = self._start_of(self._head, is_whole=False)
            if line is None:
                return
            head, self._head = self._head, ""
            self._line = line
            if self._table is not None and line.kind != "table":
                self._end_table()
            if line.kind == "text":
                self._begin_text(line)
                self._scanner.feed(head[line.start :])
            else:
                self._whole = [head]

    def _end_line(self) -> None:
        line, whole, head = self._line, self._whole, self._head
        self._line, self._whole, self._head = None, None, ""
        if self._fence is not None:
            self._code_line(self._fence, "".join(whole or ()))
        elif whole is not None:
            assert line is not None
            self._whole_line(line, "".join(whole))
        elif line is not None:
            self._scanner.feed("\n")
        else:
            self._unread_line(head)

    def _unread_line(self, text: str) -> None:
        """Take a whole line whose kind is not known."""
        line = self._start_of(text, is_whole=True)
        assert line is not None
        if self._table is not None and line.kind != "table":
            self._end_table()
        self._whole_line(line, text)

    def _start_of(self, text: str, *, is_whole: bool) -> Line | None:
        is_cut = len(text) > LONGEST_START
        depth = self._paragraph
        if depth is None and self._table is not None and self._table.aligned is None:
            depth = self._table.lines[0][0].depth
        head = text[:LONGEST_START] if is_cut else text
        return start_of_line(
            head, is_whole=is_whole and not is_cut, is_cut=is_cut, paragraph=depth, in_list=self._list is not None
        )

    def _whole_line(self, line: Line, text: str) -> None:
        content = text[line.start :]
        match line.kind:
            case "blank":
                self._end_paragraph()
                self._blank = line.depth if self._blank is None else min(self._blank, line.depth)
            case "rule":
                self._begin(line)
                self._put("rule", RULE)
                self._put("", "\n")
            case "heading":
                self._heading(line, content)
            case "code":
                self._begin(line)
                self._put("code", content)
                self._put("", "\n")
            case "fence" if not (content[0] == "`" and "`" in content.lstrip("`")):
                self._open_fence(line, content)
            case "definition" if self._define(line, content):
                pass
            case "table":
                self._table_line(line, content)
            case _:
                self._text_line(line, content)

    def _text_line(self, line: Line, content: str) -> None:
        self._begin_text(line)
        self._scanner.feed(content + "\n")

    def _begin_text(self, line: Line) -> None:
        if self._paragraph is not None and line.item is None and line.depth <= self._paragraph:
            self._scanner.continue_line(line.prefix)
            return
        self._begin(line)
        self._scanner.start("quote" if line.depth else "")
        self._paragraph = line.depth

    def _end_paragraph(self) -> None:
        if self._paragraph is not None:
            self._paragraph = None
            self._scanner.finish()
            self._wrap.flush()

    def _begin(self, line: Line, *, after_blank: bool = False, prefix: list[Fragment] | None = None) -> None:
        """End the open block, and print the marks before the content of a line that begins another."""
        self._end_paragraph()
        if line.item is not None:
            self._list = line.item if self._list is None else min(self._list, line.item)
        elif self._list is not None and line.column < self._list:
            self._list = None
        if after_blank and self._blank is None and line.item is None:
            self._blank = min(self._depth, line.depth)
        if self._blank is not None:
            if self._printed:
                self._put("marker", ("> " * min(self._blank, self._depth, line.depth)).rstrip())
                self._put("", "\n")
            self._blank = None
        self._depth = line.depth
        for roles, text in line.prefix if prefix is None else prefix:
            self._put(roles, text)

    def _heading(self, line: Line, content: str) -> None:
        text = content.lstrip("#")
        level = min(3, len(content) - len(text))
        text = text.strip(" \t")
        unmarked = text.rstrip("#")
        if not unmarked or unmarked[-1] in " \t":
            text = unmarked.rstrip(" \t")
        self._begin(line, after_blank=True)
        self._scanner.start(f"heading{level}")
        self._scanner.feed(text)
        self._scanner.finish()
        self._put("", "\n")

    def _define(self, line: Line, content: str) -> bool:
        label = LABEL.match(content)
        assert label is not None
        found = _DEFINITION.fullmatch(content, label.end() + 1)
        if found is None:
            return False
        self._references.setdefault(normalized(label[1]), as_address(found[1] or found[2] or ""))
        self._begin(line)
        self._put("url", content)
        self._put("", "\n")
        return True

    def _open_fence(self, line: Line, content: str) -> None:
        found = FENCE.match(content)
        assert found is not None
        self._begin(line, prefix=[part for part in line.prefix if line.item is not None and part[1] != "> "])
        self._put("fence", content.rstrip())
        self._put("", "\n")
        self._fence = _Fence(found[1], line.depth, line.inner, CodeHighlighter(content[found.end() :]))

    def _code_line(self, fence: _Fence, text: str) -> None:
        code = text
        for _ in range(fence.depth):
            mark = _QUOTE_MARK.match(code)
            if mark is None:
                self._fence = None
                self._unread_line(text)
                return
            code = code[mark.end() :]
        code = _without_indentation(code, fence.column)
        marks = code.strip()
        if len(marks) >= len(fence.marks) and not marks.strip(fence.marks[0]) and not code.startswith("    "):
            self._fence = None
            self._put("fence", marks)
        elif marks:
            for roles, part in fence.highlighter.line(code):
                self._put(roles, part)
        self._put("", "\n")

    def _table_line(self, line: Line, content: str) -> None:
        table = self._table
        is_below = table is not None and line.depth == table.lines[0][0].depth and line.item is None
        if table is not None and is_below and table.aligned is not None:
            table.lines.append((line, content))
            return
        if table is not None and is_below:
            aligned = alignments(content)
            if aligned is not None and len(aligned) == len(split_row(table.lines[0][1])):
                table.aligned = aligned
                table.lines.append((line, content))
                return
        self._end_table()
        self._table = _Table([(line, content)])

    def _end_table(self) -> None:
        """Print the table, or the line that turned out not to be a table's header."""
        table, self._table = self._table, None
        if table is None:
            return
        first = table.lines[0][0]
        if table.aligned is None:
            self._text_line(*table.lines[0])
            return
        lines = self._table_lines(table)
        self._begin(first, prefix=[])
        for line in lines:
            for roles, text in line:
                self._put(roles, text)
            self._put("", "\n")

    def _table_lines(self, table: _Table) -> list[list[Fragment]]:
        assert table.aligned is not None
        count = len(table.aligned)
        header, _, *rows = [self._cells(content, count) for _, content in table.lines]
        before = table.lines[0][0].prefix
        lines = []
        for cells in table_lines(header, rows, table.aligned, max(1, self._width() - len(plain(before)))):
            lines.append([*before, *cells])
            before = [part if part[1] == "> " else ("", " " * len(part[1])) for part in before]
        return lines

    def _cells(self, source: str, count: int) -> list[Cell]:
        """As many cells as the header has: missing ones are empty, surplus ones stay in the last."""
        texts = split_row(source)
        texts = [*texts[: count - 1], " | ".join(texts[count - 1 :])] + [""] * (count - len(texts))
        return [self._inline(text) for text in texts[:count]]

    def _inline(self, source: str) -> Cell:
        cell: Cell = []
        scanner = InlineScanner(lambda roles, text: cell.append((roles, text)), self._references)
        scanner.feed(_BREAK_TAG.sub("\n", source.replace("\t", " ")))
        scanner.finish()
        return merged(cell)


def _without_indentation(code: str, columns: int) -> str:
    """The line without as much of its indentation as the fence had."""
    space = SPACES.match(code)
    assert space is not None
    if "\t" not in space[0][:columns]:
        return code[min(columns, space.end()) :]
    width = column_after(space[0], 0)
    return " " * max(0, width - columns) + code[space.end() :]
