"""Where a text stands in another: exactly, else apart from what a model cannot see or easily gets wrong.

The ways stand in `LADDER`, the strictest first; each is for when the one before found nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate, pairwise

from msgspec import Struct

from agentcli.tools.text.diff import lf, lines_of, opcodes
from agentcli.tools.text.indentation import learn_shift
from agentcli.tools.text.views import View, folded, with_lf

_BLANKS = " \t\n"


class Place(Struct, frozen=True):
    """Characters `start` to `end` match. `adapted` brings a replacement into the form needed, or raises `ToolError`."""

    start: int
    end: int
    adapted: Callable[[str], str] = lf


def exact_places(text: str, old: str) -> list[Place]:
    """Every one, from top to bottom, also where they overlap; none that begins or ends inside a CRLF."""

    def is_whole(start: int, end: int) -> bool:
        return text[max(start - 1, 0) : start + 1] != "\r\n" and text[end - 1 : end + 1] != "\r\n"

    return [Place(start, end) for start, end in _finds(text, old, is_whole)]


def places_with_other_line_ends(text: str, old: str) -> list[Place]:
    """Where it stands with LF or CRLF, each as it comes, also where they overlap."""
    view, sought = with_lf(text), lf(old)
    return [Place(view.origin(start), view.origin(end)) for start, end in _finds(view.text, sought, view.is_between)]


def without_overlaps(places: Iterable[Place]) -> Iterator[Place]:
    """Of places from top to bottom, the first, and each that begins where the one taken before has ended."""
    end = 0
    for place in places:
        if place.start >= end:
            yield place
            end = place.end


def _places_without_last_line_end(text: str, old: str) -> list[Place]:
    """At the end of a file whose last line has no line end, when `old` has one."""
    view, sought = with_lf(text), lf(old)
    start = len(view.text) + 1 - len(sought)
    if not sought.endswith("\n") or len(sought) < 2 or start < 0 or view.text[start:] != sought[:-1]:
        return []
    return [Place(view.origin(start), len(text), lambda new: lf(new).removesuffix("\n"))]


def _places_with_look_alikes(text: str, old: str) -> list[Place]:
    view, sought = folded(text), folded(old).text
    return [
        Place(view.origin(start), view.origin(end), _KeptCharacters(text, view, start, sought).adapted)
        for start, end in _finds(view.text, sought, view.is_between)
    ]


def _finds(text: str, sought: str, is_whole: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    """Start and end of each one that is whole, also of those that begin inside the one before."""
    start, step = text.find(sought), 0
    while start >= 0:
        end = start + len(sought)
        if is_whole(start, end):
            yield start, end
        # In a long row of the same, searching anew from each place would take the square of its length.
        if 0 < step * 2 <= len(sought) and text.startswith(sought[-step:], end):
            start += step
        else:
            following = text.find(sought, start + 1)
            start, step = following, following - start


def _places_by_lines(text: str, old: str, *, look: Callable[[str], View]) -> list[Place]:
    """Where the lines of `old` stand, white space around each aside; all their margins must differ in the same way."""
    view, old_lines = look(text), lines_of(look(old).text)
    sought = "".join(f"\n{line.strip(_BLANKS)}" for line in old_lines) + "\n"
    if not sought.strip():
        return []
    lines = lines_of(view.text)
    bare = "".join(f"\n{line.strip(_BLANKS)}" for line in lines) + "\n"
    if (start := bare.find(sought)) < 0:
        return []
    offsets = [0, *accumulate(map(len, lines))]
    places: list[Place] = []
    number = seen = 0
    while start >= 0:
        number += bare.count("\n", seen, start)
        seen = start
        own = lines[number : number + len(old_lines)]
        if (shift := learn_shift(old_lines, own)) is not None:
            end = offsets[number + len(own)]
            if own[-1].endswith("\n") and not old_lines[-1].endswith("\n"):
                end -= 1
            cuts = [view.origin(cut) for cut in (*offsets[number : number + len(own)], end)]
            kept = [lf(text[a:b]) for a, b in pairwise(cuts)]
            places.append(Place(cuts[0], cuts[-1], _KeptLines(kept, old_lines, look, shift).adapted))
        start = bare.find(sought, start + 1)
    return places


# How to look, what the difference is called, and what is done about it.
_KEPT = "; the file's own were kept where new_string keeps those of old_string."
LADDER: tuple[tuple[Callable[[str, str], list[Place]], str, str], ...] = (
    (places_with_other_line_ends, "line ends", "; the file's own were kept."),
    (_places_without_last_line_end, "the last line end", ", which the file does not have; it was left out."),
    (partial(_places_by_lines, look=with_lf), "indentation", "; new_string was indented as the file is."),
    (_places_with_look_alikes, "look-alike characters (quotes, dashes, spaces, accents)", _KEPT),
    (partial(_places_by_lines, look=folded), "look-alike characters and indentation", _KEPT),
)


class _KeptLines(Struct, frozen=True):
    """Of a replacement, the lines it keeps stand as the file has them (`own`); the others get the file's margin."""

    own: list[str]
    old_lines: list[str]
    look: Callable[[str], View]
    shift: Callable[[str], str]

    def adapted(self, new: str) -> str:
        lines = lines_of(lf(new))
        lacks_end = self.old_lines[-1].endswith("\n") and not self.own[-1].endswith("\n")
        own = [*self.own[:-1], self.own[-1] + "\n"] if lacks_end else self.own  # new lines may stand behind it
        parts: list[str] = []
        for tag, start, end, new_start, new_end in opcodes(self.old_lines, lines_of(self.look(new).text)):
            parts += own[start:end] if tag == "equal" else map(self.shift, lines[new_start:new_end])
        adapted = "".join(parts)
        return adapted.removesuffix("\n") if lacks_end else adapted


class _KeptCharacters(Struct, frozen=True):
    """Of a replacement, what it keeps of `old` (folded, at `start` of the view) stands as the file has it."""

    text: str
    view: View
    start: int
    old: str

    def adapted(self, new: str) -> str:
        fresh = folded(new)
        old_lines, new_lines = lines_of(self.old), lines_of(fresh.text)
        old_at, new_at = [0, *accumulate(map(len, old_lines))], [0, *accumulate(map(len, new_lines))]
        parts: list[str] = []
        for _, start, end, new_start, new_end in opcodes(old_lines, new_lines):
            a, b, c, d = old_at[start], old_at[end], new_at[new_start], new_at[new_end]
            head = self._shared(fresh, a, c, most=min(b - a, d - c), step=1)
            tail = self._shared(fresh, b, d, most=min(b - a, d - c) - head, step=-1)
            parts += [
                self._own(a, a + head),
                lf(new[fresh.origin(c + head) : fresh.origin(d - tail)]),
                self._own(b - tail, b),
            ]
        return "".join(parts)

    def _shared(self, fresh: View, place: int, new_place: int, *, most: int, step: int) -> int:
        """Count the characters from two places on, forwards or backwards, that are equal and whole on both sides."""
        shared = 0
        for n in range(1, most + 1):
            a, c = place + step * n, new_place + step * n
            if self.old[min(a, a - step)] != fresh.text[min(c, c - step)]:
                break
            if self.view.is_between(self.start + a) and fresh.is_between(c):
                shared = n
        return shared

    def _own(self, start: int, end: int) -> str:
        return lf(self.text[self.view.origin(self.start + start) : self.view.origin(self.start + end)])
