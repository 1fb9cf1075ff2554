"""Pieces of text with the roles they play on the screen."""

from __future__ import annotations

from collections.abc import Iterable

Fragment = tuple[str, str]
"""`(roles, text)`: role names separated by spaces, `""` for plain text; `"\\n"` in the text ends a line."""

Row = list[Fragment]
"""One row of the screen, without a line end."""


def plain(fragments: Iterable[Fragment]) -> str:
    """The text alone."""
    return "".join(text for _, text in fragments)


def merged(fragments: list[Fragment]) -> list[Fragment]:
    """The same text with neighbours of the same roles in one fragment, and without empty ones."""
    if len(fragments) == 1 and fragments[0][1]:
        return fragments
    result: list[Fragment] = []
    run: list[str] = []
    current = ""
    for roles, text in fragments:
        if not text:
            continue
        if run and roles != current:
            result.append((current, "".join(run)))
            run = []
        current = roles
        run.append(text)
    if run:
        result.append((current, "".join(run)))
    return result
