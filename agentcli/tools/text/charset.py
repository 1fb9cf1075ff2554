"""Finds the charset of a file that is neither UTF-8 nor UTF-16, from its bytes or from what the project declares."""

from __future__ import annotations

import re

from msgspec import Struct

from agentcli.tools.web.charsets import codec_of

# What `chardet` detects, and the codecs that such a file may be in, the narrowest first: what it has no character for
# is refused, so no program that expects the narrower one meets characters it does not know.
_DETECTABLE = {
    "cp932": ("cp932",),
    "euc_jis_2004": ("euc_jp",),
    "gb18030": ("gbk", "gb18030"),
    "big5hkscs": ("big5", "big5hkscs"),
    "cp949": ("euc_kr", "cp949"),
    "koi8-r": ("koi8-r",),
    "cp1251": ("cp1251",),
}
# Others that the same bytes may be in: a detection counts only where none of them fits about as well.
_RIVALS = (
    "koi8-u cp866 iso8859-5 cp1252 cp1250 iso8859-2 cp1253 iso8859-7 cp1254 cp1255 cp1256 cp1257 cp874 mac-roman cp850 "
    "cp437"
).split()
_ISO_8859_1 = ("latin1", "iso-8859-1", "iso8859-1", "iso_8859-1", "l1")
_MAX_SAMPLE_BYTES = 65_536
_MIN_CHARS = 4  # not ASCII; fewer fit several charsets
_MIN_CERTAIN_CHARS = 6
_MIN_CONFIDENCE = 0.04
_MIN_RATIO = 2.0  # of the confidence to that of the next candidate
_LINE = re.compile(rb"[^\n]*[\x80-\xff][^\n]*\n?")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_CYRILLIC_WORD = re.compile("[\u0400-\u04ff]+")
_MIXED_WORD = re.compile("[A-Za-z][\u0400-\u04ff]|[\u0400-\u04ff][A-Za-z]")
_COMMON_CYRILLIC = frozenset("оеаинтсрвл")
_ASCII = frozenset(map(chr, range(0x80)))
_HANGUL = re.compile("[\uac00-\ud7a3]")


class Charset(Struct, frozen=True):
    """A codec that decodes a file and encodes it to the same bytes. Characters may be written only in a certain one."""

    codec: str
    is_certain: bool


def declared_codec(label: str, content: bytes) -> str | None:
    """Return the codec for a declared charset; None where the label is unknown or the bytes are not in it."""
    codec = codec_of(label)
    if not codec or codec.startswith("utf-"):
        return None
    codecs = next((codecs for codecs in _DETECTABLE.values() if codec in codecs), (codec,))
    if label.strip().lower() in _ISO_8859_1:  # for browsers, Windows-1252
        codecs = ("latin-1", "cp1252")
    return next((one for one in codecs if _text_in(content, one) is not None), None)


def detect_charset(content: bytes) -> Charset | None:
    """Return the multi-byte or Cyrillic charset of a file; None where it looks like none of those."""
    sample = _sample(content)
    # 20 ms that only such a file needs
    from chardet import detect_all

    found = detect_all(sample, ignore_threshold=True, compat_names=False, include_encodings=(*_DETECTABLE, *_RIVALS))
    candidates = [(each["encoding"], each["confidence"]) for each in found if each["encoding"]]
    if not candidates:
        return None
    best = candidates[0][1]
    for name, confidence in candidates:
        if confidence < best * 0.9:
            return None
        for codec in _DETECTABLE.get(name, ()):
            text = _text_in(content, codec)
            shown = sample.decode(codec, "ignore")
            if text is None or not _is_plausible(shown, codec):
                continue
            rivals = [other for rival, other in candidates if sample.decode(rival, "ignore") != shown]
            is_clear = confidence >= max(_MIN_CONFIDENCE, _MIN_RATIO * max(rivals, default=0.0))
            is_clear = is_clear and _beyond_ascii(text) >= _MIN_CERTAIN_CHARS
            return Charset(codec, is_clear and not _other_cyrillic_fits(sample, codec))
    return None


def _sample(content: bytes) -> bytes:
    """The first lines that are not ASCII, up to a character that is no part of a longer one."""
    lines = bytearray()
    for found in _LINE.finditer(content):
        lines += found.group()
        if len(lines) > _MAX_SAMPLE_BYTES:
            end = max(lines.rfind(b"\n", 0, _MAX_SAMPLE_BYTES), lines.rfind(b" ", 0, _MAX_SAMPLE_BYTES))
            return bytes(lines[: end + 1 or _MAX_SAMPLE_BYTES])
    return bytes(lines)


def _text_in(content: bytes, codec: str) -> str | None:
    """The whole text; None where the codec refuses it, gives other bytes back, or finds control characters."""
    try:
        text = content.decode(codec)
        return None if _CONTROL.search(text) or text.encode(codec) != content else text
    except UnicodeError:
        return None


def _beyond_ascii(text: str) -> int:
    """Count the characters that are not ASCII."""
    return sum(map(text.count, set(text) - _ASCII))


def _is_plausible(text: str, codec: str) -> bool:
    """True unless the text is too short, or what another script looks like when it is read in this charset."""
    if _beyond_ascii(text) < _MIN_CHARS:
        return False
    if codec in ("euc_kr", "cp949"):  # Korean is written in Hangul; only a few Chinese characters are used beside it
        letters = [char for char in text if char.isalpha() and not char.isascii()]
        return len(_HANGUL.findall(text)) * 10 >= len(letters) * 9
    if codec not in ("koi8-r", "cp1251"):
        return True
    words = _CYRILLIC_WORD.findall(text)
    in_long_words = sum(len(word) for word in words if len(word) > 2)
    if in_long_words * 10 < sum(map(len, words)) * 7:
        return False
    # Accented letters inside Latin words would be Cyrillic ones. In source code a word may follow `\n`.
    mixed = len(_MIXED_WORD.findall(re.sub(r"\\[a-z]", " ", text)))
    return mixed * 4 <= len(words)


def _other_cyrillic_fits(sample: bytes, codec: str) -> bool:
    """True if the bytes are as good a text in the other Cyrillic charset: capitals there are small letters here."""
    if codec not in ("koi8-r", "cp1251"):
        return False
    text, other = (sample.decode(each, "ignore") for each in (codec, "cp1251" if codec == "koi8-r" else "koi8-r"))
    words = _CYRILLIC_WORD.findall(other)
    has_usual_case = all(word.islower() or word.isupper() or word == word.capitalize() for word in words)
    return has_usual_case and _common_share(other) >= 0.8 * _common_share(text)


def _common_share(text: str) -> float:
    letters = "".join(_CYRILLIC_WORD.findall(text.lower()))
    return sum(letter in _COMMON_CYRILLIC for letter in letters) / max(1, len(letters))
