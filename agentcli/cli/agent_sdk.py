"""Reads what a program that uses an Agent SDK of Claude Code asks of its session in its first request."""

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any

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
_FLAGS = (  # fields of the request, and the flags that they stand for
    ("agents", "agents"),
    ("jsonSchema", "json_schema"),
    ("appendSystemPrompt", "append_system_prompt"),
    ("title", "name"),
)


def make_client(id: str, content: dict[str, Any], options: argparse.Namespace, config: Config) -> ControlClient:
    """Return the program that has sent a first request, after setting the flags that the request stands for.

    Raises `UsageError` for a request that makes no sense.
    """
    channel, request = ControlChannel(write_line), content if content["subtype"] == "initialize" else {}
    try:
        options.hosted_servers = [HostedServer(name, channel) for name in _set_flags(request, options)]
        hooks = tuple(callbacks(request.get("hooks") or {}, warn))
    except (AttributeError, TypeError, ValueError, UsageError) as error:
        channel.refuse(id, f"The initialize request is not valid: {error}")
        raise UsageError(f"The initialize request is not valid: {error}") from error
    return ControlClient(
        channel=channel,
        first_id=id,
        hooks=hooks,
        answers_questions=options.permission_prompt_tool == "stdio",
        replays_prompts=options.replay_user_messages,
        shows_hooks=options.include_hook_events,
        reads_state=any(config.environment.get(name) for name in _STATE_VARIABLES),
        transcripts=transcript_folder(config.environment, config.cwd) if options.session_mirror else None,
    )


def _set_flags(request: Mapping[str, Any], options: argparse.Namespace) -> Iterable[str]:
    """Set the flags that a request stands for; return the names of the servers in the program. Raises `UsageError`."""
    for key, flag in _FLAGS:
        if value := request.get(key):
            setattr(options, flag, value if isinstance(value, str) else json.dumps(value))
    prompt = request.get("systemPrompt") or ()  # empty, as `--system-prompt` is, where the program names none
    text = prompt if isinstance(prompt, str) else "\n\n".join(prompt)
    options.system_prompt = text or options.system_prompt or None
    files, servers = field_flags.servers_and_files(options.mcp_config)
    servers |= request.get("mcpServers") or {}
    hosted = [name for name, one in servers.items() if isinstance(one, dict) and one.get("type") == "sdk"]
    others = {name: server for name, server in servers.items() if name not in hosted}
    options.mcp_config = [*files, json.dumps({"mcpServers": others})]
    return dict.fromkeys((*hosted, *map(str, request.get("sdkMcpServers") or ())))
