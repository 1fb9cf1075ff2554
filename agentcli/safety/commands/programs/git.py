"""Judges calls of git that only read the repository (git-scm.com/docs, git 2.47)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.safety.commands.programs.options import (
    GIT,
    GIT_FORMS,
    GIT_NEEDS,
    Arguments,
    options,
    read_arguments,
    without_pattern,
)
from agentcli.safety.commands.programs.read_check import WILD, ReadCheck
from agentcli.safety.commands.reader.syntax import HOLE, Field


def git_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why `git` with these arguments may do more than read, or an empty string."""
    call = read_call(fields)
    if call.problem:
        return call.problem
    for folder in call.folders:
        moved = check.within(folder)
        if moved is None:
            return f"git works in {folder.text}"
        check = moved
    if not call.words:
        return ""
    if why := _program_problem(check):
        return why
    name, rest = call.words[0].text, call.words[1:]
    if [field.text for field in rest] in (["--help"], ["-h"]):
        return f"git {name} may be an alias or a program"
    if _SIGNATURE.search("\0".join(field.text for field in rest)):
        return "git checks signatures with the program that is set for it"
    if row := GIT.get(name):
        return _problem_of(read := read_arguments(rest, options(row)), check) or _pathspec_problem(name, read, check)
    if name in GIT_FORMS:
        return _form_problem(name, rest, check)
    return f"git {name} is not known to only read"


def _program_problem(check: ReadCheck) -> str:
    """The reason why git may run a program that the repository has chosen."""
    if check.state.places is None:
        return "it is not certain in which repository git works"
    settings = (check.places.program_of_git(Path(place)) for place in check.state.places)
    return next((f"git may run a program: {setting}" for setting in settings if setting), "")


# git-log(1), PRETTY FORMATS; git-for-each-ref(1), FIELD NAMES
_SIGNATURE = re.compile(rf"%[-+ ]?G|signature|--(format|pretty|sort)[=\0][^\0]*{HOLE}")


class GitCall(Struct):
    """A call of git: the folders of `-C`, the subcommand with its arguments, or why it cannot be read."""

    folders: list[Field]
    words: list[Field]
    problem: str = ""


_PLAIN_GLOBALS = frozenset(
    "-P --no-pager --no-optional-locks --no-replace-objects --literal-pathspecs --glob-pathspecs "
    "--noglob-pathspecs --icase-pathspecs --no-lazy-fetch --no-advice".split()
)


def read_call(fields: Sequence[Field]) -> GitCall:
    """Take off the options before the subcommand, as git.c does."""
    call = GitCall([], [])
    rest = list(reversed(fields))
    while rest:
        field = rest.pop()
        text = field.text
        if not field.is_known or field.may_vanish:
            call.problem = "what git is to do cannot be told"
            return call
        if not text.startswith("-"):
            call.words = [field, *reversed(rest)]
            return call
        if text == "-C" and rest:
            call.folders.append(rest.pop())
        elif text.startswith("-C") and len(text) > 2:
            call.folders.append(Field(text[2:], field.is_glob))
        elif text not in _PLAIN_GLOBALS:
            call.problem = f"the option {text} of git can run programs or lead elsewhere"
            return call
    return call


def _problem_of(read: Arguments, check: ReadCheck, *, operands: bool = True) -> str:
    if read.problem:
        return read.problem
    paths = [each for field in read.operands for each in _paths_in(field)] if operands else []
    return check.problem([*paths, *read.files], "content")


def _pathspec_problem(name: str, read: Arguments, check: ReadCheck) -> str:
    """The reason why globs that git itself matches may find secrets. The pattern of `git grep` is not one."""
    operands = (
        without_pattern(read.operands) if name == "grep" and not {"-e", "-f"} & set(read.given) else read.operands
    )
    paths = (path for field in operands if not field.is_glob for path in _paths_in(field))
    return check.filter_problem([path for path in paths if WILD.search(path.text) or "\\" in path.text])


def _paths_in(field: Field) -> list[Field]:
    """The parts of a revision or pathspec that may be paths: all of it, and the text behind a colon."""
    text = re.sub(r"^:(\([\w,:=/.-]*\)|[!^/]+)", "", field.text)
    found = [Field(text, field.is_glob, field.may_vanish)]
    if ":" in text:
        found.append(Field(text.partition(":")[2], field.is_glob, field.may_vanish))
    return found


def _form_problem(name: str, rest: Sequence[Field], check: ReadCheck) -> str:
    """The reason why a subcommand of which only some forms read may be another one."""
    if not rest:
        return "" if name in ("branch", "tag", "remote", "reflog") else f"git {name} changes something"
    row = GIT_FORMS[name]
    if name in ("branch", "clean", "tag"):
        read = read_arguments(rest, options(row))
        if (read.operands or name == "clean") and not GIT_NEEDS[name] & set(read.given):
            return read.problem or f"git {name} changes something"
        return read.problem or check.problem([field for field in read.operands if not field.is_glob], "text")
    is_option = rest[0].text.startswith("-")
    if rest[0].text not in GIT_NEEDS[name] and not (is_option and name == "reflog"):
        return f"git {name} {rest[0].text} is not known to only read"
    if name == "remote" and is_option and len(rest) > 1:
        return "git remote is given more"
    arguments = rest if is_option else rest[1:]
    return _problem_of(read_arguments(arguments, options(row)), check, operands=row.startswith("content"))
