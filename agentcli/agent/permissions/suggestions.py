"""Suggests rules when a call asks: from this very call to all that is like it, never wider."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from agentcli.agent.permissions.decide import decide
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rule, Rules, escaped, parse_rule
from agentcli.errors import UsageError
from agentcli.safety.commands.records import CommandAnalysis
from agentcli.safety.commands.rules import rules_by_segment

_AND = " and "


def suggested_rules(judged: CallFacts, mode: Mode, rules: Rules) -> tuple[str, ...]:
    """Rules that would have let this call through, narrowest first, each as `parse_rules` reads it.

    A command of several parts takes several rules, which stand together in one text.
    """
    return tuple(text for text in dict.fromkeys(_candidates(judged)) if _lets_through(text, judged, mode, rules))


def parse_rules(text: str, source: str = "") -> list[Rule]:
    """One rule, or several joined by "and". Raises `UsageError`."""
    parts = re.split(r"(?<=\)) and (?=[A-Za-z_][\w*-]*\()", text)
    return [parse_rule(part, source) for part in parts]


def _lets_through(text: str, judged: CallFacts, mode: Mode, rules: Rules) -> bool:
    try:
        more = parse_rules(text)
    except UsageError:
        return False
    with_them = Rules([*rules.allow, *more], rules.deny, rules.ask)
    return decide(judged, mode, with_them).decision == "allow"


def _candidates(judged: CallFacts) -> Iterator[str]:
    name = judged.tool.name
    match judged.tool.effect:
        case "command" if judged.command is not None:
            if (command := judged.text.strip()) and not judged.command.problem:
                yield str(Rule(name, escaped(command)))
            yield from _of_parts(name, judged.command)
        case "read" | "edit":
            yield from _paths(judged)
        case "web":
            if judged.host:
                yield f"{name}(domain:{judged.host})"
            yield name
        case _:
            yield name


def _of_parts(tool: str, command: CommandAnalysis) -> Iterator[str]:
    """For each part that does not only read its narrowest rule, then the next wider ones."""
    parts = rules_by_segment(command)
    if not parts:
        return
    for step in range(max(map(len, parts))):
        chosen = dict.fromkeys(str(Rule(tool, choices[min(step, len(choices) - 1)])) for choices in parts)
        yield _AND.join(chosen)


def _paths(judged: CallFacts) -> Iterator[str]:
    """The very file, its folder, every file."""
    tool = judged.tool
    for target in judged.targets:
        shown = judged.workspace.shown(target.real)
        name = f"/{shown}" if shown.startswith("/") else shown
        yield str(Rule(tool.name, escaped(name if "/" in name else f"./{name}")))
        folder = str(PurePosixPath(name).parent)
        if folder not in (".", "/", "//"):
            yield str(Rule(tool.name, f"{escaped(folder)}/**"))
    yield tool.name
