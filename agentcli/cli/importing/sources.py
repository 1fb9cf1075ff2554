"""Finds what other tools were told on this machine, for the person or for a project, and drafts what to make of it."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentcli.cli.importing import claude_code, codex
from agentcli.cli.importing.draft import Draft
from agentcli.settings.files import LARGEST_SMALL_FILE, is_file, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of, project_root

Take = Callable[[Mapping[str, Any], Path, Draft], None]
TOOLS = ("claude-code", "codex")


def drafts(config: Config, tools: tuple[str, ...], *, is_project: bool) -> list[Draft]:
    """One for each file that would be changed; a project's local settings have one of their own."""
    environment, home, root = config.environment, home_of(config.environment), project_root(config.cwd)
    claude = Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    codex_home = Path(environment.get("CODEX_HOME") or home / ".codex")
    shared = Draft(root / ".agentcli/config.toml" if is_project else config.paths.user_config, is_project=is_project)
    local = Draft(root / ".agentcli/config.local.toml", is_project=True)
    found: list[tuple[str, Path, Take, Draft]] = [
        ("claude-code", root / ".claude/settings.json", claude_code.take_settings, shared),
        ("claude-code", root / ".claude/settings.local.json", claude_code.take_settings, local),
        ("claude-code", home / ".claude.json", lambda *given: _take_of_project(root, *given), local),
        ("codex", root / ".codex/config.toml", codex.take_settings, shared),
    ]
    if not is_project:
        found = [
            ("claude-code", claude / "settings.json", claude_code.take_settings, shared),
            ("claude-code", home / ".claude.json", _take_servers, shared),
            ("codex", codex_home / "config.toml", codex.take_settings, shared),
        ]
    for tool, file, take, draft in found:
        if tool in tools and is_file(file) and (given := _read(file, draft)) is not None:
            take(given, file, draft)
    if not is_project and "codex" in tools:
        _copy_instructions(codex_home / "AGENTS.md", config.paths.config / "AGENTS.md", shared)
    return [shared, local] if is_project else [shared]


def _read(file: Path, draft: Draft) -> Mapping[str, Any] | None:
    try:
        text = read_small_file(file, most=64 * LARGEST_SMALL_FILE).decode("utf-8-sig")
        given = tomllib.loads(text) if file.suffix == ".toml" else msgspec.json.decode(text)
    except (OSError, ValueError, RecursionError) as error:
        draft.leave(file, f"it could not be read ({error})")
        return None
    return given if isinstance(given, Mapping) else {}


def _take_servers(given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    """Of that file no more is settings: it is mostly what Claude Code remembers."""
    draft.take_servers(given.get("mcpServers"), source)


def _take_of_project(root: Path, given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    """What it remembers of a project."""
    projects = given.get("projects")
    project = projects.get(str(root)) if isinstance(projects, Mapping) else None
    if isinstance(project, Mapping):
        draft.take_servers(project.get("mcpServers"), source)
        for rule in project.get("allowedTools") or ():
            claude_code.take_rule(str(rule), "allow", f"{source}: allowedTools", draft)


def _copy_instructions(source: Path, target: Path, draft: Draft) -> None:
    if not is_file(source):
        return
    try:
        text = read_small_file(source).decode("utf-8")
    except (OSError, ValueError) as error:
        draft.leave(source, f"it could not be read ({error})")
        return
    if not target.exists():
        draft.copies[target] = text
    elif target.read_bytes() != text.encode():
        draft.leave(source, f"{target} is there already")
