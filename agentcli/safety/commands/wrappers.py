"""Strips from a command the programs that run it: `timeout 5 rm x`, `sudo -u root rm x`, `sh -c 'rm x'`."""

import itertools
import re
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from agentcli.safety.commands.arguments import VERSION_OPTIONS, listed_names, read_arguments, read_table
from agentcli.safety.commands.paths import finds_most_names, glob_matches
from agentcli.safety.commands.reader.syntax import UNKNOWN_TEXT, Field, name_of


class Wrapper(Struct, frozen=True, kw_only=True):
    """A wrapper that was stripped from a command."""

    inner: tuple[Field, ...] = ()  # the command it runs
    script: str | None = None  # the text it runs, if it is a shell
    problem: str = ""  # why the command does more than it does alone, or why the wrapper's options cannot be read
    candidates: tuple[tuple[Field, ...], ...] = ()  # the commands it may run, if its options cannot be read
    assignments: tuple[Field, ...] = ()  # the variables it sets, each as `NAME=value`
    is_same_shell: bool = False  # the `script` runs in the shell of the command itself, as with `eval`
    reads_script: bool = False  # it is a shell that reads its commands from its standard input
    script_files: tuple[Field, ...] = ()  # the files that a shell reads its commands from


_TABLES = read_table("wrappers")
# By program: its options, the number of its own operands before the command, and its problem, or "".
_PLAIN = {name: [part.strip() for part in row.split("|")] for name, row in _TABLES["plain"].items()}
HIDDEN_PROGRAM = "agentcli can't predict which program runs"
_HIDDEN_SCRIPT = "agentcli can't predict what the shell runs"
_UNSHOWN_SCRIPT = "it runs a script that is not shown here"
_MAX_CANDIDATES = 8  # each is judged as a command of its own


def find_wrapper(fields: Sequence[Field]) -> Wrapper | None:
    """Return the outermost wrapper of a command, or None if its program is not a known wrapper."""
    name, arguments = name_of(fields), fields[1:]
    only_prints_version = len(arguments) == 1 and arguments[0].text in VERSION_OPTIONS.get(name, ())
    if not name or only_prints_version:
        return None
    if name in _PLAIN:
        row, operands, problem = _PLAIN[name]
        return _plain_wrapper(arguments, row, int(operands), problem)
    if name in _SPECIAL:
        return _SPECIAL[name](arguments)
    if name in ("sh", "bash", "dash", "zsh", "ksh", "ash", "mksh", "rbash", "fish"):
        return _shell(arguments, "" if name in ("sh", "bash", "dash") else f"{name} is another shell")
    is_doubtful = name in _TABLES["doubtful"]["names"].split()
    return _unreadable_wrapper(arguments, f"{name} runs its arguments as a command") if is_doubtful else None


def _plain_wrapper(arguments: Sequence[Field], row: str, own_operands: int, problem: str) -> Wrapper:
    """Read a wrapper that takes options and `own_operands` operands before the command: `timeout -s 9 5 command`.

    `problem` is what the wrapper adds, such as the rights of root; empty for a harmless one.
    """
    read = read_arguments(arguments, row, stops_at_operand=True)
    if read.problem:
        return _unreadable_wrapper(arguments, read.problem)
    words = read.operands
    if any(field.may_vanish for field in words[:own_operands]):
        return _unreadable_wrapper(arguments, HIDDEN_PROGRAM)
    if problem:  # only sudo and doas, which have one, accept `NAME=value` before the command
        words = list(itertools.dropwhile(lambda field: re.match(r"[A-Za-z_]\w*=", field.text), words))
    return Wrapper(inner=tuple(words[own_operands:]), problem=problem)


def _unreadable_wrapper(arguments: Sequence[Field], problem: str) -> Wrapper:
    """Return a wrapper whose options cannot be read: any argument that is not an option may begin the command."""
    starts = [at for at, field in enumerate(arguments) if not field.text.startswith("-")]
    return Wrapper(problem=problem, candidates=tuple(tuple(arguments[at:]) for at in starts[:_MAX_CANDIDATES]))


def _shell(arguments: Sequence[Field], problem: str) -> Wrapper:
    """Read a shell's arguments, such as `-c script name …`. After an unknown option, its script is still looked for."""
    letters, remaining = "", list(arguments)  # `letters` of all short options; `remaining` arguments are not read yet
    files: list[Field] = []
    while remaining and remaining[0].text[:1] in ("-", "+") and remaining[0].is_known:
        text = remaining.pop(0).text
        if text in ("--", "-"):
            break
        if not re.fullmatch(r"-[ceu]+|--norc|--noprofile|--posix", text):  # `-e` and `-u` are harmless
            problem = problem or f"the option {text} of a shell is not known"
        if text in ("--rcfile", "--init-file"):
            files, remaining = [*files, *remaining[:1]], remaining[1:]
        elif not text.startswith("--"):
            letters += text[1:]
            remaining = remaining[text.count("o") + text.count("O") :]  # each `o` or `O` takes a word: `-o pipefail`
    if "c" in letters:  # the next word is the script
        return _script_wrapper(remaining[:1], problem or ("" if remaining else _HIDDEN_SCRIPT))
    reads_script = not remaining or "s" in letters  # after `-s`, the words are arguments of the script, not a file
    files += [Field("/dev/stdin")] if reads_script else remaining[:1]
    return Wrapper(problem=problem or _UNSHOWN_SCRIPT, reads_script=reads_script, script_files=tuple(files))


def _script_wrapper(fields: Sequence[Field], problem: str = "", *, is_same_shell: bool = False) -> Wrapper:
    """Return the wrapper for a shell whose script is given as text; `is_same_shell`: see `Wrapper`."""
    is_known = all(field.is_known for field in fields)  # of a script that is not, the known part is still judged
    script = " ".join(field.text for field in fields)
    return Wrapper(script=script, problem=problem if is_known else _HIDDEN_SCRIPT, is_same_shell=is_same_shell)


def _without_first(words: Sequence[Field], text: str) -> Sequence[Field]:
    """Return words without the first one if that is `text`, such as `--`."""
    return words[1:] if words and words[0] == Field(text) else words


def _env(arguments: Sequence[Field]) -> Wrapper:
    """Read `env [options] [NAME=value …] [program …]`."""
    read = read_arguments(arguments, _TABLES["special"]["env"], stops_at_operand=True)
    if read.problem or {"-S", "--split-string", "-C", "--chdir"} & set(read.option_names):
        # `-S` splits its value into words, so any word in any argument may begin the command.
        split = [Field(word) for field in arguments for word in field.text.removeprefix("-S").split()]
        return _unreadable_wrapper([*split, *arguments], read.problem or "env changes more than variables")
    assignments = tuple(itertools.takewhile(lambda field: re.match(r"[A-Za-z_]\w*=", field.text), read.operands))
    inner = tuple(_without_first(read.operands[len(assignments) :], "-"))  # a lone `-` means `-i`
    problem = "" if inner else "it shows the environment, where secrets are"
    return Wrapper(inner=inner, assignments=assignments, problem=problem)


def _xargs(arguments: Sequence[Field]) -> Wrapper:
    """Read xargs, which puts words from its input after the command, or in place of the placeholder that `-I` names."""
    read = read_arguments(arguments, _TABLES["special"]["xargs"], stops_at_operand=True)
    if read.problem:
        return _unreadable_wrapper(arguments, read.problem)
    words = tuple(read.operands) or (Field("echo"),)
    own_options = "\0".join(field.text for field in arguments[: len(arguments) - len(read.operands)])
    # `-I %`, `-I%`, `-i`, `--replace`, `--replace=%`. A match has two groups: one is the placeholder, the other empty.
    placeholders = re.findall(r"(?:^|\0)-[0rtxo]*(?:I\0?|i)([^\0]*)|(?:^|\0)--replace=?([^\0]*)", own_options)
    if not placeholders:
        return Wrapper(inner=(*words, Field(UNKNOWN_TEXT, may_vanish=True)))
    return Wrapper(inner=_with_unknown_text(words, "".join(placeholders[-1]) or "{}"))  # the last option applies


def _with_unknown_text(words: Sequence[Field], placeholder: str) -> tuple[Field, ...]:
    """Mark with `UNKNOWN_TEXT` where xargs or find inserts an argument in place of a placeholder, such as `{}`."""
    return tuple(structs.replace(field, text=field.text.replace(placeholder, UNKNOWN_TEXT)) for field in words)


def _trap(arguments: Sequence[Field]) -> Wrapper:
    """Read `trap [--] command signal …`. A signal alone, or `-` as the command, resets the signals."""
    words = _without_first(arguments, "--")
    is_reset = len(words) < 2 or words[0].text == "-"
    return Wrapper(script="") if is_reset else _script_wrapper(words[:1])


def _watch(arguments: Sequence[Field]) -> Wrapper:
    """Read watch, which gives its operands to a shell again and again."""
    read = read_arguments(arguments, _TABLES["special"]["watch"], stops_at_operand=True)
    return _script_wrapper(read.operands, "it runs until it is stopped")


# `-c`, also after other letters; `--command`, also abbreviated; and su's `--session-command`. The group is the value.
_C_OPTION = re.compile(r"(?:-[a-z]*?c|--(?:session-)?c(?:o(?:m(?:m(?:a(?:n(?:d)?)?)?)?)?)?(?:=|$))(.*)", re.DOTALL)


def _text_behind_c(arguments: Sequence[Field]) -> Wrapper:
    """Read `su -c text`, `su --command=text`, `script -c text`, `flock file -c text`."""
    for field, follower in itertools.zip_longest(arguments, arguments[1:]):
        found = _C_OPTION.fullmatch(field.text)
        script = Field(found[1]) if found and found[1] else follower  # the text is in the same word, or the next one
        if found and script is not None:
            return _script_wrapper([script], "it runs under another user or program")
    return _unreadable_wrapper(arguments, "it runs its arguments as a command")


def _find(arguments: Sequence[Field]) -> Wrapper | None:
    if not (runs := read_find(arguments).runs):
        return None
    candidates = tuple(_with_unknown_text(words, "{}") for words in runs if words)
    return Wrapper(problem="find runs a program on what it finds", candidates=candidates)


def _command(arguments: Sequence[Field]) -> Wrapper | None:
    """Return the shell's `command` as a wrapper; None for `command -v name`, which runs nothing."""
    if arguments and re.fullmatch(r"-[pvV]*[vV][pvV]*", arguments[0].text):
        return None
    return _plain_wrapper(arguments, "text -p", 0, "")


_SPECIAL: dict[str, Callable[[Sequence[Field]], Wrapper | None]] = {
    **dict.fromkeys((".", "source"), lambda words: Wrapper(problem=_UNSHOWN_SCRIPT, script_files=tuple(words[:1]))),
    "command": _command,
    "env": _env,
    "eval": lambda arguments: _script_wrapper(_without_first(arguments, "--"), is_same_shell=True),
    "find": _find,
    **dict.fromkeys(("flock", "runuser", "script", "su"), _text_behind_c),
    "trap": _trap,
    "watch": _watch,
    "xargs": _xargs,
}


# By test or action of find: its kind and the number of values that follow, as in the table's keys: `neutral_1`. Kinds:
# "narrowing" (limits what comes after it), "comparing" (does so by a file), "writing" (a file), "neutral".
_PARTS_OF_FIND = {
    name: (key[:-2], int(key[-1])) for key, row in read_table("names")["find"].items() for name in row.split()
}
_RUNNING_ACTIONS = ("-exec", "-execdir", "-ok", "-okdir")


class FindCall(Struct, kw_only=True):
    """A call of find: what it starts from, and what it does with what it finds."""

    starts: list[Field] = []
    runs: list[tuple[Field, ...]] = []  # the commands it runs
    runs_on_all: list[tuple[Field, ...]] = []  # the commands in `runs` that no test before them limits
    problem: str = ""  # why it may do more than list files
    deletes_all: bool = False  # True if no test limits what `-delete` deletes
    is_narrowed: bool = False  # True once a test limits what comes after it


def read_find(fields: Sequence[Field]) -> FindCall:
    """Read the words after `find` (GNU findutils 4.9, POSIX find)."""
    call = FindCall()
    remaining = deque(fields)
    # Even these options before the starting folders matter: `-L` follows symlinks out of the workspace.
    while remaining and re.fullmatch(r"-[HLPEXdsx]+|-O[0-3]?|-f|-D.*", remaining[0].text):
        call.problem = f"the option {remaining.popleft().text} of find is not known to only read"
    while remaining and not remaining[0].text.startswith("-") and remaining[0].text not in ("(", ")", "!", ","):
        start = remaining.popleft()
        if start.may_vanish or start.text[:1] in ("*", "?", "["):
            call.problem = "agentcli can't predict where find starts"
        call.starts.append(start)
    is_negated = False
    while remaining:
        is_negated = _read_part(remaining, call, is_negated=is_negated)
    return call


def _read_part(remaining: deque[Field], call: FindCall, *, is_negated: bool) -> bool:
    """Read a test or action with its values into `call`, and return True if it negates the next one."""
    field = remaining.popleft()
    name = field.text
    is_newer = name.startswith("-newer") and len(name) == 8  # `-newerXY`: two letters say which times are compared
    kind, value_count = _PARTS_OF_FIND.get("-newer" if is_newer else name, ("", 0))
    values = [remaining.popleft() for _ in range(min(value_count, len(remaining)))]
    if any(word.may_vanish or _may_add_action(word) for word in (field, *values)) or not field.is_known:
        call.problem = "agentcli can't predict what find does"
    elif name == "-delete":
        call.problem = call.problem or "find deletes what it finds"
        call.deletes_all = call.deletes_all or not call.is_narrowed
    elif name in _RUNNING_ACTIONS:
        call.problem = call.problem or "find runs a program on what it finds"
        command = _read_command(remaining)
        call.runs.append(command)
        if not call.is_narrowed:
            call.runs_on_all.append(command)
        # `-exec grep -q x {} ;` is a test too: later actions run only on files for which grep succeeds.
        is_test = bool(command) and command[0].text in listed_names("programs", "deciding")
        call.is_narrowed = call.is_narrowed or is_test
    elif kind == "narrowing":
        # A negated test usually excludes almost nothing; one of time, size or links still limits the result.
        narrows = not is_negated or re.fullmatch(r"-[acm](min|time)|-size|-used|-links", name)
        call.is_narrowed = call.is_narrowed or (bool(narrows) and not any(map(_matches_most_names, values)))
    elif kind != "neutral":
        call.is_narrowed = call.is_narrowed or kind == "comparing"  # its file is not checked, hence the problem
        call.problem = call.problem or f"{name} of find is not known to only read"
    return name in ("!", "-not")


def _matches_most_names(value: Field) -> bool:
    """Return True if a pattern of find, such as that of `-name`, leaves out almost nothing: `*`, `?*`, `./*`."""
    parts = [part for part in value.text.split("/") if part not in ("", ".")]
    return parts != [] and all(map(finds_most_names, parts))


def _may_add_action(value: Field) -> bool:
    """Return True if the shell may expand an unquoted value to a file named `-delete`."""
    actions = (name for name, (kind, _) in _PARTS_OF_FIND.items() if kind == "writing")
    return value.is_glob and any(glob_matches(value.text, each) for each in ("-delete", *_RUNNING_ACTIONS, *actions))


def _read_command(remaining: deque[Field]) -> tuple[Field, ...]:
    """Remove the words up to `;` or `{} +` from `remaining`, and return those that are the command."""
    words: list[Field] = []
    while remaining:
        field = remaining.popleft()
        if field.text == ";" or (field.text == "+" and words and words[-1].text == "{}"):
            break
        words.append(field)
    return tuple(words)
