"""Which encoding a file's bytes are in, so that they can be shown as text and written back as the same bytes."""

from __future__ import annotations

import codecs
import re
from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.tools.text.charset import declared_codec, detect_charset

# How each encoding takes bytes that are wrong in it, so that they come out again as they were: as lone surrogates.
_ERRORS = dict.fromkeys(("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"), "surrogatepass")
_ERRORS["utf-8"] = "surrogateescape"
# UTF-32 stands first: its little-endian BOM begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LARGEST_EDITABLE = 50 * 1024 * 1024  # bytes; an edit holds the file in memory several times
BOM = "\ufeff"  # the byte order mark as a character
SNIFFED_BYTES = 65_536  # bytes at the beginning of a file that tell text from binary
_NOT_IN_TEXT = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")  # control characters but white space, backspace and escape
_NOT_IN_WIDE_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_FEW = 8  # characters, of which no share says anything
_ASCII_TEXT = bytes([*b"\0\t\n\f\r", *range(0x20, 0x7F)])
_NO_C1 = bytes([*range(0x80), *range(0xA0, 0x100)])
_NOT_IN_CP1252 = frozenset(b"\x81\x8d\x8f\x90\x9d")
# Bytes of right UTF-8, without the first of each character, that make UTF-8 certain although some others are wrong.
# Text in other encodings has fewer by chance.
_MIN_UTF8 = 8
_MIN_UTF8_RATIO = 4  # of these to the wrong ones
_SURROGATE = re.compile("[\ud800-\udfff]")


class DecodedText(Struct, frozen=True):
    """A file's text, which encodes back to the same bytes: those that are wrong in the encoding are lone surrogates.

    Where the encoding is not certain, only changes that `changes_only_ascii` accepts may be written.
    """

    text: str
    encoding: str
    bom: bytes = b""
    is_certain: bool = True

    def with_mark_in_text(self) -> DecodedText:
        """The same bytes, where a byte order mark is the first character of the text."""
        return replace(self, text=BOM + self.text, bom=b"") if self.bom else self

    def encoded(self, text: str) -> bytes:
        """A whole file with this text. Raises `ToolError` for a character the file's encoding does not have."""
        return self.bom + self.part(text)

    def part(self, text: str) -> bytes:
        """Some text as it stands inside the file. Raises `ToolError`."""
        try:
            return text.encode(self.encoding, errors_of(self.encoding))
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is encoded as {self.encoding}, which has no {error.object[error.start]!r}: write it another "
                "way, or convert the file first (bash: iconv).",
                kind="validation_error",
            ) from error


def decode(content: bytes, declared: str = "") -> DecodedText | None:
    """Return the text of a file: by its BOM, else UTF-8 or UTF-16, else in another charset; None for what is no text.

    The charset `declared` by the project counts for ASCII, and where the bytes fit it and are not certainly UTF-8.
    """
    guess = EncodingGuess(content[:SNIFFED_BYTES])
    body = content[len(guess.bom) :]
    if guess.wide is None:
        guess.feed(body)
    encoding = guess.encoding()
    if encoding is None:
        return None
    is_certain = guess.is_certain
    if declared and not guess.wide and not guess.bom and (content.isascii() or not guess.is_certain):
        codec = declared_codec(declared, content)
        encoding, is_certain = (codec, True) if codec else (encoding, is_certain)
    if not is_certain and (detected := detect_charset(content)) and (detected.is_certain or encoding != "utf-8"):
        encoding, is_certain = detected.codec, detected.is_certain
    try:
        return DecodedText(body.decode(encoding, errors_of(encoding)), encoding, guess.bom, is_certain)
    except UnicodeDecodeError:
        return None


def errors_of(encoding: str) -> str:
    """The name of the error handler with which any bytes of this encoding survive decoding and encoding."""
    return _ERRORS.get(encoding, "strict")


def shown(text: str) -> str:
    """`text` without lone surrogates, which no request and no JSON can carry: each is U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def require_encodable(text: str, name: str) -> None:
    """Raises `ToolError` for half of a surrogate pair, which is no character."""
    if not text.isascii() and (found := _SURROGATE.search(text)):
        raise ToolError(
            f"{name} holds {found.group()!a}, half of a surrogate pair: give the whole character.",
            kind="invalid_parameters",
        )


class EncodingGuess:
    """Finds the encoding of a file from its first 64 KiB and what is fed after: every byte behind the BOM.

    `wide` is UTF-16 or UTF-32, known from the beginning alone; then nothing need be fed.
    """

    def __init__(self, head: bytes) -> None:
        self.bom, encoding = next(((bom, name) for bom, name in _BOMS if head.startswith(bom)), (b"", ""))
        self.wide: str | None = encoding if encoding not in ("", "utf-8") else None
        self._is_binary = False
        self._has_controls = False
        if self.wide is None and not self.bom:
            head = head[:SNIFFED_BYTES]
            if b"\0" in head:
                self.wide = _wide_without_bom(head)
                self._is_binary = self.wide is None
            self._has_controls = _NOT_IN_TEXT.search(head) is not None
        self._pending = b""
        self._continuations = 0  # bytes of right UTF-8 behind the first of each character
        self._broken = 0  # bytes that are no UTF-8
        self._c1: set[int] = set()

    def feed(self, chunk: bytes) -> None:
        if not self._pending and chunk.isascii():
            return
        chunk = self._pending + chunk
        try:
            text, used = codecs.utf_8_decode(chunk, "strict", False)
        except UnicodeDecodeError:
            text, used = codecs.utf_8_decode(chunk, "surrogateescape", False)
            self._broken += len(_SURROGATE.findall(text))
        self._continuations += used - len(text)
        self._c1.update(chunk.translate(None, _NO_C1))
        self._pending = chunk[used:]

    @property
    def broken(self) -> int:
        """The number of bytes so far that are no UTF-8."""
        return self._broken + len(self._pending)

    @property
    def is_certain(self) -> bool:
        """False if `encoding` is only a guess, on whose account no characters may be written."""
        is_marked, enough = bool(self.wide or self.bom), max(_MIN_UTF8, _MIN_UTF8_RATIO * self.broken)
        return is_marked or not self.broken or self._continuations >= enough

    def encoding(self) -> str | None:
        """UTF-8, also with some broken bytes in it, else Windows-1252 or Latin-1; None for what is no text."""
        if self._is_binary or self.wide:
            return self.wide
        if not self.broken or self.bom or self._continuations > self.broken:
            return "utf-8"
        if self._has_controls:
            return None
        return "cp1252" if self._c1 and not self._c1 & _NOT_IN_CP1252 else "latin-1"


def _wide_without_bom(head: bytes) -> str | None:
    """UTF-16 without a BOM: where only one byte of a pair is zero, as often as in text, and no control character."""
    if len(head) % 2 or len(head) < 4:
        return None
    is_ascii = not head.translate(None, _ASCII_TEXT)
    for encoding, low, high in (("utf-16-le", head[::2], head[1::2]), ("utf-16-be", head[1::2], head[::2])):
        if low.count(0) * 20 <= high.count(0) and _are_high_bytes_of_text(high, is_ascii=is_ascii):
            text = head.decode(encoding, "surrogatepass")
            if "\ud800" <= text[-1] <= "\udbff":  # the other half stands behind what was sniffed
                text = text[:-1]
            return None if _NOT_IN_WIDE_TEXT.search(text) else encoding
    return None


def _are_high_bytes_of_text(high: bytes, *, is_ascii: bool) -> bool:
    """Return True if these can be the high bytes of UTF-16; with `is_ascii` all bytes could be ASCII with some NULs."""
    # Zero is that of Latin, and of spaces and punctuation: a tenth of any text. Other alphabets have one or two more.
    zeros = high.count(0)
    if zeros * 4 >= len(high) * 3:
        return True
    if is_ascii or len(high) < _FEW:
        return False
    of_alphabets = sum(count for _, count in Counter(high).most_common(3))
    return zeros * 3 >= len(high) or (zeros * 10 >= len(high) and of_alphabets * 10 >= len(high) * 9)
