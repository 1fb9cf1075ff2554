"""Decides whether a call may run: by mode, by rule, else by asking."""

from __future__ import annotations

import fnmatch
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from agentcli.errors import ToolError, UsageError
from agentcli.tools.tool import Tool, Workspace

Mode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
MODES: tuple[Mode, ...] = get_args(Mode)


class Verdict(Struct, frozen=True):
    decision: Literal["allow", "ask", "deny"]
    reason: str


class Rule(Struct, frozen=True):
    """`tool` and a glob over its subject (a path, or a whole simple command); an empty glob matches every call."""

    tool: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.tool}({self.pattern})" if self.pattern else self.tool


@dataclass
class Rules:
    """What was granted and refused ahead; a refusal wins."""

    allow: list[Rule] = field(default_factory=list)
    deny: list[Rule] = field(default_factory=list)


# The names other agents' settings use for the same tools.
_ALIASES = {
    "Read": "file_read",
    "Write": "file_write",
    "Edit": "file_edit",
    "Glob": "file_list",
    "Grep": "grep_search",
    "Bash": "bash",
}


def parse_rule(text: str) -> Rule:
    """`bash(git log *)`, `Edit(src/**)`, `file_write`. Raises `UsageError`."""
    found = re.fullmatch(r"\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not found:
        raise UsageError(f"{text!r} is not a permission rule: write TOOL or TOOL(pattern), such as bash(git log *).")
    name, pattern = found.groups()
    return Rule(_ALIASES.get(name, name), (pattern or "").replace(":*", " *").strip())


def parse_mode(text: str) -> Mode:
    """Raises `UsageError` naming the modes there are."""
    if text not in MODES:
        raise UsageError(f"No permission mode {text!r}; there is {', '.join(MODES)}.")
    return text


def judge(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    """Whether this call runs, is refused, or needs a person's yes. The catastrophic is refused in every mode."""
    subject = _subject(arguments)
    if tool.effect == "command" and (why := catastrophe(subject)):
        return Verdict("deny", f"refused in every mode: {why}")
    if matching := next((rule for rule in rules.deny if _matches(rule, tool, subject, whole=False)), None):
        return Verdict("deny", f"the rule {matching} denies it")
    if tool.effect in ("none", "read"):
        return Verdict("allow", "it only looks")
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed")
    harmless = tool.effect == "command" and is_harmless(subject, workspace)
    if harmless:
        return Verdict("allow", "the command only reads inside the workspace")
    if mode == "plan":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if matching := next((rule for rule in rules.allow if _matches(rule, tool, subject, whole=True)), None):
        return Verdict("allow", f"the rule {matching} allows it")
    if tool.effect == "edit" and mode in ("acceptEdits", "auto"):
        return Verdict("allow", "edits inside the workspace are accepted")
    reason = "it changes a file" if tool.effect == "edit" else "the command is not known to be harmless"
    return Verdict("deny" if mode == "dontAsk" else "ask", reason)


def _subject(arguments: Any) -> str:
    return str(getattr(arguments, "command", None) or getattr(arguments, "path", None) or "")


def _matches(rule: Rule, tool: Tool, subject: str, *, whole: bool) -> bool:
    """Whether a rule speaks of this call. An allow rule (`whole`) covers only a command that is one simple command."""
    if rule.tool != tool.name:
        return False
    if not rule.pattern:
        return True
    if tool.effect == "command":
        if whole and simple_words(subject) is None:
            return False
        subjects = [subject] if whole else re.split(r"[;&|\n()`]+", subject)
        return any(_glob(part.strip(), rule.pattern) for part in subjects)
    return _glob(subject, rule.pattern) or _glob(f"./{subject}", rule.pattern)


def _glob(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern) or (pattern.endswith(" *") and text == pattern[:-2])


def grant_for(tool: Tool, arguments: Any) -> Rule:
    """The rule that "for this session" adds: this very command, or every edit by this tool."""
    return Rule(tool.name, _escaped(_subject(arguments)) if tool.effect == "command" else "")


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def simple_words(command: str) -> list[str] | None:
    """The words of a single command without any shell syntax; None for everything else."""
    if re.search(r"[;&|<>$`(){}\[\]*?~#!\\\n\r]", command):
        return None
    try:
        return shlex.split(command)
    except ValueError:
        return None


# Programs that change nothing whatever their arguments are; those with dangerous flags are judged below.
_READERS = frozenset(
    (
        "echo pwd ls cat head tail wc grep egrep fgrep rg which type true false date whoami id uname hostname "
        "basename dirname stat file du df diff cmp cut tr nl tac rev fold column comm join paste seq sleep md5sum "
        "sha1sum sha256sum printf realpath readlink arch nproc uptime free ps"
    ).split()
)
_GIT_READERS = frozenset(
    ("status", "log", "diff", "show", "blame", "ls-files", "ls-tree", "rev-parse", "describe", "shortlog", "cat-file")
)
_UNSAFE_FLAGS = {
    "git": ("--output", "--ext-diff", "--textconv", "-O", "--open-files-in-pager"),
    "rg": ("--pre", "--hostname-bin", "--search-zip", "-z"),
    "date": ("-s", "--set"),
    "file": ("-C", "--compile", "-m", "--magic-file"),
    "hostname": ("-F", "--file", "-b"),
    "diff": ("--to-file", "--from-file"),
}


def is_harmless(command: str, workspace: Workspace) -> bool:
    """Whether a command provably only reads, and only inside the workspace."""
    words = simple_words(command)
    if not words or "=" in words[0]:
        return False
    program, rest = words[0], words[1:]
    if program == "git":
        if not rest or rest[0] not in _GIT_READERS:
            return False
        rest = rest[1:]
    elif program not in _READERS:
        return False
    if program == "hostname" and rest:
        return False
    if any(
        word == flag or word.startswith((f"{flag}=", flag if len(flag) == 2 else f"{flag}="))
        for flag in _UNSAFE_FLAGS.get(program, ())
        for word in rest
    ):
        return False
    return program in ("echo", "printf") or all(_stays_inside(word, workspace) for word in rest)


def _stays_inside(word: str, workspace: Workspace) -> bool:
    """Whether a word, should it be a path, is one inside the workspace; a flag's value counts too."""
    for part in {word, word.partition("=")[2]} if word.startswith("-") else {word}:
        if part.startswith("-") and "/" in part:
            return False
        if not part or part.startswith("-"):
            continue
        try:
            start = workspace.shell_cwd or workspace.cwd
            workspace.sandbox.readable(start / Path(part))
        except ToolError:
            return False
    return True


_CATASTROPHES = (
    (
        r"\brm\s+(-\w+\s+|--\S+\s+)*(-\w*[rR]\w*|--recursive)\s+(-\S+\s+)*[\"']?(/|/\*|~/?|\$HOME/?|\$\{HOME\}/?)[\"']?\s*($|[;&|])",
        "it deletes everything",
    ),
    (r"--no-preserve-root", "it deletes everything"),
    (r"\bmkfs(\.\w+)?\s", "it formats a disk"),
    (r"\bdd\b.*\bof=/dev/(sd|nvme|hd|vd|xvd|mmcblk|disk)", "it overwrites a disk"),
    (r">\s*/dev/(sd|nvme|hd|vd|xvd|mmcblk)\w*", "it overwrites a disk"),
    (r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:", "it is a fork bomb"),
    (r"\b(chmod|chown)\s+(-\w+\s+)*-\w*R\w*\s+\S+\s+/\s*($|[;&|])", "it changes the whole system's permissions"),
)


def catastrophe(command: str) -> str:
    """Why a command is never run, or an empty string."""
    return next((why for pattern, why in _CATASTROPHES if re.search(pattern, command)), "")
