"""Defines the input and the result of judging a command (places, segments, effects, the analysis), and its rules."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

# allow: it is known to only read, inside the workspace. try: its text does not tell, or it changes things there; its
# changes can be shown afterwards. ask: it is known to reach further. block: no mode lets it run.
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
    """Return the paths, hosts or programs that a command's text tells."""
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
    """Return True if a granting rule such as `git log *` covers this simple command; in doubt it does not.

    Harmless wrappers and quotes make no difference. A command that redirects into a file, sets a variable that matters
    to programs or changes the user is never covered. A final ` *` may match nothing.
    """
    return segment.verdict != "block" and any(_matches(form, pattern) for form in segment.allow_forms)


def touches(pattern: str, segment: Segment) -> bool:
    """Return True if a refusing rule such as `rm *` matches this simple command; in doubt it does.

    It matches under any wrapper, quoting, folder or variable, and where `find -exec` or `xargs` would run the command.
    """
    return any(_matches(form, pattern) for form in segment.deny_forms)


def rules_by_segment(analysis: CommandAnalysis) -> tuple[tuple[str, ...], ...]:
    """Return the globs that cover each simple command that does not only read, narrowest first.

    Empty if one of them has none, or if the command cannot be read: then no rules would cover it.
    """
    if analysis.problem:
        return ()
    rules = tuple(_rules_for(segment) for segment in analysis.segments if segment.verdict != "allow")
    return rules if all(rules) else ()


def _matches(form: str, pattern: str) -> bool:
    pattern = " ".join(pattern.split())
    return any(fnmatch.fnmatchcase(form, each) for each in (pattern, pattern.removesuffix(" *")))


def _rules_for(segment: Segment) -> tuple[str, ...]:
    """Return a rule for the exact command, then for its program and subcommand with anything behind them."""
    if not segment.allow_forms or segment.words is None or _runs_anything(segment.words):
        return ()
    rules = [escaped(segment.allow_forms[-1])]
    rules += [f"{escaped(' '.join(start))} *" for start in _beginnings(segment.words)]
    return tuple(dict.fromkeys(rule for rule in rules if covers(rule, segment)))


def _word_list(kind: str) -> tuple[str, ...]:
    from agentcli.safety.commands.arguments import names  # imported for the first command, not at the start

    return names("offered", kind)


def _runs_anything(words: tuple[str, ...]) -> bool:
    """Return True for a shell, and for an interpreter or tool that runs a text or a program that it is given."""
    name = words[0].rpartition("/")[2]
    is_given_text = len(words) == 1 or words[1].startswith("-")
    if name in _word_list("runners") or (name in _word_list("interpreters") and is_given_text):
        return True
    return name in _word_list("with_subcommands") and bool(
        {*words[1:2], ":".join(words[:2])} & {*_word_list("run_anything")}
    )


def escaped(text: str) -> str:
    """Return a glob that matches only this text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _beginnings(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the leading words that can stand for the whole command, longest first."""
    program, second, third = (*words[:3], "", "")[:3]
    if program in _word_list("one_thing"):
        return [words[:1]]
    if program not in _word_list("with_subcommands") or not re.fullmatch(r"[A-Za-z][A-Za-z-]*", second):
        return []
    if f"{program}:{second}" in _word_list("groups"):
        is_named = re.fullmatch(r"[A-Za-z][\w:.-]*", third) and third not in _word_list("run_anything")
        return [words[:3]] if is_named else []
    starts = [words[:3]] if len(words) > 3 and re.fullmatch(r"[A-Za-z][A-Za-z-]*", third) else []
    return [*starts, words[:2]]
