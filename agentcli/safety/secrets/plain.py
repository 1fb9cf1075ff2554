"""Turns text into what a person sees: without colours, and with quotes and signs in place of their escapes.

Behind `\\x1b[32m` a word begins, and `\\u0022` is a quote. Secrets are searched for in the plain text; the text around
them is given back as it was written.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

# Terminal codes (ECMA-48, 5.4), raw and as programs and source code spell them; line ends and tabs of `cat -A`; quotes
# and signs as JSON, Python and HTML escape them.
_DISGUISE = re.compile(
    r"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e|\^\[)\[[0-9;:?]{0,40}[ -/]?[@-~]|\x1b\([0-9A-Z]"
    r"|\$(?:\n|\Z)|\^[IM]|\\(?:u00|x)(?P<code>2[267]|3[c-eC-E])|&(?:quot|apos|amp|\#(?:34|39|38|x2[267]|X2[267]));"
)
_SIGNS = BytesAhoCorasick(
    [sign.encode() for sign in r"\u00 \x1 \x2 \x3 \033[ \e[ ^[[ ^I ^M &quot; &apos; &amp; &#".split()]
    + [b"\x1b", b"$\n"],
    implementation=Implementation.DFA,
)
_BEGUN = re.compile(
    r"\$?(?:(?:\x1b|\\(?:[ux0e][0-9A-Fa-f]{0,4})?|\^\[?)(?:\[[0-9;:?]{0,40}[ -/]?)?|\x1b\(|&[#\w]{0,5})\Z|\$\Z"
)
_LINE_MARKS = {"$\n": "\n", "^I": "\t", "^M": "\r"}
_LONGEST = 64  # characters


class _Swap(NamedTuple):
    """`plain`, one character or none, stands at `start` in place of `written`."""

    start: int
    plain: str
    written: str


class PlainText:
    """The plain form of a text that comes in pieces, and the way back to the text as written."""

    def __init__(self) -> None:
        self._length = 0
        self._waiting = ""
        self._swaps: deque[_Swap] = deque()  # in the text that was not given back yet

    def add(self, text: str, *, is_all: bool = False) -> str:
        """Take more text and return the plain text known so far; a possible beginning of an escape waits."""
        text = self._waiting + text
        begun = None if is_all else _BEGUN.search(text, max(0, len(text) - _LONGEST))
        self._waiting = text[begun.start() :] if begun else ""
        text = text[: begun.start()] if begun else text
        places = [start for _, start, _ in _SIGNS.find_matches_as_indexes(text.encode("latin-1", "replace"))]
        if is_all and text.endswith("$"):
            places.append(len(text) - 1)
        if places:
            text = "".join(self._parts(text, places))
        self._length += len(text)
        return text

    def _parts(self, text: str, places: Iterable[int]) -> Iterator[str]:
        position = 0  # in the text as written
        length = self._length
        for place in places:
            if place >= position and (match := _DISGUISE.match(text, place)):
                plain = _plain(match)
                yield text[position:place]
                yield plain
                length += place - position
                self._swaps.append(_Swap(length, plain, match.group()))
                length += len(plain)
                position = match.end()
        yield text[position:]

    def written(self, text: str, start: int, end: int, *, is_end: bool = False) -> str:
        """The text as written for `text[start:end]`, once only. `is_end` includes the codes behind it."""
        pieces: list[str] = []
        while self._swaps and (self._swaps[0].start < end or is_end):
            swap = self._swaps.popleft()
            pieces += (text[start : swap.start], swap.written)
            start = swap.start + len(swap.plain)
        return "".join((*pieces, text[start:end]))

    def hidden_in(self, start: int, end: int) -> str:
        """The codes at `start`, and the last of those up to `end`, which sets how the text continues."""
        first, last = "", ""
        while self._swaps and self._swaps[0].start < end:
            swap = self._swaps.popleft()
            if swap.start == start and not swap.plain:
                first += swap.written
            elif not swap.plain:
                last = swap.written
        return first + last

    def places(self, spans: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
        """The positions of these spans, in order and apart, in the text as written."""
        offset, swaps = 0, deque(self._swaps)

        def place(position: int, *, is_start: bool) -> int:
            nonlocal offset
            while swaps and (swaps[0].start < position or (is_start and swaps[0].start == position)):
                swap = swaps[0]
                if swap.start == position and swap.plain:
                    break
                swaps.popleft()
                offset += len(swap.written) - len(swap.plain)
            return position + offset

        for start, end, _ in spans:
            yield place(start, is_start=True), place(end, is_start=False)

    def forget(self, count: int) -> None:
        """Drop the first `count` characters of the plain text."""
        self._length -= count
        if self._swaps:
            self._swaps = deque(swap._replace(start=swap.start - count) for swap in self._swaps)


def _plain(match: re.Match[str]) -> str:
    if match["code"]:
        return chr(int(match["code"], 16))
    written = match.group()
    return html.unescape(written) if written.startswith("&") else _LINE_MARKS.get(written, "")
