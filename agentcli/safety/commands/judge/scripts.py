"""Reads the scripts that reach programs in other ways than `sh -c`: here-documents, pipes, options.

In the texts, `HOLE` stands for what cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentcli.safety.commands.judge.calls import Call, is_input
from agentcli.safety.commands.reader.expansion import HOLE, PROCESS, Field, State
from agentcli.safety.commands.reader.substitution import fields_of
from agentcli.safety.commands.reader.syntax import Command, Group, Node, Pipeline, Script, Substitution
from agentcli.safety.commands.reader.words import NotUnderstood, unescape

_MOST_LINES = 20  # lines that xargs puts into a script


def input_of(node: Command, given: str, state: State) -> str:
    """The text a command can read: from its redirections and `<(...)`, else `given`, the input of those around it."""
    words = (*node.words, *(redirect.target for redirect in node.redirects))
    texts = [
        printed(piece.script, "", state)
        for word in words
        for piece in word.pieces
        if isinstance(piece, Substitution) and piece.direction == "<"
    ]
    for redirect in node.redirects:
        target = " ".join(field.text for field in fields_of([redirect.target], state))
        if redirect.operator in ("<<", "<<-", "<<<"):
            texts.append(target)
        elif redirect.operator in ("<", "<&", "<>") and target not in (PROCESS, "/dev/null"):
            texts.append(HOLE)
    is_redirected = any("<" in redirect.operator and not redirect.descriptor for redirect in node.redirects)
    return "\n".join(texts if is_redirected else (*texts, given))


def printed(node: Node, given: str, state: State) -> str:
    """The text that one part of a pipe prints."""
    match node:
        case Script():
            return "".join(printed(item, given, state) for item in node.items)
        case Group(redirects=()):
            return printed(node.body, given, state)
        case Pipeline():
            for part in node.parts:
                given = printed(part, given, state)
            return given
        case Command(assignments=()):
            fields = fields_of(node.words, state)
            words = [HOLE if field.is_glob else field.text for field in fields]
            try:
                return _printed_by(words, input_of(node, given, state))
            except NotUnderstood:
                return HOLE
    return HOLE


def _printed_by(words: Sequence[str], given: str) -> str:
    match words:
        case ["cat"] | ["cat", "-"]:
            return given
        case ["echo", *rest]:
            options = ""
            while rest and re.fullmatch(r"-[neE]+", rest[0]):
                options += rest.pop(0)
            text = " ".join(rest) + ("" if "n" in options else "\n")
            if "e" in options:
                return _with_escapes(text)
            return text + HOLE if "\\" in text else text  # an echo other than bash's would interpret it
        case ["printf", form, *values] if not form.startswith("-"):
            return _formatted(form, values)
    return HOLE


def _with_escapes(text: str) -> str:
    return unescape(re.sub(r"\\0([0-7]{1,3})", r"\\\1", text))


def _formatted(form: str, values: list[str]) -> str:
    parts = re.split(r"(%[sb%])", form)
    if any("%" in part for part in parts[::2]):
        return HOLE
    text = ""
    while True:
        for part in parts:
            if part in ("%s", "%b"):
                value = values.pop(0) if values else ""
                text += value if part == "%s" else _with_escapes(value)
            else:
                text += "%" if part == "%%" else unescape(part)
        if not values or not {"%s", "%b"} & set(parts):
            return text


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
    for text in call.doubtful_scripts:
        if HOLE in text and _fills_in(call, given):
            yield from (text.replace(HOLE, re.sub(r"[\"'\\]", "", line)) for line in given.splitlines())
        else:
            yield text
    if call.hides_program or any(not file.is_known for file in call.script_files):
        yield HOLE
    if any(is_input(file) for file in call.script_files):
        yield re.sub(r"(?m)^\t[@+-]+", "", given) if call.name == "make" else given
    joined = "\0".join(field.text for field in call.fields)
    if pattern := _RUNS_TEXT.get(call.name):
        for found in re.finditer(pattern, joined):
            text = next(filter(None, found.groups()), "")
            yield text.replace('\\"', '"').replace("\0", " ")
            if call.name == "git" and "alias." in found[0] and "=!" not in found[0]:
                yield f"git {text}"
    if _RENAMES.match(joined):
        yield HOLE


def _fills_in(call: Call, given: str) -> bool:
    """True if the lines that xargs puts into a script are known."""
    is_known = all(field.is_known for field in (*call.layers[0], Field(given)))
    is_xargs = any(layer[0].text.rpartition("/")[2] == "xargs" for layer in call.layers if layer)
    return is_known and is_xargs and given.count("\n") <= _MOST_LINES
