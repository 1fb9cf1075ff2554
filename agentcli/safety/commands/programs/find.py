"""Reads `find` expressions: tests, actions and where they start (GNU findutils 4.9, POSIX find)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.expansion import Field
from agentcli.safety.commands.reader.globs import finds, is_open

# The number of words that follow. Tests that narrow down the result stand apart: they matter to `-delete`.
_NARROWING = {
    **dict.fromkeys(
        "-amin -atime -cmin -ctime -fstype -gid -group -ilname -iname -inum -ipath -iregex -iwholename -links -lname "
        "-mmin -mtime -name -path -perm -regex -size -uid -used -user -wholename -xtype -context".split(),
        1,
    ),
    **dict.fromkeys("-empty -executable -nogroup -nouser -readable -writable -false".split(), 0),
}
_NEUTRAL = {
    **dict.fromkeys("-maxdepth -mindepth -printf -regextype -type".split(), 1),
    **dict.fromkeys(
        "-a -and -d -daystart -depth -ignore_readdir_race -ls -mount -noleaf -print -print0 -prune "
        "-quit -true -warn -nowarn -x -xdev -noignore_readdir_race -help -version --help --version".split(),
        0,
    ),
}
_NAMING_FILES = frozenset("-anewer -cnewer -newer -samefile".split())
_RUNNING = frozenset("-exec -execdir -ok -okdir".split())
_MEASURING = re.compile(r"-[acm](min|time)|-size|-used|-links")
_DECIDING = frozenset("grep egrep fgrep rg test [".split())  # their exit status is the test
_WRITING = {"-fprint": 1, "-fprint0": 1, "-fls": 1, "-fprintf": 2}


class FindCall(Struct):
    """A `find` expression: where it starts, the files its tests look at, what it runs, writes and deletes.

    `problem` names what is not known. `deletes_all` is set if no test narrows down what `-delete` deletes;
    `runs_on_all` are the commands that run on everything found.
    """

    starts: list[Field]
    files: list[Field]
    runs: list[tuple[Field, ...]]
    writes: list[Field]
    runs_on_all: list[tuple[Field, ...]]
    problem: str = ""
    deletes: bool = False
    deletes_all: bool = False


class _Group(Struct):
    """The tests of an expression, or between parentheses, read so far.

    `is_narrowed`: by a test since the last `-o`. `were_narrowed`: so were all earlier alternatives. `is_negated`: the
    next test is.
    """

    is_narrowed: bool = False
    were_narrowed: bool = True
    is_negated: bool = False

    def note(self, *, narrows: bool, both_ways: bool = False) -> None:
        """Note a test. Negated it excludes almost nothing, unless it compares: what is not newer is older."""
        self.is_narrowed = self.is_narrowed or (narrows and (both_ways or not self.is_negated))
        self.is_negated = False


def read_find(fields: Sequence[Field]) -> FindCall:
    """Read the words behind `find`."""
    call = FindCall([], [], [], [], [])
    rest = list(reversed(fields))
    while rest and (found := _LEADING.fullmatch(rest[-1].text)):
        rest.pop()
        if not found["plain"]:
            call.problem = f"the option {found[0]} of find is not known to only read"
        if found[0] == "-f" and rest:  # BSD: a folder to start in
            call.starts.append(rest.pop())
        elif found[0] == "-D":
            del rest[-1:]
    while rest and not rest[-1].text.startswith("-") and rest[-1].text not in ("(", ")", "!", ","):
        if rest[-1].may_vanish or rest[-1].text[:1] in ("*", "?", "["):
            call.problem = "what find starts with cannot be told"
        call.starts.append(rest.pop())
    groups = [_Group()]
    while rest:
        _read_part(rest, call, groups)
    return call


# Options before the starting folders. `-L` is not among them: it follows links out of the workspace.
_LEADING = re.compile(r"(?P<plain>-[HPdx]+|-O[0-3]?)|-[HLPEXdsx]+|-f|-D.*")


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
    return check.problem(call.starts or [Field(".")], "names") or check.problem(call.files, "facts")


def _read_part(rest: list[Field], call: FindCall, groups: list[_Group]) -> None:
    field = rest.pop()
    name = field.text
    if not field.is_known or field.may_vanish or field.is_glob:
        call.problem = "what find does cannot be told"
    elif name in _JOINING:
        _JOINING[name](groups)
    elif name == "-delete":
        call.deletes = True
        call.deletes_all = call.deletes_all or not _is_narrowed(groups)
    elif name in _RUNNING:
        call.runs.append(command := _command(rest))
        call.runs_on_all += () if _is_narrowed(groups) else (command,)
        groups[-1].note(narrows=command[:1] != () and command[0].text in _DECIDING)
    elif name in _WRITING:
        call.writes += rest[-1:]
        del rest[-_WRITING[name] :]
    elif name in _NAMING_FILES or (name.startswith("-newer") and len(name) == 8):
        groups[-1].note(narrows=True, both_ways=name != "-samefile")
        if any(map(_may_add_action, rest[-1:])):
            call.problem = "what find does cannot be told"
        call.files += rest[-1:]
        del rest[-1:]
    elif name in _NARROWING or name in _NEUTRAL:
        count = _NARROWING.get(name, _NEUTRAL.get(name, 0))
        values = rest[len(rest) - count :]
        narrows = name in _NARROWING and not any(map(_is_any_name, values))
        groups[-1].note(narrows=narrows, both_ways=_MEASURING.fullmatch(name) is not None)
        if any(value.may_vanish or _may_add_action(value) for value in values):
            call.problem = "what find does cannot be told"
        del rest[len(rest) - count :]
    else:
        call.problem = call.problem or f"{name} of find is not known to only read"


def _is_narrowed(groups: Sequence[_Group]) -> bool:
    return any(group.is_narrowed for group in groups)


def _is_any_name(value: Field) -> bool:
    """True for patterns that match almost every name: `*`, `?*`, `./*`."""
    parts = [part for part in value.text.split("/") if part not in ("", ".")]
    return all(map(is_open, parts)) and parts != []


def _may_add_action(value: Field) -> bool:
    """True if the shell may expand an unquoted value to a file named `-delete`."""
    return value.is_glob and any(finds(value.text, action) for action in ("-delete", *_RUNNING, *_WRITING))


def _close(groups: list[_Group]) -> None:
    if len(groups) > 1:
        inner = groups.pop()
        groups[-1].note(narrows=inner.is_narrowed and inner.were_narrowed)


def _either(groups: list[_Group]) -> None:
    last = groups[-1]
    groups[-1] = _Group(were_narrowed=last.were_narrowed and last.is_narrowed)


def _start_again(groups: list[_Group]) -> None:
    """A comma makes what stands before it irrelevant."""
    groups[-1] = _Group()


def _negate(groups: list[_Group]) -> None:
    groups[-1].is_negated = not groups[-1].is_negated


_JOINING: dict[str, Callable[[list[_Group]], None]] = {
    "(": lambda groups: groups.append(_Group()),
    ")": _close,
    "!": _negate,
    "-not": _negate,
    "-o": _either,
    "-or": _either,
    ",": _start_again,
}


def _command(rest: list[Field]) -> tuple[Field, ...]:
    """The words up to `;` or `{} +`."""
    words: list[Field] = []
    while rest:
        field = rest.pop()
        if field.text == ";" or (field.text == "+" and words and words[-1].text == "{}"):
            break
        words.append(field)
    return tuple(words)
