"""Tells what kind of Markdown a line is, from as little of its beginning as possible."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentcli.frontends.terminal.text.fragments import Fragment

LONGEST_START = 400  # characters in which a line's kind must show; else it is text
SPACES = re.compile(r"[ \t]*")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1)*[ \t]*")
_ITEM = re.compile(r"([-*+]|[0-9]{1,9}[.)])(?=[ \t]|$)")
_ITEM_BEGUN = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)]?)$")
_TASK = re.compile(r"\[[ xX]\](?=[ \t]|$)")
_TASK_BEGUN = re.compile(r"\[(?:[ xX]\]?)?$")
_HEADING = re.compile(r"(#{1,6})(?=[ \t]|$)")
_HEADING_BEGUN = re.compile(r"#{1,6}$")
FENCE = re.compile(r"(`{3,}|~{3,})")
_FENCE_BEGUN = re.compile(r"(?:`{1,2}|~{1,2})$")
LABEL = re.compile(r"\[(?!\^)((?:[^\[\]\\]|\\.)+)\]")
_LABEL_BEGUN = re.compile(r"\[(?!\^)(?:[^\[\]\\]|\\.)*(?:\\|\])?$")


@dataclass(slots=True)
class Line:
    """A line's kind and the marks before its content."""

    kind: str  # "text", "blank", "heading", "rule", "fence", "code", "table", "definition"
    prefix: list[Fragment] = field(default_factory=list)
    depth: int = 0  # quote marks
    start: int = 0  # of the content, in the source
    column: int = 0  # of the content, on the screen
    inner: int = 0  # the same, counted from the last quote mark
    item: int | None = None  # the column of the text of the first list item that begins here


def start_of_line(head: str, *, is_whole: bool, is_cut: bool, paragraph: int | None, in_list: bool) -> Line | None:
    """The kind of the line that begins with `head`; None while that depends on its rest.

    A line that `is_cut` is text where its kind does not show. `paragraph` counts the quote marks before the paragraph
    that is open.
    """
    line = Line("text")
    is_open = not (is_whole or is_cut)
    at = container = 0
    while True:
        space = SPACES.match(head, at)
        assert space is not None
        line.start = space.end()
        line.column = column_after(space[0], line.column)
        indentation = line.column - container
        if line.start == len(head):
            line.prefix.append(("", space[0] if is_cut else ""))
            line.kind = "blank" if line.item is None and not is_cut else "text"
            return None if is_open else line
        in_paragraph = paragraph is not None and line.item is None and line.depth <= paragraph
        if indentation >= 4 and not in_list and line.item is None and not in_paragraph:
            line.kind, line.start = "code", at
            return line
        line.inner += indentation
        line.prefix.append(("", space[0]))
        if indentation >= 4 and not in_list and in_paragraph:
            return line
        if head[line.start] == ">":
            at = line.start + (2 if head.startswith(" ", line.start + 1) else 1)
            if is_open and at == len(head):
                return None
            line.depth += 1
            line.inner = 0
            line.prefix.append(("marker", "> "))
        else:
            kind = _kind_of(head, line.start, is_open=is_open, in_paragraph=in_paragraph, in_list=in_list)
            if kind != "item":
                line.kind = "text" if is_cut and kind == "rule" else kind
                return line if kind else None
            marker = _item_marker(head, line.start, is_open=is_open)
            if not marker:
                return None
            at = line.start + len(marker)
            line.prefix.append(("marker", marker))
            line.inner += at - line.start
            if line.item is None:
                line.item = line.column + marker.find(" ") + 1
        container = line.column = line.column + at - line.start


def _kind_of(head: str, start: int, *, is_open: bool, in_paragraph: bool, in_list: bool) -> str:
    """The kind of the line from `start` on, or "item" for a list marker; "" while that depends on its rest."""
    if (found := _RULE.fullmatch(head, start)) and (is_open or head.count(found[1], start) >= 3):
        return "" if is_open else "rule"
    match head[start]:
        case "#":
            begun, kind = _HEADING_BEGUN, "heading" if _HEADING.match(head, start) else "text"
        case "`" | "~":
            begun, kind = _FENCE_BEGUN, "fence" if FENCE.match(head, start) else "text"
        case "|":
            return "table"
        case "[" if not in_paragraph:
            label = LABEL.match(head, start)
            begun, kind = _LABEL_BEGUN, "definition" if label and head.startswith(":", label.end()) else "text"
        case _:
            begun, kind = _ITEM_BEGUN, "text"
            if item := _ITEM.match(head, start):
                is_empty = not head[item.end() :].strip(" \t")
                if not in_paragraph or in_list:
                    kind = "item"
                elif is_empty and is_open:
                    return ""
                elif not is_empty and (item[1][0] in "-*+" or item[1][:-1] == "1"):
                    kind = "item"
    return "" if is_open and begun.match(head, start) else kind


def _item_marker(head: str, start: int, *, is_open: bool) -> str:
    """A list marker as written, with a task's box and the space behind it; "" when there may be a box to come."""
    found = _ITEM.match(head, start)
    assert found is not None
    end = min(found.end() + 1, len(head))
    if is_open and (end == len(head) or _TASK_BEGUN.match(head, end)):
        return ""
    if task := _TASK.match(head, end):
        end = min(task.end() + 1, len(head))
    return head[start:end]


def column_after(space: str, column: int) -> int:
    """The column behind white space; tabs stop at every fourth column (CommonMark 0.31, section 2.2)."""
    if "\t" not in space:
        return column + len(space)
    for char in space:
        column += 4 - column % 4 if char == "\t" else 1
    return column
