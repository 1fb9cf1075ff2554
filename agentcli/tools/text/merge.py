"""Merges two changes of one text, line by line."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.tools.text.diff import lines_of, opcodes
from agentcli.tools.text.encoding import decode

_Range = tuple[int, int, int, int]  # start and end in the common ancestor, start and end in the changed text


def merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Both changes of `base` together; None where they touch the same lines, or neighbours, or are no text."""
    if any(decode(content) is None for content in (base, ours, theirs)):
        return None
    # Latin-1 gives a character for each byte, so no byte of any encoding is lost.
    old, one, other = (lines_of(content.decode("latin-1")) for content in (base, ours, theirs))
    lines = _merged_lines(old, one, other)
    return None if lines is None else "".join(lines).encode("latin-1")


def _merged_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str] | None:
    lines: list[str] = []
    position = 0
    ours_left, theirs_left = _changes(base, ours), _changes(base, theirs)
    while ours_left or theirs_left:
        start = end = min(changes[0][0] for changes in (ours_left, theirs_left) if changes)
        one: list[_Range] = []
        other: list[_Range] = []
        while (more := _touching(ours_left, end)) or _touching(theirs_left, end):
            left, taken = (ours_left, one) if more else (theirs_left, other)
            taken.append(left.pop(0))
            end = max(end, taken[-1][1])
        changed = [_text(text, taken, start, end) for text, taken in ((ours, one), (theirs, other)) if taken]
        if len(changed) == 2 and changed[0] != changed[1]:
            return None
        lines += [*base[position:start], *changed[0]]
        position = end
    return [*lines, *base[position:]]


def _changes(old: Sequence[str], new: Sequence[str]) -> list[_Range]:
    return [(start, end, from_, to) for tag, start, end, from_, to in opcodes(old, new) if tag != "equal"]


def _touching(changes: Sequence[_Range], end: int) -> bool:
    return bool(changes) and changes[0][0] <= end


def _text(text: Sequence[str], changes: Sequence[_Range], start: int, end: int) -> Sequence[str]:
    """The lines of a changed text that stand for lines `start` to `end` of the ancestor."""
    first, last = changes[0], changes[-1]
    return text[first[2] - (first[0] - start) : last[3] + (end - last[1])]
