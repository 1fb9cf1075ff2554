"""Holds what a caller adds to the configuration of a session: tools, hooks, stores, a sandbox of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agentcli.agent.hooks import CallHooks, TurnHooks
from agentcli.agent.interfaces import Locks
from agentcli.agent.runtime import ContextPolicy, ContextTransform, Resolve, unchanged
from agentcli.setup.client_files import ClientFiles
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Tool

if TYPE_CHECKING:
    from agentcli.agent.answer_schema import AnswerSchema
    from agentcli.extensions.mcp.client import MCPClient
    from agentcli.tools.web.searching import SearchProvider


class Extras(Struct, frozen=True):
    """What a caller adds to the configuration. `system_prompt` replaces the system text; `bare` reads no AGENTS.md.

    `brings_tools`: tools may come with a prompt, so that a rule may name one that is not there yet. `mcp_config` is a
    file of MCP servers, the only ones with `is_strict_mcp`, and `mcp_servers` are further ones in its form.
    `client_files` makes those of a session by its id. The others are as in `Agent`.
    """

    system_prompt: str | None = None
    append_system_prompt: str = ""
    bare: bool = False
    tools: tuple[Tool, ...] = ()
    hooks: TurnHooks | None = None
    brings_tools: bool = False
    search: SearchProvider | None = None
    call_hooks: tuple[CallHooks, ...] = ()
    locks: Locks | None = None
    resolve: Resolve | None = None
    context_policy: ContextPolicy | None = None
    context_transform: ContextTransform = unchanged
    sandbox: Sandbox | None = None
    skill_folders: tuple[Path, ...] = ()
    answer_schema: AnswerSchema | None = None
    mcp_config: str = ""
    mcp_servers: Mapping[str, Any] = {}
    is_strict_mcp: bool = False
    mcp_clients: tuple[MCPClient, ...] = ()
    client_files: Callable[[str], ClientFiles] | None = None
