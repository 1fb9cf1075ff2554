"""Reads git's configuration as git does: sections, quotes, escapes, comments, lines that go on (git-config(1), Syntax).

Starting git for each command would cost more than the rest of the preparation together, and a pattern that knows less
than git finds less than git obeys. The tests compare it with git.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BETWEEN = re.compile(r"(?:[ \t\n\r]|[#;][^\n]*)*")
_SECTION = re.compile(r'\[(?:([a-zA-Z0-9.-]+)\]|([a-zA-Z0-9.-]*)[ \t\r]+"((?:[^"\\\n]|\\[^\n])*)"\])')
_KEY = re.compile(r"([a-zA-Z][a-zA-Z0-9-]*)[ \t]*(=|\n|\Z)")
_IN_VALUE = re.compile(r'[ \t\r]+|[#;]|"|\\(?:.|\n|\Z)|\n|\Z|[^ \t\r\n"\\#;]+')
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"', "\n": "", "": ""}  # the last two: a line goes on


class Setting(NamedTuple):
    """`section` and `key` are in lower case. A key without `=` has the value None, which git takes for true."""

    section: str
    subsection: str
    key: str
    value: str | None


class Configuration(NamedTuple):
    """The settings of a file, up to where git refuses it (then `is_refused`, and git does not run at all)."""

    settings: tuple[Setting, ...]
    is_refused: bool


def read_configuration(text: str) -> Configuration:
    """Keys before the first section have an empty one; `[a.b "c"]` is the subsection `b.c` of `a`."""
    found: list[Setting] = []
    try:
        for setting in _settings_in(text.removeprefix("\ufeff").replace("\r\n", "\n")):
            found.append(setting)  # noqa: PERF402  # what was found before an error counts
    except _RefusedError:
        return Configuration(tuple(found), is_refused=True)
    return Configuration(tuple(found), is_refused=False)


class _RefusedError(Exception):
    pass


def _settings_in(text: str) -> Iterator[Setting]:
    section = ""
    at = _after_space(text, 0)
    while at < len(text):
        if header := _SECTION.match(text, at):
            plain, name, subsection = header.groups()
            section = plain.lower() if plain else f"{name.lower()}.{_unescaped(subsection)}"
            at = header.end()
        elif key := _KEY.match(text, at):
            value, at = _read_value(text, key.end()) if key[2] == "=" else (None, key.end())
            yield _setting(f"{section}.{key[1].lower()}", value)
        else:
            raise _RefusedError
        at = _after_space(text, at)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _after_space(text: str, at: int) -> int:
    """Skip spaces, line ends and comments."""
    space = _BETWEEN.match(text, at)
    assert space is not None
    return space.end()


def _setting(name: str, value: str | None) -> Setting:
    """Split a whole name at its first and its last dot, as git does; a NUL ends it, and the value."""
    section, _, rest = name.partition("\0")[0].partition(".")
    subsection, _, key = rest.rpartition(".")
    return Setting(section, subsection, key, None if value is None else value.partition("\0")[0])


def _read_value(text: str, at: int) -> tuple[str, int]:
    """A value and where it ends. Spaces around it do not count; outside of quotes `#` and `;` begin a comment."""
    value = spaces = ""
    is_quoted = False
    while True:
        part = _IN_VALUE.match(text, at)
        assert part is not None
        at = part.end()
        match part[0]:
            case "" | "\n":
                break
            case space if space[0] in " \t\r" and not is_quoted:
                spaces += space if value else ""
                continue
            case "#" | ";" if not is_quoted:
                at = text.find("\n", at)
                at = len(text) if at < 0 else at
                continue
            case '"':
                value += spaces
                is_quoted = not is_quoted
            case escape if escape[0] == "\\":
                if escape[1:] not in _ESCAPES:
                    raise _RefusedError
                value += spaces + _ESCAPES[escape[1:]]
            case plain:
                value += spaces + plain
        spaces = ""
    if is_quoted:
        raise _RefusedError
    return value, at
