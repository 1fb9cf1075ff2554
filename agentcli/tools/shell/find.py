"""`find`: which tests and actions an expression has (GNU findutils 4.9, POSIX find)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from agentcli.tools.shell.expansion import Field
from agentcli.tools.shell.look import Look

# How many words follow. Tests that narrow down what is found stand apart: they matter to what `-delete` deletes.
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
        "( ) ! , -a -and -d -daystart -depth -ignore_readdir_race -ls -mount -noleaf -not -o -or -print -print0 -prune "
        "-quit -true -warn -nowarn -x -xdev -noignore_readdir_race -help -version --help --version".split(),
        0,
    ),
}
_NAMING_FILES = frozenset("-anewer -cnewer -newer -samefile".split())
_RUNNING = frozenset("-exec -execdir -ok -okdir".split())
_WRITING = {"-fprint": 1, "-fprint0": 1, "-fls": 1, "-fprintf": 2}


class FindCall(Struct):
    """What an expression says: where it starts, the files its tests look at, what it runs, writes and deletes.

    `problem` names what is not known. `deletes_all` says that nothing narrows down what `-delete` is told to delete.
    """

    starts: list[Field]
    files: list[Field]
    runs: list[tuple[Field, ...]]
    writes: list[Field]
    problem: str = ""
    deletes: bool = False
    is_narrowed: bool = False
    acts_on_all: bool = False


def read_find(fields: Sequence[Field]) -> FindCall:
    """The words behind `find`."""
    call = FindCall([], [], [], [])
    rest = list(reversed(fields))
    while rest and rest[-1].text in ("-H", "-P", "-O0", "-O1", "-O2", "-O3"):
        rest.pop()
    while rest and not rest[-1].text.startswith("-") and rest[-1].text not in ("(", ")", "!", ","):
        if rest[-1].may_vanish or rest[-1].text[:1] in ("*", "?", "["):
            call.problem = "what find starts with cannot be told"
        call.starts.append(rest.pop())
    while rest:
        _read_part(rest, call)
    return call


def find_problem(fields: Sequence[Field], look: Look) -> str:
    """Why a find is not known to only list names below the workspace, or an empty string."""
    call = read_find(fields)
    if call.problem:
        return call.problem
    if call.deletes:
        return "find deletes what it finds"
    if call.runs:
        return "find runs a program on what it finds"
    if call.writes:
        return "find writes a file"
    return look.problem(call.starts or [Field(".")], "names") or look.problem(call.files, "facts")


def _read_part(rest: list[Field], call: FindCall) -> None:
    field = rest.pop()
    name = field.text
    if not field.is_known or field.may_vanish or field.is_glob:
        call.problem = "what find does cannot be told"
    elif name == "-delete":
        call.deletes = True
        call.acts_on_all = call.acts_on_all or not call.is_narrowed
    elif name in _RUNNING:
        call.runs.append(_command(rest))
        call.acts_on_all = call.acts_on_all or not call.is_narrowed
    elif name in _WRITING:
        call.writes += rest[-1:]
        del rest[-_WRITING[name] :]
    elif name in _NAMING_FILES or (name.startswith("-newer") and len(name) == 8):
        call.is_narrowed = True
        call.files += rest[-1:]
        del rest[-1:]
    elif name in _NARROWING or name in _NEUTRAL:
        values = _NARROWING.get(name, _NEUTRAL.get(name, 0))
        is_everything = name in ("-name", "-iname", "-path") and rest[-1:] == [Field("*")]
        call.is_narrowed = call.is_narrowed or (name in _NARROWING and not is_everything)
        if any(value.may_vanish for value in rest[len(rest) - values :]):
            call.problem = "what find does cannot be told"
        del rest[len(rest) - values :]
    else:
        call.problem = call.problem or f"{name} of find is not known to only read"


def _command(rest: list[Field]) -> tuple[Field, ...]:
    """The words up to `;` or `{} +`."""
    words: list[Field] = []
    while rest:
        field = rest.pop()
        if field.text == ";" or (field.text == "+" and words and words[-1].text == "{}"):
            break
        words.append(field)
    return tuple(words)
