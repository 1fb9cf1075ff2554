"""Some lines of a text file of any size, which is read once from beginning to end in constant memory."""

from __future__ import annotations

import codecs
import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from agentcli.tools.text.encoding import LARGEST_EDITABLE, EncodingGuess, decode, errors_of, shown

if TYPE_CHECKING:
    from hashlib import _Hash

LONGEST_KEPT = 1 << 20  # bytes of one line

_CHUNK = 1 << 20  # bytes read at a time


class LineRange(Struct, frozen=True):
    """The lines from number `first` (1-based) on, at most `most_lines`, until they have `most_bytes`.

    Each line counts for at most `counted` bytes.
    """

    first: int
    most_lines: int | None
    most_bytes: int
    counted: int


class FileLine(Struct, frozen=True):
    """A line without its line feed; `cut` counts the bytes (as UTF-8) left out of one longer than `LONGEST_KEPT`."""

    text: str
    cut: int = 0


class LinesRead(Struct, frozen=True, kw_only=True):
    """The chosen lines of a file, and facts about all of it; it `is_full` where the byte limit ended the choice."""

    lines: tuple[FileLine, ...]
    is_full: bool
    total_lines: int
    ends_with_newline: bool
    encoding: str
    digest: bytes
    is_certain: bool = True


def read_lines(head: bytes, file: BinaryIO, choice: LineRange, declared: Callable[[], str]) -> LinesRead | None:
    """Return the lines chosen; None for a binary file. The first 64 KiB, `head`, were read already. Raises `OSError`.

    `declared` gives the charset that the project says a file has which is not UTF-8.
    """
    guess, rest = EncodingGuess(head), file.tell()
    if guess.encoding() is None:
        return None
    digest, chosen = hashlib.sha256(), _Chosen(choice)
    try:
        for body in _bodies(head, file, digest, guess):
            chosen.feed(body)
    except UnicodeDecodeError:
        return None
    encoding = guess.encoding()
    if encoding is None:
        return None
    is_certain = True
    if not guess.wide and not guess.bom and guess.broken:
        if file.tell() > LARGEST_EDITABLE:  # no edit will ask, so it is not read again for this
            is_certain = guess.is_certain
        else:
            file.seek(rest)
            decoded = decode(head + file.read(), declared())
            encoding, is_certain = (decoded.encoding, decoded.is_certain) if decoded else (encoding, False)
    errors = errors_of(encoding)
    # Another program may have changed the file since it was looked through.
    codec = ("utf-8", "surrogatepass") if guess.wide else (encoding, "replace" if errors == "strict" else errors)
    return LinesRead(
        lines=tuple(_line(content, cut, *codec) for content, cut in chosen.lines),
        is_full=chosen.is_full,
        total_lines=chosen.newlines + (not chosen.ends_with_newline),
        ends_with_newline=chosen.ends_with_newline,
        encoding=encoding,
        digest=digest.digest(),
        is_certain=is_certain,
    )


def _line(content: bytes, cut: int, encoding: str, errors: str) -> FileLine:
    """The line of which `content` was kept; one that is cut ends with a whole character."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    text = decoder.decode(content, final=not cut)
    return FileLine(shown(text), cut + len(decoder.getstate()[0]) if cut else 0)


def _bodies(head: bytes, file: BinaryIO, digest: _Hash, guess: EncodingGuess) -> Iterator[bytes]:
    """Yield the bytes behind the BOM, those of UTF-16 and UTF-32 as UTF-8. Raises `UnicodeDecodeError`."""
    chunk, skipped = head, len(guess.bom)
    decoder = codecs.getincrementaldecoder(guess.wide)("surrogatepass") if guess.wide else None
    while chunk:
        digest.update(chunk)
        body, skipped = chunk[skipped:], 0
        if decoder is None:
            guess.feed(body)
            yield body
        else:
            yield decoder.decode(body).encode("utf-8", "surrogatepass")
        chunk = file.read(_CHUNK)
    if decoder is not None:
        decoder.decode(b"", final=True)


class _Chosen:
    """Collects the lines chosen from the bytes it is fed, and counts all lines."""

    def __init__(self, choice: LineRange) -> None:
        self._choice = choice
        self._line = bytearray()
        self._cut = self._counted = 0
        self._complete: list[tuple[bytes, int]] = []
        self.newlines = 0
        self.is_full = False
        self.ends_with_newline = True  # an empty file lacks none

    @property
    def lines(self) -> list[tuple[bytes, int]]:
        """The lines, and how many bytes are left out of each."""
        unfinished = [(bytes(self._line), self._cut)] if self._line else []
        return [*self._complete, *unfinished]

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.ends_with_newline = chunk.endswith(b"\n")
        start = self._skip(chunk)
        while start < len(chunk) and self.newlines + 1 >= self._choice.first and not self._is_done():
            end = chunk.find(b"\n", start)
            self._add(chunk[start : end if end >= 0 else len(chunk)])
            if end < 0:
                return
            self._finish_line()
            start = end + 1
        self.newlines += chunk.count(b"\n", start)

    def _skip(self, chunk: bytes) -> int:
        """Where in the chunk the first line chosen begins, or its end."""
        missing = self._choice.first - 1 - self.newlines
        if missing <= 0:
            return 0
        found = min(chunk.count(b"\n"), missing)
        self.newlines += found
        if found < missing:
            return len(chunk)
        return bisect_left(range(len(chunk)), missing, key=lambda end: chunk.count(b"\n", 0, end))

    def _is_done(self) -> bool:
        return self.is_full or len(self._complete) == self._choice.most_lines

    def _add(self, part: bytes) -> None:
        room = LONGEST_KEPT - len(self._line)
        self._line += part[:room]
        self._cut += max(len(part) - room, 0)

    def _finish_line(self) -> None:
        self._complete.append((bytes(self._line), self._cut))
        self._counted += min(len(self._line), self._choice.counted) + 1
        self.is_full = self._counted > self._choice.most_bytes
        self._line.clear()
        self._cut = 0
        self.newlines += 1
