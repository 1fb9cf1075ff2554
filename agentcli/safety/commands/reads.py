"""Decides if one simple command, without wrappers, only reads inside the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from agentcli.safety.commands.arguments import (
    GIT,
    PROGRAMS,
    VERSIONS,
    Arguments,
    names,
    options,
    read_arguments,
    without_pattern,
)
from agentcli.safety.commands.paths import WILDCARD, ReadCheck
from agentcli.safety.commands.reader.syntax import HOLE, Field
from agentcli.safety.commands.records import Segment
from agentcli.safety.commands.wrappers import read_find


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
    if check.state.places is None:
        return "it is not certain in which repository git works"
    for place in check.state.places:
        if setting := check.places.program_of_git(Path(place)):
            return f"git may run a program: {setting}"
    name, rest = call.words[0].text, call.words[1:]
    if [field.text for field in rest] in (["--help"], ["-h"]):
        return f"git {name} may be an alias or a program"
    if _SIGNATURE.search("\0".join(field.text for field in rest)):
        return "git checks signatures with the program that is set for it"
    form = f"{name} {rest[0].text}" if rest else name
    row, rest = (GIT[form], rest[1:]) if form in GIT else (GIT.get(name, ""), rest)
    row, _, needed = row.partition(" | ")
    if not row:
        has_forms = any(known.startswith(f"{name} ") for known in GIT)
        return f"git {form if has_forms else name} is not known to only read"
    read = read_arguments(rest, options(row))
    if needed:
        is_told = {*needed.split()} & {*read.given} or not (read.operands or name == "clean")
        return read.problem or ("" if is_told else f"git {name} changes something")
    paths = [each for field in read.operands for each in _paths_in(field)]
    return read.problem or check.problem([*paths, *read.files], "content") or _pathspec_problem(name, read, check)


# git-log(1), PRETTY FORMATS; git-for-each-ref(1), FIELD NAMES
_SIGNATURE = re.compile(rf"%[-+ ]?G|signature|--(format|pretty|sort)[=\0][^\0]*{HOLE}")


class GitCall(Struct):
    """A call of git: the folders of `-C`, the subcommand with its arguments, or why it cannot be read."""

    folders: list[Field]
    words: list[Field]
    problem: str = ""


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
        elif text not in names("git", "plain_options"):
            call.problem = f"the option {text} of git can run programs or lead elsewhere"
            return call
    return call


def _pathspec_problem(name: str, read: Arguments, check: ReadCheck) -> str:
    """The reason why globs that git itself matches may find secrets. The pattern of `git grep` is not one."""
    operands = (
        without_pattern(read.operands) if name == "grep" and not {"-e", "-f"} & set(read.given) else read.operands
    )
    paths = (path for field in operands if not field.is_glob for path in _paths_in(field))
    return check.filter_problem([path for path in paths if WILDCARD.search(path.text) or "\\" in path.text])


def _paths_in(field: Field) -> list[Field]:
    """The parts of a revision or pathspec that may be paths: all of it, and the text behind a colon."""
    text = re.sub(r"^:(\([\w,:=/.-]*\)|[!^/]+)", "", field.text)
    texts = (text, text.partition(":")[2]) if ":" in text else (text,)
    return [Field(each, field.is_glob, field.may_vanish) for each in texts]


# Options with a value count too: one question too many is safe.
_GREPS_FOLDERS = re.compile(r"-[^-]*[rRd]|--[rd]")
_GIT_SUMS_UP = re.compile(r"--(stat|shortstat|numstat|dirstat|name-only|name-status)(=|$)")
_GIT_SHOWS_MORE = re.compile(
    r"-[pucmWUL]|--(patch|unified|cc|word-diff|color-words|binary|function-context|diff-merges|remerge-diff|submodule=)"
)


def may_show(segment: Segment, secrets: Sequence[Path]) -> bool:
    """False for a command that shows no contents, and for one whose every path is known and holds none of the secrets.

    What shows no contents shows names of files, facts about them, or commits.
    """
    words = segment.words or ("",)
    is_git = words[0] == "git"
    called = [field.text for field in read_call([Field(word) for word in words[1:]]).words] if is_git else []
    if words[0] in names("shows", "names_only") or _git_shows_names_only(called):
        return False
    if not segment.effects.reads:  # a filter reads its input alone
        greps_folders = words[0].endswith("grep") and any(_GREPS_FOLDERS.match(word) for word in words[1:])
        return words[0] not in names("shows", "its_input") or greps_folders
    paths = called[called.index("--") + 1 :] if "--" in called else []
    is_one_file = called[:1] in (["blame"], ["annotate"])
    if is_git and not is_one_file and (not paths or any(path.startswith(":") for path in paths)):
        return True  # its operands may be revisions and patterns
    found = ((path, re.search(r"[*?\[{]", path)) for path in segment.effects.reads)
    places = [Path(path[: glob.start()].rpartition("/")[0] or "/") if glob else Path(path) for path, glob in found]
    return any(secret.is_relative_to(place) for secret in secrets for place in places)


def _git_shows_names_only(called: Sequence[str]) -> bool:
    match called:
        case ["status", *rest]:
            return not any(re.match(r"-[^-]*v|--v", word) for word in rest)
        case ["diff" | "show", *rest] if not any(_GIT_SUMS_UP.match(word) for word in rest):
            return False
        case ["log" | "diff" | "show", *rest]:
            return not any(_GIT_SHOWS_MORE.match(word) for word in rest)
    return bool(called) and called[0] in names("shows", "git_names_only")


_DECLARING = ("export", "declare", "typeset", "readonly")


def problem_of(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why a command may do more than read in the workspace, or an empty string. `fields` is not empty."""
    program, arguments = fields[0], fields[1:]
    if not program.is_known or program.is_glob or program.may_vanish:
        return "which program runs cannot be told"
    name = re.sub(r"\A/(usr/)?s?bin/", "", program.text)
    if len(arguments) == 1 and arguments[0].text in VERSIONS.get(name, ()):
        return ""
    if special := _SPECIAL.get(name):
        return special(arguments, check)
    if name == "printenv" or (name in _DECLARING and all(field.text.startswith("-") for field in arguments)):
        return "it shows the environment, where secrets are"
    if row := PROGRAMS.get(name):
        return _reader_problem(name, row, arguments, check)
    return f"{name} is not known to only read"


def _reader_problem(name: str, row: str, arguments: Sequence[Field], check: ReadCheck) -> str:
    known = options(row)
    read = read_arguments(arguments, known)
    if read.problem:
        return read.problem
    operands = read.operands
    if name == "date" and any(not field.text.startswith("+") for field in operands):
        return "date can set the clock"
    if name == "uniq" and (len(operands) > 1 or any(field.is_glob or field.may_vanish for field in operands)):
        return "uniq writes its second operand"
    if known.operands == "none" and operands:
        return f"{operands[0].text} may be something to change"
    if known.operands == "search" and not {"-e", "-f", "--regexp", "--file", "--files"} & set(read.given):
        operands = without_pattern(operands)
    return (
        check.problem(operands, known.operands)
        or check.problem(read.files, "content")
        or check.filter_problem(read.filters)
    )


def _printf_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """`-v` and `%n` set a variable."""
    form = arguments[0] if arguments else Field("")
    is_plain = form.is_known and not form.may_vanish and not form.text.startswith("-")
    sets = not is_plain or re.search(r"%[^%a-zA-Z]*[hjlLqtz]*n", form.text)
    return "printf can set a variable" if sets else check.problem(arguments, "text")


# Scripts of sed that only print, such as `10,20p`, `/a/,/b/d`, `s/a/b/g`, or several of these. All others may do more.
_SED_TEXT = r"(?:[^\\\n\[\]{0}]|\\[^\n]|\[\^?[^\\\n\[\]{0}]+\])*"
_SED_ADDRESS = rf"(?:\d+|\$|/{_SED_TEXT.format('/')}/I?)"
_SED_REPLACE = "|".join(rf"s\{mark}{text}\{mark}{text}\{mark}" for mark in "/|#,:" for text in [_SED_TEXT.format(mark)])
_SED_COMMAND = rf"(?:{_SED_ADDRESS}(?:,\+?{_SED_ADDRESS})?)?!?(?:[pdqDNPnhHgGx=]|(?:{_SED_REPLACE})[gpiI0-9]*)"
# By program: a pattern of the scripts that may do more than compute and print. Awk and jq have names that run programs,
# load code, or read other files or the environment; awk also writes with a pipe, or a `>` behind a `print`.
_MAY_DO_MORE = {
    "awk": r"\b(system|getline|ENVIRON|PROCINFO|ARGV|ARGC|ARGIND|SYMTAB|FUNCTAB|extension|include|load|namespace)\b"
    r"|@|(?<!\|)\|(?!\|)|(?s:print.*>)",
    "jq": r"(?<![.\w])(env|ENV|__prog_args|input_filename|import|include|modulemeta|get_search_list)\b",
    "sed": rf"\A(?!(?:{_SED_COMMAND})?(?:[ ;\n]+{_SED_COMMAND})*[ ;\n]*\Z)",
}


def _script_problem(name: str) -> Callable[[Sequence[Field], ReadCheck], str]:
    """Return the check for a program that is given a script, then files."""
    more = ", such as show the environment" if name == "jq" else ""

    def problem(arguments: Sequence[Field], check: ReadCheck) -> str:
        read = read_arguments(arguments, options(PROGRAMS[name]))
        scripts, files = read.operands[:1], read.operands[1:]
        is_told = all(field.is_known and not field.is_glob and not field.may_vanish for field in scripts)
        if not is_told or any(field.text == "--" for field in arguments):
            return f"what {name} does cannot be told"
        if any(re.search(_MAY_DO_MORE[name], field.text) for field in scripts):
            return read.problem or f"the script of {name} may do more than print{more}"
        return read.problem or check.problem(files, "content")

    return problem


_TESTS_OF_FILES = frozenset("-b -c -d -e -f -g -h -k -p -r -s -u -w -x -G -L -N -O -S".split())
_OTHER_TESTS = frozenset("-n -z -t -a -o -eq -ne -lt -le -gt -ge".split())


def _condition_problem(fields: Sequence[Field], check: ReadCheck) -> str:
    """Tests such as `-v` and `-R` may do more than look, because a subscript can run a command."""
    if any(field.may_vanish or field.is_glob for field in fields):
        return "an unquoted expansion can turn into another test"
    for field in fields:
        if field.text.startswith("-") and field.text not in _TESTS_OF_FILES | _OTHER_TESTS:
            return f"the test {field.text} is not known to only look"
    return check.problem([field for test, field in pairwise(fields) if test.text in _TESTS_OF_FILES], "facts")


_PS = re.compile(r"([aufxwlj]+( |$))?(-[aAefFlHw]*([opC] [\w,%=:]+)?( |$)|--sort=[\w%,-]+( |$))*")


def _ps_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """The option `e` of BSD and, on macOS, `-E` show the environment of processes."""
    text = " ".join(field.text for field in arguments)
    return "" if _PS.fullmatch(text) and "environ" not in text else "ps may show the environment of processes"


def _cd_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    targets = [field for field in arguments if field.text not in ("-L", "-P", "--")]
    if len(targets) > 1 or any(field.text.startswith("-") for field in targets):
        return "where it goes cannot be told"
    return check.problem(targets or [Field(check.state.home or HOLE)], "names")


_OPTION_OF_SET = re.compile(r"[-+][efuxo]+|pipefail|errexit|nounset|noglob")


def _set_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    if arguments and all(_OPTION_OF_SET.fullmatch(field.text) for field in arguments):
        return ""
    return "set shows all variables, or sets an option that is not known"


def _command_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """`command -v name`: the form of `command` that runs nothing."""
    names = [field.text for field in arguments if field.text not in ("-v", "-V", "-p")]
    return "" if all(re.fullmatch(r"[\w.+/][\w.+/-]*", name) for name in names) else "what is asked for is no name"


def _find_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    call = read_find(arguments)
    return call.problem or check.problem(call.starts or [Field(".")], "names")


_SPECIAL: dict[str, Callable[[Sequence[Field], ReadCheck], str]] = {
    **dict.fromkeys(("awk", "gawk", "mawk"), _script_problem("awk")),
    "[": lambda arguments, check: _condition_problem(arguments[:-1], check),
    "cd": _cd_problem,
    "command": _command_problem,
    "find": _find_problem,
    "git": git_problem,
    "jq": _script_problem("jq"),
    "printf": _printf_problem,
    "ps": _ps_problem,
    "sed": _script_problem("sed"),
    "set": _set_problem,
    "test": _condition_problem,
}
