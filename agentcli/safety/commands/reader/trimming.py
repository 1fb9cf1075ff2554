"""Computes `${x%pattern}`, `${x%%pattern}`, `${x#pattern}` and `${x##pattern}` for known values."""

from __future__ import annotations

import fnmatch
import re

from agentcli.safety.commands.reader.syntax import Literal, Variable

TRIMS = frozenset(("%", "%%", "#", "##"))
_LONGEST = 1_000  # characters; each length is tried
_PLAIN = re.compile(r"[^\[\]\\()~]*")  # no special characters but `*` and `?`
_WILDCARD = re.compile(r"[*?]")


def trimmed(value: str, variable: Variable) -> str | None:
    """The value without the shortest or longest match of the pattern at one end; None if not certain."""
    pattern = _pattern_of(variable)
    if pattern is None or len(value) > _LONGEST or variable.name.endswith(("@", "*")):
        return None
    matches = re.compile(fnmatch.translate(pattern)).fullmatch
    lengths = range(len(value) + 1)
    for length in lengths if len(variable.operator) == 1 else reversed(lengths):
        cut = length if variable.operator[0] == "#" else len(value) - length
        start, end = value[:cut], value[cut:]
        if variable.operator[0] == "#" and matches(start):
            return end
        if variable.operator[0] == "%" and matches(end):
            return start
    return value


def _pattern_of(variable: Variable) -> str | None:
    """The pattern, if nothing in it expands. Its wildcards keep their meaning inside double quotes."""
    pattern = ""
    for piece in variable.argument.pieces if variable.argument else ():
        if not isinstance(piece, Literal) or not _PLAIN.fullmatch(piece.text):
            return None
        if piece.quoted and not variable.quoted and _WILDCARD.search(piece.text):
            return None
        pattern += piece.text
    return pattern
