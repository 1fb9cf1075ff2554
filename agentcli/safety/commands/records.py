"""Defines what the judge of commands takes and gives: places, segments, effects, the analysis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

# allow: it is known to only read, inside the workspace. try: its text does not tell, or it changes things there; what
# it did can be shown. ask: it is known to reach further. block: no mode lets it run.
Verdict = Literal["allow", "try", "ask", "block"]

# In `Effects`: a path, host or program that the text does not tell.
UNKNOWN = "?"


class Places(Struct, frozen=True):
    """The place where a command would run.

    `cwd` is the shell's folder, `roots` are the folders of the workspace, `home` is the person's; all absolute. The
    last two are the judge's only looks at the disk: `is_readable` is true for an absolute path that lies, symlinks
    followed, inside the workspace and holds no secret; `program_of_git` names the setting that makes git run a program
    there, if any.
    """

    cwd: Path
    roots: tuple[Path, ...]
    home: Path
    is_readable: Callable[[Path], bool]
    program_of_git: Callable[[Path], str] = lambda folder: ""


class Effects(Struct, frozen=True):
    """The effects of a command: absolute paths or globs, host names, programs it starts; `UNKNOWN` for the rest.

    `names` are files that it may also open: nothing tells if it does, so that only grants are kept away from them.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __or__(self, other: Effects) -> Effects:
        both = zip(astuple(self), astuple(other), strict=True)
        return Effects(*(tuple(dict.fromkeys((*mine, *its))) for mine, its in both))


def known(things: tuple[str, ...]) -> tuple[str, ...]:
    """The things that can be told from a command's text."""
    return tuple(thing for thing in things if thing != UNKNOWN)


class Segment(Struct, frozen=True):
    """One simple command, also from inside substitutions, `sh -c`, `xargs` and `find -exec`.

    `text` is as written. `words` are its words without quotes and wrappers such as `timeout 5`, globs as written; None
    if a word depends on what only the shell knows. Granting rules match `allow_forms`, refusing rules
    `deny_forms` (see rules.py).
    """

    text: str
    words: tuple[str, ...] | None
    verdict: Verdict
    reason: str
    effects: Effects = Effects()
    allow_forms: tuple[str, ...] = ()
    deny_forms: tuple[str, ...] = ()


class Doubts(Struct, frozen=True):
    """The doubts that a command leaves: `effects` are those of scripts that it gives to shells, for refusing rules.

    `must_ask` says why no rule and no mode may allow it: a catastrophe in such a script, or a part that was not looked
    at. No rule can be checked against what `unreadable` names.
    """

    effects: Effects = Effects()
    must_ask: str = ""
    unreadable: str = ""


class CommandAnalysis(Struct, frozen=True):
    """The judgement on a whole command: the worst verdict of its segments, or worse because of `problem`.

    `problem` says why it is not read: more may run than its segments, so that no grant covers it. `deletes_unseen` says
    what such a command may delete without its text telling. `scratch` are files of /tmp that it makes for itself.
    """

    segments: tuple[Segment, ...]
    verdict: Verdict
    reason: str
    effects: Effects
    problem: str = ""
    doubts: Doubts = Doubts()
    deletes_unseen: str = ""
    scratch: tuple[str, ...] = ()
