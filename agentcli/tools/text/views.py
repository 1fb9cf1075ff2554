"""A text as it looks when some characters count as the same, and where in it each place of that look is."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator

_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′ʼ＇", "'"),
        **dict.fromkeys("“”„‟″＂", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
        **dict.fromkeys("\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a", " "),
        **dict.fromkeys("\u202f\u205f\u3000", " "),
        "…": "...",
        **dict.fromkeys(map(chr, range(0xD800, 0xE000)), "\ufffd"),  # a byte that is no character is shown like this
    }
)
_LINE_END = re.compile("\r\n")
# A mark changes the character before it, but no control character: behind a line end it begins the next line.
_NOT_PLAIN = re.compile("\r\n|[\x20-\x7e]?[^\x00-\x7f]+")


class View:
    """Another look at a text. From each of `starts` on, places follow one another as in the text from the same one of
    `origins` on; an origin of -1 is the inside of what counts as one character.
    """

    def __init__(self, text: str, starts: list[int], origins: list[int]) -> None:
        self.text = text
        self._starts = starts
        self._origins = origins

    def origin(self, place: int) -> int:
        """Where in the text a place is that lies between characters."""
        index = bisect_right(self._starts, place) - 1
        return self._origins[index] + place - self._starts[index]

    def is_between(self, *places: int) -> bool:
        """Return True if each place is between two characters and not inside one."""
        return all(self._origins[bisect_right(self._starts, place) - 1] >= 0 for place in places)


def with_lf(text: str) -> View:
    """Every CRLF as LF."""
    starts, origins = [0], [0]
    for number, found in enumerate(_LINE_END.finditer(text)):
        starts.append(found.start() - number + 1)
        origins.append(found.end())
    return View(text.replace("\r\n", "\n"), starts, origins)


def folded(text: str) -> View:
    """Every CRLF as LF, quotes, dashes and spaces as those of ASCII, characters as Unicode decomposes them (NFD)."""
    starts, origins = [0], [0]
    parts: list[str] = []
    length = done = 0
    for found in _NOT_PLAIN.finditer(text):
        parts.append(text[done : found.start()])
        length += found.start() - done
        done = found.start()
        for piece, seen in _clusters(found.group()):
            parts.append(seen)
            if len(piece) != len(seen) or len(piece) > 1:
                if len(seen) > 1:
                    starts.append(length + 1)
                    origins.append(-1)
                starts.append(length + len(seen))
                origins.append(done + len(piece))
            length += len(seen)
            done += len(piece)
    parts.append(text[done:])
    return View("".join(parts), starts, origins)


def _clusters(run: str) -> Iterator[tuple[str, str]]:
    """The characters of some text, each with its marks, and how it is seen."""
    if run == "\r\n":
        yield run, "\n"
        return
    start = 0
    for end in range(1, len(run) + 1):
        if end == len(run) or not unicodedata.combining(run[end]):
            piece = run[start:end]
            yield piece, unicodedata.normalize("NFD", piece).translate(_LOOK_ALIKES)
            start = end
