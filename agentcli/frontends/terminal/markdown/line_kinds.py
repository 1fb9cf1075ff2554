"""Tell what kind of Markdown block a line belongs to."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from agentcli.frontends.terminal.text.fragments import Fragment

MAX_MARK_CHARS = 400  # in which a line's kind must show; else it is text
SPACES = re.compile(r"[ \t]*")
FENCE = re.compile(r"(`{3,}|~{3,})")
LABEL = re.compile(r"\[(?!\^)((?:[^\[\]\\]|\\.)+)\]")
_RULE = re.compile(r"([-*_])(?:[ \t]*\1){2,}[ \t]*")
_ITEM = re.compile(r"([-*+]|[0-9]{1,9}[.)])(?=[ \t]|$)")
_TASK = re.compile(r"\[[ xX]\](?=[ \t]|$)")
_HEADING = re.compile(r"#{1,6}(?=[ \t]|$)")


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


def read_line(text: str, *, paragraph: int | None, in_list: bool) -> Line:
    """Return the kind of a line; `paragraph` counts the quote marks before the paragraph that is open, if one is."""
    head, is_cut = text[:MAX_MARK_CHARS], len(text) > MAX_MARK_CHARS
    line = Line("text")
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
            marker = _item_marker(head, line.start)
            at = line.start + len(marker)
            line.prefix.append(("marker", marker))
            line.inner += at - line.start
            if line.item is None:
                line.item = line.column + marker.find(" ") + 1
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
        case "[" if not in_paragraph:
            label = LABEL.match(head, start)
            return "definition" if label and head.startswith(":", label.end()) else "text"
        case _:
            item = _ITEM.match(head, start)
            if item is None or not in_paragraph or in_list:
                return "item" if item else "text"
            is_empty = not head[item.end() :].strip(" \t")
            return "item" if not is_empty and (item[1][0] in "-*+" or item[1][:-1] == "1") else "text"


def _item_marker(head: str, start: int) -> str:
    """Return a list marker as written, with a task's box and the space behind it."""
    found = _ITEM.match(head, start)
    assert found is not None
    end = min(found.end() + 1, len(head))
    if task := _TASK.match(head, end):
        end = min(task.end() + 1, len(head))
    return head[start:end]


def column_after(space: str, column: int) -> int:
    """Return the column behind white space; tabs stop at every fourth column (CommonMark 0.31, section 2.2)."""
    return len((" " * column + space).expandtabs(4))
