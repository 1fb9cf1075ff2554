"""Takes off programs that run the command they are given: `timeout 5 rm x`, `sudo -u root rm x`, `sh -c 'rm x'`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from agentcli.safety.commands.arguments import VERSIONS, names, options, read_arguments, read_table
from agentcli.safety.commands.paths import finds, is_open
from agentcli.safety.commands.reader.syntax import HOLE, Field


class Layer(Struct, frozen=True, kw_only=True):
    """A wrapper that was taken off.

    `inner` is the command it runs, or `script` the text that a shell runs. `problem` says why the
    wrapper makes the command do more than it does alone, or why the wrapper's own options cannot be read; then
    `candidates` are the commands it may run. `sets` are variables it sets. `reads_script`: a shell that reads commands
    from its input. `script_files` are the files it reads scripts from. `hides_program`: what runs cannot be told.
    """

    inner: tuple[Field, ...] = ()
    script: str | None = None
    problem: str = ""
    candidates: tuple[tuple[Field, ...], ...] = ()
    sets: tuple[Field, ...] = ()
    is_same_shell: bool = False
    reads_script: bool = False
    script_files: tuple[Field, ...] = ()

    @property
    def hides_program(self) -> bool:
        return self.problem == _HIDDEN_PROGRAM


def take_off(fields: Sequence[Field]) -> Layer | None:
    """The outermost wrapper of a command, or None if its program is not a known wrapper."""
    if not fields or not fields[0].is_known:
        return None
    name = fields[0].text.rpartition("/")[2]
    if len(fields) == 2 and fields[1].text in VERSIONS.get(name, ()):
        return None
    if name in _PLAIN:
        row, operands, problem = _PLAIN[name]
        return _plain(fields[1:], row, int(operands), problem)
    if name in _SPECIAL:
        return _SPECIAL[name](fields[1:])
    if name in _SHELLS:
        return _shell(fields[1:], "" if name in ("sh", "bash", "dash") else f"{name} is another shell")
    if name in _DOUBTFUL:
        return Layer(problem=f"{name} runs what it is given", candidates=_candidates(fields[1:]))
    return None


_TABLES = read_table("wrappers")
_PLAIN = {name: [part.strip() for part in row.split("|")] for name, row in _TABLES["plain"].items()}
_HIDDEN_PROGRAM = "what runs cannot be told"
_DOUBTFUL = _TABLES["doubtful"]["names"].split()
_SHELLS = frozenset("sh bash dash zsh ksh ash mksh rbash fish".split())


def _plain(arguments: Sequence[Field], row: str, operands: int, problem: str) -> Layer:
    read = read_arguments(arguments, options(row), stops_at_operand=True)
    if read.problem:
        return Layer(problem=read.problem, candidates=_candidates(arguments))
    words = read.operands
    if any(field.may_vanish for field in words[:operands]):
        return Layer(problem=_HIDDEN_PROGRAM, candidates=_candidates(arguments))
    while problem and words and re.match(r"[A-Za-z_]\w*=", words[0].text):
        words = words[1:]  # sudo sets variables, as env does
    return Layer(inner=tuple(words[operands:]), problem=problem)


def _candidates(arguments: Sequence[Field]) -> tuple[tuple[Field, ...], ...]:
    """The commands that may run if a wrapper's options cannot be read."""
    starts = [at for at, field in enumerate(arguments) if not field.text.startswith("-")]
    return tuple(tuple(arguments[at:]) for at in starts[:8])


def _shell(arguments: Sequence[Field], problem: str) -> Layer:
    """`sh -c script name arguments`. Of its own options only `-e` and `-u` do not matter."""
    letters, rest = "", list(arguments)
    files: list[Field] = []
    while rest and rest[0].text[:1] in ("-", "+") and rest[0].is_known:
        text = rest.pop(0).text
        if text in ("--", "-"):
            break
        if not re.fullmatch(r"-[ceu]+|--norc|--noprofile|--posix", text):
            problem = problem or f"the option {text} of a shell is not known"
        if text in ("--rcfile", "--init-file"):
            files, rest = [*files, *rest[:1]], rest[1:]
        elif not text.startswith("--"):
            letters += text[1:]
            rest = rest[text.count("o") + text.count("O") :]
    if "c" in letters:
        return _of_text(rest[:1], problem or ("" if rest else _HIDDEN))
    files += rest[:1] if rest and "s" not in letters else [Field("/dev/stdin")]
    problem = problem or "it runs a script that is not shown here"
    return Layer(problem=problem, reads_script=not rest, script_files=tuple(files))


_HIDDEN = "what the shell runs cannot be told"


def _of_text(fields: Sequence[Field], problem: str = "", *, is_same_shell: bool = False) -> Layer:
    """A shell that runs a text. Where that cannot be told, what of it is seen is looked at."""
    problem = problem if all(field.is_known for field in fields) else _HIDDEN
    text = " ".join(field.text for field in fields)
    return Layer(script=text, problem=problem, is_same_shell=is_same_shell)


def _env(arguments: Sequence[Field]) -> Layer:
    read = read_arguments(arguments, options(_TABLES["special"]["env"]), stops_at_operand=True)
    if read.problem or {"-S", "--split-string", "-C", "--chdir"} & set(read.given):
        split = [Field(word) for field in arguments for word in field.text.removeprefix("-S").split()]
        why = read.problem or "env changes more than variables"
        return Layer(problem=why, candidates=_candidates([*split, *arguments]))
    words = read.operands
    sets = [*itertools.takewhile(lambda field: re.match(r"[A-Za-z_]\w*=", field.text), words)]
    words = words[len(sets) :]
    inner = words[1:] if words[:1] == [Field("-")] else words
    problem = "" if inner else "it shows the environment, where secrets are"
    return Layer(inner=tuple(inner), sets=tuple(sets), problem=problem)


def _xargs(arguments: Sequence[Field]) -> Layer:
    """The words it reads go behind the command, or in place of the text that `-I` names."""
    read = read_arguments(arguments, options(_TABLES["special"]["xargs"]), stops_at_operand=True)
    if read.problem:
        return Layer(problem=read.problem, candidates=_candidates(arguments))
    words = tuple(read.operands) or (Field("echo"),)
    given = "\0".join(field.text for field in arguments[: len(arguments) - len(read.operands)])
    found = re.findall(r"(?:^|\0)-[0rtxo]*(?:I\0?|i)([^\0]*)|(?:^|\0)--replace=?([^\0]*)", given)
    if not found:
        return Layer(inner=(*words, Field(HOLE, may_vanish=True)))
    replaced = "".join(found[-1]) or "{}"
    return Layer(inner=tuple(_with_hole(field, replaced) for field in words))


def _with_hole(field: Field, replaced: str) -> Field:
    return Field(field.text.replace(replaced, HOLE), field.is_glob, field.may_vanish)


def _eval(arguments: Sequence[Field]) -> Layer:
    return _of_text(arguments[arguments[:1] == (Field("--"),) :], is_same_shell=True)


def _trap(arguments: Sequence[Field]) -> Layer:
    words = arguments[arguments[:1] == (Field("--"),) :]
    is_reset = len(words) < 2 or words[0].text == "-"
    return Layer(script="") if is_reset else _of_text(words[:1])


def _watch(arguments: Sequence[Field]) -> Layer:
    read = read_arguments(arguments, options(_TABLES["special"]["watch"]), stops_at_operand=True)
    return _of_text(read.operands, "it does not end")


# `-c`, also behind other letters; `--command`, also abbreviated, and su's `--session-command`.
_BEHIND_C = re.compile(r"(?:-[a-z]*?c|--(?:session-)?c(?:o(?:m(?:m(?:a(?:n(?:d)?)?)?)?)?)?(?:=|$))(.*)", re.DOTALL)


def _text_behind_c(arguments: Sequence[Field]) -> Layer:
    """`su -c text`, `su --command=text`, `script -c text`, `flock file -c text`."""
    for at, field in enumerate(arguments):
        found = _BEHIND_C.fullmatch(field.text)
        script = Field(found[1]) if found and found[1] else arguments[at + 1] if found and arguments[at + 1 :] else None
        if script is not None:
            return _of_text([script], "it runs in another way than here")
    return Layer(problem="it runs what it is given", candidates=_candidates(arguments))


def _find(arguments: Sequence[Field]) -> Layer | None:
    """`find -exec`: `{}` stands for the name of the found file."""
    runs = read_find(arguments).runs
    if not runs:
        return None
    candidates = tuple(tuple(_with_hole(field, "{}") for field in words) for words in runs if words)
    return Layer(problem="find runs a program on what it finds", candidates=candidates)


def _command(arguments: Sequence[Field]) -> Layer | None:
    """`command -v` runs nothing."""
    if arguments and re.fullmatch(r"-[pvV]*[vV][pvV]*", arguments[0].text):
        return None
    return _plain(arguments, "text -p", 0, "")


def _source(arguments: Sequence[Field]) -> Layer:
    return Layer(problem="it runs a script that is not shown here", script_files=tuple(arguments[:1]))


_SPECIAL: dict[str, Callable[[Sequence[Field]], Layer | None]] = {
    ".": _source,
    "source": _source,
    "command": _command,
    "env": _env,
    "eval": _eval,
    "find": _find,
    "flock": _text_behind_c,
    "runuser": _text_behind_c,
    "script": _text_behind_c,
    "su": _text_behind_c,
    "trap": _trap,
    "watch": _watch,
    "xargs": _xargs,
}


# Expressions of find (GNU findutils 4.9, POSIX find)

# By part of an expression: its kind, and the number of words that follow.
_PARTS = {
    name: (row[:-2], int(row[-1])) for row, parts in read_table("names")["find"].items() for name in parts.split()
}
_RUNNING = frozenset("-exec -execdir -ok -okdir".split())


class FindCall(Struct):
    """A `find` expression: where it starts and what it runs. `problem` says what else it does than list names.

    `deletes_all` is set if no test narrows down what `-delete` deletes; `runs_on_all` are the commands that run on
    everything found.
    """

    starts: list[Field] = []
    runs: list[tuple[Field, ...]] = []
    runs_on_all: list[tuple[Field, ...]] = []
    problem: str = ""
    deletes_all: bool = False
    is_narrowed: bool = False


def read_find(fields: Sequence[Field]) -> FindCall:
    """Read the words behind `find`."""
    call = FindCall()
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


def _read_part(rest: list[Field], call: FindCall, *, is_negated: bool) -> bool:
    """Read one test or action with its values. True if it negates the next one."""
    field = rest.pop()
    name = field.text
    is_newer = name.startswith("-newer") and len(name) == 8
    kind, count = _PARTS.get("-newer" if is_newer else name, ("", 0))
    values = rest[len(rest) - count :] if count else []
    if any(value.may_vanish or _may_add_action(value) for value in (field, *values)) or not field.is_known:
        call.problem = "what find does cannot be told"
    elif name == "-delete":
        call.problem = call.problem or "find deletes what it finds"
        call.deletes_all = call.deletes_all or not call.is_narrowed
    elif name in _RUNNING:
        call.problem = call.problem or "find runs a program on what it finds"
        call.runs.append(command := _command_of_find(rest))
        call.runs_on_all += () if call.is_narrowed else (command,)
        call.is_narrowed = call.is_narrowed or (bool(command) and command[0].text in names("programs", "deciding"))
    elif kind == "narrowing":
        # Negated, a test excludes almost nothing, unless it compares: what is not older is newer.
        narrows = not is_negated or re.fullmatch(r"-[acm](min|time)|-size|-used|-links", name)
        call.is_narrowed = call.is_narrowed or (bool(narrows) and not any(map(_is_any_name, values)))
    elif kind != "neutral":
        call.is_narrowed = call.is_narrowed or kind == "comparing"
        call.problem = call.problem or f"{name} of find is not known to only read"
    del rest[len(rest) - len(values) :]
    return name in ("!", "-not")


def _is_any_name(value: Field) -> bool:
    """True for patterns that match almost every name: `*`, `?*`, `./*`."""
    parts = [part for part in value.text.split("/") if part not in ("", ".")]
    return all(map(is_open, parts)) and parts != []


def _may_add_action(value: Field) -> bool:
    """True if the shell may expand an unquoted value to a file named `-delete`."""
    actions = (name for name, (kind, _) in _PARTS.items() if kind == "writing")
    return value.is_glob and any(finds(value.text, action) for action in ("-delete", *_RUNNING, *actions))


def _command_of_find(rest: list[Field]) -> tuple[Field, ...]:
    """The words up to `;` or `{} +`."""
    words: list[Field] = []
    while rest:
        field = rest.pop()
        if field.text == ";" or (field.text == "+" and words and words[-1].text == "{}"):
            break
        words.append(field)
    return tuple(words)
