"""Finds what makes a command ask before anything runs: hosts, paths outside the workspace, secrets, other machines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from agentcli.safety.commands.judge.calls import name_of
from agentcli.safety.commands.programs.beyond import beyond_workspace
from agentcli.safety.commands.programs.effects import names_its_paths
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.syntax import HOLE, Field, State, normal
from agentcli.safety.commands.records import UNKNOWN, Effects
from agentcli.safety.paths.secret import is_secret


def grave_reason(
    seen: Sequence[Sequence[Field]], values: Sequence[Field], effects: Effects, check: ReadCheck, why: str
) -> str:
    """The reason to ask before a command runs; an empty string if what it changes can be shown afterwards.

    `seen` are the commands inside its wrappers, `values` those of the variables it sets, `why` is the reason why it
    does not only read.
    """
    for fields in seen:
        if reason := beyond_workspace(fields):
            return reason
    if any(host != UNKNOWN for host in effects.hosts):
        return why
    if _GRAVE.search(why):
        return why
    paths = [Field(path) for path in (*effects.reads, *effects.writes, *effects.deletes) if path != UNKNOWN]
    return check.outside_problem([*_named_paths(seen, values), *paths])


def named_secrets(seen: Sequence[Sequence[Field]], values: Sequence[Field], state: State) -> tuple[str, ...]:
    """The files that the words of a command name and that hold secrets by their names, whatever it does with them."""
    home = PurePath(state.home) if state.home is not None else None
    commands = [_naming_words(fields) for fields in seen]
    named = _named_paths(commands, values)
    named += [field for fields in commands for field in fields[1:] if not field.is_known]
    paths = (normal(path) for field in named for path in state.paths(field) or state.likely_paths(field))
    return tuple(dict.fromkeys(path for path in paths if is_secret(PurePath(path), home)))


def _naming_words(fields: Sequence[Field]) -> list[Field]:
    """The words of a command without those that leave files out, and without messages; of `REVISION:PATH` the path."""
    kept = [fields[0]]
    for before, field in itertools.pairwise(fields):
        if not (_LEFT_OUT.match(field.text) or _LEAVES_OUT.fullmatch(before.text)):
            path = field.text.rpartition(":")[2] if name_of(fields) == "git" else field.text
            kept.append(replace(field, text=path))
    return kept


def _named_paths(seen: Sequence[Sequence[Field]], values: Sequence[Field]) -> list[Field]:
    paths = [path for value in values for path in _mentioned(value.text)]
    return [*paths, *(path for fields in seen for path in _paths_in(fields))]


_GRAVE = re.compile(r"environment|all variables|^[^*?\[]+ is outside the workspace$")
_SYSTEM_PART = re.compile(rf"{HOLE}(/(?:etc|home|root|proc|sys|boot|var|Users)/[^{HOLE}]*)")
_BEHIND_NAME = re.compile(r"[\w-]+=(.+)|-[A-Za-z]((?:/|\.\./|~).*)", re.DOTALL)
# Text that may be a path and is no program, script or message.
_PATH = re.compile(r"[^\n$(){};\"'`|<>]{1,4096}")
# Programs whose words are code, in which paths are only mentioned.
_CODE = frozenset("python python2 python3 node nodejs deno bun perl ruby php lua awk gawk mawk sed sh bash".split())
_MENTIONED = re.compile(r"(?:^|[\s'\"=:(,])((?:/[\w.-]+/|\.\./)[\w./-]*)")
_LEFT_OUT = re.compile(r"--(?:exclude(?:-dir|-from)?|ignore)=|:[!^]|:\([\w,]*exclude|.*\s", re.DOTALL)
_LEAVES_OUT = re.compile(r"--(?:exclude(?:-dir|-from)?|ignore)")
_STANDARD_PROGRAM = re.compile(r"/(?:usr/(?:local/)?)?s?bin/[^/]+|/opt/homebrew/bin/[^/]+")


def _paths_in(fields: Sequence[Field]) -> Iterator[Field]:
    """The words that may be paths: all, unless the program is known to name its own in its effects."""
    program, *arguments = fields
    if "/" in program.text and not _STANDARD_PROGRAM.fullmatch(program.text):
        yield program
    name = name_of(fields)
    is_told = names_its_paths(name)
    for field in arguments:
        if name in _CODE:
            yield from _mentioned(field.text)
        if found := _SYSTEM_PART.search(field.text):
            yield Field(found[1])
        text = field.text
        if (found := _BEHIND_NAME.fullmatch(text)) or text.startswith("-"):
            text = (found[1] or found[2]) if found else ""
        elif is_told:
            continue
        text = text.partition(HOLE)[0]
        if text and _PATH.fullmatch(text) and "://" not in text:
            yield Field(text, field.is_glob)


def _mentioned(text: str) -> Iterator[Field]:
    """Absolute paths somewhere in a text, and those that lead upwards."""
    return (Field(found[1]) for found in _MENTIONED.finditer(text) if HOLE not in found[1])
