"""Reads git's configuration as git does: sections, quotes, escapes, comments, lines that go on (git-config(1), Syntax).

Starting git for each command would cost more than the rest of the preparation together, and a pattern that knows less
than git finds less than git obeys. The tests compare it with git.
"""

from __future__ import annotations

import string
from typing import NamedTuple

_SPACE = " \t\n\r"
_LETTERS = frozenset(string.ascii_letters)
_KEY = frozenset(string.ascii_letters + string.digits + "-")
_ESCAPES = {"t": "\t", "b": "\b", "n": "\n", "\\": "\\", '"': '"'}
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


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
    reader = _Reader(text)
    found: list[Setting] = []
    try:
        for setting in iter(reader.next_setting, None):
            found.append(setting)  # noqa: PERF402  # what was found before an error counts
    except _RefusedError:
        return Configuration(tuple(found), is_refused=True)
    return Configuration(tuple(found), is_refused=False)


def _parts(name: str) -> tuple[str, str, str]:
    """Split a whole name at its first and its last dot, as git does; a NUL ends it."""
    section, _, rest = name.partition(".")
    subsection, _, key = rest.rpartition(".")
    return section, subsection, key


class _RefusedError(Exception):
    pass


class _Reader:
    """One character after the other; the end counts as the end of a line, as often as it is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("\ufeff").replace("\r\n", "\n")
        self._at = 0
        self._section = ""

    @property
    def _is_at_end(self) -> bool:
        return self._at >= len(self._text)

    def _next(self) -> str:
        character = "\n" if self._is_at_end else self._text[self._at]
        self._at += 1
        return character

    def next_setting(self) -> Setting | None:
        while not self._is_at_end:
            match self._next():
                case character if character in _SPACE:
                    pass
                case "#" | ";":
                    self._skip_line()
                case "[":
                    self._section = self._read_section()
                case character if character in _LETTERS:
                    self._at -= 1
                    return self._read_setting()
                case _:
                    raise _RefusedError
        return None

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _read_section(self) -> str:
        """The name between the brackets, the subsection after a dot."""
        start = self._at
        while (character := self._next()) in _KEY or character == ".":
            pass
        name = self._text[start : self._at - 1].translate(_LOWER)
        if character == "]" and name:
            return name
        while character in " \t\r":
            character = self._next()
        if character != '"' or self._text[start + len(name)] not in _SPACE:
            raise _RefusedError
        return f"{name}.{self._read_subsection()}"

    def _read_subsection(self) -> str:
        found: list[str] = []
        while (character := self._next()) != '"':
            if character == "\\":
                character = self._next()
            if character == "\n":
                raise _RefusedError
            found.append(character)
        if self._next() != "]":
            raise _RefusedError
        return "".join(found)

    def _read_setting(self) -> Setting:
        start = self._at
        while (character := self._next()) in _KEY:
            pass
        key = self._text[start : self._at - 1].translate(_LOWER)
        while character in {" ", "\t"}:
            character = self._next()
        if character not in {"\n", "="}:
            raise _RefusedError
        value = self._read_value() if character == "=" else None
        section, rest, key = _parts(f"{self._section}.{key}".partition("\0")[0])
        return Setting(section, rest, key, value)

    def _read_value(self) -> str:
        """Spaces around it do not count; outside of quotes `#` and `;` begin a comment."""
        found: list[str] = []
        spaces: list[str] = []
        is_quoted = False
        while (character := self._next()) != "\n":
            if not is_quoted and character in _SPACE:
                spaces += character if found else ""
                continue
            if not is_quoted and character in "#;":
                self._skip_line()
                continue
            found += spaces
            spaces.clear()
            if character == '"':
                is_quoted = not is_quoted
            elif character != "\\":
                found.append(character)
            elif (escaped := self._next()) != "\n":
                if escaped not in _ESCAPES:
                    raise _RefusedError
                found.append(_ESCAPES[escaped])
        if is_quoted:
            raise _RefusedError
        return "".join(found).partition("\0")[0]
