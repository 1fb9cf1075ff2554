"""Defines what the judge of commands takes and gives: places, segments, effects, the analysis; and rules for them."""

from __future__ import annotations

import fnmatch
import re
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
    if a word depends on what only the shell knows. Granting rules match `allow_forms`, refusing rules `deny_forms`.
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


def covers(pattern: str, segment: Segment) -> bool:
    """True if a granting rule such as `git log *` covers this simple command. Strict.

    Harmless wrappers and quotes make no difference. A command that redirects into a file, sets a variable that matters
    to programs or changes the user is never covered. A final ` *` may match nothing.
    """
    return segment.verdict != "block" and any(_matches(form, pattern) for form in segment.allow_forms)


def touches(pattern: str, segment: Segment) -> bool:
    """True if a refusing rule such as `rm *` matches this simple command. Generous.

    It matches under any wrapper, quoting, folder or variable, and where `find -exec` or `xargs` would run the command.
    """
    return any(_matches(form, pattern) for form in segment.deny_forms)


def rules_by_segment(analysis: CommandAnalysis) -> tuple[tuple[str, ...], ...]:
    """For each command that does not only read the globs that cover it, narrowest first; empty if one has none.

    Also empty if the command is not read: no rule would cover it.
    """
    if analysis.problem:
        return ()
    rules = tuple(_rules_for(segment) for segment in analysis.segments if segment.verdict != "allow")
    return rules if all(rules) else ()


def _matches(form: str, pattern: str) -> bool:
    pattern = " ".join(pattern.split())
    if fnmatch.fnmatchcase(form, pattern):
        return True
    return pattern.endswith(" *") and fnmatch.fnmatchcase(form, pattern.removesuffix(" *"))


def _rules_for(segment: Segment) -> tuple[str, ...]:
    """The exact command, then the same program and subcommand with anything behind them."""
    if segment.verdict == "block" or not segment.allow_forms or segment.words is None:
        return ()
    if _runs_anything(segment.words):
        return ()
    rules = [escaped(segment.allow_forms[-1])]
    rules += [f"{escaped(' '.join(start))} *" for start in _beginnings(segment.words)]
    return tuple(dict.fromkeys(rule for rule in rules if covers(rule, segment)))


def _names(kind: str) -> tuple[str, ...]:
    """Programs and words of a kind that `names.ini` explains."""
    from agentcli.safety.commands.arguments import names  # a start needs none of it

    return names("offered", kind)


def _runs_anything(words: tuple[str, ...]) -> bool:
    """True for a shell, and for an interpreter or tool that runs what it is given instead of a file."""
    name = words[0].rpartition("/")[2]
    is_given_text = len(words) == 1 or words[1].startswith("-")
    if name in _names("runners") or (name in _names("interpreters") and is_given_text):
        return True
    return name in _names("with_subcommands") and bool({*words[1:2], ":".join(words[:2])} & {*_names("run_anything")})


def escaped(text: str) -> str:
    """A glob that matches this very text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _beginnings(words: tuple[str, ...]) -> list[list[str]]:
    """The leading words that can stand for the whole command."""
    program = words[0]
    if program in _names("one_thing"):
        return [[program]]
    if program not in _names("with_subcommands") or len(words) < 2 or not _is_name(words[1]):
        return []
    if f"{program}:{words[1]}" in _names("groups"):
        is_named = (
            len(words) > 2 and re.fullmatch(r"[A-Za-z][\w:.-]*", words[2]) and words[2] not in _names("run_anything")
        )
        return [list(words[:3])] if is_named else []
    starts = [list(words[:3])] if len(words) > 3 and _is_name(words[2]) else []
    return [*starts, list(words[:2])]


def _is_name(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z][A-Za-z-]*", word) is not None
