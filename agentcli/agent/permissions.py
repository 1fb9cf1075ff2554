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
    """`tool` and a glob over its subject (a path, or a whole simple command); an empty glob matches every call.

    `source` is where it comes from, in a word for the person.
    """

    tool: str
    pattern: str = ""
    source: str = ""

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


def parse_rule(text: str, source: str = "") -> Rule:
    """`bash(git log *)`, `Edit(src/**)`, `file_write`. Raises `UsageError`."""
    found = re.fullmatch(r"\s*([A-Za-z_][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not found:
        raise UsageError(f"{text!r} is not a permission rule: write TOOL or TOOL(pattern), such as bash(git log *).")
    name, pattern = found.groups()
    return Rule(_ALIASES.get(name, name), re.sub(r":\*$", " *", (pattern or "").strip()), source)


def parse_mode(text: str) -> Mode:
    """Raises `UsageError` naming the modes there are."""
    if text not in MODES:
        raise UsageError(f"No permission mode {text!r}; there is {', '.join(MODES)}.")
    return text


def judge(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> Verdict:
    """Whether this call runs, is refused, or needs a person's yes. The catastrophic is refused in every mode."""
    subject = subject_of(arguments)
    if tool.effect == "command" and (why := catastrophe(subject)):
        return Verdict("deny", f"refused in every mode: {why}")
    if matching := next((rule for rule in rules.deny if _denies(rule, tool, subject, workspace)), None):
        return Verdict("deny", f"the rule {matching} denies it")
    if tool.effect in ("none", "read"):
        return Verdict("allow", "it only looks")
    if mode == "bypassPermissions":
        return Verdict("allow", "permissions are bypassed")
    if tool.effect == "command" and is_harmless(subject, workspace, cwd=getattr(arguments, "cwd", None)):
        return Verdict("allow", "the command only reads inside the workspace")
    if mode == "plan":
        return Verdict("deny", "plan mode reads only: describe the change instead of making it")
    if matching := next((rule for rule in rules.allow if _allows(rule, tool, subject, workspace)), None):
        return Verdict("allow", f"the rule {matching} allows it")
    if tool.effect == "edit" and mode in ("acceptEdits", "auto"):
        return Verdict("allow", "edits inside the workspace are accepted")
    reason = "it changes a file" if tool.effect == "edit" else "the command is not known to be harmless"
    return Verdict("deny" if mode == "dontAsk" else "ask", reason)


def subject_of(arguments: Any) -> str:
    """What a call is about: its command, or its path."""
    return str(getattr(arguments, "command", None) or getattr(arguments, "path", None) or "")


# A path refused to one tool is refused to those that do the same to it.
_SAME_FOR_PATHS = {"read": ("file_read",), "edit": ("file_edit", "file_write")}


def _denies(rule: Rule, tool: Tool, subject: str, workspace: Workspace) -> bool:
    """Whether a refusal speaks of this call: of any part of a command, of a path under any of its names."""
    if not rule.pattern:
        return rule.tool == tool.name
    if rule.tool != tool.name and rule.tool not in _SAME_FOR_PATHS.get(tool.effect, ()):
        return False
    if tool.effect == "command":
        parts = [subject, *re.split(r"[;&|\n()`]+", subject)]
        return any(_glob(" ".join(part.split()), rule.pattern) for part in parts)
    return any(_glob(name, rule.pattern) for name in (subject, f"./{subject}", *_real_names(subject, workspace)))


def _allows(rule: Rule, tool: Tool, subject: str, workspace: Workspace) -> bool:
    """Whether a grant speaks of this call: a glob covers one simple command only, or a path where it really leads."""
    if rule.tool != tool.name:
        return False
    if not rule.pattern:
        return True
    if tool.effect == "command":
        command = subject.strip()
        return rule.pattern == escaped(command) or (simple_words(command) is not None and _glob(command, rule.pattern))
    return any(_glob(name, rule.pattern) for name in _real_names(subject, workspace))


def _real_names(path: str, workspace: Workspace) -> tuple[str, ...]:
    """The ways to write where a path leads; none for one outside the workspace."""
    try:
        real = workspace.readable(path)
    except ToolError:
        return ()
    shown = workspace.shown(real)
    return (shown, f"./{shown}", str(real))


def _glob(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern) or (pattern.endswith(" *") and text == pattern[:-2])


def escaped(text: str) -> str:
    """A glob that matches this very text."""
    return re.sub(r"([*?[])", r"[\1]", text)


def simple_words(command: str) -> list[str] | None:
    """The words of a single command without any shell syntax or hidden character; None for everything else."""
    if re.search(r"[;&|<>$`(){}\[\]*?~#!\\]", command) or not command.replace("\t", " ").isprintable():
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
    "git": ("--output", "--ext-diff", "--textconv", "--filters", "-O", "--open-files-in-pager"),
    "rg": ("--pre", "--hostname-bin", "--search-zip", "-z", "--follow", "-L"),
    "grep": ("-R", "--dereference-recursive"),
    "egrep": ("-R", "--dereference-recursive"),
    "fgrep": ("-R", "--dereference-recursive"),
    "date": ("-s", "--set"),
    "file": ("-C", "--compile", "-m", "--magic-file"),
    "diff": ("--to-file", "--from-file"),
}
_UNSAFE_WORDS = {
    "date": re.compile(r"\d+(\.\d+)?"),  # sets the clock
    "hostname": re.compile(r".*"),
    "ps": re.compile(r"[^-]*e.*|-.*E.*|.*env.*"),  # shows the environment of processes
}
_SECRET_FILE = re.compile(
    r"(^|[/:=])(\.env(\.(?!example|sample|template)[^/]*)?|\.netrc|id_(rsa|dsa|ecdsa|ed25519)|[^/]*\.(pem|key))$"
)


def is_harmless(command: str, workspace: Workspace, *, cwd: str | None = None) -> bool:
    """Whether a command provably only reads, and only inside the workspace; `cwd` is where the call starts it."""
    try:
        start = workspace.readable(cwd) if cwd else (workspace.shell_cwd or workspace.cwd)
    except ToolError:
        return False
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
    if any(_sets(word, flag) for flag in _UNSAFE_FLAGS.get(program, ()) for word in rest):
        return False
    if (unsafe := _UNSAFE_WORDS.get(program)) and any(unsafe.fullmatch(word) for word in rest):
        return False
    return program in ("echo", "printf") or all(_stays_inside(word, start, workspace) for word in rest)


def _sets(word: str, flag: str) -> bool:
    """Whether a word sets a flag: `-z` also among others (`-nz`), `--pre` also with a value or cut short (`--pr`)."""
    if flag.startswith("--"):
        name = word.partition("=")[0]
        return len(name) > 2 and flag.startswith(name)
    return re.match(rf"-\w*{flag[1]}", word) is not None


def _stays_inside(word: str, start: Path, workspace: Workspace) -> bool:
    """Whether a word, should it be a path, is one inside the workspace; a flag's value counts too."""
    for part in {word, word.partition("=")[2]} if word.startswith("-") else {word}:
        if part.startswith("-") and "/" in part:
            return False
        if not part or part.startswith("-"):
            continue
        if _SECRET_FILE.search(part):
            return False
        try:
            workspace.sandbox.validate_path(start / Path(part), "read")
        except ToolError:
            return False
    return True


# Where a command's name can stand: at the beginning of a part, behind a wrapper, in a script given as an argument.
_NAME = (
    r"(?:^|(?<!&&)[;&|)`\n]|\{[ \t]|(?<!'\$)\(|-c[ \t]+[\"']|\btrap[ \t]+[\"'])[ \t]*"
    r"(?:(?:do|then|else|exec|command|env|sudo|doas|time|timeout|nohup|nice|ionice|setsid|busybox|xargs)\b"
    r"[^;&|\n\"']{0,199}[ \t])?[\"']?(?:[\w./-]*/)?"
)
_DISK = r"/dev/(?:sd|nvme|hd|vd|xvd|mmcblk|disk)\w*"
_SYSTEM = r"(?:home|usr|etc|var|bin|sbin|lib|lib64|boot|root|opt|dev|proc|sys|Users|System|Library)"
_EVERYTHING = rf"[\"']?(?:/+{_SYSTEM}?|~|\$HOME|\$\{{HOME\}})[\"']?(?:/+\*?|\*)?(?=[\s;&|)`\"']|$)"
# Bounded everywhere: a command can be megabytes long.
_ARGUMENTS = r"(?:\"[^\"`]{0,999}\"|'[^'`]{0,999}'|[^;&|(`{\n\"']|\{(?![ \t])){0,499}?"
_CATASTROPHES = (
    (rf"{_NAME}rm[\"']?[ \t]{_ARGUMENTS}(?<=[ \t]){_EVERYTHING}", "it deletes everything"),
    (r"--no-preserve-root", "it deletes everything"),
    (rf"{_NAME}mkfs(?:\.\w+)?[ \t]", "it formats a disk"),
    (rf"{_NAME}(?:dd[ \t]{_ARGUMENTS}\bof=|shred[ \t]{_ARGUMENTS}){_DISK}", "it overwrites a disk"),
    (rf">[ \t]*{_DISK}", "it overwrites a disk"),
    (r">[ \t]*/proc/sysrq-trigger", "it stops the machine"),
    (r":\s*\(\s*\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;\s*:", "it is a fork bomb"),
    (
        rf"{_NAME}(?:chmod|chown)[ \t]+(?:-\w+[ \t]+)*-[A-Za-z]{{0,9}}R\w*[ \t]+\S+[ \t]+{_EVERYTHING}",
        "it changes the whole system's permissions",
    ),
)


def catastrophe(command: str) -> str:
    """Why a command is never run, or an empty string."""
    command = _without_here_documents(command)
    return next((why for pattern, why in _CATASTROPHES if re.search(pattern, command)), "")


def _without_here_documents(command: str) -> str:
    """The command without the texts that stand behind `<<END`: they are data."""
    lines = command.split("\n")
    last = {line.strip(): number for number, line in enumerate(lines)}
    kept, end = [], ""
    for number, line in enumerate(lines):
        if end:
            end = "" if line.strip() == end else end
            continue
        kept.append(line)
        found = re.search(r"(?<!<)<<-?[ \t]*([\"']?)(\w+)\1", line)
        if found and last.get(found[2], -1) > number:
            end = found[2]
    return "\n".join(kept)
