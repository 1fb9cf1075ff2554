"""Permission rules: `Tool` or `Tool(spec)`, and which calls they speak of.

A rule that can never hold, because there is no such tool or its brackets mean nothing to the tool, is an error.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from agentcli.errors import UsageError, did_you_mean
from agentcli.safety.addresses.urls import BadUrl, parse_url
from agentcli.tools.tool import Tool, kind_argument


class Rule(Struct, frozen=True):
    """A tool and what of its calls is meant: a glob over commands or paths, `domain:HOST`; empty means every call.

    `source` is where it comes from, in a word for the person; `quote` is the line of the project's that it stands for.
    """

    tool: str
    pattern: str = ""
    source: str = ""
    quote: str = ""

    @property
    def told(self) -> str:
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
# Tools of other agents that nothing here stands for: a list of rules that names them is no mistake.
ELSEWHERE = frozenset(
    "NotebookEdit NotebookRead EnterPlanMode ExitPlanMode EnterWorktree ExitWorktree SlashCommand ToolSearch LSP "
    "Monitor ListMcpResourcesTool ReadMcpResourceTool".split()
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


def escaped(text: str) -> str:
    """A glob that matches this very text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def is_literal(pattern: str) -> bool:
    """Return True if a glob matches one text only."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", pattern))


_MOST_BRACES = 5


class PathGround(Struct, frozen=True):
    """The meaning of the beginnings of path globs: `./` and none the working directory, `/` the project, `~/` home."""

    cwd: Path
    root: Path
    home: Path


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


def kept_from_reading(rules: Rules, ground: PathGround) -> Callable[[Path], bool] | None:
    """Which files the refusals of now keep from every tool that reads, commands and searches included; None: none."""
    patterns = [rule.pattern for rule in rules.deny if rule.tool == "file_read" and rule.pattern]
    if not patterns:
        return None
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


# What the brackets of a rule hold, by the kind of tool; "" is for tools whose every call is meant.
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
    """A warning about a rule whose tool is not there yet, or nothing. Raises `UsageError` for one that never holds.

    `written` is the text it was read from, for the message. `more_may_come`: a caller may bring further tools, so that
    an unknown name may yet mean one, unless it is nearly that of a tool; `under_any_name`: also then.
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
    """False for a pattern that can match no call of a tool, so that a rule with it would protect nothing."""
    match _form_of(tool):
        case "host":
            return host_meant(pattern) is not None
        case "path":
            is_regular = not re.match(r"domain:|[\"'$]|~[^/]|[A-Za-z]:\\|file:", pattern) and _compiles(pattern)
            return is_regular and ".." not in pattern.split("/") and "\0" not in pattern and not pattern.endswith(" *")
        case form:
            return bool(form) and not pattern.startswith("domain:")


def _compiles(glob: str) -> bool:
    try:
        return all(_regex(each) for each in _alternatives(glob))
    except re.error:
        return False
