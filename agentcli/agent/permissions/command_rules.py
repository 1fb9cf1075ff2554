"""Holds rules against a shell command: which of them refuse any part of it, and which allow all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentcli.agent.permissions.judge import Judged, known, real_or_given
from agentcli.agent.permissions.named_files import EDITORS, READERS, unnamed_file
from agentcli.agent.permissions.rules import Rule, Rules, escaped, matches_host
from agentcli.agent.permissions.targets import Target, is_refused
from agentcli.safety.commands.records import CommandAnalysis, Segment
from agentcli.safety.commands.rules import covers, touches
from agentcli.tools.sandbox import Access
from agentcli.tools.tool import Workspace


def refusing_rule(judged: Judged, rules: Sequence[Rule]) -> Rule | None:
    """The first restricting rule that speaks of a command: of any part of it, or of a file or host it uses."""
    assert judged.command is not None
    return next((rule for rule in rules if _touches(rule, judged, judged.command)), None)


def speaks_of_edits(rules: Rules) -> bool:
    """Whether a rule restricts which files are changed: what a command did is held against those as well."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about_edits(paths: Sequence[Path], rules: Sequence[Rule], workspace: Workspace) -> Rule | None:
    """The first restricting rule that speaks of changing one of these real paths."""
    targets = [Target(str(path), path, "write", "plain") for path in paths]
    for rule in rules:
        if rule.pattern and rule.tool in EDITORS and any(is_refused(rule.pattern, one, workspace) for one in targets):
            return rule
    return None


def _touches(rule: Rule, judged: Judged, command: CommandAnalysis) -> bool:
    if rule.names(judged.tool.name):
        if not rule.pattern:
            return True
        text = " ".join(judged.text.split())
        return any(touches(rule.pattern, segment) for segment in (*command.segments, _whole(text)))
    if not rule.pattern:
        return False
    effects = command.effects | command.hidden
    if rule.tool in READERS:
        return _speaks_of(rule.pattern, effects.reads, "read", judged.workspace)
    if rule.tool in EDITORS:
        return _speaks_of(rule.pattern, (*effects.writes, *effects.deletes), "write", judged.workspace)
    return rule.tool == "web_fetch" and any(matches_host(rule.pattern, host) for host in effects.hosts)


def _whole(text: str) -> Segment:
    return Segment(text, None, "try", "", deny_forms=(text,))


def _speaks_of(pattern: str, paths: tuple[str, ...], access: Access, workspace: Workspace) -> bool:
    targets = (Target(path, real_or_given(path, workspace), access, "plain") for path in known(paths))
    return any(is_refused(pattern, target, workspace) for target in targets)


def allowing_rules(judged: Judged, rules: Sequence[Rule]) -> tuple[list[Rule], str]:
    """The grants that together speak of every part of a command that does not only read; none when a part is left.

    Without grants also the reason why those that speak of it do not hold, if there are any.

    Of a command that is not read no part is known to be all: only a grant of the whole tool speaks of it. No grant of
    commands opens a file with secrets or an auto-executed one: it has to be the very command, or a rule has to name the
    file.
    """
    command = judged.command
    assert command is not None
    mine = [rule for rule in rules if rule.names(judged.tool.name)]
    whole = escaped(judged.text.strip())
    exact = next((rule for rule in mine if rule.pattern == whole), None)
    if exact is not None and not command.problem:
        return [exact], ""
    found = _covering_rules(command, mine)
    why = unnamed_file(judged, command, rules) if found else ""
    return ([], why) if why else (found, "")


def _covering_rules(command: CommandAnalysis, mine: Sequence[Rule]) -> list[Rule]:
    if command.problem:
        return [rule for rule in mine if not rule.pattern][:1]
    found: list[Rule] = []
    for segment in command.segments:
        if segment.verdict == "allow":
            continue
        rule = next((rule for rule in mine if not rule.pattern or covers(rule.pattern, segment)), None)
        if rule is None:
            return []
        found.append(rule)
    return found
