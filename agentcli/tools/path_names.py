r"""Writes names that are not UTF-8 so that a request can carry them and a shell takes them back: `$'caf\xe9.txt'`."""

from __future__ import annotations

import re

_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # half of a surrogate pair, which no path holds
_ESCAPED = re.compile(r"[\\'\x00-\x1f\x7f\udc80-\udcff]")
_QUOTED = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def is_utf8(text: str) -> bool:
    """False for what the system gave as bytes that are not UTF-8."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def display_name(path: str) -> str:
    """Return the path itself, or the way a shell quotes it if some of its bytes are not UTF-8."""
    if is_utf8(path):
        return path
    return f"$'{_ESCAPED.sub(_escape, path)}'"


def parse_name(text: str) -> str:
    """Return the path that `display_name` gave this for, also if only parts of it are quoted; else the text itself."""
    if "$'" not in text or re.search(_NO_BYTE, text):
        return text
    path = _QUOTED.sub(lambda found: _unquote(found[1]), text)
    return text if is_utf8(path) else path


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in "\\'" else f"\\x{ord(char) & 0xFF:02x}"


def _unquote(quoted: str) -> str:
    return _ESCAPE.sub(_byte, quoted.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _byte(found: re.Match[bytes]) -> bytes:
    hexadecimal, octal, char = found.groups()
    if char is not None:
        return _LETTERS.get(char, char)
    return bytes([int(hexadecimal, 16) if hexadecimal else int(octal, 8) & 0xFF])
