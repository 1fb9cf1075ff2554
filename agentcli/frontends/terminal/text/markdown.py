"""Prints Markdown while it arrives, close to its source: text copied from the screen lacks only the marks."""

import re
from collections.abc import Callable, Sequence
from copy import copy

from msgspec import Struct, field

from agentcli.frontends.terminal.text.code import CodeHighlighter
from agentcli.frontends.terminal.text.fragments import Fragment, Row, hang_of, lines_of, merged, plain, wrap_line
from agentcli.patterns import lazy_pattern

RULE = "─" * 24
MAX_PARAGRAPH_CHARS = 4_000  # a longer paragraph is printed in parts; the marks of a longer line are not read
_QUOTE_MARK = lazy_pattern(r"[ \t]*>[ ]?")
_FENCE = lazy_pattern(r"(`{3,}|~{3,})")
_RULE = lazy_pattern(r"([-*_])(?:[ \t]*\1){2,}[ \t]*")
_ITEM = lazy_pattern(r"([-*+]|[0-9]{1,9}[.)])(?=[ \t]|$)")
_MARKER = lazy_pattern(_ITEM.pattern + r"[ \t]?(?:\[[ xX]\](?:[ \t]|$))?")  # with a task's box and the space after it
_HEADING = lazy_pattern(r"#{1,6}(?=[ \t]|$)")


class MarkdownLine(Struct, kw_only=True):
    """A line: its kind, the marks before its content, and the content."""

    kind: str  # "text", "blank", "heading", "rule", "fence", "code", "table"
    prefix: list[Fragment] = field(default_factory=list)
    quotes: int = 0  # the number of quote marks
    start: int = 0  # of the content, in the source
    column: int = 0  # of the content, on the screen
    column_in_quote: int = 0  # the same, counted from the last quote mark
    item_text_column: int | None = None  # of the first list item that begins here; None if none does
    content: str = ""


class _Fence(Struct):
    marks: str  # such as three backquotes
    quotes: int  # the number of quote marks before it
    column: int  # after these: so much indentation is not part of the code
    highlighter: CodeHighlighter


class MarkdownStream:
    """Turns Markdown that arrives in pieces into text with roles; each block is printed once, when it has ended.

    The output does not depend on where the text was cut. Prose is broken at words, code is not. Unlike in CommonMark
    (0.31) and GFM, a line under a paragraph makes no heading (`---` is a rule), a table's lines begin with `|`, and
    reference links are printed as they are written. `width` returns the columns of the screen; without `wraps`, only
    tables are fitted to it.
    """

    def __init__(self, *, width: Callable[[], int], wraps: bool = True) -> None:
        self._width, self._wraps = width, wraps
        self._output: list[Fragment] = []  # not returned yet
        self._open_line = ""  # the line that has not ended
        self._paragraph: list[MarkdownLine] = []
        self._fence: _Fence | None = None
        self._table: list[MarkdownLine] = []  # a table, or the line that may be its header
        self._alignments: list[str] | None = None  # of its columns; None until its second line
        self._list_column: int | None = None  # of the outermost list item's text; None outside of lists
        self._blank_quotes: int | None = None  # the number of quote marks of a blank line that is not printed yet
        self._last_quotes = 0  # the number of quote marks of the last line
        self._has_printed, self._empty_lines = False, 0  # empty lines are printed when something follows
        self._preview: tuple[int, int, list[Row]] = (0, 0, [])  # cached by characters and columns

    def feed(self, text: str) -> list[Fragment]:
        """Take more text; return what can be printed now."""
        first, *rest = text.split("\n")
        self._open_line += first
        for piece in rest:
            self._end_line()
            self._open_line = piece
        return self._take_output()

    def close(self) -> list[Fragment]:
        """Return the rest. The whole output, if there is any, ends with one line break."""
        if self._open_line:
            self._end_line()
        self._end_table()
        self._end_paragraph()
        return self._take_output()

    def preview(self) -> list[Row]:
        """Return the text that is not printed yet in rows of the screen, as it would be printed if it ended now."""
        blocks = sum(len(line.content) + 1 for line in (*self._paragraph, *self._table))
        chars, width = blocks + len(self._open_line), self._width()
        if not chars:
            return []
        chars_before, width_before, rows = self._preview
        # A long block is laid out again only when it has grown by a fiftieth: the work stays linear.
        if width == width_before and chars_before <= chars <= chars_before * 1.02:
            return rows
        if self._fence is not None:  # its complete lines are printed already
            rows = [*([] for _ in range(self._empty_lines)), [("", self._open_line[-MAX_PARAGRAPH_CHARS:])]]
        elif len(self._open_line) > MAX_PARAGRAPH_CHARS:
            rows = lines_of(wrap_line([("", self._open_line[-MAX_PARAGRAPH_CHARS:])], width))
        else:
            ahead = copy(self)  # it wraps, because rows must fit the screen
            vars(ahead).update(_output=[], _wraps=True, _paragraph=[*self._paragraph], _table=[*self._table])
            if self._alignments is not None:  # leave out the row that is arriving: each letter could widen a column
                ahead._open_line = ""  # noqa: SLF001
            rows = lines_of(ahead.close())
        self._preview = chars, width, rows
        return rows

    def _take_output(self) -> list[Fragment]:
        out, self._output = merged(self._output), []
        if out:
            self._preview = (0, 0, [])  # else a next block of the same length would find the old preview
        return out

    def _classify(self, source: str) -> MarkdownLine:
        """Return the kind of a line, which depends on the paragraph or list before it."""
        if len(source) > MAX_PARAGRAPH_CHARS:
            return MarkdownLine(kind="text")
        is_table = self._alignments is not None  # else the line in `_table` may be the beginning of a paragraph
        paragraph = self._paragraph or ([] if is_table else self._table)
        quotes = paragraph[0].quotes if paragraph else None
        return _read_marks(source, paragraph_quotes=quotes, in_list=self._list_column is not None)

    def _end_line(self) -> None:
        """Print the line that has ended, or add it to the paragraph, the table or the code that it belongs to."""
        source, self._open_line = self._open_line, ""
        if self._fence is not None and self._continue_fence(self._fence, source):
            return
        line = self._classify(source)
        if line.kind != "table":
            self._end_table()
        content = line.content = source[line.start :]
        match line.kind:
            case "blank":  # several blank lines become one, with the fewest quote marks of any of them
                self._end_paragraph()
                self._blank_quotes = line.quotes if self._blank_quotes is None else min(self._blank_quotes, line.quotes)
            case "rule" | "code":
                self._begin_block(line)
                self._print([*line.prefix, (line.kind, RULE if line.kind == "rule" else content)])
            case "heading":
                text = content.lstrip("#")
                self._begin_block(line, needs_blank=True)
                level = min(3, len(content) - len(text))
                # `## Title ##` may have marks at its end.
                line.content = re.sub(r"(?:^|[ \t]+)#+$", "", text.strip(" \t"))
                self._print_text([line], roles=f"heading{level}")
            case "fence" if content[0] == "~" or "`" not in content.lstrip("`"):  # else a code span in a paragraph
                self._open_fence(line, content)
            case "table":
                self._add_table_line(line)
            case _:
                self._add_text_line(line)

    def _add_text_line(self, line: MarkdownLine) -> None:
        """Add a line to the paragraph; a list item and deeper quote marks begin another one."""
        is_item = line.item_text_column is not None
        if not self._paragraph or is_item or line.quotes > self._paragraph[0].quotes:
            self._begin_block(line)
        self._paragraph.append(line)
        if sum(len(each.content) for each in self._paragraph) > MAX_PARAGRAPH_CHARS:
            self._end_paragraph()

    def _end_paragraph(self) -> None:
        lines, self._paragraph = self._paragraph, []
        if lines:
            self._print_text(lines, roles="quote" if lines[0].quotes else "")

    def _print_text(self, lines: Sequence[MarkdownLine], *, roles: str) -> None:
        """Print text with its inline markup applied; each row has the marks of its line in the source."""
        from agentcli.frontends.terminal.text.markdown_text import inline_fragments

        source = "\n".join(line.content for line in lines)
        # A long paragraph is printed in parts, so a longer source is one line. To read its markup would take too long.
        fragments = inline_fragments(source, roles) if len(source) <= 2 * MAX_PARAGRAPH_CHARS else [(roles, source)]
        rows = lines_of(fragments) or [[]]
        for number, row in enumerate(rows):
            prefix = lines[min(number, len(lines) - 1)].prefix  # `min`: a lone CR in a line makes one more row
            full_row = [*prefix, *row]
            self._print(wrap_line(full_row, self._width(), hang_of(prefix)) if self._wraps else full_row)

    def _begin_block(self, line: MarkdownLine, *, needs_blank: bool = False) -> None:
        """End the open block, and print the blank line before `line`; with `needs_blank` even if the text has none."""
        self._end_paragraph()
        if (column := line.item_text_column) is not None:
            self._list_column = column if self._list_column is None else min(self._list_column, column)
        elif self._list_column is not None and line.column < self._list_column:
            self._list_column = None  # left of the items' text, so the list has ended
        if needs_blank and self._blank_quotes is None and line.item_text_column is None:  # no blank lines between items
            self._blank_quotes = line.quotes
        if self._blank_quotes is not None:
            quotes = min(self._blank_quotes, self._last_quotes, line.quotes)  # the quotes of both neighbours
            self._print([("marker", ("> " * quotes).rstrip())])
            self._blank_quotes = None
        self._last_quotes = line.quotes

    def _print(self, line: Sequence[Fragment]) -> None:
        if not plain(line):
            self._empty_lines += self._has_printed  # none are printed before the first text
            return
        self._output += [("", "\n" * self._empty_lines), *line, ("", "\n")]
        self._empty_lines, self._has_printed = 0, True

    def _open_fence(self, line: MarkdownLine, content: str) -> None:
        """Begin a block of code. Its fences are not printed: empty lines set it apart."""
        info = content.lstrip(content[0])
        self._begin_block(line, needs_blank=True)
        if line.item_text_column is not None:
            self._print([part for part in line.prefix if part[1] != "> "])  # like the code, without quote marks
        marks = content[: len(content) - len(info)]
        self._fence = _Fence(marks, line.quotes, line.column_in_quote, CodeHighlighter(info))

    def _continue_fence(self, fence: _Fence, code: str) -> bool:
        """Print a line of code, or end the code at its closing fence; return False for a line outside its quote."""
        for _ in range(fence.quotes):
            if (mark := _QUOTE_MARK.match(code)) is None:
                self._fence, self._blank_quotes = None, fence.quotes
                return False
            code = code[mark.end() :]
        code = _without_indentation(code, fence.column)
        marks = code.strip()
        is_fence = len(marks) >= len(fence.marks) and not marks.strip(fence.marks[0])
        if is_fence and not code.startswith("    "):  # an indented fence is code
            self._fence, self._blank_quotes = None, fence.quotes
        else:
            self._print(fence.highlighter.line(code) if marks else ())
        return True

    def _add_table_line(self, line: MarkdownLine) -> None:
        """Add a line that begins with `|` to the table, or begin another table, whose header it may be."""
        if self._table and line.quotes == self._table[0].quotes and line.item_text_column is None:
            if self._alignments is None:  # they can be read if the line is like `|---|:-:|`
                from agentcli.frontends.terminal.text.markdown_text import column_alignments

                self._alignments = column_alignments(self._table[0].content, line.content)
            if self._alignments is not None:
                self._table.append(line)
                return
        self._end_table()
        self._table = [line]

    def _end_table(self) -> None:
        """Print the table, or the line that turned out not to be a table's header."""
        table, alignments = self._table, self._alignments
        self._table, self._alignments = [], None
        if table and alignments is None:
            self._add_text_line(table[0])
        elif alignments is not None:
            from agentcli.frontends.terminal.text.markdown_text import table_lines

            self._begin_block(table[0])
            prefix = table[0].prefix
            width = max(1, self._width() - len(plain(prefix)))
            for row in table_lines([line.content for line in table], alignments, width):
                self._print([*prefix, *row])
                prefix = hang_of(prefix)


def _without_indentation(code: str, columns: int) -> str:
    """Return a line of code without the part of its indentation that its fence has, too."""
    space = code[: len(code) - len(code.lstrip(" \t"))]
    shown_space = space.expandtabs(4) if "\t" in space[:columns] else space
    return shown_space[columns:] + code[len(space) :]


def _read_marks(text: str, *, paragraph_quotes: int | None, in_list: bool) -> MarkdownLine:
    """Read the marks before a line's content, quote marks and list markers, and find the kind of the content.

    `paragraph_quotes` is the number of quote marks before an open paragraph, None without one.
    """
    line = MarkdownLine(kind="text")
    marks_end = marks_column = 0  # the end of the marks that were read: in the source, and its column on the screen
    while True:  # each round reads the space before a mark and the mark, `>` or a list item's; other text ends it
        line.start = len(text) - len(text[marks_end:].lstrip(" \t"))
        space = text[marks_end : line.start]
        # Tabs stop at every fourth column (CommonMark 0.31, section 2.2).
        line.column = len((" " * line.column + space).expandtabs(4))
        indentation = line.column - marks_column
        if line.start == len(text):
            line.kind = "blank" if line.item_text_column is None else "text"  # an empty item is not a blank line
            return line
        is_item = line.item_text_column is not None
        # A line without a list marker, and without more quote marks than the open paragraph, may continue it.
        in_paragraph = paragraph_quotes is not None and not is_item and line.quotes <= paragraph_quotes
        is_indented = indentation >= 4 and not in_list  # makes code, except in a paragraph
        if is_indented and not is_item and not in_paragraph:
            line.kind, line.start = "code", marks_end
            return line
        line.column_in_quote += indentation
        line.prefix.append(("", space))
        if is_indented and in_paragraph:  # the paragraph's text goes on, whatever it begins with
            return line
        if text[line.start] == ">":
            marks_end = line.start + (2 if text.startswith(" ", line.start + 1) else 1)
            line.quotes += 1
            line.column_in_quote = 0
            line.prefix.append(("marker", "> "))
        else:
            line.kind = _kind_of(text, line.start, in_paragraph=in_paragraph, in_list=in_list)
            if line.kind != "item":
                return line
            marker = _MARKER.match(text, line.start)
            assert marker is not None, "an item begins with its marker"
            marks_end = marker.end()
            line.prefix.append(("marker", marker[0]))
            line.column_in_quote += marks_end - line.start
            if line.item_text_column is None:
                line.item_text_column = line.column + marker[0].find(" ") + 1  # after `- `, before a task's box
        marks_column = line.column = line.column + marks_end - line.start


def _kind_of(text: str, start: int, *, in_paragraph: bool, in_list: bool) -> str:
    """Return the kind of the line from `start` on, or "item" for a list marker."""
    if _RULE.fullmatch(text, start):
        return "rule"
    match text[start]:
        case "#":
            return "heading" if _HEADING.match(text, start) else "text"
        case "`" | "~":
            return "fence" if _FENCE.match(text, start) else "text"
        case "|":
            return "table"
        case _:
            item = _ITEM.match(text, start)
            if item is None or not in_paragraph or in_list:
                return "item" if item else "text"
            # Outside of lists, only an item with text, bulleted or numbered 1, ends a paragraph (section 5.2).
            is_empty = not text[item.end() :].strip(" \t")
            return "item" if not is_empty and (item[1][0] in "-*+" or item[1][:-1] == "1") else "text"
