"""Reads the `charset` that a .editorconfig declares for a file (https://spec.editorconfig.org, version 0.17)."""

from __future__ import annotations

import re

from msgspec import Struct

_MAX_NUMBERS = 10_000  # that `{1..100}` stands for
_NOT_PLAIN_IN_CLASS, _BACKSLASHED = re.compile(r"[\\^\[&~|]"), r"\\\g<0>"
_TOKEN = re.compile(r"\\(.)|(\*\*)|(\*)|(\?)|\[(!?)([^\]/]+)\]|\{(-?\d+)\.\.(-?\d+)\}|(\{(?=[^{}]*,))|(\})|(,)|(.)")


class DeclaredCharset(Struct, frozen=True):
    """The charset that one .editorconfig declares, empty if it does not; above a root no further file counts."""

    charset: str
    is_root: bool


def declared_charset(text: str, path: str) -> DeclaredCharset:
    """Return what a .editorconfig says of the file `path`, which is relative to its folder."""
    charset, is_root, applies, is_preamble = "", False, False, True
    for line in map(str.strip, text.removeprefix("\ufeff").splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            is_preamble, applies = False, _matches(line[1:-1], path)
            continue
        key, _, value = (part.strip().lower() for part in line.partition("="))
        if is_preamble:
            is_root = is_root or (key == "root" and value == "true")
        elif applies and key == "charset":
            charset = "" if value == "unset" else value
    return DeclaredCharset(charset, is_root)


def _matches(glob: str, path: str) -> bool:
    """A glob without a slash is about names in any folder below."""
    anchored = glob.removeprefix("/") if "/" in glob else f"**/{glob}"
    try:
        return re.fullmatch(_expression(anchored), path, re.DOTALL) is not None
    except re.error:
        return False


def _expression(glob: str) -> str:
    parts: list[str] = []
    depth = 0
    if glob.startswith("**/"):
        parts, glob = ["(?:.*/)?"], glob[3:]
    for escaped, folders, star, any_char, sign, chars, low, high, brace, end, comma, char in _TOKEN.findall(glob):
        if brace:
            depth += 1
        if folders:
            parts.append(".*")
        elif star:
            parts.append("[^/]*")
        elif any_char:
            parts.append("[^/]")
        elif chars:
            parts.append(f"[{'^' if sign else ''}{_NOT_PLAIN_IN_CLASS.sub(_BACKSLASHED, chars)}]")
        elif low:
            first, last = sorted((int(low), int(high)))
            parts.append(f"(?:{'|'.join(map(str, range(first, min(last, first + _MAX_NUMBERS) + 1)))})")
        elif brace:
            parts.append("(?:")
        elif end and depth:
            depth -= 1
            parts.append(")")
        elif comma and depth:
            parts.append("|")
        else:
            parts.append(re.escape(escaped or end or comma or char))
    return "".join(parts) + ")" * depth
