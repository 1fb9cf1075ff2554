"""Reads the `charset` that a .editorconfig declares for a file (https://spec.editorconfig.org, version 0.17)."""

from __future__ import annotations

import re

from msgspec import Struct

_MAX_GLOB = 1_024  # characters; the specification promises no more
_MAX_WILDCARDS = 32
_INTEGER = re.compile(r"-?\d{1,18}")
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
    if len(glob) > _MAX_GLOB or glob.count("*") + glob.count("{") > _MAX_WILDCARDS:
        return False
    try:
        return len(path) in _ends(anchored, path)
    except re.error:
        return False


def _ends(glob: str, path: str) -> set[int]:
    """Return where in `path` a match of the glob can end that begins with it."""
    at = {0}  # all places together: a regular expression would try them one by one, for years with the right glob
    open_braces: list[tuple[set[int], set[int]]] = []  # where the alternatives begin, and where those before end
    if glob.startswith("**/"):
        at, glob = {0, *(number + 1 for number, char in enumerate(path) if char == "/")}, glob[3:]
    for escaped, folders, star, any_char, sign, chars, low, high, brace, end, comma, char in _TOKEN.findall(glob):
        if folders or star:
            at = _after_star(at, path, stop="" if folders else "/")
        elif any_char:
            at = {place + 1 for place in at if path[place : place + 1] not in ("", "/")}
        elif chars:
            one_of = re.compile(f"[{'^' if sign else ''}{_NOT_PLAIN_IN_CLASS.sub(_BACKSLASHED, chars)}]", re.DOTALL)
            at = {place + 1 for place in at if one_of.match(path, place)}
        elif low:
            at = _after_number(at, path, *sorted((int(low), int(high))))
        elif brace:
            open_braces.append((at, set()))
        elif comma and open_braces:
            begin, ended = open_braces[-1]
            at, open_braces[-1] = begin, (begin, ended | at)
        elif end and open_braces:
            at = at | open_braces.pop()[1]
        else:
            literal = escaped or end or comma or char
            at = {place + 1 for place in at if path[place : place + 1] == literal}
    return at.union(*(ended for _, ended in open_braces))


def _after_star(at: set[int], path: str, *, stop: str) -> set[int]:
    after: set[int] = set()
    covered = -1  # the place up to which all that follows is in `after`
    for place in sorted(at):
        if place > covered:
            end = path.find(stop, place) if stop else -1
            covered = len(path) if end < 0 else end
            after.update(range(place, covered + 1))
    return after


def _after_number(at: set[int], path: str, low: int, high: int) -> set[int]:
    """Return the ends of each number from `low` to `high` that begins at one of `at`, without leading zeros."""
    after: set[int] = set()
    for place in at:
        digits = _INTEGER.match(path, place)
        for end in range(place + 1, digits.end() + 1 if digits else 0):
            text = path[place:end]
            if text != "-" and str(int(text)) == text and low <= int(text) <= high:
                after.add(end)
    return after
