"""Reads the settings of Codex: the model, how much it may do, servers, hooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentcli.cli.importing.claude_code import take_folders
from agentcli.cli.importing.draft import NO_SETTING, Draft
from agentcli.llm.providers.catalog import provider_names

# How often it asks, as the mode here that does the same.
_MODES = {"untrusted": "default", "on-request": "auto", "on-failure": "auto"}


def take_settings(given: Mapping[str, Any], source: Path, draft: Draft) -> None:
    """What a config.toml holds."""
    for key, value in sorted(given.items(), key=lambda item: item[0] == "model"):  # a model needs its provider first
        what = f"{source}: {key}"
        match key:
            case "model":
                _take_model(str(given.get("model_provider", "openai")), value, what, draft)
            case "model_provider":
                pass
            case "model_reasoning_effort":
                draft.take(what, value, "tokens", "effort")
            case "approval_policy" if value in _MODES:
                draft.take(what, _MODES[value], "permissions", "mode")
            case "approval_policy":
                draft.leave(f"{what} {value!r}", "no mode here does the same; docs/permissions.md has those there are")
            case "sandbox_mode" if value == "danger-full-access":
                draft.leave(f"{what} {value!r}", "choose that by hand, for one run (--sandbox)")
            case "sandbox_mode":
                draft.take(what, value, "sandbox", "profile")
            case "sandbox_workspace_write" if isinstance(value, Mapping):
                _take_sandbox(value, what, draft)
            case "model_providers" if isinstance(value, Mapping):
                for name, provider in value.items():
                    _take_provider(name, provider, f"{what}.{name}", draft)
            case "mcp_servers":
                draft.take_servers(as_in_mcp_json(value), source)
            case "hooks":
                draft.take_hooks(value, source)
            case "projects":
                draft.leave(what, "agentcli config trust trusts a project, as its files are then")
            case _:
                draft.leave(what, NO_SETTING)


def _take_model(provider: str, model: Any, what: str, draft: Draft) -> None:
    if not isinstance(model, str):
        draft.leave(what, "it is no name")
    elif provider in provider_names() or provider in draft.values.get("providers", {}):
        draft.take(what, f"{provider}/{model}", "provider", "model")
    else:
        draft.leave(f"{what} {model}", f"its provider {provider} is not known here")


def _take_sandbox(given: Mapping[str, Any], what: str, draft: Draft) -> None:
    for key, value in given.items():
        if key == "writable_roots" and isinstance(value, list):
            take_folders([str(folder) for folder in value], f"{what}.{key}", draft, "sandbox", "writable")
        elif key == "network_access" and value:
            draft.leave(f"{what}.{key}", "hosts are opened by name: sandbox.hosts")
        elif value:
            draft.leave(f"{what}.{key}", NO_SETTING)


def _take_provider(name: str, given: Any, what: str, draft: Draft) -> None:
    if not isinstance(given, Mapping) or given.get("wire_api") == "responses":
        draft.leave(what, "agentcli speaks Chat Completions: if the server does, set base_url in [providers.NAME]")
        return
    for key, value in given.items():
        match key:
            case "base_url":
                draft.take(f"{what}.{key}", value, "providers", name, "base_url")
            case "env_key":
                draft.take(f"{what}.{key}", value, "providers", name, "api_key_env")
            case "http_headers":
                draft.take(f"{what}.{key}", value, "providers", name, "headers")
            case "name" | "wire_api":
                pass
            case _:
                draft.leave(f"{what}.{key}", NO_SETTING)


def as_in_mcp_json(servers: Any) -> Any:
    """Servers with the keys of .mcp.json."""
    if not isinstance(servers, Mapping):
        return {}
    renamed = {}
    for name, given in servers.items():
        table = dict(given) if isinstance(given, Mapping) else {}
        headers = table.pop("http_headers", {})
        if variable := table.pop("bearer_token_env_var", ""):
            headers = {**headers, "Authorization": f"Bearer ${{{variable}}}"}
        renamed[name] = table | ({"headers": headers} if headers else {})
    return renamed
