"""Judges what a simple command does besides running its program: redirections, variables, changes of folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from agentcli.safety.commands.judge.calls import Call, name_of
from agentcli.safety.commands.judge.catastrophe import write_catastrophe
from agentcli.safety.commands.programs.effects import effects_of_redirect
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.programs.system_paths import is_system_path
from agentcli.safety.commands.reader.syntax import Field, Redirect, State
from agentcli.safety.commands.records import Effects

_SINKS = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr"))


class Redirected(Struct, frozen=True):
    """The effect of redirections. `connects`: one leads to another machine."""

    problem: str = ""
    catastrophe: str = ""
    effects: Effects = Effects()
    connects: bool = False


def judge_redirects(redirects: Iterable[Redirect], state: State, check: ReadCheck) -> Redirected:
    """Reading is judged like an operand. Writing is harmless only into places that keep nothing."""
    problem, catastrophe, effects, connects = "", "", Effects(), False
    for redirect in redirects:
        target = state.resolved(redirect.target)
        is_copy = redirect.operator in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.text)
        if is_copy or redirect.operator in ("<<", "<<-", "<<<"):
            continue
        if why := _target_problem(redirect.operator, target, check):
            problem = problem or why
            effects = effects | effects_of_redirect(redirect.operator, target, state)
        if redirect.operator != "<":
            catastrophe = catastrophe or write_catastrophe(target)
        connects = connects or target.text.startswith(("/dev/tcp/", "/dev/udp/"))
    return Redirected(problem, catastrophe, effects, connects)


def _target_problem(operator: str, target: Field, check: ReadCheck) -> str:
    if target.text.startswith(("/dev/tcp/", "/dev/udp/")):
        return "it opens a connection"
    if target.is_glob or target.may_vanish:
        return "where a redirection leads cannot be told"
    if operator == "<":
        return check.problem([target], "content")
    return "" if target.text in _SINKS else f"it writes {target.text if target.is_known else 'a file'}"


# Environment variables that only change how something is shown, and the values they may get.
_SHOWN_ONLY = re.compile(
    r"(LC_[A-Z]+|LANG|LANGUAGE|NO_COLOR|FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|COLUMNS|LINES|TERM|CI|RUST_BACKTRACE"
    r"|GIT_OPTIONAL_LOCKS|GIT_TERMINAL_PROMPT|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE)=[\w.@-]*"
    r"|TZ=\w*(/\w+)?|(GIT_)?PAGER=(cat)?"
)


def variable_problem(assignments: Iterable[str]) -> str:
    """The reason why assignments such as `NAME=value` may matter to a program; an empty string if they do not."""
    for assignment in assignments:
        if not _SHOWN_ONLY.fullmatch(assignment):
            return f"{assignment.partition('=')[0]} may matter to programs"
    return ""


def states_after(call: Call, state: State) -> tuple[State, State]:
    """The state after the command succeeded, and after it failed."""
    arguments: Sequence[Field] = call.fields[1:]
    if call.name in ("popd", "source", ".", "eval"):
        return state.anywhere(), state.anywhere()
    if call.name not in ("cd", "pushd"):
        return state, state
    targets = [field for field in arguments if field.text not in ("-L", "-P", "--")]
    if not targets and call.name == "cd" and state.home is not None:
        targets = [Field(state.home)]
    if len(targets) != 1 or targets[0].text[:1] in ("-", "+"):
        return state.anywhere(), state
    return state.entering(targets[0]), state


_DELETING = frozenset("rm rmdir unlink srm shred truncate dd wipefs find chmod chown chgrp".split())


def deletes_unseen(fields: Sequence[Field], state: State) -> str:
    """Return the reason why a command may delete more than its text tells; an empty string if there is none."""
    if not fields[0].is_known:
        is_grave = any(is_system_path(field, state) for field in fields[1:])
        return "what it runs on a system folder cannot be told" if is_grave else ""
    name = name_of(fields)
    is_unseen = name in _DELETING and not all(field.is_known for field in fields)
    return f"what {name} changes cannot be told" if is_unseen else ""
