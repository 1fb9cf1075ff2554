"""Checks a permission rule against the tools there are: a rule that can never hold is an error, not a promise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from agentcli.agent.permissions.rules import (
    ALIASES,
    ELSEWHERE,
    PathGround,
    Rule,
    host_meant,
    matches_path,
)
from agentcli.errors import UsageError, did_you_mean
from agentcli.tools.tool import Tool, kind_argument

# What the brackets of a rule hold, by the kind of tool; "" is for tools whose every call is meant.
Form = Literal["command", "path", "host", "kind", ""]

_EXAMPLES: dict[Form, str] = {
    "command": "a command, such as {name}(git log *)",
    "path": "a path, such as {name}(src/**)",
    "host": "a host, such as {name}(domain:example.org)",
    "kind": "a name, such as {name}(explore)",
    "": "nothing in brackets: write {name}",
}
_NOWHERE = Path("/workspace")
_GROUND = PathGround(_NOWHERE, _NOWHERE, Path("/home"))


def check_rule(
    rule: Rule,
    tools: Iterable[Tool],
    *,
    written: str = "",
    more_may_come: bool = False,
    under_any_name: bool = False,
) -> str:
    """A warning about a rule whose tool is not there yet, or nothing. Raises `UsageError` for one that never holds.

    `written` is the text it was read from, for the message. `more_may_come`: a caller may bring further tools, so that
    an unknown name may yet mean one, unless it is nearly that of a tool; `under_any_name`: also then.
    """
    known, shown = list(tools), written.strip() or str(rule)
    if rule.pattern and rule.tool.startswith("mcp__"):
        raise UsageError(f"{shown}: {_takes('', rule.tool)}.")
    mine = [tool for tool in known if rule.names(tool.name)]
    if not mine:
        return _why_unknown(
            rule.tool, [tool.name for tool in known], shown, more_may_come=more_may_come, under_any_name=under_any_name
        )
    problems = [_problem(rule, tool) for tool in mine] if rule.pattern else [""]
    if all(problems):
        raise UsageError(f"{shown}: {problems[0]}.")
    return ""


def _why_unknown(name: str, known: list[str], shown: str, *, more_may_come: bool, under_any_name: bool) -> str:
    """Raises `UsageError` unless the name may come to mean something."""
    if re.fullmatch(r"mcp__[^_*].*[^_]|mcp__[^_]", name):
        return f"{shown}: no server offers such a tool yet."
    if "*" in name and _may_meet(name.partition("*")[0], "mcp__"):
        return f"{shown}: no tool has such a name yet."
    if name in ELSEWHERE:
        return f"{shown}: no tool here does what {name} does elsewhere."
    hint = did_you_mean(name, [*known, *ALIASES])
    if under_any_name or (more_may_come and not hint):
        return f"{shown}: there is no tool {name} yet{hint}."
    raise UsageError(f"{shown}: there is no tool {name!r}{hint}; there is {', '.join(known)}, and mcp__SERVER__TOOL.")


def _may_meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def form_of(tool: Tool) -> Form:
    """What a rule about this tool may say in brackets: what its calls are judged by."""
    schema = tool.schema
    fields = (
        set(schema.get("properties", ()))
        if schema is not None
        else {field.name for field in msgspec.structs.fields(tool.arguments)}
    )
    if tool.effect == "command" and "command" in fields:
        return "command"
    if tool.effect in ("read", "edit") and fields.intersection(tool.file_arguments or ("path",)):
        return "path"
    if kind_argument(tool):
        return "kind"
    return "host" if tool.effect == "web" and "url" in fields else ""


def _takes(form: Form, name: str) -> str:
    return f"{name} takes {_EXAMPLES[form].format(name=name)}"


def _problem(rule: Rule, tool: Tool) -> str:
    """Why a rule's pattern can match no call of a tool; empty where it may match one."""
    form, pattern = form_of(tool), rule.pattern
    is_for_hosts = pattern.startswith("domain:")
    if not form or is_for_hosts != (form == "host"):
        return _takes(form, tool.name)
    match form:
        case "host" if host_meant(pattern) is None:
            return f"{pattern.removeprefix('domain:')!r} is no host; {_takes(form, tool.name)}"
        case "path":
            return _why_no_path(pattern)
    return ""


def _why_no_path(pattern: str) -> str:
    if "\0" in pattern:
        return "no path holds a NUL"
    if ".." in pattern.split("/"):
        return "no path it is held against has a .. in it: write //from/the/root, ~/from/home or /from/the/project"
    if pattern[0] in "\"'" or pattern.startswith("$") or re.match(r"~[^/]", pattern):
        return "quotes, variables and ~user mean nothing here: write the path itself, ~/from/home or //from/the/root"
    if pattern.endswith(" *") or re.match(r"[A-Za-z]:\\|file:", pattern):
        return "it is no path as this system has it: write src/**, ~/from/home or //from/the/root"
    try:
        matches_path(pattern, _NOWHERE, _GROUND)
    except re.error as error:
        return f"its brackets make no sense ({error})"
    return ""
