"""What judging a command takes and gives: the places it may look at, its segments, what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct

Verdict = Literal["harmless", "unknown", "catastrophic"]

# Stands in `Effects` for a path, host or program that cannot be told from the text.
UNKNOWN = "?"


class Places(Struct, frozen=True):
    """Where a command would run.

    `cwd` is where the shell stands, `roots` are the folders of the workspace, `home` is the person's; all absolute.
    `is_readable` says whether an absolute path, symlinks followed, lies inside the workspace and holds no secret, and
    `program_of_git` which setting makes git run a program there: the judge's only looks at the disk.
    """

    cwd: Path
    roots: tuple[Path, ...]
    home: Path
    is_readable: Callable[[Path], bool]
    program_of_git: Callable[[Path], str] = lambda folder: ""


class Effects(Struct, frozen=True):
    """What a command touches: absolute paths or globs, host names, programs it starts; `UNKNOWN` for what is hidden."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    def __or__(self, other: Effects) -> Effects:
        return Effects(
            *(
                tuple(dict.fromkeys((*mine, *its)))
                for mine, its in (
                    (self.reads, other.reads),
                    (self.writes, other.writes),
                    (self.deletes, other.deletes),
                    (self.hosts, other.hosts),
                    (self.runs, other.runs),
                )
            )
        )


class Segment(Struct, frozen=True):
    """One simple command of a compound one, also of those inside substitutions, `sh -c`, `xargs`, `find -exec`.

    `text` is as written. `words` are its literal words after quotes and wrappers such as `timeout 5` are taken off,
    globs as written; None when a word depends on what only the shell knows. `allow_forms` are the texts a granting rule
    may match, `deny_forms` those a refusing one may (see rules.py).
    """

    text: str
    words: tuple[str, ...] | None
    verdict: Verdict
    reason: str
    effects: Effects = Effects()
    allow_forms: tuple[str, ...] = ()
    deny_forms: tuple[str, ...] = ()


class CommandAnalysis(Struct, frozen=True):
    """A whole command. `verdict` is the worst of its segments, or worse for `problem`, which concerns all of it.

    Of scripts that it gives to shells `hidden` are the effects, at which refusing rules look too, and
    `hidden_catastrophe` is why one would be refused. Rules cannot be held against what `unreadable` names.
    """

    segments: tuple[Segment, ...]
    verdict: Verdict
    reason: str
    effects: Effects
    problem: str = ""
    hidden: Effects = Effects()
    hidden_catastrophe: str = ""
    unreadable: str = ""
