"""Reads permission rules as they are written, and checks them: one that can never hold is an error."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from agentcli.agent.permissions.rules import Rule, host_meant
from agentcli.errors import UsageError, did_you_mean
from agentcli.safety.commands.records import is_path_glob
from agentcli.tools.tool import Tool, kind_argument

# The names other agents' settings use for the same tools.
ALIASES = dict(
    pair.split("=")
    for pair in """
    Read=file_read Write=file_write Edit=file_edit MultiEdit=file_edit Glob=file_list LS=file_list Grep=grep_search
    Bash=bash BashOutput=jobs KillBash=jobs KillShell=jobs TaskOutput=jobs TaskStop=jobs WebFetch=web_fetch
    WebSearch=web_search Agent=create_subagent Task=create_subagent TodoWrite=todo TodoRead=todo Skill=skill
    AskUserQuestion=ask_user
    """.split()
)


def parse_rule(text: str, source: str = "", quote: str = "") -> Rule:
    """Parse a rule such as `bash(git log *)`, `WebFetch(domain:example.org)` or `file_write`. Raises `UsageError`."""
    found = re.fullmatch(r"\s*([A-Za-z_][\w*-]*)\s*(?:\((.*\S.*)\))?\s*", text, re.DOTALL)
    if not found:
        raise UsageError(f"{text!r} is not a permission rule: write TOOL or TOOL(pattern), such as bash(git log *).")
    name, pattern = found.groups()
    return Rule(ALIASES.get(name, name), re.sub(r":\*$", " *", (pattern or "").strip()), source, quote)


def parse_rules(text: str, source: str = "") -> list[Rule]:
    """Parse one rule, or several that are joined by "and". Raises `UsageError`."""
    return [parse_rule(part, source) for part in re.split(r"(?<=\)) and (?=[A-Za-z_][\w*-]*\()", text)]


# Tools of other agents that have no counterpart here: a rule that names one is no mistake.
ELSEWHERE = frozenset(
    "NotebookEdit NotebookRead EnterPlanMode ExitPlanMode EnterWorktree ExitWorktree SlashCommand ToolSearch LSP "
    "Monitor ListMcpResourcesTool ReadMcpResourceTool".split()
)

# The content of a rule's brackets by the kind of tool; "" is for tools whose rules cover every call.
Form = Literal["command", "path", "host", "kind", ""]

_EXAMPLES: dict[Form, str] = {
    "command": "a command, such as {name}(git log *)",
    "path": "a path without .., quotes and variables, such as {name}(src/**), {name}(~/x) or {name}(//from/the/root)",
    "host": "a host, such as {name}(domain:example.org)",
    "kind": "a name, such as {name}(explore)",
    "": "nothing in brackets: write {name}",
}


def check_rule(
    rule: Rule,
    tools: Iterable[Tool],
    *,
    written: str = "",
    more_may_come: bool = False,
    under_any_name: bool = False,
) -> str:
    """Return a warning about a rule whose tool is not there yet; empty for a rule that holds.

    If `more_may_come`, an unknown name may be that of a later tool, unless it is nearly the name of a known one; with
    `under_any_name` even then.

    Raises:
        UsageError: For a rule that can never hold.
    """
    known, shown, name = list(tools), written.strip() or str(rule), rule.tool
    if rule.pattern and name.startswith("mcp__"):
        raise UsageError(f"{shown}: {name} takes {_EXAMPLES[''].format(name=name)}.")
    mine = [tool for tool in known if rule.names(tool.name)]
    wrong = [tool.name for tool in mine if rule.pattern and not _may_match(rule.pattern, tool)]
    if mine and len(wrong) < len(mine):
        return ""
    if mine:
        raise UsageError(f"{shown}: {wrong[0]} takes {_EXAMPLES[_form_of(mine[0])].format(name=wrong[0])}.")
    if re.fullmatch(r"mcp__[^_*].*[^_]|mcp__[^_]", name):
        return f"{shown}: no server offers such a tool yet."
    start = name.partition("*")[0]
    if "*" in name and (start.startswith("mcp__") or "mcp__".startswith(start)):
        return f"{shown}: no tool has such a name yet."
    if name in ELSEWHERE:
        return f"{shown}: no tool here does what {name} does elsewhere."
    names = [tool.name for tool in known]
    hint = did_you_mean(name, [*names, *ALIASES])
    if under_any_name or (more_may_come and not hint):
        return f"{shown}: there is no tool {name} yet{hint}."
    raise UsageError(f"{shown}: there is no tool {name!r}{hint}; there is {', '.join(names)}, and mcp__SERVER__TOOL.")


def _form_of(tool: Tool) -> Form:
    """Return the form of the brackets of a rule about this tool."""
    schema = tool.schema
    fields = {field.name for field in msgspec.structs.fields(tool.arguments)} if schema is None else set()
    fields |= set((schema or {}).get("properties", ()))
    if tool.effect == "command" and "command" in fields:
        return "command"
    if tool.effect in ("read", "edit") and fields.intersection(tool.file_arguments or ("path",)):
        return "path"
    if kind_argument(tool):
        return "kind"
    return "host" if tool.effect == "web" and "url" in fields else ""


def _may_match(pattern: str, tool: Tool) -> bool:
    """Return False for a pattern that matches no call of a tool, so that a rule with it would protect nothing."""
    match _form_of(tool):
        case "host":
            return host_meant(pattern) is not None
        case "path":
            is_regular = not re.match(r"domain:|[\"'$]|~[^/]|[A-Za-z]:\\|file:", pattern) and is_path_glob(pattern)
            return is_regular and ".." not in pattern.split("/") and "\0" not in pattern and not pattern.endswith(" *")
        case form:
            return bool(form) and not pattern.startswith("domain:")
