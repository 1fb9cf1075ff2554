"""Parses and checks permission rules, `Tool` or `Tool(pattern)`."""

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from agentcli.errors import UsageError, did_you_mean
from agentcli.safety.paths.judge import PatternBase
from agentcli.tools.tool import Tool, kind_argument


class Rule(msgspec.Struct, frozen=True):
    """A tool, and a pattern for its calls: a glob for commands or paths, or `domain:HOST`; empty means every call."""

    tool: str
    pattern: str = ""
    source: str = ""  # "settings", "session", "granted" (stored for the project) or "skill NAME"
    quote: str = ""  # the line of an instruction file that the rule was made from

    @property
    def phrase(self) -> str:
        return f"the rule {self} ({self.quote})" if self.quote else f"the rule {self}"

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool

    def is_about(self, tool: str) -> bool:
        """Return True for a tool that the rule names directly, by a glob, or by the name of its MCP server."""
        if self.tool == tool or ("*" in self.tool and fnmatchcase(tool, self.tool)):
            return True
        return self.tool.startswith("mcp__") and self.tool.count("__") == 1 and tool.startswith(f"{self.tool}__")


Verb = Literal["allow", "ask", "deny"]


class Rules(msgspec.Struct):
    """The rules that allow, ask about and deny calls. Deny rules override ask rules, and these override allow rules."""

    allow: list[Rule] = msgspec.field(default_factory=list)
    deny: list[Rule] = msgspec.field(default_factory=list)
    ask: list[Rule] = msgspec.field(default_factory=list)

    def of(self, verb: Verb) -> list[Rule]:
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[verb]


def reading_denial(rules: Rules, base: PatternBase) -> Callable[[Path], bool] | None:
    """Return a test for files that deny rules close to all reading tools; None without such rules."""
    patterns = tuple(rule.pattern for rule in rules.deny if rule.tool == "file_read" and rule.pattern)
    return _pattern_test(patterns, base) if patterns else None


@lru_cache(maxsize=16)
def _pattern_test(patterns: tuple[str, ...], base: PatternBase) -> Callable[[Path], bool]:
    # Cached so that equal patterns have the same test: a scan compares tests, and reads all folders again for another.
    from agentcli.safety.commands import records

    return lambda path: any(records.matches_path(pattern, path, base) for pattern in patterns)


# Names of the same tools in the settings of other agents: each with our name for it.
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


# Tools of other agents without a counterpart in agentcli. A rule about one is valid but has no effect.
FOREIGN_TOOLS = frozenset(
    "NotebookEdit NotebookRead EnterPlanMode ExitPlanMode EnterWorktree ExitWorktree SlashCommand ToolSearch LSP "
    "Monitor ListMcpResourcesTool ReadMcpResourceTool".split()
)

# The meaning of the pattern in a rule's brackets, which depends on the tool. "": the tool's rules take no pattern.
Form = Literal["command", "path", "host", "kind", ""]
_EXAMPLES: dict[Form, str] = {
    "command": "a command, such as {name}(git log *)",
    "path": "a path without .., quotes and variables, such as {name}(src/**), {name}(~/x) or {name}(//from/the/root)",
    "host": "a host, such as {name}(domain:example.org)",
    "kind": "a name, such as {name}(explore)",
    "": "no pattern: write {name}",
}


def check_rule(
    rule: Rule, tools: Iterable[Tool], *, written: str = "", allows_new: bool = False, allows_similar: bool = False
) -> str:
    """Return a warning about a rule whose tool does not exist yet; empty for a rule that can match calls.

    Raises `UsageError` for a rule that can never match, and for an unknown tool, whose name may be misspelled.
    `allows_new` accepts names that resemble no known one, because another session's client may have that tool;
    `allows_similar` accepts all names, because this session's client may bring tools of any name.
    """
    known, shown, name = list(tools), written.strip() or str(rule), rule.tool
    if rule.pattern and name.startswith("mcp__"):
        raise UsageError(f"{shown}: {name} takes {_EXAMPLES[''].format(name=name)}.")
    named = [tool for tool in known if rule.is_about(tool.name)]
    if any(not rule.pattern or _may_match(rule.pattern, tool) for tool in named):
        return ""
    if named:
        raise UsageError(f"{shown}: {named[0].name} takes {_EXAMPLES[_form_of(named[0])].format(name=named[0].name)}.")
    # The name of a tool, mcp__github__search, or of a server, mcp__github.
    is_mcp_name = re.fullmatch(r"mcp__[^_].*[^_]|mcp__[^_]", name)
    start, is_glob, _ = name.partition("*")  # a glob such as mcp__git* or m* may match tools of later servers
    if is_mcp_name or (is_glob and (start.startswith("mcp__") or "mcp__".startswith(start))):
        return f"{shown}: no MCP server offers this tool yet."
    if name in FOREIGN_TOOLS:
        return f"{shown}: agentcli has no counterpart to {name}."
    names = [tool.name for tool in known]
    hint = did_you_mean(name, [*names, *ALIASES])
    if allows_similar or (allows_new and not hint):
        return f"{shown}: there is no tool {name} yet{hint}."
    raise UsageError(f"{shown}: unknown tool {name!r}{hint}. Choose one of {', '.join(names)}, or mcp__SERVER__TOOL.")


def _form_of(tool: Tool) -> Form:
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
    """Return False for a pattern that can match no call of a tool. A rule with it would protect nothing."""
    from agentcli.safety.commands import records
    from agentcli.safety.urls import host_of_rule

    match _form_of(tool):
        case "host":
            return host_of_rule(pattern) is not None
        case "path":
            # Patterns that other agents accept match no path: quotes, variables, ~user, drives, addresses, `src/* *`.
            is_path = not re.match(r"domain:|[\"'$]|~[^/]|[A-Za-z]:\\|file:", pattern) and records.is_path_glob(pattern)
            return is_path and ".." not in pattern.split("/") and "\0" not in pattern and not pattern.endswith(" *")
        case form:
            return bool(form) and not pattern.startswith("domain:")
