"""Shapes what the model sees of a result: cut in the middle when long, and always said so."""

from __future__ import annotations

PAGE_BYTES = 30_000  # what one result shows
LONGEST_LINE = 2_000  # characters of one line


def cut_middle(text: str, most: int = PAGE_BYTES) -> str:
    """`text`, its middle replaced by a note when it is longer than `most` characters; whole lines where possible."""
    if len(text) <= most:
        return text
    half = most // 2
    head, tail = text[:half], text[-half:]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    return f"{head}[{len(text) - len(head) - len(tail):,} characters cut]\n{tail}"


def cut_line(line: str, most: int = LONGEST_LINE) -> str:
    return line if len(line) <= most else f"{line[:most]}[{len(line) - most:,} more characters]"
