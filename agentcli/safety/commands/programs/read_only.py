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
    if not arguments:
        return ""
    form = arguments[0].text
    if "\\%" not in form:
        form = form.replace("%%", "")
    if (
        not arguments[0].is_known
        or arguments[0].may_vanish
        or form.startswith("-")
        or re.search(r"%[^%a-zA-Z]*[hjlLqtz]*n", form)
    ):
        return "printf can set a variable"
    return check.problem(arguments, "text")


def _ps_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """`ps` shows the environment of processes for the option `e` of BSD and, on macOS, `-E`."""
    text = " ".join(field.text for field in arguments)
    if _PS.fullmatch(text) and "environ" not in text:
        return ""
    return "ps may show the environment of processes"


_PS = re.compile(r"([aufxwlj]+( |$))?(-[aAefFlHw]*([opC] [\w,%=:]+)?( |$)|--sort=[\w%,-]+( |$))*")


def _sed_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """A script among the operands, or one behind `-e`."""
    read = read_arguments(arguments, options(PROGRAMS["sed"]))
    texts = [field.text for field in arguments]
    scripts, files = read.operands[:1], read.operands[1:]
    if "-e" in read.given:
        behind = [at + 1 for at, text in enumerate(texts[:-1]) if re.fullmatch(r"-[nErsuz]*e", text)]
        scripts, files = [arguments[at] for at in behind], read.operands
        if len(behind) != read.given.count("-e"):
            return "what sed does cannot be told"
    if any(not field.is_known or field.is_glob or field.may_vanish for field in scripts):
        return "what sed does cannot be told"
    problems = (why for field in scripts if (why := sed_problem(field.text)))
    return read.problem or next(problems, "") or check.problem(files, "content")


def _awk_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    rest = list(arguments)
    while rest and rest[0].text.startswith("-") and rest[0].text != "--":
        text = rest.pop(0).text
        if not re.match(r"-[Fv]", text):
            return f"the option {text} of awk is not known to only read"
        if len(text) == 2 and rest:
            rest.pop(0)
    if rest and rest[0].text == "--":
        rest.pop(0)
    if not rest:
        return ""
    if not rest[0].is_known or rest[0].may_vanish or rest[0].is_glob:
        return "what awk does cannot be told"
    if any(field.may_vanish for field in arguments):
        return "what awk reads cannot be told"
    files = [field for field in rest[1:] if not re.match(r"[A-Za-z_]\w*=", field.text)]
    return awk_problem(rest[0].text) or check.problem(files, "content")


def _jq_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    """`--arg` takes two words, which are taken off first."""
    rest, words = [], list(reversed(arguments))
    while words:
        field = words.pop()
        if field.text == "--" or any(word.may_vanish for word in (field, *words[-1:])):
            return "what jq does cannot be told"
        if field.text in ("--arg", "--argjson"):
            del words[-2:]
        else:
            rest.append(field)
    read = read_arguments(rest, options(PROGRAMS["jq"]))
    program, files = read.operands[:1], read.operands[1:]
    if any(not field.is_known or field.is_glob for field in program):
        return "what jq does cannot be told"
    return (
        read.problem or "".join(map(jq_problem, [field.text for field in program])) or check.problem(files, "content")
    )


def _tee_problem(arguments: Sequence[Field], check: ReadCheck) -> str:
    targets = [field.text for field in arguments if field.text not in ("-a", "-i", "-p", "--append")]
    outside = [text for text in targets if text not in ("/dev/null", "/dev/stdout", "/dev/stderr")]
    return f"tee writes {outside[0]}" if outside else ""


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
    "awk": _awk_problem,
    "cd": _cd_problem,
    "command": _command_problem,
    "find": find_problem,
    "gawk": _awk_problem,
    "git": git_problem,
    "jq": _jq_problem,
    "mawk": _awk_problem,
    "printf": _printf_problem,
    "ps": _ps_problem,
    "sed": _sed_problem,
    "set": _set_problem,
    "tee": _tee_problem,
    "test": condition_problem,
}
