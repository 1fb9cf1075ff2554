"""Finds the scripts that reach shells and programs in other ways than `sh -c`: here-documents, pipes, options.

In the texts, `HOLE` stands for what cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentcli.safety.commands.judge.calls import Call
from agentcli.safety.commands.reader.syntax import HOLE, Field, Redirect, Script, State
from agentcli.safety.commands.reader.words import unescape


def input_of(redirects: Sequence[Redirect], given: str, state: State) -> str:
    """The text that a command can read: from its redirections, else `given`, the input of those around it."""
    for redirect in reversed(redirects):
        if redirect.operator in ("<<", "<<-", "<<<"):
            return state.resolved(redirect.target).text
        if redirect.operator.startswith("<") and redirect.target.text != "/dev/null":
            return HOLE
    return given


def printed_by(fields: Sequence[Field], given: str) -> str:
    """The text that a command prints; `HOLE` if it cannot be told."""
    words = [HOLE if field.is_glob else field.text for field in fields]
    match words:
        case ["cat"] | ["cat", "-"]:
            return given
        case ["echo", *rest] if not re.match(r"-[neE]+ ", " ".join((*rest, ""))) and "\\" not in "".join(rest):
            return " ".join(rest) + "\n"
        case ["printf", form] if "%" not in form and not form.startswith("-"):
            return unescape(form) or HOLE
        case ["printf", "%s" | "%s\\n", *texts]:
            return "\n".join(texts)
    return HOLE


def printed_by_script(script: Script, state: State) -> str:
    """The text that a substituted script prints, if it is one simple command or pipeline."""
    given = ""
    for part in script[0].parts if len(script) == 1 else ():
        fields = [state.resolved(word) for word in part.words]
        given = printed_by(fields, input_of(part.redirects, given, state))
    return given or HOLE


_AWK_TEXT = r"\"((?:[^\"\\\0]|\\[^\0])*)\""
# The scripts in the arguments of other programs, joined by NUL.
_RUNS_TEXT = {
    **dict.fromkeys(("awk", "gawk", "mawk"), rf"system\s*\(\s*{_AWK_TEXT}|\|&?\s*{_AWK_TEXT}|{_AWK_TEXT}\s*\|"),
    **dict.fromkeys(("mapfile", "readarray", "complete", "compgen"), r"\0-C\0?([^\0]*)"),
    "alias": r"=([^\0]*)",
    "git": r"\0(?:-c\0[^\0=]*(?i:alias\.|pager|editor|command|cmd|external|fsmonitor|askpass|program)[^\0=]*=!?"
    r"|rebase\0(?:.*\0)?(?:-x\0?|--exec[=\0]))([^\0]*)"
    r"|\0(?:submodule\0(?:--?\w+\0)*foreach\0(?:--?\w+\0)*|bisect\0run\0)(.*)",
    "tar": r"(?:\bexec=|\0--to-command[=\0]|\0--use-compress-program[=\0]|\0-\w*I\0?)([^\0]*)",
}
# Text that may make a name mean another program, and subscripts, where bash expands even what was quoted.
_RENAMES = re.compile(
    r"alias\0[^\0]*=|hash\0-\w*p|enable\0-\w*f|(?:declare|typeset|local)\0(?:.*\0)?-\w*n|shift(?:\0|$)|.*\0--config-env"
    r"|(?:let|test|\[|printf|unset|read|declare|typeset|local|export|readonly)\0.*\w\[[^\[\]\0]*(?:\$\(|`)",
    re.DOTALL,
)


def scripts_of(call: Call, given: str) -> Iterator[str]:
    """The scripts a command may run besides those among its words. `given` is its input."""
    if call.hides_program or any(not file.is_known for file in call.script_files):
        yield HOLE
    reads_input = call.reads_script or any(file.text.startswith(("/dev/", "/proc/")) for file in call.script_files)
    if (reads_input or "-" in (file.text for file in call.script_files)) and given:
        yield given
    joined = "\0".join(field.text for field in call.fields)
    for found in re.finditer(_RUNS_TEXT.get(call.name, r"(?!)"), joined):
        text = next(filter(None, found.groups()), "")
        yield text.replace('\\"', '"').replace("\0", " ")
        if call.name == "git" and "alias." in found[0] and "=!" not in found[0]:
            yield f"git {text}"
    if _RENAMES.match(joined):
        yield HOLE
