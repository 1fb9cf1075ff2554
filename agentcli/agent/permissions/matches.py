"""Finds the rules that apply to a call.

An allow rule for a command does not cover secret or auto-executed files, unless a rule names them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePath

import msgspec

from agentcli.agent.permissions.facts import CallFacts, GlobSearch, opened_files
from agentcli.agent.permissions.rules import Rule, Rules
from agentcli.patterns import lazy_pattern
from agentcli.safety.commands import records
from agentcli.safety.paths.judge import WHY, PathFacts, PatternBase, auto_executed, is_auto_executed, is_secret
from agentcli.safety.urls import host_of_rule
from agentcli.tools.tool import kind_argument

_PORT = lazy_pattern(r"\A(\[.*\]|[^:]*):\d+\Z")  # HOST:PORT; the group is the host


def matches_host(pattern: str, host: str) -> bool:
    """Return True if `domain:example.org` covers a host, which may be that domain or a subdomain, with a port."""
    domain, host = host_of_rule(pattern), _PORT.sub(r"\1", host)
    return domain is not None and f".{host.lower().rstrip('.')}".endswith(f".{domain}")


READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))


class RuleMatches(msgspec.Struct, frozen=True, kw_only=True):
    """The first rule that denies a call, the first that asks about it, and those that allow it."""

    deny: Rule | None = None
    ask: Rule | None = None
    allow: tuple[Rule, ...] = ()
    why_not_allowed: str = ""  # the reason why allow rules that cover a command still do not allow it
    denies_some: Rule | None = None  # a rule that denies some commands, not necessarily this one


def find_matches(facts: CallFacts, rules: Rules) -> RuleMatches:
    """Match all rules against a call. Blocks: it resolves the paths of a command."""
    tool, command = facts.tool, facts.command
    if command is not None:
        allow, why_not_allowed = _allow_rules(facts, command, rules.allow)
        return RuleMatches(
            deny=_first_restriction(facts, command, rules.deny),
            ask=_first_restriction(facts, command, rules.ask),
            allow=allow,
            why_not_allowed=why_not_allowed,
            denies_some=_first_rule(rules.deny, tool.name, lambda pattern: True),  # whatever commands it denies
        )
    if tool.effect in ("read", "edit"):
        return _matches_of_files(facts, rules)
    # The argument that patterns match: for `Skill(pdf)` the skill's name, for `Agent(explore)` the agent's.
    argument = kind_argument(tool) if tool.effect in ("agent", "none") else ""

    def matches(pattern: str) -> bool:
        if tool.effect == "web":
            return any(matches_host(pattern, host) for host in facts.hosts)
        return bool(argument) and fnmatchcase(getattr(facts.arguments, argument, ""), pattern)

    # An allow rule with a pattern has an effect only for web tools: skills and agents need no allow rule.
    grant = _first_rule(rules.allow, tool.name, matches if tool.effect == "web" else lambda pattern: False)
    # If no pattern can distinguish the calls of a tool, a rule that asks covers all of them, to be safe.
    has_patterns = tool.effect == "web" or kind_argument(tool)
    return RuleMatches(
        deny=_first_rule(rules.deny, tool.name, matches),
        ask=_first_rule(rules.ask, tool.name, matches if has_patterns else lambda pattern: True),
        allow=(grant,) if grant else (),
    )


def _matches_of_files(facts: CallFacts, rules: Rules) -> RuleMatches:
    """Match rules against a call of a file tool. A path denied to one reader or editor is denied to all of them."""
    tool, base = facts.tool, facts.paths.base
    sibling_tools = EDITORS if tool.effect == "edit" else READERS

    def is_restricted(pattern: str) -> bool:
        return any(restriction_covers(pattern, path, base) for path in facts.files)

    def is_denied(rule: Rule) -> bool:
        if not rule.pattern:
            return rule.is_about(tool.name)
        return any(map(rule.is_about, {tool.name, *sibling_tools})) and is_restricted(rule.pattern)

    grants = (rule for rule in rules.allow if rule.is_about(tool.name))
    grant = next((rule for rule in grants if all(covers_path(rule, path, base) for path in facts.files)), None)
    return RuleMatches(
        deny=next(filter(is_denied, rules.deny), None),
        ask=_first_rule(rules.ask, tool.name, is_restricted),
        allow=(grant,) if grant else (),
    )


def _first_rule(rules: Iterable[Rule], tool: str, matches: Callable[[str], bool]) -> Rule | None:
    """Return the first rule about a tool that covers its call: one without a pattern, or one whose pattern matches."""
    return next((rule for rule in rules if rule.is_about(tool) and (not rule.pattern or matches(rule.pattern))), None)


def covers_path(rule: Rule, path: PathFacts, base: PatternBase) -> bool:
    """Return True if an allow rule covers a path. If the path is of a special kind, the pattern must mean that kind."""
    if not rule.pattern:
        return path.kind == "plain"
    if not records.matches_path(rule.pattern, path.real, base):
        return False
    if path.kind in ("plain", "outside") or records.is_literal(rule.pattern):
        return True
    # `**/*.pem` means secret files, `**` does not. To find out, judge an example: the pattern with `.x` for each `*`.
    example = PurePath(rule.pattern.lstrip("/").replace("*", ".x"))
    if path.kind == "secret":
        return is_secret(example, base.home)
    return path.kind == "protected" and is_auto_executed(example)


def restriction_covers(pattern: str, path: PathFacts, base: PatternBase) -> bool:
    """Return True if the pattern of a deny or ask rule covers a path, as it is written or with symlinks resolved."""
    # Generous, because `/etc/x`, which means a file in the project, may be intended as the absolute path.
    variants = (pattern, f"**/{pattern}", f"/{pattern}")
    return any(records.matches_path(variant, name, base) for variant in variants for name in (path.real, path.named))


def restricts_edits(rules: Rules) -> bool:
    """Return True if a rule restricts which files may change. It also applies to changes made by commands."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about(paths: Sequence[Path], rules: Sequence[Rule], base: PatternBase, tools: Collection[str]) -> Rule | None:
    """Return the first rule about these tools that covers one of these real paths."""
    files = [PathFacts(given=str(path), named=path, real=path, access="write") for path in paths]
    about = (rule for rule in rules if rule.pattern and rule.tool in tools)
    return next((rule for rule in about if any(restriction_covers(rule.pattern, file, base) for file in files)), None)


def _first_restriction(facts: CallFacts, command: records.CommandAnalysis, rules: Sequence[Rule]) -> Rule | None:
    """Return the first deny or ask rule that covers any part of a command, or a file or host that it uses."""
    effects = command.effects | command.doubts.effects  # `doubts`: of scripts that it may run
    # A rule such as `bash(* | sh)` is about the whole command, so the whole is one more segment.
    full_text = " ".join(facts.command_text.split())
    whole = records.Segment(text=full_text, words=None, verdict="try", reason="", deny_forms=(full_text,))
    segments = (*command.segments, whole)

    def covers_call(rule: Rule) -> bool:
        if rule.is_about(facts.tool.name):
            return not rule.pattern or any(records.restricts(rule.pattern, segment) for segment in segments)
        if not rule.pattern:
            return False
        if rule.tool == "web_fetch":
            return any(matches_host(rule.pattern, host) for host in effects.hosts)
        paths: list[PathFacts] = []
        if rule.tool in READERS:
            paths = facts.paths.find_each(effects.reads, "read")
        elif rule.tool in EDITORS:
            paths = facts.paths.find_each((*effects.writes, *effects.deletes), "write")
        return any(restriction_covers(rule.pattern, path, facts.paths.base) for path in paths)

    return next(filter(covers_call, rules), None)


def _allow_rules(facts: CallFacts, command: records.CommandAnalysis, rules: list[Rule]) -> tuple[tuple[Rule, ...], str]:
    """Return the allow rules that together cover all parts of a command that do more than read, or why none apply."""
    tool_rules = [rule for rule in rules if rule.is_about(facts.tool.name)]
    if command.problem:  # its parts are unknown, so only a rule for all commands covers it
        found = tuple(rule for rule in tool_rules if not rule.pattern)[:1]
    else:
        exact_pattern = records.escaped(facts.command_text.strip())
        if exact := next((rule for rule in tool_rules if rule.pattern == exact_pattern), None):
            return (exact,), ""  # even if the command opens a secret or auto-executed file
        risky = [part for part in command.segments if part.verdict != "allow"]
        covering = [_first_rule(tool_rules, facts.tool.name, partial(records.covers, segment=part)) for part in risky]
        found = tuple(rule for rule in covering if rule is not None)
        if len(found) < len(risky):
            return (), ""
    why = _why_not_granted(facts, command, rules) if found else ""
    return ((), why) if why else (found, "")


def _why_not_granted(facts: CallFacts, command: records.CommandAnalysis, rules: Sequence[Rule]) -> str:
    """Return why allow rules that cover a command do not apply: it opens a file that none of them names; else ""."""
    grants = [rule for rule in rules if rule.pattern and rule.is_about(facts.tool.name) and not command.problem]
    search = GlobSearch("dotglob" in facts.command_text)  # the command may set that option of bash
    # The effects of scripts that may run, which no rule covers, and of each part, with the patterns that cover it.
    parts: list[tuple[records.Effects, list[str]]] = [(command.doubts.effects, [])]
    for segment in command.segments:
        if segment.verdict != "allow" or search.finds_hidden:  # even a part that only reads may open hidden files
            parts.append((segment.effects, [rule.pattern for rule in grants if records.covers(rule.pattern, segment)]))
    for effects, patterns in parts:
        for path in opened_files(facts, effects, search):
            if why := _why_must_name(path, facts, rules, patterns=patterns, is_written=path.given in effects.writes):
                return f"{facts.workspace.shown(Path(path.given))} {why}"
    return "its wildcards match too many files to check them for secrets" if search.is_cut_off else ""


def _why_must_name(
    path: PathFacts, facts: CallFacts, rules: Sequence[Rule], *, patterns: Sequence[str], is_written: bool
) -> str:
    """Return why the rules whose `patterns` cover a command do not suffice for a path that it opens, or ""."""
    home, base = facts.workspace.settings.home, facts.paths.base
    if path.kind not in ("secret", "protected"):  # "protected": auto-executed
        # Access to a folder opens all files in it, which no rule names. Some auto-executed files are directly in home.
        auto_executed_paths = (home, *(home / name for name in auto_executed().home))
        contains_some = any(inner.is_relative_to(path.real) for inner in auto_executed_paths)
        can_change_them = is_written and path.is_outside and contains_some
        return "contains auto-executed files, and no rule names them" if can_change_them else ""
    tools = EDITORS if path.access == "write" else {"file_read", *EDITORS}
    by_file = (rule for rule in rules if rule.pattern and any(rule.is_about(tool) for tool in tools))
    is_named = any(_pattern_names_file(pattern, path.given, home) for pattern in patterns)
    if is_named or any(covers_path(rule, path, base) for rule in by_file):
        return ""
    return f"{WHY[path.kind]}, and no rule names it"


def _pattern_names_file(pattern: str, path: str, home: Path) -> bool:
    """Return True if a word of a command rule's pattern names the secret or auto-executed file at a path."""
    for word in re.split(r"[\s=:'\"]+", pattern):
        name = re.sub(r"^(?:~|\.)?/", "", word)
        # A wildcard is checked by an example of what it matches, hidden files included: `.x.pem` for `*.pem`.
        example = PurePath(re.sub(r"\[([*?[])\]", r"\1", name).replace("*", ".x"))
        if name and (is_secret(example, home) or is_auto_executed(example)) and fnmatchcase(path, f"*/{name}"):
            return True
    return False
