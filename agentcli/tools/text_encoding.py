"""Which encoding a file's bytes are in, so that they can be shown as text and written back as the same bytes."""

from __future__ import annotations

import codecs
import re
from typing import Literal

from msgspec import Struct

from agentcli.errors import ToolError

# How each encoding takes bytes that are wrong in it, so that they come out again as they were: as lone surrogates.
_ERRORS: dict[str, Literal["surrogateescape", "surrogatepass"]] = {
    "utf-8": "surrogateescape",
    "utf-16-le": "surrogatepass",
    "utf-16-be": "surrogatepass",
    "utf-32-le": "surrogatepass",
    "utf-32-be": "surrogatepass",
}
# UTF-32 stands first: its little-endian BOM begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
SNIFFED = 65_536  # bytes at the beginning of a file that tell text from binary
_NOT_IN_TEXT = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")  # control characters but white space, backspace and escape
_NOT_IN_WIDE_TEXT = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NO_C1 = bytes([*range(0x80), *range(0xA0, 0x100)])
_NOT_IN_CP1252 = frozenset(b"\x81\x8d\x8f\x90\x9d")
_SURROGATE = re.compile("[\ud800-\udfff]")


class DecodedText(Struct, frozen=True):
    """A file's text, and what its bytes need beside it. `text` encodes back to the same bytes.

    A byte that is wrong in the encoding is a lone surrogate in it; `shown` is what others may see.
    """

    text: str
    encoding: str
    bom: bytes = b""

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


def decode(content: bytes) -> DecodedText | None:
    """The text of a file: by its BOM, else UTF-8 or UTF-16, else one byte a character; None for what is no text."""
    guess = EncodingGuess(content[:SNIFFED])
    body = content[len(guess.bom) :]
    if guess.wide is None:
        guess.feed(body)
    encoding = guess.encoding()
    if encoding is None:
        return None
    try:
        return DecodedText(body.decode(encoding, errors_of(encoding)), encoding, guess.bom)
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
    """Finds the encoding of a file that is read in pieces, from its first 64 KiB and what is fed after.

    `wide` is UTF-16 or UTF-32, known from the beginning alone; else `feed` takes every byte behind the BOM, and
    `encoding` tells at the end: UTF-8, also with some broken bytes in it, else Windows-1252 or Latin-1, and None for
    what is no text.
    """

    def __init__(self, head: bytes) -> None:
        self.bom, encoding = next(((bom, name) for bom, name in _BOMS if head.startswith(bom)), (b"", ""))
        self.wide: str | None = encoding if encoding not in ("", "utf-8") else None
        self._is_binary = False
        self._has_controls = False
        if self.wide is None and not self.bom:
            head = head[:SNIFFED]
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

    def encoding(self) -> str | None:
        if self._is_binary or self.wide:
            return self.wide
        broken = self._broken + len(self._pending)
        if not broken or self.bom or self._continuations > broken:
            return "utf-8"
        if self._has_controls:
            return None
        return "cp1252" if self._c1 and not self._c1 & _NOT_IN_CP1252 else "latin-1"


def _wide_without_bom(head: bytes) -> str | None:
    """UTF-16 without a BOM: one byte of many pairs is zero, always the same one, and no control characters come out.

    A tenth is what the spaces and line ends of any script give.
    """
    units = len(head) // 2
    zeros = head[: units * 2 : 2].count(0), head[1 : units * 2 : 2].count(0)
    for encoding, low, high in (("utf-16-le", *zeros), ("utf-16-be", *zeros[::-1])):
        if units > 1 and not low and high * 10 >= units:
            text = head[: units * 2].decode(encoding, "surrogatepass")
            if "\ud800" <= text[-1] <= "\udbff":  # the other half stands behind what was sniffed
                text = text[:-1]
            return None if _NOT_IN_WIDE_TEXT.search(text) else encoding
    return None
