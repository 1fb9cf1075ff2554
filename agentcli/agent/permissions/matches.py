"""Holds the rules against a call: which of them deny it, ask about it, and allow it.

Grants of commands are kept away from files that no rule names: those with secrets, and auto-executed ones. An
auto-executed file is one that programs run or obey without being asked to: git hooks, editor tasks, shell profiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from msgspec import Struct

from agentcli.agent.permissions.facts import CallFacts, GlobSearch, PathLookup
from agentcli.agent.permissions.rules import (
    PathGround,
    Rule,
    Rules,
    escaped,
    is_literal,
    matches_host,
    matches_path,
)
from agentcli.safety.commands.records import CommandAnalysis, Effects, Segment
from agentcli.safety.commands.rules import covers, touches
from agentcli.safety.paths.judge import WHY, PathFacts, auto_executed, is_protected, is_secret
from agentcli.tools.tool import Workspace, kind_argument

# A path refused to one tool is refused to those that do the same to it.
READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))


class Matches(Struct, frozen=True):
    """The rules that speak of a call: the first that denies it, the first that asks about it, and those that allow it.

    `why_not` says why grants that speak of a command do not hold.
    """

    deny: Rule | None = None
    ask: Rule | None = None
    allow: tuple[Rule, ...] = ()
    why_not: str = ""


def find_matches(facts: CallFacts, rules: Rules) -> Matches:
    """Hold all rules against a call. Blocks: of a command it looks where the paths lead."""
    tool, command, deny = facts.tool, facts.command, None
    if command is not None:
        deny, ask = (_restricting(facts, command, some) for some in (rules.deny, rules.ask))
        return Matches(deny, ask, *_grants_of_command(facts, command, rules.allow))
    if tool.effect in ("read", "edit"):
        kin, ground = EDITORS if tool.effect == "edit" else READERS, facts.paths.ground

        def is_refused(pattern: str) -> bool:
            return any(speaks_of(pattern, path, ground) for path in facts.files)

        for rule in rules.deny:
            is_meant = rule.names(tool.name) or (rule.pattern and any(rule.names(name) for name in kin))
            if is_meant and (not rule.pattern or is_refused(rule.pattern)):
                deny = rule
                break
        mine = (rule for rule in rules.allow if rule.names(tool.name))
        allow = next((rule for rule in mine if all(covers_path(rule, path, ground) for path in facts.files)), None)
        return Matches(deny, _first(rules.ask, tool.name, is_refused), (allow,) if allow else ())
    speaks = _speaks_of_other(facts)
    allow = _first(rules.allow, tool.name, speaks) if tool.effect == "web" else _first(rules.allow, tool.name)
    # Patterns in rules that ask mean all calls of a tool whose calls no pattern can tell apart.
    asks = speaks if tool.effect == "web" or kind_argument(tool) else lambda pattern: True
    return Matches(_first(rules.deny, tool.name, speaks), _first(rules.ask, tool.name, asks), (allow,) if allow else ())


def _first(of: Iterable[Rule], tool: str, speaks: Callable[[str], bool] = lambda pattern: False) -> Rule | None:
    """The first rule that speaks of a call of a tool: of every call, or of this one by its pattern."""
    return next((rule for rule in of if rule.names(tool) and (not rule.pattern or speaks(rule.pattern))), None)


def _speaks_of_other(facts: CallFacts) -> Callable[[str], bool]:
    """The meaning of a rule's pattern for a web tool, a subagent or a skill; none for the rest."""
    if facts.tool.effect == "web":
        return lambda pattern: any(matches_host(pattern, host) for host in facts.hosts)
    if (kind := kind_argument(facts.tool)) and facts.tool.effect in ("agent", "none"):
        return lambda pattern: fnmatchcase(getattr(facts.arguments, kind, ""), pattern)
    return lambda pattern: False


def covers_path(rule: Rule, path: PathFacts, ground: PathGround) -> bool:
    """True if a grant speaks of a path. What is more than a plain file has to be meant by the rule itself."""
    if not rule.pattern:
        return path.kind == "plain"
    if not matches_path(rule.pattern, path.real, ground):
        return False
    if path.kind in ("plain", "outside") or is_literal(rule.pattern):
        return True
    name = PurePath(rule.pattern.lstrip("/").replace("*", ".x"))
    return (path.kind == "secret" and is_secret(name, ground.home)) or (path.kind == "protected" and is_protected(name))


def speaks_of(pattern: str, path: PathFacts, ground: PathGround) -> bool:
    """True if a denial speaks of a path: by where it leads, or by how it is written."""
    patterns = (pattern, f"**/{pattern}", f"/{pattern}")  # generous: `/etc/x` may be meant as it is written
    return any(matches_path(one, name, ground) for one in patterns for name in (path.real, path.named))


def speaks_of_edits(rules: Rules) -> bool:
    """True if a rule restricts which files are changed: what a command did is held against those as well."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about_edits(paths: Sequence[Path], rules: Sequence[Rule], workspace: Workspace) -> Rule | None:
    """The first restricting rule that speaks of changing one of these real paths."""
    ground = PathLookup(workspace).ground
    changed = [PathFacts(str(path), path, path, "write", "plain") for path in paths]
    about = (rule for rule in rules if rule.pattern and rule.tool in EDITORS)
    return next((rule for rule in about if any(speaks_of(rule.pattern, path, ground) for path in changed)), None)


def _restricting(facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]) -> Rule | None:
    """The first restricting rule that speaks of a command: of any part of it, or of a file or host it uses."""
    effects = command.effects | command.hidden if rules else Effects()
    whole = " ".join(facts.text.split())
    segments = (*command.segments, Segment(whole, None, "try", "", deny_forms=(whole,)))

    def is_about(rule: Rule) -> bool:
        if rule.names(facts.tool.name):
            return not rule.pattern or any(touches(rule.pattern, segment) for segment in segments)
        if not rule.pattern:
            return False
        if rule.tool == "web_fetch":
            return any(matches_host(rule.pattern, host) for host in effects.hosts)
        written = (*effects.writes, *effects.deletes)
        paths: list[PathFacts] = []
        if rule.tool in READERS:
            paths = facts.paths.find_each(effects.reads, "read")
        elif rule.tool in EDITORS:
            paths = facts.paths.find_each(written, "write")
        return any(speaks_of(rule.pattern, path, facts.paths.ground) for path in paths)

    return next(filter(is_about, rules), None)


def _grants_of_command(
    facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]
) -> tuple[tuple[Rule, ...], str]:
    """The grants that together speak of every part of a command that does not only read; none when a part is left.

    Without grants also the reason why those that speak of it do not hold, if there are any.

    Of a command that is not read no part is known to be all: only a grant of the whole tool speaks of it. No grant of
    commands opens a file with secrets or an auto-executed one: it has to be the very command, or a rule has to name the
    file.
    """
    mine = [rule for rule in rules if rule.names(facts.tool.name)]
    whole = escaped(facts.text.strip())
    exact = next((rule for rule in mine if rule.pattern == whole), None)
    if exact is not None and not command.problem:
        return (exact,), ""
    found = _covering_rules(command, mine)
    why = _unnamed_file(facts, command, rules) if found else ""
    return ((), why) if why else (found, "")


def _covering_rules(command: CommandAnalysis, mine: Sequence[Rule]) -> tuple[Rule, ...]:
    if command.problem:
        return tuple(rule for rule in mine if not rule.pattern)[:1]
    risky = [segment for segment in command.segments if segment.verdict != "allow"]
    found = [
        next((rule for rule in mine if not rule.pattern or covers(rule.pattern, segment)), None) for segment in risky
    ]
    return tuple(rule for rule in found if rule is not None) if all(found) else ()


def _unnamed_file(facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]) -> str:
    """The reason why grants that speak of a command do not hold: it opens a file that none of them names."""
    mine = [rule for rule in rules if rule.pattern and rule.names(facts.tool.name) and not command.problem]
    search = GlobSearch("dotglob" in facts.text)
    parts: list[tuple[Effects, list[str]]] = [(command.hidden, [])]
    for segment in command.segments:
        if segment.verdict != "allow" or search.finds_hidden:
            parts.append((segment.effects, [rule.pattern for rule in mine if covers(rule.pattern, segment)]))
    for effects, patterns in parts:
        for path in facts.paths.opened_by(effects, search):
            if why := _why_unnamed(path, facts, rules, patterns=patterns, is_written=path.given in effects.writes):
                return f"{facts.workspace.shown(Path(path.given))} {why}"
    return "its wildcards find too many files to tell if secrets are among them" if search.is_cut_off else ""


def _why_unnamed(
    path: PathFacts, facts: CallFacts, rules: Sequence[Rule], *, patterns: Sequence[str], is_written: bool
) -> str:
    """The reason why a file of a command must be named by a rule and is not; `patterns` are those of grants for it."""
    home, ground = facts.workspace.home, facts.paths.ground
    if path.kind not in ("secret", "protected"):
        around = (home, *(home / each for each in auto_executed().home))  # a folder around them opens them too
        holds_them = is_written and path.is_outside and any(each.is_relative_to(path.real) for each in around)
        return "contains auto-executed files, and no rule names them" if holds_them else ""
    tools = EDITORS if path.access == "write" else {"file_read", *EDITORS}
    by_file = (rule for rule in rules if rule.pattern and any(rule.names(tool) for tool in tools))
    is_named = any(_names(pattern, path.given, home) for pattern in patterns)
    if is_named or any(covers_path(rule, path, ground) for rule in by_file):
        return ""
    return f"{WHY[path.kind]}, and no rule names it"


def _names(pattern: str, path: str, home: Path) -> bool:
    """True if a word of a rule about commands means a file as one that holds secrets or is auto-executed."""
    for word in re.split(r"[\s=:'\"]+", pattern):
        name = re.sub(r"^(?:~|\.)?/", "", word)
        meant = PurePath(re.sub(r"\[([*?[])\]", r"\1", name).replace("*", ".x"))
        if name and (is_secret(meant, home) or is_protected(meant)) and fnmatchcase(path, f"*/{name}"):
            return True
    return False
