"""Reads `find` expressions: tests, actions and where they start (GNU findutils 4.9, POSIX find)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from agentcli.safety.commands.arguments import names
from agentcli.safety.commands.paths import ReadCheck, finds, is_open
from agentcli.safety.commands.reader.syntax import Field

_NARROWING = {name: count for count in (0, 1) for name in names("find", f"narrowing_{count}")}
_NEUTRAL = {name: count for count in (0, 1) for name in names("find", f"neutral_{count}")}
_NAMING_FILES = frozenset("-anewer -cnewer -newer -samefile".split())
_RUNNING = frozenset("-exec -execdir -ok -okdir".split())
_WRITING = {"-fprint": 1, "-fprint0": 1, "-fls": 1, "-fprintf": 2}


class FindCall(Struct, kw_only=True):
    """A `find` expression: where it starts, what it runs, writes and deletes.

    `problem` names what is not known. `deletes_all` is set if no test narrows down what `-delete` deletes;
    `runs_on_all` are the commands that run on everything found.
    """

    starts: list[Field]
    runs: list[tuple[Field, ...]]
    writes: list[Field]
    runs_on_all: list[tuple[Field, ...]]
    problem: str = ""
    deletes: bool = False
    deletes_all: bool = False
    is_narrowed: bool = False


def read_find(fields: Sequence[Field]) -> FindCall:
    """Read the words behind `find`."""
    call = FindCall(starts=[], runs=[], writes=[], runs_on_all=[])
    rest = list(reversed(fields))
    while rest and _LEADING.fullmatch(rest[-1].text):
        call.problem = f"the option {rest.pop().text} of find is not known to only read"
    while rest and not rest[-1].text.startswith("-") and rest[-1].text not in ("(", ")", "!", ","):
        if rest[-1].may_vanish or rest[-1].text[:1] in ("*", "?", "["):
            call.problem = "what find starts with cannot be told"
        call.starts.append(rest.pop())
    is_negated = False
    while rest:
        is_negated = _read_part(rest, call, is_negated=is_negated)
    return call


# Options before the starting folders; `-L` follows links out of the workspace.
_LEADING = re.compile(r"-[HLPEXdsx]+|-O[0-3]?|-f|-D.*")


def find_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why a `find` may do more than list names below the workspace, or an empty string."""
    call = read_find(fields)
    if call.problem:
        return call.problem
    if call.deletes:
        return "find deletes what it finds"
    if call.runs:
        return "find runs a program on what it finds"
    if call.writes:
        return "find writes a file"
    return check.problem(call.starts or [Field(".")], "names")


def _read_part(rest: list[Field], call: FindCall, *, is_negated: bool) -> bool:
    """Read one test or action with its values. True if it negates the next one."""
    field = rest.pop()
    name = field.text
    count = _NARROWING.get(name, _NEUTRAL.get(name, _WRITING.get(name, 0)))
    if name in _NAMING_FILES or (name.startswith("-newer") and len(name) == 8):
        count = 1
    values = rest[len(rest) - count :] if count else []
    if any(value.may_vanish or _may_add_action(value) for value in (field, *values)) or not field.is_known:
        call.problem = "what find does cannot be told"
    elif name == "-delete":
        call.deletes = True
        call.deletes_all = call.deletes_all or not call.is_narrowed
    elif name in _RUNNING:
        call.runs.append(command := _command(rest))
        call.runs_on_all += () if call.is_narrowed else (command,)
        call.is_narrowed = call.is_narrowed or (bool(command) and command[0].text in names("find", "deciding"))
    elif name in _WRITING:
        call.writes += values[-1:]
    elif name in _NARROWING:
        # Negated, a test excludes almost nothing, unless it compares: what is not older is newer.
        narrows = not is_negated or re.fullmatch(r"-[acm](min|time)|-size|-used|-links", name)
        call.is_narrowed = call.is_narrowed or (bool(narrows) and not any(map(_is_any_name, values)))
    elif count and name not in _NEUTRAL:
        call.is_narrowed = True
        call.problem = f"{name} of find looks at a file"
    elif name not in _NEUTRAL:
        call.problem = call.problem or f"{name} of find is not known to only read"
    del rest[len(rest) - len(values) :]
    return name in ("!", "-not")


def _is_any_name(value: Field) -> bool:
    """True for patterns that match almost every name: `*`, `?*`, `./*`."""
    parts = [part for part in value.text.split("/") if part not in ("", ".")]
    return all(map(is_open, parts)) and parts != []


def _may_add_action(value: Field) -> bool:
    """True if the shell may expand an unquoted value to a file named `-delete`."""
    return value.is_glob and any(finds(value.text, action) for action in ("-delete", *_RUNNING, *_WRITING))


def _command(rest: list[Field]) -> tuple[Field, ...]:
    """The words up to `;` or `{} +`."""
    words: list[Field] = []
    while rest:
        field = rest.pop()
        if field.text == ";" or (field.text == "+" and words and words[-1].text == "{}"):
            break
        words.append(field)
    return tuple(words)
