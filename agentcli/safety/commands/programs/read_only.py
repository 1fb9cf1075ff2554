"""Decides if one simple command, without wrappers, only reads inside the workspace."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agentcli.safety.commands.programs.conditions import condition_problem
from agentcli.safety.commands.programs.embedded_scripts import awk_problem, jq_problem, sed_problem
from agentcli.safety.commands.programs.find import find_problem
from agentcli.safety.commands.programs.git import git_problem
from agentcli.safety.commands.programs.only_reading import PROGRAMS, VERSIONS
from agentcli.safety.commands.programs.options import options, read_arguments, without_pattern
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


def _of_script(name: str, judge: Callable[[str], str]) -> Callable[[Sequence[Field], ReadCheck], str]:
    """A check for programs that are given a script, then files."""
    known = options(PROGRAMS[name])

    def problem(arguments: Sequence[Field], check: ReadCheck) -> str:
        read = read_arguments(arguments, known)
        scripts, files = read.operands[:1], read.operands[1:]
        is_told = all(field.is_known and not field.is_glob and not field.may_vanish for field in scripts)
        if not is_told or any(field.text == "--" for field in arguments):
            return f"what {name} does cannot be told"
        return read.problem or "".join(judge(field.text) for field in scripts) or check.problem(files, "content")

    return problem


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
    "[": lambda arguments, check: condition_problem(arguments[:-1], check),
    **dict.fromkeys(("awk", "gawk", "mawk"), _of_script("awk", awk_problem)),
    "cd": _cd_problem,
    "command": _command_problem,
    "find": find_problem,
    "git": git_problem,
    "jq": _of_script("jq", jq_problem),
    "printf": _printf_problem,
    "ps": _ps_problem,
    "sed": _of_script("sed", sed_problem),
    "set": _set_problem,
    "test": condition_problem,
}
