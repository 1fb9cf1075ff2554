"""Reads the targets of links, entities and escapes."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from html.entities import html5

from msgspec import Struct

from agentcli.frontends.printable import printable

ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});")
_TARGET = re.compile(
    r"""\([ \t]*"""
    r"""(?:<((?:[^<>\\\n]|\\.)*)>|((?!<)(?:[^\s()\\]|\\(?:.|(?!.))|\((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*\))*))"""
    r"""(?:[ \t]+(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\((?:[^()\\\n]|\\.)*\)))?[ \t]*\)"""
)
_NO_TARGET = re.compile(r"""\([ \t]*(?:[^\n]*\n|[^\s()<>\\"']+[ \t]+[^ \t"'()])""")
_LABEL = re.compile(r"\[((?:[^\[\]\\\n]|\\.)*)\]")
_NO_LABEL = re.compile(r"\[(?:[^\[\]\\\n]|\\.)*[\[\n]")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])|" + ENTITY.pattern)

# The characters that must come before a target or a label is looked at again.
_TARGET_WAKES = re.compile(r"[)\n]")
_LABEL_WAKES = re.compile(r"[\[\]\n]")


class Target(Struct, frozen=True):
    """The address of a link and the end of its source; an end of 0 means that this is no link."""

    url: str = ""
    end: int = 0


class Wait(Struct, frozen=True):
    """More of the source must come; where `wakes` is given, text that it matches."""

    wakes: re.Pattern[str] | None = None


def link_target(
    source: str, start: int, label: str, references: Mapping[str, str], *, final: bool, longest: int
) -> Target | Wait:
    """The target of the link whose text ends with the `]` at `start`; `label` is that text.

    The target is looked for within `longest` characters; when the source is `final` nothing is waited for.
    """
    follows = source[start + 1 : start + 2]
    if not follows and not final:
        return Wait()
    can_come = not final and len(source) - start <= longest
    if follows == "(":
        found = _TARGET.match(source, start + 1)
        if found is not None and found.end() - start <= longest:
            return Target(as_address(found[1] or found[2] or ""), found.end())
        if found is None and can_come and not _NO_TARGET.match(source, start + 1):
            return Wait(_TARGET_WAKES)
    if not references:
        return Target()
    end = start + 1
    if follows == "[":
        found = _LABEL.match(source, start + 1)
        if found is None and can_come and not _NO_LABEL.match(source, start + 1):
            return Wait(_LABEL_WAKES)
        if found is not None and found.end() - start <= longest:
            label = found[1] or label
            end = found.end()
    url = references.get(normalized(label))
    return Target() if url is None else Target(url, end)


def normalized(label: str) -> str:
    """A reference's name, in which case and the amount of space do not count."""
    return " ".join(label.split()).casefold()


def as_address(source: str) -> str:
    """A link's destination without its escapes, on one line."""
    return _ESCAPE.sub(lambda found: found[1] or as_character(found), source)


def as_character(entity: re.Match[str]) -> str:
    """The character of an entity, made printable: it must not bring back one that was taken out of the source."""
    name = entity[0]
    text = html.unescape(name) if name[1] == "#" else html5.get(name[1:], name)
    return re.sub(r"[\t\n]", " ", printable(text))
