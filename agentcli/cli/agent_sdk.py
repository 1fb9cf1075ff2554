"""Reads what a program that uses an Agent SDK of Claude Code asks of its session in its first request."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from agentcli.cli import field_flags
from agentcli.cli.output import warn
from agentcli.errors import UsageError
from agentcli.frontends.agent_sdk.channel import ControlChannel
from agentcli.frontends.agent_sdk.hooks import callbacks
from agentcli.frontends.agent_sdk.output import ControlClient
from agentcli.frontends.agent_sdk.servers import HostedServer
from agentcli.frontends.agent_sdk.transcripts import transcript_folder
from agentcli.frontends.json_stream import write_line
from agentcli.settings.load import Config

_STATE_VARIABLES = ("CLAUDE_CODE_SDK_READS_SESSION_STATE", "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS")


class InitializeRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The first request: what the program has and asks for; unknown fields are ignored."""

    hooks: dict[str, list[dict[str, Any]] | None] | None = None
    sdk_mcp_servers: tuple[str, ...] | None = None
    mcp_servers: dict[str, Any] | None = None
    agents: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    system_prompt: str | tuple[str, ...] | None = None
    append_system_prompt: str | None = None
    title: str | None = None


def make_client(id: str, content: dict[str, Any], options: argparse.Namespace, config: Config) -> ControlClient:
    """Return the program that has sent a first request, after setting the flags that the request stands for.

    Raises `UsageError` for a request that makes no sense.
    """
    channel = ControlChannel(write_line)
    try:
        request = msgspec.convert(content if content["subtype"] == "initialize" else {}, InitializeRequest)
        options.hosted_servers = [HostedServer(name, channel) for name in _set_flags(request, options)]
    except (msgspec.ValidationError, UsageError) as error:
        channel.refuse(id, str(error))
        raise UsageError(f"The initialize request is not valid: {error}") from error
    return ControlClient(
        channel=channel,
        first_id=id,
        hooks=tuple(callbacks(request.hooks or {}, warn)),
        answers_questions=options.permission_prompt_tool == "stdio",
        replays_prompts=options.replay_user_messages,
        shows_hooks=options.include_hook_events,
        reads_state=any(config.environment.get(name) for name in _STATE_VARIABLES),
        transcripts=transcript_folder(config.environment, config.cwd) if options.session_mirror else None,
    )


def _set_flags(request: InitializeRequest, options: argparse.Namespace) -> Iterable[str]:
    """Set the flags that a request stands for; return the names of the servers in the program. Raises `UsageError`."""
    text = request.system_prompt if isinstance(request.system_prompt, str) else "\n\n".join(request.system_prompt or ())
    # The SDKs send an empty prompt where the program names none.
    options.system_prompt = text or options.system_prompt or None
    options.append_system_prompt = request.append_system_prompt or options.append_system_prompt
    options.name = request.title or options.name
    options.json_schema = json.dumps(request.json_schema) if request.json_schema else options.json_schema
    options.agents = json.dumps(request.agents) if request.agents else options.agents
    files, servers = field_flags.servers_and_files(options.mcp_config)
    servers |= request.mcp_servers or {}
    hosted = [name for name, one in servers.items() if isinstance(one, dict) and one.get("type") == "sdk"]
    others = {name: server for name, server in servers.items() if name not in hosted}
    options.mcp_config = [*files, json.dumps({"mcpServers": others})]
    return dict.fromkeys((*hosted, *(request.sdk_mcp_servers or ())))
