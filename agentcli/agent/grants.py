"""The rules a person is offered when a call asks: from this very call to all that is like it, never wider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agentcli.agent.path_access import targets_of
from agentcli.agent.permissions import Mode, analysis_of, host_of, judge
from agentcli.agent.rules import Rule, Rules, escaped, parse_rule
from agentcli.errors import ToolError, UsageError
from agentcli.safety.commands.rules import rules_by_segment
from agentcli.tools.tool import Tool, Workspace

_AND = " and "


def rule_candidates(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> tuple[str, ...]:
    """Rules that would have let this call through, narrowest first, each as `parse_rules` reads it.

    A command of several parts takes several rules, which stand together in one text.
    """
    texts = dict.fromkeys(_candidates(tool, arguments, workspace))
    return tuple(text for text in texts if _lets_through(text, tool, arguments, mode, rules, workspace))


def parse_rules(text: str, source: str = "") -> list[Rule]:
    """One rule, or several joined by "and". Raises `UsageError`."""
    parts = re.split(r"(?<=\)) and (?=[A-Za-z_][\w*-]*\()", text)
    return [parse_rule(part, source) for part in parts]


def _lets_through(text: str, tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> bool:
    try:
        more = parse_rules(text)
    except UsageError:
        return False
    with_them = Rules([*rules.allow, *more], rules.deny, rules.ask)
    return judge(tool, arguments, mode, with_them, workspace).decision == "allow"


def _candidates(tool: Tool, arguments: Any, workspace: Workspace) -> Iterator[str]:
    match tool.effect:
        case "command":
            command = str(arguments.command).strip()
            if command:
                yield str(Rule(tool.name, escaped(command)))
            yield from _of_parts(tool.name, arguments, workspace)
        case "read" | "edit":
            yield from _paths(tool, arguments, workspace)
        case "web":
            if host := host_of(str(getattr(arguments, "url", ""))):
                yield f"{tool.name}(domain:{host})"
            yield tool.name
        case _:
            yield tool.name


def _of_parts(tool: str, arguments: Any, workspace: Workspace) -> Iterator[str]:
    """For each part that is not harmless its narrowest rule, then the next wider ones."""
    parts = rules_by_segment(analysis_of(arguments, workspace))
    if not parts:
        return
    for step in range(max(map(len, parts))):
        chosen = dict.fromkeys(str(Rule(tool, choices[min(step, len(choices) - 1)])) for choices in parts)
        yield _AND.join(chosen)


def _paths(tool: Tool, arguments: Any, workspace: Workspace) -> Iterator[str]:
    """The very file, its folder, every file."""
    try:
        targets = targets_of(tool, arguments, workspace)
    except ToolError:
        return
    for target in targets:
        shown = workspace.shown(target.real)
        name = f"/{shown}" if shown.startswith("/") else shown
        yield str(Rule(tool.name, escaped(name if "/" in name else f"./{name}")))
        folder = str(PurePosixPath(name).parent)
        if folder not in (".", "/", "//"):
            yield str(Rule(tool.name, f"{escaped(folder)}/**"))
    yield tool.name
