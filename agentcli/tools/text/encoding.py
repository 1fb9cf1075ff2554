"""Finds the encoding of a file's bytes, so that they can be shown as text and written back as the same bytes."""

from __future__ import annotations

import codecs
import re

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.patterns import lazy_pattern

# UTF-32 comes first: its little-endian BOM begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
BOM = "\ufeff"  # the byte order mark as a character
SNIFFED_BYTES = 65_536  # at the beginning of a file, which tell text from binary data
_SURROGATE = lazy_pattern("[\ud800-\udfff]")


class DecodedText(Struct, frozen=True):
    """A file's text. It encodes back to the same bytes, because bytes that are not characters are lone surrogates."""

    text: str
    encoding: str
    bom: bytes = b""  # the byte order mark, which is not in the text
    is_certain: bool = True  # False: only changes that `changes_only_ascii` accepts may be written

    def encoded(self, text: str) -> bytes:
        """Return a whole file with this text. Raises `ToolError` for a character that the encoding lacks."""
        return self.bom + self.encoded_part(text)

    def encoded_part(self, text: str) -> bytes:
        """Return the bytes of a part of the file with this text. Raises `ToolError`."""
        try:
            return text.encode(self.encoding, error_handler_of(self.encoding))
        except UnicodeEncodeError as error:
            message = f"The file is encoded as {self.encoding}, which has no {error.object[error.start]!r}"
            advice = "write it another way, or convert the file first (bash: iconv)."
            raise ToolError(f"{message}: {advice}", kind="validation_error") from error


def decode(content: bytes, declared: str = "") -> DecodedText | None:
    """Return the text of a file: by its BOM, else as UTF-8, else in another charset; None for a binary file.

    If the bytes are not certainly UTF-8, the charset that the settings have `declared` is tried first.
    """
    guess = EncodingGuess(content[:SNIFFED_BYTES])
    body = content[len(guess.bom) :]
    if guess.wide_encoding is None:
        guess.feed(body)
    encoding = guess.encoding()
    if encoding is None:
        return None
    is_certain = guess.is_certain
    if not is_certain and (codec := declared_codec(declared, content)):
        encoding, is_certain = codec, True
    try:
        return DecodedText(body.decode(encoding, error_handler_of(encoding)), encoding, guess.bom, is_certain)
    except UnicodeDecodeError:
        return None


def error_handler_of(encoding: str) -> str:
    """Return the error handler with which any bytes of an encoding survive decoding and encoding."""
    if encoding.startswith(("utf-16", "utf-32")):
        return "surrogatepass"
    # Windows-1252 has no characters for five bytes.
    return "surrogateescape" if encoding in ("utf-8", "cp1252") else "strict"


def without_surrogates(text: str) -> str:
    """Return a text with U+FFFD for each lone surrogate, which neither a request nor JSON can carry."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def require_encodable(text: str, name: str) -> None:
    """Raise `ToolError` for half of a surrogate pair, which is not a character."""
    if not text.isascii() and (found := _SURROGATE.search(text)):
        message = f"{name} holds {found.group()!a}, half of a surrogate pair: give the whole character."
        raise ToolError(message, kind="invalid_parameters")


class EncodingGuess:
    """Finds the encoding of a file. It is created with the first 64 KiB, then fed every byte after the BOM."""

    def __init__(self, head: bytes) -> None:
        self.bom, encoding = next(((bom, name) for bom, name in _BOMS if head.startswith(bom)), (b"", ""))
        # UTF-16 or UTF-32, for which the BOM suffices: such a file need not be fed. None for any other encoding.
        self.wide_encoding = encoding if encoding not in ("", "utf-8") else None
        head = b"" if self.bom else head[:SNIFFED_BYTES]  # a file with a BOM is text
        self._is_binary = b"\0" in head
        # Control characters except white space, backspace and escape.
        self._has_controls = re.search(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]", head) is not None
        self._pending = b""  # the beginning of a character whose other bytes are still to come
        # Evidence for UTF-8: bytes after the first one of each valid character. Against it: bytes that are not UTF-8.
        self._continuations, self._invalid_bytes = 0, 0

    def feed(self, chunk: bytes) -> None:
        if not self._pending and chunk.isascii():  # says nothing about the encoding
            return
        chunk = self._pending + chunk
        try:
            text, used = codecs.utf_8_decode(chunk, "strict", False)
        except UnicodeDecodeError:
            text, used = codecs.utf_8_decode(chunk, "surrogateescape", False)
            self._invalid_bytes += len(_SURROGATE.findall(text))
        self._continuations += used - len(text)  # a character of n bytes has n - 1 of them
        self._pending = chunk[used:]

    @property
    def invalid_bytes(self) -> int:
        return self._invalid_bytes + len(self._pending)

    @property
    def is_certain(self) -> bool:
        """False if `encoding` is only a guess, with which only ASCII characters may be written."""
        # In another encoding, few bytes look like UTF-8 by chance.
        return bool(self.bom) or not self.invalid_bytes or self._continuations >= max(8, 4 * self.invalid_bytes)

    def encoding(self) -> str | None:
        """Return UTF-8 (a few broken bytes are allowed), else Windows-1252; None for a binary file."""
        if self.wide_encoding:
            return self.wide_encoding
        is_utf8 = not self.invalid_bytes or self.bom or self._continuations > self.invalid_bytes
        if self._is_binary or (self._has_controls and not is_utf8):
            return None
        return "utf-8" if is_utf8 else "cp1252"


# By declared charset, the codec that is tried before the wider one of `codec_of`. Then a character that only the wider
# one has is rejected, because other programs might not know it.
_NARROWER = {"iso-8859-1": "latin-1", "gbk": "gbk", "gb18030": "gbk", "big5": "big5", "euc-kr": "euc_kr"}
_CONTROL = lazy_pattern("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


def declared_codec(label: str, content: bytes) -> str | None:
    """Return the codec for a charset of the settings; None if there is none, or if the bytes are not in it."""
    codecs_to_try = filter(None, (_NARROWER.get(label), codec_of(label)))
    return next((codec for codec in codecs_to_try if _fits(content, codec)), None)


def _fits(content: bytes, codec: str) -> bool:
    """Return True if a codec decodes the bytes to a text without control codes, and encodes that to the same bytes."""
    try:
        text = content.decode(codec)
        return not _CONTROL.search(text) and text.encode(codec) == content
    except UnicodeError:
        return False


_IN_HEADER = lazy_pattern(r"charset\s*=\s*[\"']?([^\s\"';]+)", re.IGNORECASE)
_IN_PAGE = lazy_pattern(
    r"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]+)|\A\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)",
    re.IGNORECASE,
)
# Codecs that only map characters; Python's others compress, escape or read UTF-7.
_TEXT_CODECS = lazy_pattern(
    r"ascii|utf-(8|16|16-[bl]e)|cp\d+|iso8859-\d+|iso2022_jp|koi8-[ru]|euc_\w+|gb\w+|big5\w*|shift_jis|mac-\w+"
)
# The wider codecs that browsers use for these (WHATWG Encoding).
_WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "gb2312": "gb18030",
    "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949", "utf-16": "utf-16-le",
}  # fmt: skip


def decode_page(body: bytes, content_type: str) -> str:
    """Return the body in the charset of its byte order mark, header or first lines, else as UTF-8 or Windows-1252."""
    for bom, codec in _BOMS:
        if body.startswith(bom):
            return body[len(bom) :].decode(codec, errors="replace")
    header, page = _IN_HEADER.search(content_type), _IN_PAGE.search(body[:2_048].decode("latin-1"))
    codec = codec_of(header[1]) if header else ""
    if not codec and page:
        codec = codec_of(page[1] or page[2])
        codec = "utf-8" if codec.startswith("utf-16") else codec  # a page in UTF-16 has no label that ASCII can read
    try:
        return body.decode(codec or "utf-8", errors="replace" if codec else "strict")
    except UnicodeDecodeError as error:
        text = body.decode("utf-8", errors="replace")
        # A few broken characters, or one cut off at the end (at most 4 bytes), do not mean that it is another charset.
        is_utf8 = text.count("\ufffd") * 200 < len(text) or error.start > len(body) - 4
        return text if is_utf8 else body.decode("cp1252", errors="replace")


def codec_of(label: str) -> str:
    """Return Python's codec for a label, or the wider one that browsers use; empty for an unknown label."""
    try:
        name = codecs.lookup(label.strip().lower().removeprefix("x-")).name
    except (LookupError, ValueError):  # ValueError: the label has a null character
        return ""
    return _WIDER.get(name, name) if _TEXT_CODECS.fullmatch(name) else ""
