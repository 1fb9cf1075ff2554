"""Decides if one simple command, without wrappers, only reads inside the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from agentcli.safety.commands.programs.find import find_problem
from agentcli.safety.commands.programs.git import git_problem
from agentcli.safety.commands.programs.options import PROGRAMS, VERSIONS, options, read_arguments, without_pattern
from agentcli.safety.commands.programs.read_check import ReadCheck
from agentcli.safety.commands.reader.syntax import HOLE, Field

_DECLARING = ("export", "declare", "typeset", "readonly")
_TRUSTED_FOLDER = re.compile(r"/(usr/)?s?bin/")


def problem_of(fields: Sequence[Field], check: ReadCheck) -> str:
    """The reason why a command may do more than read in the workspace, or an empty string. `fields` is not empty."""
    program, arguments = fields[0], fields[1:]
    if not program.is_known or program.is_glob or program.may_vanish:
        return "which program runs cannot be told"
    name = _TRUSTED_FOLDER.sub("", program.text) if _TRUSTED_FOLDER.match(program.text) else program.text
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
    if not is_plain or re.search(r"%[^%a-zA-Z]*[hjlLqtz]*n", form.text):
        return "printf can set a variable"
    return check.problem(arguments, "text")


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


def _set_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    words = " ".join(field.text for field in arguments)
    is_plain = re.fullmatch(r"([-+][efux]+|[-+][efux]*o (pipefail|errexit|nounset|noglob))( |$)(\S.*)?", words)
    if is_plain and all(re.fullmatch(r"[-+][efuxo]+|pipefail|errexit|nounset|noglob", word) for word in words.split()):
        return ""
    return "set shows all variables, or sets an option that is not known"


def _command_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """`command -v name`: the form of `command` that runs nothing."""
    names = [field.text for field in arguments if field.text not in ("-v", "-V", "-p")]
    return "" if all(re.fullmatch(r"[\w.+/][\w.+/-]*", name) for name in names) else "what is asked for is no name"


_SPECIAL: dict[str, Callable[[Sequence[Field], ReadCheck], str]] = {
    **dict.fromkeys(("awk", "gawk", "mawk"), _script_problem("awk")),
    "[": lambda arguments, check: _condition_problem(arguments[:-1], check),
    "cd": _cd_problem,
    "command": _command_problem,
    "find": find_problem,
    "git": git_problem,
    "jq": _script_problem("jq"),
    "printf": _printf_problem,
    "ps": _ps_problem,
    "sed": _script_problem("sed"),
    "set": _set_problem,
    "test": _condition_problem,
}
