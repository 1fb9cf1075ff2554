"""Takes the terminal codes out of text before it is searched, and puts them back afterwards.

In `\\x1b[32mtoken` the `m` is no part of a word.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

# Codes of ECMA-48, 5.4: raw, and as source code and `cat -v` spell them.
_CODE = re.compile(r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e|\^\[)\[[0-9;:?]{0,40}[ -/]?[@-~]|\x1b\([0-9A-Z]")
_SIGNS = ("\x1b", r"\u001", r"\x1", r"\033", r"\e[", "^[[")  # searching for each is ten times faster than for all
_BEGUN = re.compile(r"(?:(?:\x1b|\\(?:[ux0e][0-9A-Fa-f]{0,4})?|\^\[?)(?:\[[0-9;:?]{0,40}[ -/]?)?|\x1b\()\Z")
_MAX_BEGUN = 64  # characters


class PlainText:
    """Removes the codes from a text that comes in pieces, and remembers them with their positions in the plain text."""

    def __init__(self) -> None:
        self._length = 0
        self._waiting = ""
        self._codes: list[tuple[int, str]] = []
        self._first = 0  # of them that was not given back yet

    def add(self, text: str, *, is_all: bool = False) -> str:
        """Take more text and return the plain text known so far; the possible beginning of a code waits."""
        text = self._waiting + text
        begun = None if is_all else _BEGUN.search(text, max(0, len(text) - _MAX_BEGUN))
        text, self._waiting = (text[: begun.start()], begun[0]) if begun else (text, "")
        if any(sign in text for sign in _SIGNS):
            position = self._length
            for code in _CODE.finditer(text):
                self._codes.append((position + code.start(), code[0]))
                position -= len(code[0])
            text = _CODE.sub("", text)
        self._length += len(text)
        return text

    def written(self, text: str, start: int, end: int, *, is_end: bool = False) -> str:
        """Return the plain `text[start:end]` with its codes, once only. `is_end` includes the codes behind it."""
        pieces: list[str] = []
        for position, code in self._take(end + is_end):
            pieces += (text[start:position], code)
            start = position
        return "".join((*pieces, text[start:end]))

    def hidden_in(self, start: int, end: int) -> str:
        """Return the codes at `start`, and the last of those up to `end`, which sets how the text continues."""
        codes = self._take(end)
        before = [code for position, code in codes if position == start]
        return "".join((*before, *(code for _, code in codes[len(before) :][-1:])))

    def _take(self, end: int) -> list[tuple[int, str]]:
        first, self._first = self._first, bisect_left(self._codes, (end,), self._first)
        return self._codes[first : self._first]

    def places(self, spans: Iterable[tuple[int, int, str]]) -> list[tuple[int, int]]:
        """Return the positions of these spans in the text as written."""
        at = [position for position, _ in self._codes]
        lengths = [0, *accumulate(len(code) for _, code in self._codes)]
        return [
            (start + lengths[bisect_right(at, start)], end + lengths[bisect_left(at, end)]) for start, end, _ in spans
        ]

    def forget(self, count: int) -> None:
        """Drop the first `count` characters of the plain text."""
        self._length -= count
        self._codes, self._first = [(position - count, code) for position, code in self._codes[self._first :]], 0
