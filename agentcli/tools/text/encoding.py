"""Finds the encoding of a file's bytes, so that they can be shown as text and written back as the same bytes."""

from __future__ import annotations

import codecs
import re

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.tools.text.charset import declared_codec, detect_charset

# UTF-32 comes first: its little-endian BOM begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
LARGEST_EDITABLE = 50 * 1024 * 1024  # bytes; an edit holds the file in memory several times
BOM = "\ufeff"  # the byte order mark as a character
SNIFFED_BYTES = 65_536  # at the beginning of a file, by which text and binary are told apart
_NO_C1 = bytes([*range(0x80), *range(0xA0, 0x100)])
_SURROGATE = re.compile("[\ud800-\udfff]")


class DecodedText(Struct, frozen=True):
    """A file's text, which encodes back to the same bytes: those that are wrong in the encoding are lone surrogates.

    If the encoding is not certain, only changes that `changes_only_ascii` accepts may be written.
    """

    text: str
    encoding: str
    bom: bytes = b""
    is_certain: bool = True

    def with_mark_in_text(self) -> DecodedText:
        """Return the same bytes, with the byte order mark as the first character of the text."""
        return replace(self, text=BOM + self.text, bom=b"") if self.bom else self

    def encoded(self, text: str) -> bytes:
        """Return a whole file with this text. Raises `ToolError` for a character the file's encoding does not have."""
        return self.bom + self.part(text)

    def part(self, text: str) -> bytes:
        """Return some text as it is inside the file. Raises `ToolError`."""
        try:
            return text.encode(self.encoding, errors_of(self.encoding))
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is encoded as {self.encoding}, which has no {error.object[error.start]!r}: write it another "
                "way, or convert the file first (bash: iconv).",
                kind="validation_error",
            ) from error


def decode(content: bytes, declared: str = "") -> DecodedText | None:
    """Return the text of a file: by its BOM, else as UTF-8, else in another charset; None for a binary file.

    The charset that the settings have `declared` counts if the bytes fit it and are not certainly UTF-8.
    """
    guess = EncodingGuess(content[:SNIFFED_BYTES])
    body = content[len(guess.bom) :]
    if guess.wide is None:
        guess.feed(body)
    encoding = guess.encoding()
    if encoding is None:
        return None
    is_certain = guess.is_certain
    if declared and not guess.is_certain:
        codec = declared_codec(declared, content)
        encoding, is_certain = (codec, True) if codec else (encoding, is_certain)
    if not is_certain and (detected := detect_charset(content)) and (detected.is_certain or encoding != "utf-8"):
        encoding, is_certain = detected.codec, detected.is_certain
    try:
        return DecodedText(body.decode(encoding, errors_of(encoding)), encoding, guess.bom, is_certain)
    except UnicodeDecodeError:
        return None


def errors_of(encoding: str) -> str:
    """Return the error handler with which any bytes of an encoding survive decoding and encoding."""
    if encoding.startswith(("utf-16", "utf-32")):
        return "surrogatepass"
    return "surrogateescape" if encoding == "utf-8" else "strict"


def shown(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate, which no request and no JSON can carry."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def require_encodable(text: str, name: str) -> None:
    """Raise `ToolError` for half of a surrogate pair, which is no character."""
    if not text.isascii() and (found := _SURROGATE.search(text)):
        raise ToolError(
            f"{name} holds {found.group()!a}, half of a surrogate pair: give the whole character.",
            kind="invalid_parameters",
        )


class EncodingGuess:
    """Finds the encoding of a file from its first 64 KiB and what is fed after: every byte behind the BOM.

    `wide` is UTF-16 or UTF-32, known from the BOM alone; then nothing need be fed.
    """

    def __init__(self, head: bytes) -> None:
        self.bom, encoding = next(((bom, name) for bom, name in _BOMS if head.startswith(bom)), (b"", ""))
        self.wide = encoding if encoding not in ("", "utf-8") else None
        head = b"" if self.bom else head[:SNIFFED_BYTES]
        self._is_binary = b"\0" in head
        # Control characters but white space, backspace and escape.
        self._has_controls = re.search(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]", head) is not None
        self._pending = b""
        self._continuations = 0  # bytes of right UTF-8 behind the first of each character
        self._broken = 0  # bytes that are not UTF-8
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
        """The number of bytes so far that are not UTF-8."""
        return self._broken + len(self._pending)

    @property
    def is_certain(self) -> bool:
        """False if `encoding` is only a guess, with which no characters may be written."""
        # Text in other encodings has fewer right bytes of UTF-8 by chance.
        return bool(self.bom) or not self.broken or self._continuations >= max(8, 4 * self.broken)

    def encoding(self) -> str | None:
        """Return UTF-8, also with some broken bytes in it, else Windows-1252 or Latin-1; None for a binary file."""
        if self._is_binary or self.wide:
            return self.wide
        if not self.broken or self.bom or self._continuations > self.broken:
            return "utf-8"
        if self._has_controls:
            return None
        return "cp1252" if self._c1 and not self._c1 & {*b"\x81\x8d\x8f\x90\x9d"} else "latin-1"
