"""Permission rules: `Tool` or `Tool(spec)`, and which calls they speak of."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agentcli.errors import UsageError
from agentcli.safety.addresses.urls import BadUrl, parse_url


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
        """Whether it is about a tool of that name: by name, by a glob, or by the MCP server the tool comes from."""
        if self.tool == tool or ("*" in self.tool and fnmatch.fnmatchcase(tool, self.tool)):
            return True
        return self.tool.startswith("mcp__") and self.tool.count("__") == 1 and tool.startswith(f"{self.tool}__")


Verb = Literal["allow", "ask", "deny"]


@dataclass
class Rules:
    """What was granted, is to be asked about, and was refused ahead: a refusal wins, then asking."""

    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)
    ask: list[Rule] = field(default_factory=list)

    def of(self, verb: Verb) -> list[Rule]:
        return {"allow": self.allow, "ask": self.ask, "deny": self.deny}[verb]


# The names other agents' settings use for the same tools.
ALIASES = {
    "Read": "file_read",
    "Write": "file_write",
    "Edit": "file_edit",
    "Glob": "file_list",
    "Grep": "grep_search",
    "Bash": "bash",
    "WebFetch": "web_fetch",
    "WebSearch": "web_search",
    "Agent": "create_subagent",
    "Task": "create_subagent",
    "MultiEdit": "file_edit",
    "LS": "file_list",
    "TodoWrite": "todo",
    "TodoRead": "todo",
    "BashOutput": "jobs",
    "KillBash": "jobs",
    "KillShell": "jobs",
    "TaskOutput": "jobs",
    "TaskStop": "jobs",
    "AskUserQuestion": "ask_user",
    "Skill": "skill",
}
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


def escaped(text: str) -> str:
    """A glob that matches this very text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def is_literal(pattern: str) -> bool:
    """Whether a glob matches one text only."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", pattern))


_MOST_BRACES = 5


class PathGround(Struct, frozen=True):
    """What the beginnings of path globs mean: `./` and none the working directory, `/` the project, `~/` home."""

    cwd: Path
    root: Path
    home: Path


def matches_path(pattern: str, path: Path, ground: PathGround) -> bool:
    """Whether a path glob speaks of an absolute path. `*` stays within a folder, `**` does not.

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
    """Whether `domain:example.org` speaks of a host: itself and what is below it, by whole labels."""
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
