"""Permission rules, `Tool` or `Tool(pattern)`: reads and checks them, and finds those that decide about a call.

Grants of commands do not cover secret and auto-executed files that no rule names.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import Literal

import msgspec

from agentcli.agent.permissions.facts import CallFacts, GlobSearch, opened_files
from agentcli.errors import UsageError, did_you_mean
from agentcli.safety.commands import records
from agentcli.safety.paths.judge import WHY, PathFacts, PathGround, auto_executed, is_auto_executed, is_secret
from agentcli.safety.urls import host_meant
from agentcli.tools.tool import Tool, kind_argument


class Rule(msgspec.Struct, frozen=True):
    """A tool, and a pattern for its calls: a glob over commands or paths, or `domain:HOST`; empty means every call.

    `source` is where the rule comes from, in a word; `quote` is the line of an instruction file that it stands for.
    """

    tool: str
    pattern: str = ""
    source: str = ""
    quote: str = ""

    @property
    def phrase(self) -> str:
        return f"the rule {self} ({self.quote})" if self.quote else f"the rule {self}"

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool

    def names(self, tool: str) -> bool:
        """Return True if the rule is about a tool: by its name, by a glob, or by the MCP server it comes from."""
        if self.tool == tool or ("*" in self.tool and fnmatchcase(tool, self.tool)):
            return True
        return self.tool.startswith("mcp__") and self.tool.count("__") == 1 and tool.startswith(f"{self.tool}__")


Verb = Literal["allow", "ask", "deny"]


class Rules(msgspec.Struct):
    """The rules that allow, ask about and deny calls. A denial wins over asking, and asking over a grant."""

    allow: list[Rule] = msgspec.field(default_factory=list)
    deny: list[Rule] = msgspec.field(default_factory=list)
    ask: list[Rule] = msgspec.field(default_factory=list)

    def of(self, verb: Verb) -> list[Rule]:
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[verb]


def reading_denial(rules: Rules, ground: PathGround) -> Callable[[Path], bool] | None:
    """Return a test for files that deny rules keep from every reader; the same function for the same rules."""
    patterns = tuple(rule.pattern for rule in rules.deny if rule.tool == "file_read" and rule.pattern)
    return _matching(patterns, ground) if patterns else None


@lru_cache(maxsize=16)
def _matching(patterns: tuple[str, ...], ground: PathGround) -> Callable[[Path], bool]:
    return lambda path: any(records.matches_path(pattern, path, ground) for pattern in patterns)


def matches_host(pattern: str, host: str) -> bool:
    """Return True if `domain:example.org` covers a host: that one, and those below it."""
    domain = host_meant(pattern)
    return domain is not None and f".{host.lower().rstrip('.')}".endswith(f".{domain}")


READERS = frozenset(("file_read", "file_list", "grep_search"))
EDITORS = frozenset(("file_edit", "file_write"))


class RuleMatches(msgspec.Struct, frozen=True, kw_only=True):
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
        allow, why_not = _grants_of_command(facts, command, rules.allow)
        return RuleMatches(
            deny=_restricting(facts, command, rules.deny),
            ask=_restricting(facts, command, rules.ask),
            allow=allow,
            why_not=why_not,
            denies_some=_first(rules.deny, tool.name, lambda pattern: True),
        )
    if tool.effect in ("read", "edit"):
        return _matches_of_files(facts, rules)
    # The argument that a pattern means: of `Skill(pdf)` the name of the skill.
    argument = kind_argument(tool) if tool.effect in ("agent", "none") else ""

    def matches(pattern: str) -> bool:
        if tool.effect == "web":
            return any(matches_host(pattern, host) for host in facts.hosts)
        return bool(argument) and fnmatchcase(getattr(facts.arguments, argument, ""), pattern)

    # A grant with a pattern counts only for web tools.
    grant = _first(rules.allow, tool.name, matches) if tool.effect == "web" else _first(rules.allow, tool.name)
    # A rule that asks covers all calls of a tool whose calls no pattern can distinguish.
    asks = matches if tool.effect == "web" or kind_argument(tool) else lambda pattern: True
    return RuleMatches(
        deny=_first(rules.deny, tool.name, matches),
        ask=_first(rules.ask, tool.name, asks),
        allow=(grant,) if grant else (),
    )


def _matches_of_files(facts: CallFacts, rules: Rules) -> RuleMatches:
    """Match rules against a call of a file tool. A denial of a path to one tool holds for all that do the same."""
    tool, ground = facts.tool, facts.paths.ground
    same_use = EDITORS if tool.effect == "edit" else READERS

    def is_restricted(pattern: str) -> bool:
        return any(restriction_covers(pattern, path, ground) for path in facts.files)

    def is_denied(rule: Rule) -> bool:
        is_about = rule.names(tool.name) or (rule.pattern != "" and any(map(rule.names, same_use)))
        return is_about and (not rule.pattern or is_restricted(rule.pattern))

    grants = (rule for rule in rules.allow if rule.names(tool.name))
    grant = next((rule for rule in grants if all(covers_path(rule, path, ground) for path in facts.files)), None)
    return RuleMatches(
        deny=next(filter(is_denied, rules.deny), None),
        ask=_first(rules.ask, tool.name, is_restricted),
        allow=(grant,) if grant else (),
    )


def _first(rules: Iterable[Rule], tool: str, matches: Callable[[str], bool] = lambda pattern: False) -> Rule | None:
    """Return the first rule that covers a call of a tool: every call, or this one by its pattern."""
    return next((rule for rule in rules if rule.names(tool) and (not rule.pattern or matches(rule.pattern))), None)


def covers_path(rule: Rule, path: PathFacts, ground: PathGround) -> bool:
    """Return True if a grant covers a path. The rule itself must mean a path that is more than a plain file."""
    if not rule.pattern:
        return path.kind == "plain"
    if not records.matches_path(rule.pattern, path.real, ground):
        return False
    if path.kind in ("plain", "outside") or records.is_literal(rule.pattern):
        return True
    # Would the pattern name such a file? `**/*.pem` gives the name `.x.x/.x.pem`.
    name = PurePath(rule.pattern.lstrip("/").replace("*", ".x"))
    return (path.kind == "secret" and is_secret(name, ground.home)) or (
        path.kind == "protected" and is_auto_executed(name)
    )


def restriction_covers(pattern: str, path: PathFacts, ground: PathGround) -> bool:
    """Return True if the pattern of a denial covers a path: by where it leads, or by how it is written."""
    variants = (pattern, f"**/{pattern}", f"/{pattern}")  # generous: `/etc/x` may be meant as it is written
    return any(records.matches_path(variant, name, ground) for variant in variants for name in (path.real, path.named))


def restricts_edits(rules: Rules) -> bool:
    """Return True if a rule restricts which files may change. Changes of commands are checked against it as well."""
    return any(rule.pattern and rule.tool in EDITORS for rule in (*rules.deny, *rules.ask))


def rule_about(
    paths: Sequence[Path], rules: Sequence[Rule], ground: PathGround, *, tools: Collection[str]
) -> Rule | None:
    """Return the first rule about these tools that covers one of these real paths."""
    files = [PathFacts(given=str(path), named=path, real=path, access="write") for path in paths]
    about = (rule for rule in rules if rule.pattern and rule.tool in tools)
    return next((rule for rule in about if any(restriction_covers(rule.pattern, file, ground) for file in files)), None)


def _restricting(facts: CallFacts, command: records.CommandAnalysis, rules: Sequence[Rule]) -> Rule | None:
    """Return the first restricting rule that covers a command: any part of it, or a file or host that it uses."""
    effects = command.effects | command.doubts.effects if rules else records.Effects()
    # A rule such as `bash(* | sh)` is about the command as a whole, so that is one more segment.
    full_text = " ".join(facts.text.split())
    whole = records.Segment(text=full_text, words=None, verdict="try", reason="", deny_forms=(full_text,))
    segments = (*command.segments, whole)

    def is_about(rule: Rule) -> bool:
        if rule.names(facts.tool.name):
            return not rule.pattern or any(records.touches(rule.pattern, segment) for segment in segments)
        if not rule.pattern:
            return False
        if rule.tool == "web_fetch":
            return any(matches_host(rule.pattern, host) for host in effects.hosts)
        paths: list[PathFacts] = []
        if rule.tool in READERS:
            paths = facts.paths.find_each(effects.reads, "read")
        elif rule.tool in EDITORS:
            paths = facts.paths.find_each((*effects.writes, *effects.deletes), "write")
        return any(restriction_covers(rule.pattern, path, facts.paths.ground) for path in paths)

    return next(filter(is_about, rules), None)


def _grants_of_command(
    facts: CallFacts, command: records.CommandAnalysis, rules: Sequence[Rule]
) -> tuple[tuple[Rule, ...], str]:
    """Return the grants that together cover every part of a command that may do more than read, or why none hold.

    A grant opens a file with secrets, or an auto-executed one, only if it is this very command or names the file.
    """
    grants = [rule for rule in rules if rule.names(facts.tool.name)]
    if command.problem:  # its parts are not known, so only a grant of all commands covers it
        found = tuple(rule for rule in grants if not rule.pattern)[:1]
    else:
        exact_pattern = records.escaped(facts.text.strip())
        if exact := next((rule for rule in grants if rule.pattern == exact_pattern), None):
            return (exact,), ""
        risky = [part for part in command.segments if part.verdict != "allow"]
        covering = [_first(grants, facts.tool.name, partial(records.covers, segment=part)) for part in risky]
        found = tuple(filter(None, covering)) if all(covering) else ()
    why = _unnamed_file(facts, command, rules) if found else ""
    return ((), why) if why else (found, "")


def _unnamed_file(facts: CallFacts, command: records.CommandAnalysis, rules: Sequence[Rule]) -> str:
    """Return why grants that cover a command do not hold: it opens a file that none of them names."""
    grants = [rule for rule in rules if rule.pattern and rule.names(facts.tool.name) and not command.problem]
    search = GlobSearch("dotglob" in facts.text)
    # The effects of each part, with the patterns of the grants that cover it.
    parts: list[tuple[records.Effects, list[str]]] = [(command.doubts.effects, [])]
    for segment in command.segments:
        if segment.verdict != "allow" or search.finds_hidden:
            parts.append((segment.effects, [rule.pattern for rule in grants if records.covers(rule.pattern, segment)]))
    for effects, patterns in parts:
        for path in opened_files(facts, effects, search):
            if why := _why_unnamed(path, facts, rules, patterns=patterns, is_written=path.given in effects.writes):
                return f"{facts.workspace.shown(Path(path.given))} {why}"
    return "its wildcards match too many files to check them for secrets" if search.is_cut_off else ""


def _why_unnamed(
    path: PathFacts, facts: CallFacts, rules: Sequence[Rule], *, patterns: Sequence[str], is_written: bool
) -> str:
    """Return why a rule must name a file of a command, if none does. `patterns` are those of grants for the file."""
    home, ground = facts.workspace.settings.home, facts.paths.ground
    if path.kind not in ("secret", "protected"):
        # A grant of a folder also opens what is in it; some auto-executed files lie in the home folder itself.
        auto_executed_paths = (home, *(home / name for name in auto_executed().home))
        contains_some = any(inner.is_relative_to(path.real) for inner in auto_executed_paths)
        holds_them = is_written and path.is_outside and contains_some
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
        # `[*]` means the character itself. `*` is tried as `.x`: `.env*` as `.env.x`, `*.pem` as `.x.pem`.
        file = PurePath(re.sub(r"\[([*?[])\]", r"\1", name).replace("*", ".x"))
        if name and (is_secret(file, home) or is_auto_executed(file)) and fnmatchcase(path, f"*/{name}"):
            return True
    return False


# The text of rules

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
        raise UsageError(f"{text!r} is not a permission rule. Write TOOL or TOOL(pattern), such as bash(git log *).")
    name, pattern = found.groups()
    # Other agents write `Bash(git log:*)` for `bash(git log *)`.
    return Rule(ALIASES.get(name, name), re.sub(r":\*$", " *", (pattern or "").strip()), source, quote)


def parse_rules(text: str, source: str = "") -> list[Rule]:
    """Parse one rule, or several that are joined by "and". Raises `UsageError`."""
    return [parse_rule(part, source) for part in re.split(r"(?<=\)) and (?=[A-Za-z_][\w*-]*\()", text)]


# Tools of other agents that have no counterpart here. A rule about one is valid and has no effect.
FOREIGN_TOOLS = frozenset(
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
    "": "no pattern: write {name}",
}


def check_rule(
    rule: Rule, tools: Iterable[Tool], *, written: str = "", more_may_come: bool = False, under_any_name: bool = False
) -> str:
    """Return a warning about a rule whose tool is not there yet; empty for a rule that holds.

    If `more_may_come`, an unknown name may be that of a later tool, unless it is nearly the name of a known one; with
    `under_any_name` even then. Raises `UsageError` for a rule that can never hold.
    """
    known, shown, name = list(tools), written.strip() or str(rule), rule.tool
    if rule.pattern and name.startswith("mcp__"):
        raise UsageError(f"{shown}: {name} takes {_EXAMPLES[''].format(name=name)}.")
    named = [tool for tool in known if rule.names(tool.name)]
    if any(not rule.pattern or _may_match(rule.pattern, tool) for tool in named):
        return ""
    if named:
        raise UsageError(f"{shown}: {named[0].name} takes {_EXAMPLES[_form_of(named[0])].format(name=named[0].name)}.")
    if re.fullmatch(r"mcp__[^_*].*[^_]|mcp__[^_]", name):  # mcp__github__search, or the server mcp__github
        return f"{shown}: no MCP server offers this tool yet."
    start = name.partition("*")[0]
    # A glob that may match tools of MCP servers, such as mcp__* or m*.
    if "*" in name and (start.startswith("mcp__") or "mcp__".startswith(start)):
        return f"{shown}: no tool matches this name yet."
    if name in FOREIGN_TOOLS:
        return f"{shown}: agentcli has no counterpart to {name}."
    names = [tool.name for tool in known]
    hint = did_you_mean(name, [*names, *ALIASES])
    if under_any_name or (more_may_come and not hint):
        return f"{shown}: there is no tool {name} yet{hint}."
    raise UsageError(f"{shown}: unknown tool {name!r}{hint}. Choose one of {', '.join(names)}, or mcp__SERVER__TOOL.")


def _form_of(tool: Tool) -> Form:
    """Return what the brackets of a rule about this tool mean, by the tool's effect and arguments."""
    if tool.schema is None:
        fields = {field.name for field in msgspec.structs.fields(tool.arguments)}
    else:  # a tool of an MCP server or a client
        fields = set(tool.schema.get("properties", ()))
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
            # No path matches what other agents write: quotes, variables, ~user, drives, addresses, `src/* *`.
            is_path = not re.match(r"domain:|[\"'$]|~[^/]|[A-Za-z]:\\|file:", pattern) and records.is_path_glob(pattern)
            return is_path and ".." not in pattern.split("/") and "\0" not in pattern and not pattern.endswith(" *")
        case form:
            return bool(form) and not pattern.startswith("domain:")
