"""Defines what the reader makes of a command: words, simple commands, pipelines; and the state of the shell."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct
from msgspec.structs import replace

from agentcli.safety.paths.judge import is_auto_executed, is_secret

# Private-use characters, which no command as written contains, stand in words for text that only the shell knows, for
# the home and for the folder the shell is in.
HOLE, HOME, HERE = "\ue000", "\ue001", "\ue002"


class Field(Struct, frozen=True):
    """One word of a command, without its quotes.

    `text` has a `HOLE` for each part that cannot be told. `is_glob`: it contains wildcards. `may_vanish`: it may become
    no or several arguments.
    """

    text: str
    is_glob: bool = False
    may_vanish: bool = False

    @property
    def is_known(self) -> bool:
        return HOLE not in self.text


def name_of(fields: Sequence[Field]) -> str:
    """Return the name of a program without its folder; empty if it cannot be told."""
    return fields[0].text.rpartition("/")[2] if fields and fields[0].is_known else ""


class Redirect(Struct):
    """A redirection such as `>file`. Of `<<` and `<<<` the target is the text that is read; of `<<` it is set later."""

    operator: str
    target: Field


class CommandNode(Struct, frozen=True):
    """A simple command, or a subshell. Without words it only sets variables or redirects.

    `text` is all of it as written, `written` only its words. `inside` are the scripts substituted in its words.
    """

    text: str
    written: str
    assignments: tuple[tuple[str, Field], ...]
    words: tuple[Field, ...]
    redirects: tuple[Redirect, ...]
    inside: tuple[Script, ...]
    subshell: Script | None = None


class Pipeline(Struct, frozen=True):
    """Commands joined by `|`, and the operator behind them: `;`, `&`, `&&`, `||`, a newline, `)`, or nothing."""

    parts: tuple[CommandNode, ...]
    then: str


Script = tuple[Pipeline, ...]


def normal(path: str) -> str:
    """Return an absolute path without `.`, `..` and repeated slashes; symlinks are not followed."""
    return posixpath.normpath("/" + path.lstrip("/"))


MAX_PLACES = 4  # that a shell may be in; beyond it may be anywhere


class State(Struct, frozen=True):
    """The state of the shell: the folders it may be in (None: any), and the folder it starts in.

    `home` is the person's, or None if the command changes it.
    """

    places: tuple[str, ...] | None
    home: str | None
    start: str

    def resolved(self, field: Field) -> Field:
        """Return a word with the home and the folder filled in, unless the shell would split or expand them."""
        if HOME not in field.text and HERE not in field.text:
            return field
        here = self.places[0] if self.places and len(self.places) == 1 else None
        text = field.text
        for mark, value in ((HOME, self.home), (HERE, here)):
            text = text.replace(mark, HOLE if value is None or re.search(r"[\s*?\[\]\\]", value) else value)
        return Field(text, field.is_glob, field.may_vanish or HOLE in text)

    def paths(self, field: Field) -> list[str]:
        """Return the absolute paths a word may mean, with `..` in them; none if they cannot be told."""
        if not field.is_known:
            return []
        return [field.text] if field.text.startswith("/") else [f"{place}/{field.text}" for place in self.places or ()]

    def likely_paths(self, field: Field) -> list[str]:
        """Return the absolute path that a word most likely means if `paths` cannot tell it; none for most words.

        Only secret and auto-executed files, by their names, are found, so that no unreadable part of a command hides
        the question about one.
        """
        for name in (field.text.replace(HOLE, ""), field.text.rpartition(HOLE)[2].lstrip("/:")):
            path = PurePath(self.start, name.replace("*", ".x") if field.is_glob else name)
            if name and (is_secret(path, None) or is_auto_executed(PurePath(name))):
                return [normal(posixpath.join(self.start, name))]
        return []

    def anywhere(self) -> State:
        return replace(self, places=None)

    def entering(self, field: Field) -> State:
        paths = self.paths(field) if not field.is_glob else []
        return replace(self, places=tuple(dict.fromkeys(map(normal, paths))) or None)

    def or_else(self, other: State) -> State:
        both = tuple(dict.fromkeys((*(self.places or ()), *(other.places or ()))))
        is_known = self.places is not None and other.places is not None and len(both) <= MAX_PLACES
        return replace(self, places=both if is_known else None)
