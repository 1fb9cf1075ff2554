"""The rules a person is offered when a call asks: from this very call to all that is like it, never wider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from agentcli.agent.permissions import Mode, Rule, Rules, escaped, judge, parse_rule, simple_words, subject_of
from agentcli.errors import ToolError, UsageError
from agentcli.tools.tool import Tool, Workspace

# Programs whose second word says what they do, so that `git push *` is a promise somebody can judge.
_WITH_SUBCOMMANDS = frozenset(
    (
        "apt apt-get brew bundle cargo composer conda deno docker dotnet gh git glab go gradle helm hg just kubectl "
        "meson mix npm nx pip pip3 pipx pnpm podman poetry pdm rustup svn systemctl task terraform tox turbo uv yarn"
    ).split()
)
# Subcommands that run whatever they are given, or change what later commands run.
_RUN_ANYTHING = frozenset(
    "alias bisect config difftool dlx exec filter-branch mergetool rebase rsh run-script submodule x".split()
)
_RUN_ANYTHING_HERE = {
    ("deno", "eval"), ("deno", "run"), ("docker", "run"), ("go", "run"), ("go", "generate"), ("pdm", "run"),
    ("pipx", "run"), ("podman", "run"), ("poetry", "run"), ("uv", "run"), ("uv", "tool"), ("kubectl", "run"),
    ("conda", "run"),
}  # fmt: skip


def rule_candidates(tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> tuple[str, ...]:
    """Rules that would have let this call through, narrowest first, each as `parse_rule` reads it."""
    subject = subject_of(arguments)
    texts = _commands(tool.name, subject) if tool.effect == "command" else _paths(tool.name, subject, workspace)
    found = dict.fromkeys(text for text in texts if _lets_through(text, tool, arguments, mode, rules, workspace))
    return tuple(found)


def _lets_through(text: str, tool: Tool, arguments: Any, mode: Mode, rules: Rules, workspace: Workspace) -> bool:
    try:
        rule = parse_rule(text)
    except UsageError:
        return False
    with_it = Rules([*rules.allow, rule], rules.deny)
    return judge(tool, arguments, mode, with_it, workspace).decision == "allow"


def _commands(tool: str, command: str) -> Iterator[str]:
    """The very command; with a known subcommand also what begins with its first words."""
    if not command.strip():
        yield tool
        return
    yield str(Rule(tool, escaped(command.strip())))
    words = simple_words(command)
    if words is None or len(words) < 3 or not _has_subcommand(words[0], words[1]):
        return
    for length in (3, 2):
        if len(words) > length:
            yield str(Rule(tool, f"{' '.join(words[:length])} *"))


def _has_subcommand(program: str, word: str) -> bool:
    if program not in _WITH_SUBCOMMANDS or not word.replace("-", "").isalpha() or word.startswith("-"):
        return False
    return word not in _RUN_ANYTHING and (program, word) not in _RUN_ANYTHING_HERE


def _paths(tool: str, path: str, workspace: Workspace) -> Iterator[str]:
    """The very file, its folder, every file."""
    try:
        shown = PurePosixPath(workspace.shown(workspace.readable(path))) if path else None
    except ToolError:
        shown = None
    if shown is not None:
        yield str(Rule(tool, escaped(str(shown))))
        if str(shown.parent) != ".":
            yield str(Rule(tool, f"{escaped(str(shown.parent))}/*"))
    yield tool
