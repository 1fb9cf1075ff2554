"""Reads the settings of Claude Code: permissions, hooks, the model, and where its server is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentcli.agent.permissions.rule_checks import check_rule
from agentcli.agent.permissions.rules import ELSEWHERE, Verb, parse_rule
from agentcli.cli.importing.draft import LOGIN, NO_SETTING, Draft
from agentcli.errors import UsageError
from agentcli.infra.sandbox.processes.environment import credentials_in
from agentcli.llm.models import bundled_models
from agentcli.settings.paths import from_home
from agentcli.tools.builtin.toolset import builtin_tools

_LISTS: dict[str, Verb] = {"allow": "allow", "ask": "ask", "deny": "deny"}
_BYPASS = "it lets everything run unasked: choose that by hand, for one run (--permission-mode)"


def take_settings(given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    """What a settings.json holds."""
    for key, value in given.items():
        what = f"{source}: {key}"
        match key:
            case "permissions" if isinstance(value, Mapping):
                _take_permissions(value, source, draft)
            case "hooks":
                draft.take_hooks(value, source)
            case "env" if isinstance(value, Mapping):
                _take_environment(value, source, draft)
            case "model":
                _take_model(value, what, draft)
            case "mcpServers":
                draft.take_servers(value, source)
            case "apiKeyHelper":
                draft.leave(what, "agentcli login anthropic keeps a key")
            case "$schema":
                pass
            case _:
                draft.leave(what, NO_SETTING)


def _take_permissions(given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    for key, value in given.items():
        what = f"{source}: permissions.{key}"
        if key in _LISTS and isinstance(value, list):
            for rule in value:
                take_rule(str(rule), _LISTS[key], what, draft)
        elif key == "additionalDirectories" and isinstance(value, list):
            take_folders([str(folder) for folder in value], what, draft, "permissions", "additional_directories")
        elif key == "defaultMode":
            mode = str(value)
            draft.leave(what, _BYPASS) if mode == "bypassPermissions" else draft.take(what, mode, "permissions", "mode")
        else:
            draft.leave(what, NO_SETTING)


def take_rule(text: str, verb: Verb, what: str, draft: Draft) -> None:
    """A rule of permission, if it can hold here."""
    shown = f"{what}: {text}"
    try:
        rule = parse_rule(text)
        check_rule(rule, verb, builtin_tools(), written=text)
    except UsageError as error:
        draft.leave(shown, str(error).removeprefix(f"{text}: ").rstrip("."))
        return
    if rule.tool in ELSEWHERE:
        draft.leave(shown, f"no tool here does what {rule.tool} does there")
    elif not draft.is_project and rule.tool != "bash" and rule.pattern.startswith("/") and rule.pattern[1:2] != "/":
        draft.leave(shown, "there it means the folder of the settings, here each project: write // or ~/")
    else:
        draft.take(shown, [text], "permissions", verb)


def take_folders(folders: list[str], what: str, draft: Draft, *path: str) -> None:
    """Those that are there: with others no session would start. A relative one is meant from wherever one works."""
    for folder in folders:
        if not from_home(folder).is_absolute() and not draft.is_project:
            draft.leave(f"{what}: {folder}", "there it means another folder in each project: name the whole path")
        elif not from_home(folder).is_dir():
            draft.leave(f"{what}: {folder}", "there is no such folder")
        else:
            draft.take(what, [folder], *path)


def _take_environment(given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    for name, value in given.items():
        what = f"{source}: env.{name}"
        match name:
            case "ANTHROPIC_MODEL":
                _take_model(value, what, draft)
            case "ANTHROPIC_BASE_URL":
                draft.take(what, value, "providers", "anthropic", "base_url")
            case _ if credentials_in({name: str(value)}):
                draft.leave(what, LOGIN)
            case _:
                draft.leave(what, "export it in your shell: commands get their variables from there")


def _take_model(given: Any, what: str, draft: Draft) -> None:
    """A model by its id, or by the word for the newest of its kind."""
    id = str(given).removesuffix("[1m]")
    ids = [info.id for info in bundled_models() if info.provider == "anthropic"]
    newest = next((one for one in ids if one.startswith(f"claude-{id}-")), "")
    if id in ids or newest:
        draft.take(what, f"anthropic/{newest or id}", "provider", "model")
    else:
        draft.leave(f"{what} {id}", "no such model is known here; agentcli models list shows them")
