"""Checks what the person and the project bring: hooks, skills, agents, rules, folders, instruction files."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agentcli.cli.doctor.finding import Check, Said, Subject, problem, warning
from agentcli.errors import ConfigError, ToolError, UserError
from agentcli.extensions.hooks.config import Hooks
from agentcli.extensions.mcp.config import EXTRA, expanded, server_specs, texts_of
from agentcli.extensions.skills.config import Skills
from agentcli.extensions.subagents.config import Agents
from agentcli.settings.paths import from_home, project_root

_INTERPRETERS = ("bash", "sh", "zsh", "python", "python3", "node", "ruby", "perl")


def hooks(subject: Subject) -> Iterator[Said]:
    told: list[str] = []
    try:
        specs = Hooks(subject.config, is_bare=False, tell=told.append).specs
    except ConfigError as error:
        yield problem(str(error), "Correct the file (docs/hooks.md): no session starts with it.")
        return
    for text in told:
        yield warning(text, "Correct it as docs/hooks.md says, or take it out.")
    for spec in specs:
        if missing := _missing_in(spec.command, subject):
            yield problem(
                f"{spec.source}: hooks.{spec.event}: {missing} is not there, or cannot be run ({spec.command}).",
                "Correct the command, or install what it names; agentcli hooks test runs it.",
            )


def _missing_in(command: str, subject: Subject) -> str:
    """The program of a hook, or the script it is given to, that is not there; empty where nobody can tell."""
    root = str(project_root(subject.config.cwd))
    for name in ("AGENTCLI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"):
        command = command.replace(f"${{{name}}}", root).replace(f"${name}", root)
    try:
        words = [os.path.expanduser(word) for word in shlex.split(command)]  # noqa: PTH111 - words, not paths
    except ValueError:
        return command
    if not words or any(mark in words[0] for mark in "$`={}()|;&<>*"):
        return ""
    found = subprocess.run(
        ["/bin/sh", "-c", 'command -v -- "$1"', "sh", words[0]],
        cwd=subject.config.cwd,
        env=subject.config.environment,
        capture_output=True,
        check=False,
    )
    if found.returncode:
        return words[0]
    script = words[1] if len(words) > 1 and Path(words[0]).name in _INTERPRETERS else ""
    is_path = "/" in script and not any(mark in script for mark in "$`*")
    return script if is_path and not (subject.config.cwd / script).exists() else ""


def skills(subject: Subject) -> Iterator[Said]:
    catalog = Skills(subject.config, is_bare=False, tell=lambda text: None).catalog
    for one in catalog.left_out:
        yield warning(f"The skill in {one.folder} is left out: {one.why}.", "agentcli skills validate says more.")


def agents(subject: Subject) -> Iterator[Said]:
    found = Agents(subject.config, is_bare=False, is_lasting=False, tell=lambda text: None).definitions
    for one in found.left_out:
        yield warning(f"{one.file} defines no agent: {one.why}.", "Correct it as docs/subagents.md says.")


def servers(subject: Subject) -> Iterator[Said]:
    """MCP servers that cannot be started; none is started for that."""
    told: list[str] = []
    try:
        specs = server_specs(subject.config, told.append)
    except ConfigError as error:
        yield problem(str(error), "Correct the file (docs/mcp.md): no session starts with it.")
        return
    for text in told:
        yield warning(text, "Correct it as docs/mcp.md says, or take it out.")
    if specs and find_spec("mcp") is None:
        yield problem(f"{len(specs)} MCP servers are configured, and the extra mcp is not installed.", EXTRA)
    for spec in specs:
        try:
            texts = [expanded(text, subject.config.environment) for text in texts_of(spec)]
        except ToolError as error:
            yield warning(f"{spec.source}: the MCP server {spec.name}: {error}", "Set it where you start agentcli.")
            continue
        if spec.type == "stdio" and subject.program(texts[0]) is None:
            yield problem(
                f"{spec.source}: the MCP server {spec.name}: {texts[0]} is not there, or cannot be run.",
                f"Install it, or name it with its path; agentcli mcp get {spec.name} tries it.",
            )


def rules(subject: Subject) -> Iterator[Said]:
    """Rules that can never match are errors, those about what is not there yet are warnings."""
    told: list[str] = []
    try:
        subject.builder(told.append).rules()
    except UserError as error:
        yield problem(str(error), "Correct the rule: docs/permissions.md; agentcli permissions explain tries it.")
    for text in told:
        yield warning(text, "Take the rule out if it means nothing: /permissions forget RULE for a grant.")


def folders(subject: Subject) -> Iterator[Said]:
    for name in subject.config.settings.permissions.additional_directories:
        if not (folder := subject.config.cwd / from_home(name)).is_dir():
            error = subject.config.error(f"{folder} is no folder.", "permissions.additional_directories", item=name)
            yield problem(str(error), "Correct it, make it, or take it out: no session starts with it.")


def instructions(subject: Subject) -> Iterator[Said]:
    for notice in subject.builder(lambda text: None).opening.instructions().notices:
        yield warning(notice, "Make it shorter, or move parts into skills or nearer folders.")


CHECKS: dict[str, Check] = {
    "hooks": hooks,
    "skills": skills,
    "agents": agents,
    "MCP servers": servers,
    "rules": rules,
    "folders": folders,
    "instructions": instructions,
}
