"""Opens the stream on stdin; the first line shows if a program uses Claude Code's Agent SDK, and may set flags."""

import argparse
import json
import select
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agentcli.cli import claude_code_flags
from agentcli.cli.options import unshared_stdin
from agentcli.cli.output import warn
from agentcli.errors import UsageError
from agentcli.frontends.json_input import InputLines, control_request
from agentcli.settings.load import Config

if TYPE_CHECKING:
    from agentcli.frontends.agent_sdk.output import ControlClient

FIRST_LINE_S = 10.0  # the longest wait for the first line; a program may be waiting for agentcli's output instead
_STATE_VARIABLES = ("CLAUDE_CODE_SDK_READS_SESSION_STATE", "CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS")
_FLAGS = {  # the request's field -> the flag that it sets
    "agents": "agents", "jsonSchema": "json_schema", "appendSystemPrompt": "append_system_prompt", "title": "name",
}  # fmt: skip


class InputStream(Struct, frozen=True):
    """The lines of stdin, and the program that writes them if it uses an Agent SDK."""

    lines: InputLines
    client: "ControlClient | None" = None


async def open_stream(options: argparse.Namespace, config: Config) -> InputStream:
    """Open the stream, and set the flags that a program's first request asks for. Raises `UsageError`."""
    reads_first = _should_read_first_line(options, config.environment)  # before the thread of `InputLines` reads stdin
    lines = InputLines(unshared_stdin())
    return stream_of(lines, await lines.peek(FIRST_LINE_S) if reads_first else None, options, config)


def stream_of(lines: InputLines, first: bytes | None, options: argparse.Namespace, config: Config) -> InputStream:
    """Return the stream of these lines; `first` is the first line if it has been read. Raises `UsageError`."""
    if (request := control_request(first)) is None:
        return InputStream(lines)
    return InputStream(lines, _make_client(*request, options, config))


def _should_read_first_line(options: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Return True if the first line of input has arrived, or if an Agent SDK started this program and will write it.

    Other programs may wait for agentcli's first output before they write a line.
    """
    flags_of_sdk = (options.permission_prompt_tool, options.session_mirror, options.setting_sources)
    if any(flags_of_sdk) or environment.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        return True
    return sys.stdin is not None and bool(select.select([sys.stdin], [], [], 0)[0])


def _make_client(first_id: str, first: dict[str, Any], options: argparse.Namespace, config: Config) -> "ControlClient":
    """Return the client for a program with an Agent SDK, whose first request may set flags. Raises `UsageError`."""
    from agentcli.frontends.agent_sdk.callbacks import ControlChannel, HostedServer, read_callbacks
    from agentcli.frontends.agent_sdk.output import ControlClient
    from agentcli.frontends.agent_sdk.transcripts import transcript_folder
    from agentcli.frontends.json_output import write_line

    channel = ControlChannel(write_line)
    request = first if first["subtype"] == "initialize" else {}  # only this request sets flags and hooks
    try:
        options.hosted_servers = [HostedServer(name, channel) for name in _set_flags(request, options)]
        hooks = tuple(read_callbacks(request.get("hooks") or {}, warn))
    except (AttributeError, TypeError, ValueError, UsageError) as error:
        channel.respond_with_error(first_id, f"The initialize request is not valid: {error}")
        raise UsageError(f"The initialize request is not valid: {error}") from error
    return ControlClient(
        channel=channel,
        first_id=first_id,
        hooks=hooks,
        answers_questions=options.permission_prompt_tool == "stdio",
        replays_prompts=options.replay_user_messages,
        shows_hooks=options.include_hook_events,
        reads_state=any(config.environment.get(name) for name in _STATE_VARIABLES),  # whether agentcli runs or is idle
        # With `--session-mirror`, the program gets each entry, because it stores the session, too.
        transcripts=transcript_folder(config.environment, config.cwd) if options.session_mirror else None,
    )


def _set_flags(request: Mapping[str, Any], options: argparse.Namespace) -> Iterable[str]:
    """Set the flags that a request asks for; return names of MCP servers its sender hosts. Raises `UsageError`."""
    for key, flag in _FLAGS.items():
        if value := request.get(key):
            setattr(options, flag, value if isinstance(value, str) else json.dumps(value))
    prompt = request.get("systemPrompt") or ()  # a text or a list of texts
    text = prompt if isinstance(prompt, str) else "\n\n".join(prompt)
    options.system_prompt = text or options.system_prompt or None
    files, servers = claude_code_flags.servers_and_files(options.mcp_config)
    servers |= request.get("mcpServers") or {}
    hosted = [name for name, one in servers.items() if isinstance(one, dict) and one.get("type") == "sdk"]
    others = {name: server for name, server in servers.items() if name not in hosted}
    options.mcp_config = [*files, json.dumps({"mcpServers": others})]
    return dict.fromkeys((*hosted, *map(str, request.get("sdkMcpServers") or ())))
