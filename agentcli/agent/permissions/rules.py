"""Permission rules: `Tool` or `Tool(spec)`, and which of them deny a call, ask about it, and allow it.

Grants of commands are kept away from files that no rule names: those with secrets, and auto-executed ones. An
auto-executed file is one that programs run or obey without being asked to: git hooks, editor tasks, shell profiles.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Literal

from msgspec import Struct

from agentcli.agent.permissions.facts import CallFacts, GlobSearch, PathLookup
from agentcli.errors import UsageError
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.safety.commands.records import CommandAnalysis, Effects, Segment
from agentcli.safety.commands.rules import covers, escaped, touches
from agentcli.safety.paths.judge import WHY, PathFacts, PathGround, auto_executed, is_protected, is_secret
from agentcli.tools.tool import Workspace, kind_argument


class Rule(Struct, frozen=True):
    """A tool and what of its calls is meant: a glob over commands or paths, `domain:HOST`; empty means every call.

    `source` is where it comes from, in a word for the person; `quote` is the line of the project's that it stands for.
    """

    tool: str
    pattern: str = ""
    source: str = ""
    quote: str = ""

    @property
    def phrase(self) -> str:
        """The rule in a sentence, with the line it stands for."""
        return f"the rule {self} ({self.quote})" if self.quote else f"the rule {self}"

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool

    def names(self, tool: str) -> bool:
        """True if it is about a tool of that name: by name, by a glob, or by the MCP server the tool comes from."""
        if self.tool == tool or ("*" in self.tool and fnmatch.fnmatchcase(tool, self.tool)):
            return True
        return self.tool.startswith("mcp__") and self.tool.count("__") == 1 and tool.startswith(f"{self.tool}__")


Verb = Literal["allow", "ask", "deny"]


@dataclass
class Rules:
    """The rules that allow, ask about and deny calls: a denial wins, then asking."""

    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    ask: list[Rule] = field(default_factory=list)

    def of(self, verb: Verb) -> list[Rule]:
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[verb]


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
    """`bash(git log *)`, `Edit(src/**)`, `WebFetch(domain:example.org)`, `file_write`. Raises `UsageError`."""
    found = re.fullmatch(r"\s*([A-Za-z_][\w*-]*)\s*(?:\((.*\S.*)\))?\s*", text, re.DOTALL)
    if not found:
        raise UsageError(f"{text!r} is not a permission rule: write TOOL or TOOL(pattern), such as bash(git log *).")
    name, pattern = found.groups()
    return Rule(ALIASES.get(name, name), re.sub(r":\*$", " *", (pattern or "").strip()), source, quote)


def parse_rules(text: str, source: str = "") -> list[Rule]:
    """One rule, or several joined by "and". Raises `UsageError`."""
    parts = re.split(r"(?<=\)) and (?=[A-Za-z_][\w*-]*\()", text)
    return [parse_rule(part, source) for part in parts]


def is_literal(pattern: str) -> bool:
    """Return True if a glob matches one text only."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", pattern))


_MOST_BRACES = 5


def matches_path(pattern: str, path: Path, ground: PathGround) -> bool:
    """Return True if a path glob speaks of an absolute path. `*` stays within a folder, `**` does not.

    `//x` is absolute, `~/x` below home, `/x` below the project (or absolute, where it spells out one of these
    folders), `./x` and `a/b` below the working directory; a glob without a slash is a name at any depth below it. A
    folder's glob speaks of all that is in it. `{a,b}` is either.
    """
    return any(_regex(_anchored(each, ground)).fullmatch(str(path)) for each in _alternatives(pattern))


@lru_cache(maxsize=1_000)
def _alternatives(pattern: str) -> tuple[str, ...]:
    """Without its braces; also as it is, which may be a file's name."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern) if pattern.count("{") <= _MOST_BRACES else None
    if found is None:
        return (pattern,)
    before, behind = pattern[: found.start()], pattern[found.end() :]
    return (pattern, *(each for choice in found[1].split(",") for each in _alternatives(f"{before}{choice}{behind}")))


def _anchored(pattern: str, ground: PathGround) -> str:
    if pattern.startswith("//"):
        return pattern[1:]
    if pattern == "~" or pattern.startswith("~/"):
        return f"{escaped(str(ground.home))}{pattern[1:]}"
    if pattern.startswith("/"):
        is_absolute = any(
            pattern.startswith(f"{escaped(str(known))}/") for known in (ground.root, ground.cwd, ground.home)
        )
        return pattern if is_absolute else f"{escaped(str(ground.root))}{pattern}"
    below = escaped(str(ground.cwd))
    if "/" not in pattern:
        return f"{below}/**/{pattern}"
    return f"{below}/{pattern.removeprefix('./')}"


@lru_cache(maxsize=1_000)
def _regex(glob: str) -> re.Pattern[str]:
    parts: list[str] = []
    rest = re.sub(r"/(\.?/)+", "/", f"{glob}/").rstrip("/")  # `a//b` and `a/./b` are `a/b`
    while rest:
        if rest.startswith("/**/"):
            parts.append("/(?:.*/)?")
            rest = rest[4:]
        elif rest.startswith("**"):
            parts.append(".*")
            rest = rest.lstrip("*")
        elif rest[0] == "*":
            parts.append("[^/]*")
            rest = rest[1:]
        elif rest[0] == "?":
            parts.append("[^/]")
            rest = rest[1:]
        elif found := re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest):
            members = re.sub(r"([\\[&~|])", r"\\\1", found[2])
            parts.append(f"[{'^' if found[1] else ''}{members}]")
            rest = rest[found.end() :]
        else:
            parts.append(re.escape(rest[0]))
            rest = rest[1:]
    return re.compile("".join(parts) + "(?:/.*)?", re.DOTALL)


def reading_denial(rules: Rules, ground: PathGround) -> Callable[[Path], bool] | None:
    """Test which files the refusals of now keep from every tool that reads, commands and searches included; None: none.

    It is the same test as long as the rules keep the same files.
    """
    patterns = tuple(rule.pattern for rule in rules.deny if rule.tool == "file_read" and rule.pattern)
    return _matching(patterns, ground) if patterns else None


@lru_cache(maxsize=16)
def _matching(patterns: tuple[str, ...], ground: PathGround) -> Callable[[Path], bool]:
    return lambda path: any(matches_path(pattern, path, ground) for pattern in patterns)


def matches_host(pattern: str, host: str) -> bool:
    """Return True if `domain:example.org` speaks of a host: itself and what is below it, by whole labels."""
    domain, name = host_meant(pattern), host.lower().rstrip(".")
    return domain is not None and (name == domain or name.endswith(f".{domain}"))


@lru_cache(maxsize=1_000)
def host_meant(pattern: str) -> str | None:
    """The host of `domain:example.org` or `domain:*.example.org`, as an address names it; None where there is none."""
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


def is_path_glob(pattern: str) -> bool:
    """False for a glob whose brackets make no sense."""
    try:
        return all(_regex(each) for each in _alternatives(pattern))
    except re.error:
        return False


# A path refused to one tool is refused to those that do the same to it.
READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))


class Matches(Struct, frozen=True):
    """The rules that speak of a call: the first that denies it, the first that asks about it, and those that allow it.

    `why_not` says why grants that speak of a command do not hold; `denies_some` is a rule that denies some commands.
    """

    deny: Rule | None = None
    ask: Rule | None = None
    allow: tuple[Rule, ...] = ()
    why_not: str = ""
    denies_some: Rule | None = None


def find_matches(facts: CallFacts, rules: Rules) -> Matches:
    """Hold all rules against a call. Blocks: of a command it looks where the paths lead."""
    tool, command, deny = facts.tool, facts.command, None
    if command is not None:
        deny, ask = (_restricting(facts, command, some) for some in (rules.deny, rules.ask))
        denies_some = _first(rules.deny, tool.name, lambda pattern: True)
        return Matches(deny, ask, *_grants_of_command(facts, command, rules.allow), denies_some)
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
