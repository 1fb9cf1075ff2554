"""Permission rules, `Tool` or `Tool(pattern)`: which of them deny a call, ask about it, and allow it.

Grants of commands do not cover secret and auto-executed files that no rule names.
"""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Literal

from msgspec import Struct

from agentcli.agent.permissions.facts import CallFacts
from agentcli.safety.commands.records import (
    CommandAnalysis,
    Effects,
    Segment,
    covers,
    escaped,
    is_literal,
    known,
    matches_path,
    touches,
)
from agentcli.safety.paths.judge import WHY, PathFacts, PathGround, auto_executed, is_auto_executed, is_secret
from agentcli.safety.urls import BadUrl, parse_url
from agentcli.tools.command import Access
from agentcli.tools.tool import kind_argument


class Rule(Struct, frozen=True):
    """A tool, and a pattern for its calls: a glob over commands or paths, or `domain:HOST`; empty means every call.

    `source` is where the rule comes from, in a word; `quote` is the line of an instruction file that it stands for.
    """

    tool: str
    pattern: str = ""
    source: str = ""
    quote: str = ""

    @property
    def phrase(self) -> str:
        """Return the rule as part of a sentence, with the line it stands for."""
        return f"the rule {self} ({self.quote})" if self.quote else f"the rule {self}"

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool

    def names(self, tool: str) -> bool:
        """Return True if the rule is about a tool: by its name, by a glob, or by the MCP server it comes from."""
        if self.tool == tool or ("*" in self.tool and fnmatchcase(tool, self.tool)):
            return True
        return self.tool.startswith("mcp__") and self.tool.count("__") == 1 and tool.startswith(f"{self.tool}__")


Verb = Literal["allow", "ask", "deny"]


@dataclass
class Rules:
    """The rules that allow, ask about and deny calls. A denial wins over asking, and asking over a grant."""

    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    ask: list[Rule] = field(default_factory=list)

    def of(self, verb: Verb) -> list[Rule]:
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[verb]


def reading_denial(rules: Rules, ground: PathGround) -> Callable[[Path], bool] | None:
    """Return a test for files that deny rules keep from every reader; the same function for the same rules."""
    patterns = tuple(rule.pattern for rule in rules.deny if rule.tool == "file_read" and rule.pattern)
    return _matching(patterns, ground) if patterns else None


@lru_cache(maxsize=16)
def _matching(patterns: tuple[str, ...], ground: PathGround) -> Callable[[Path], bool]:
    return lambda path: any(matches_path(pattern, path, ground) for pattern in patterns)


def matches_host(pattern: str, host: str) -> bool:
    """Return True if `domain:example.org` covers a host: that one, and those below it."""
    domain = host_meant(pattern)
    return domain is not None and f".{host.lower().rstrip('.')}".endswith(f".{domain}")


@lru_cache(maxsize=1_000)
def host_meant(pattern: str) -> str | None:
    """Return the host of `domain:example.org` or `domain:*.example.org`, as addresses have it; None where none is."""
    if not pattern.startswith("domain:"):
        return None
    domain = pattern.removeprefix("domain:").strip().removeprefix("*.").rstrip(".")
    domain = f"[{domain}]" if domain.count(":") > 1 and not domain.startswith("[") else domain
    if re.search(r"[/?#@]|:\d*$", domain.rpartition("]")[2]) or "*" in domain:
        return None
    try:
        return parse_url(f"https://{domain}/").host
    except BadUrl:
        return None


# A rule that denies a path to one tool denies it to the tools that do the same with it.
READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))


class RuleMatches(Struct, frozen=True):
    """The first rule that denies a call, the first that asks about it, and those that allow it.

    `why_not` says why grants that cover a command do not hold; `denies_some` is a rule that denies some commands.
    """

    deny: Rule | None = None
    ask: Rule | None = None
    allow: tuple[Rule, ...] = ()
    why_not: str = ""
    denies_some: Rule | None = None


def find_matches(facts: CallFacts, rules: Rules) -> RuleMatches:
    """Match all rules against a call. Blocks: it looks where the paths of a command lead."""
    tool, command = facts.tool, facts.command
    if command is not None:
        deny, ask = (_restricting(facts, command, some) for some in (rules.deny, rules.ask))
        denies_some = _first(rules.deny, tool.name, lambda pattern: True)
        return RuleMatches(deny, ask, *_grants_of_command(facts, command, rules.allow), denies_some)
    if tool.effect in ("read", "edit"):
        kin, ground = EDITORS if tool.effect == "edit" else READERS, facts.paths.ground

        def is_refused(pattern: str) -> bool:
            return any(restriction_covers(pattern, path, ground) for path in facts.files)

        def is_denied(rule: Rule) -> bool:
            is_about = rule.names(tool.name) or (rule.pattern != "" and any(map(rule.names, kin)))
            return is_about and (not rule.pattern or is_refused(rule.pattern))

        mine = (rule for rule in rules.allow if rule.names(tool.name))
        allow = next((rule for rule in mine if all(covers_path(rule, path, ground) for path in facts.files)), None)
        deny = next(filter(is_denied, rules.deny), None)
        return RuleMatches(deny, _first(rules.ask, tool.name, is_refused), (allow,) if allow else ())
    matches = _pattern_test(facts)
    allow = _first(rules.allow, tool.name, matches) if tool.effect == "web" else _first(rules.allow, tool.name)
    # A rule that asks covers all calls of a tool whose calls no pattern can distinguish.
    asks = matches if tool.effect == "web" or kind_argument(tool) else lambda pattern: True
    return RuleMatches(
        _first(rules.deny, tool.name, matches), _first(rules.ask, tool.name, asks), (allow,) if allow else ()
    )


def _first(of: Iterable[Rule], tool: str, matches: Callable[[str], bool] = lambda pattern: False) -> Rule | None:
    """Return the first rule that covers a call of a tool: every call, or this one by its pattern."""
    return next((rule for rule in of if rule.names(tool) and (not rule.pattern or matches(rule.pattern))), None)


def _pattern_test(facts: CallFacts) -> Callable[[str], bool]:
    """Return what a pattern means for a web tool, a subagent or a skill; other tools have no patterns."""
    if facts.tool.effect == "web":
        return lambda pattern: any(matches_host(pattern, host) for host in facts.hosts)
    if (kind := kind_argument(facts.tool)) and facts.tool.effect in ("agent", "none"):
        return lambda pattern: fnmatchcase(getattr(facts.arguments, kind, ""), pattern)
    return lambda pattern: False


def covers_path(rule: Rule, path: PathFacts, ground: PathGround) -> bool:
    """Return True if a grant covers a path. The rule itself must mean a path that is more than a plain file."""
    if not rule.pattern:
        return path.kind == "plain"
    if not matches_path(rule.pattern, path.real, ground):
        return False
    if path.kind in ("plain", "outside") or is_literal(rule.pattern):
        return True
    name = PurePath(rule.pattern.lstrip("/").replace("*", ".x"))
    return (path.kind == "secret" and is_secret(name, ground.home)) or (
        path.kind == "protected" and is_auto_executed(name)
    )


def restriction_covers(pattern: str, path: PathFacts, ground: PathGround) -> bool:
    """Return True if the pattern of a denial covers a path: by where it leads, or by how it is written."""
    patterns = (pattern, f"**/{pattern}", f"/{pattern}")  # generous: `/etc/x` may be meant as it is written
    return any(matches_path(one, name, ground) for one in patterns for name in (path.real, path.named))


def restricts_edits(rules: Rules) -> bool:
    """Return True if a rule restricts which files may change. Changes of commands are checked against it as well."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about(
    paths: Sequence[Path], rules: Sequence[Rule], ground: PathGround, *, tools: Collection[str]
) -> Rule | None:
    """Return the first rule about these tools that covers one of these real paths."""
    used = [PathFacts(given=str(path), named=path, real=path, access="write") for path in paths]
    about = (rule for rule in rules if rule.pattern and rule.tool in tools)
    return next((rule for rule in about if any(restriction_covers(rule.pattern, path, ground) for path in used)), None)


def _restricting(facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]) -> Rule | None:
    """Return the first restricting rule that covers a command: any part of it, or a file or host that it uses."""
    effects = command.effects | command.doubts.effects if rules else Effects()
    whole = " ".join(facts.text.split())
    segments = (*command.segments, Segment(text=whole, words=None, verdict="try", reason="", deny_forms=(whole,)))

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
        return any(restriction_covers(rule.pattern, path, facts.paths.ground) for path in paths)

    return next(filter(is_about, rules), None)


def _grants_of_command(
    facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]
) -> tuple[tuple[Rule, ...], str]:
    """Return the grants that together cover every part of a command that may do more than read, or why none hold.

    A grant opens a file with secrets, or an auto-executed one, only if it is this very command or names the file.
    """
    mine = [rule for rule in rules if rule.names(facts.tool.name)]
    if command.problem:
        found = tuple(rule for rule in mine if not rule.pattern)[:1]
    else:
        whole = escaped(facts.text.strip())
        if exact := next((rule for rule in mine if rule.pattern == whole), None):
            return (exact,), ""
        risky = [segment for segment in command.segments if segment.verdict != "allow"]
        each = [next((rule for rule in mine if not rule.pattern or covers(rule.pattern, one)), None) for one in risky]
        found = tuple(rule for rule in each if rule is not None) if all(each) else ()
    why = _unnamed_file(facts, command, rules) if found else ""
    return ((), why) if why else (found, "")


def _unnamed_file(facts: CallFacts, command: CommandAnalysis, rules: Sequence[Rule]) -> str:
    """Return why grants that cover a command do not hold: it opens a file that none of them names."""
    mine = [rule for rule in rules if rule.pattern and rule.names(facts.tool.name) and not command.problem]
    search = GlobSearch("dotglob" in facts.text)
    parts: list[tuple[Effects, list[str]]] = [(command.doubts.effects, [])]
    for segment in command.segments:
        if segment.verdict != "allow" or search.finds_hidden:
            parts.append((segment.effects, [rule.pattern for rule in mine if covers(rule.pattern, segment)]))
    for effects, patterns in parts:
        for path in _opened_files(facts, effects, search):
            if why := _why_unnamed(path, facts, rules, patterns=patterns, is_written=path.given in effects.writes):
                return f"{facts.workspace.shown(Path(path.given))} {why}"
    return "its wildcards find too many files to tell if secrets are among them" if search.is_cut_off else ""


def _opened_files(facts: CallFacts, effects: Effects, search: GlobSearch) -> Iterator[PathFacts]:
    """Yield the files of a command: for a glob the glob itself, and the first files that it finds."""
    workspace, paths = facts.workspace, facts.paths
    opened: list[tuple[str, Access]] = [(path, "read") for path in known(effects.reads)]
    opened += [(path, "write") for path in known((*effects.writes, *effects.deletes))]
    for path in effects.names:
        # Words with spaces, such as a commit message, can look like a path: they count only if the file exists.
        if not re.search(r"\s", workspace.shown(Path(path))) or os.path.lexists(path):
            opened.append((path, "read" if is_secret(PurePath(path), workspace.settings.home) else "write"))
    for path, access in opened:
        for each in (path, *search.found_by(path)):
            yield from paths.find_each((each,), access)


def _why_unnamed(
    path: PathFacts, facts: CallFacts, rules: Sequence[Rule], *, patterns: Sequence[str], is_written: bool
) -> str:
    """Return why a rule must name a file of a command, if none does. `patterns` are those of grants for the file."""
    home, ground = facts.workspace.settings.home, facts.paths.ground
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
    """Return True if a word of a rule about commands means a file that holds secrets or is auto-executed."""
    for word in re.split(r"[\s=:'\"]+", pattern):
        name = re.sub(r"^(?:~|\.)?/", "", word)
        file = PurePath(re.sub(r"\[([*?[])\]", r"\1", name).replace("*", ".x"))
        if name and (is_secret(file, home) or is_auto_executed(file)) and fnmatchcase(path, f"*/{name}"):
            return True
    return False


_MAX_SEARCH_S = 0.5  # for the globs of a command
_MAX_FOUND = 1_000  # files that a glob of a command finds


class GlobSearch:
    """Finds files by globs as a shell does, hidden ones with bash's `dotglob`; it `is_cut_off` after a short time."""

    def __init__(self, finds_hidden: bool) -> None:
        self.finds_hidden = finds_hidden
        self.is_cut_off = False
        self._deadline = time.monotonic() + _MAX_SEARCH_S

    def found_by(self, pattern: str) -> list[str]:
        """Return the first files that an absolute glob finds; none for a path without wildcards."""
        found = ["/"] if glob.has_magic(pattern) else []
        parts = [part for part in pattern.replace("[^", "[!").split("/") if part]
        # A part before the last finds only folders, because nothing is below a file.
        for part in [*(f"{part}/" for part in parts[:-1]), *parts[-1:]]:
            folders, found = found, []
            for folder in folders:
                if time.monotonic() > self._deadline or (len(found) > _MAX_FOUND and part == parts[-1]):
                    self.is_cut_off = True
                    break
                # Paths stay texts, which is faster than `Path` objects.
                names = glob.glob(part, root_dir=folder, include_hidden=self.finds_hidden)  # noqa: PTH207
                found += [os.path.join(folder, name) for name in names]  # noqa: PTH118
        self.is_cut_off |= len(found) > _MAX_FOUND
        return found[:_MAX_FOUND]
