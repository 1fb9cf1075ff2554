"""Reads some lines of a text file of any size: once from beginning to end, and in constant memory."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from agentcli.tools.text.encoding import LARGEST_EDITABLE, EncodingGuess, decode, errors_of, shown

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_KEPT_BYTES = 1 << 20  # of one line; the rest of it is only counted
_CHUNK_BYTES = 1 << 20  # read at a time


class LineRange(Struct, frozen=True, kw_only=True):
    """The lines from number `first` (1-based) on: at most `max_lines`, and until they have `max_bytes`.

    A line counts for at most `max_counted` of these bytes.
    """

    first: int
    max_lines: int
    max_bytes: int
    max_counted: int


class FileLine(Struct, frozen=True):
    """A line without its line feed; `cut` counts the bytes (as UTF-8) left out of one over `MAX_KEPT_BYTES`."""

    text: str
    cut: int = 0


class LinesRead(Struct, frozen=True, kw_only=True):
    """The chosen lines of a file, and facts about all of it.

    `is_full` says that the byte limit ended the choice. `digest` is the SHA-256 of the file. `is_certain` is False if
    the encoding is a guess.
    """

    lines: tuple[FileLine, ...]
    is_full: bool
    total_lines: int
    ends_with_newline: bool
    encoding: str
    digest: bytes
    is_certain: bool = True


def read_lines(head: bytes, file: BinaryIO, choice: LineRange, declared: str) -> LinesRead | None:
    """Return the chosen lines of a file whose first 64 KiB, `head`, were read already; None for a binary file.

    `declared` is the charset that the settings name for files that are not UTF-8. Raises `OSError`.
    """
    guess, rest = EncodingGuess(head), file.tell()
    if guess.encoding() is None:
        return None
    digest, collector = hashlib.sha256(), _LineCollector(choice)
    try:
        for body in _bodies(head, file, digest, guess):
            collector.feed(body)
    except UnicodeDecodeError:
        return None
    encoding = guess.encoding()
    if encoding is None:
        return None
    is_certain = True
    if not guess.wide and not guess.bom and guess.broken:
        is_certain = guess.is_certain
        if file.tell() <= LARGEST_EDITABLE:  # no edit is possible beyond, so the exact charset does not matter
            file.seek(rest)
            decoded = decode(head + file.read(), declared)
            encoding, is_certain = (decoded.encoding, decoded.is_certain) if decoded else (encoding, False)
    errors = errors_of(encoding)
    # "replace", because another program may have changed the file since its encoding was found.
    codec = ("utf-8", "surrogatepass") if guess.wide else (encoding, "replace" if errors == "strict" else errors)
    return LinesRead(
        lines=tuple(_decode_line(content, cut, *codec) for content, cut in collector.lines),
        is_full=collector.is_full,
        total_lines=collector.newlines + (not collector.ends_with_newline),
        ends_with_newline=collector.ends_with_newline,
        encoding=encoding,
        digest=digest.digest(),
        is_certain=is_certain,
    )


def _decode_line(content: bytes, cut: int, encoding: str, errors: str) -> FileLine:
    """Return a line of which `content` was kept; one that was cut ends with a whole character."""
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
        chunk = file.read(_CHUNK_BYTES)
    if decoder is not None:
        decoder.decode(b"", final=True)


class _LineCollector:
    """Collects the chosen lines from the bytes it is fed, and counts all lines."""

    def __init__(self, choice: LineRange) -> None:
        self._choice = choice
        self._line = bytearray()  # the line that has not ended yet
        self._cut = self._counted = 0
        self._complete: list[tuple[bytes, int]] = []
        self.newlines = 0
        self.is_full = False
        self.ends_with_newline = True  # an empty file lacks none

    @property
    def lines(self) -> list[tuple[bytes, int]]:
        """The chosen lines, each with the number of bytes left out of it."""
        return [*self._complete, *([(bytes(self._line), self._cut)] if self._line else [])]

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.ends_with_newline = chunk.endswith(b"\n")
        to_skip = max(self._choice.first - 1 - self.newlines, 0)
        self.newlines += chunk.count(b"\n")
        room = self._choice.max_lines - len(self._complete)
        if self.newlines < self._choice.first - 1 or room == 0 or self.is_full:
            return
        wanted = chunk.split(b"\n", to_skip)[-1]
        *complete, unfinished = wanted.split(b"\n", room)
        for line in complete:
            self._add(line)
            self._finish_line()
            if self.is_full:
                return
        if len(complete) < room:
            self._add(unfinished)

    def _add(self, part: bytes) -> None:
        room = MAX_KEPT_BYTES - len(self._line)
        self._line += part[:room]
        self._cut += max(len(part) - room, 0)

    def _finish_line(self) -> None:
        self._complete.append((bytes(self._line), self._cut))
        self._counted += min(len(self._line), self._choice.max_counted) + 1
        self.is_full = self._counted > self._choice.max_bytes
        self._line.clear()
        self._cut = 0
