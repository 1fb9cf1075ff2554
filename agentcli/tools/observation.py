"""Shapes what the model sees of a result: by output level, in pages, cut in the middle where it says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.tools.tool import LazyResult, OutputLevel

PAGE_BYTES = 30_000  # what one result shows
MAX_UNPAGED_BYTES = 32_768  # bytes; a page and the notes a tool adds below it
MAX_INLINE_BYTES = 1_000_000  # bytes; what is larger is told as a data file
FULL_WINDOW = 0.8  # share of the model's window from which on results are brief
MAX_LINE_CHARS = 2_000  # characters of one line
BRIEF_TEXT = 100  # characters
STANDARD_TEXT = 500
STANDARD_ITEMS = 10


class Levels(Struct, frozen=True):
    """The output levels of the settings: for all tools, and for single ones by name.

    With `gives_all` structured results are given to programs however large they are.
    """

    usual: OutputLevel = "standard"
    by_tool: Mapping[str, OutputLevel] = {}
    gives_all: bool = False

    def level_for(
        self, tool: str, *, asked: OutputLevel | None, own: OutputLevel | None, window_share: float
    ) -> OutputLevel:
        """The first that applies: the call's argument, the tool's setting, brief in a full window, the usual one."""
        if chosen := asked or self.by_tool.get(tool) or own:
            return chosen
        return "brief" if window_share > FULL_WINDOW else self.usual


def beside(content: str, make: Callable[[], Any]) -> Any:
    """The structured result that goes with a content: of a large one made only for who asks."""
    return LazyResult(make) if len(content) > MAX_INLINE_BYTES else make()


def formatted(value: Any, level: OutputLevel) -> str:
    """A structured result as text.

    brief: how many items, or a mapping's status, or 100 characters. standard: the first items, or 500 characters.
    full: everything, lists and mappings as JSON.
    """
    if level == "full":
        return value if isinstance(value, str) else _json(value)
    if isinstance(value, Mapping):
        return _mapping(value, level)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _items(value, level)
    return cut_line(
        value if isinstance(value, str) else _json(value), BRIEF_TEXT if level == "brief" else STANDARD_TEXT
    )


def leaves_out(value: Any, content: str, full: str, level: OutputLevel) -> bool:
    """Return True if a structured result's text leaves out parts of its `full` text."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    has_more = level == "brief" or len(full) > len(content) or (is_list and len(value) > STANDARD_ITEMS)
    return full != content and has_more


def _items(items: Sequence[Any], level: OutputLevel) -> str:
    found = f"Found {len(items)} item{'' if len(items) == 1 else 's'}"
    if level == "brief" or not items:
        return found
    shown = [cut_line(item if isinstance(item, str) else _json(item), BRIEF_TEXT) for item in items[:STANDARD_ITEMS]]
    more = [f"and {len(items) - STANDARD_ITEMS} more"] if len(items) > STANDARD_ITEMS else []
    return "\n".join([f"{found}:", *shown, *more])


def _mapping(value: Mapping[Any, Any], level: OutputLevel) -> str:
    if level == "standard":
        return cut_line(_json(value), STANDARD_TEXT)
    status = value.get("status")
    return f"status: {cut_line(str(status), BRIEF_TEXT)}" if status is not None else f"{len(value)} fields"


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def pages_of(text: str, most: int = PAGE_BYTES) -> list[str]:
    """`text` in pages of at most `most` bytes of UTF-8, cut behind a line where one ends in the page's second half."""
    data = text.encode()
    pages: list[str] = []
    start = 0
    while start < len(data):
        end = min(start + most, len(data))
        if end < len(data):
            line_end = data.rfind(b"\n", start + most // 2, end)
            if line_end > 0:
                end = line_end + 1
            while data[end] & 0xC0 == 0x80:  # not inside a character
                end -= 1
        pages.append(data[start:end].decode())
        start = end
    return pages or [""]


def cut_middle(text: str, most: int = PAGE_BYTES) -> str:
    """`text`, its middle replaced by a note when it is longer than `most` characters; whole lines where possible."""
    if len(text) <= most:
        return text
    half = most // 2
    head, tail = text[:half], text[-half:]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    return f"{head}[{len(text) - len(head) - len(tail):,} characters cut]\n{tail}"


def beginning_of(text: str, most: int) -> str:
    """At most `most` characters of a text, up to the end of a line where one is near."""
    if len(text) <= most:
        return text
    end = text.rfind("\n", most - most // 10, most)
    return text[: end if end > 0 else most]


def cut_line(line: str, most: int = MAX_LINE_CHARS) -> str:
    return line if len(line) <= most else f"{line[:most]}[{len(line) - most:,} more characters]"
