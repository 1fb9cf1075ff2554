"""Answers the control requests of an Agent SDK that ask about a session, its servers, its files and its tasks."""

from typing import Any

from agentcli.agent.commands.sessions import undo_in
from agentcli.agent.ops import Background
from agentcli.agent.session import Session
from agentcli.agent.undo import History
from agentcli.errors import UsageError, UserError
from agentcli.extensions.mcp.server import Server
from agentcli.extensions.mcp.servers import Servers
from agentcli.extensions.mcp.tools import Offer
from agentcli.frontends.agent_sdk.output import STATUSES, VERSION
from agentcli.frontends.hosts import ScreenlessHost

# The slash commands that carry out requests, each with the field that is its argument.
_COMMANDS = {"mcp_reconnect": ("/mcp restart", "serverName"), "rename_session": ("/rename", "title")}


def server_info(host: ScreenlessHost) -> dict[str, Any]:
    """Return the answer to `initialize`."""
    model = host.session.state.model.name
    commands = [{"name": one.name, "description": one.help, "argumentHint": one.argument} for one in host.commands]
    return {
        "commands": commands,
        "agents": known_agents(host.session),
        "models": [{"value": model, "displayName": model, "description": ""}],
        "account": {},
        "output_style": "default",
        "available_output_styles": ["default"],
        "hook_on_failure_supported": True,
        "claude_code_version": VERSION,
    }


def known_agents(session: Session) -> list[dict[str, Any]]:
    delegates = session.runtime.calls.delegates
    return delegates.open_agents().listing() if delegates.make_agents is not None else []


async def answer_request(host: ScreenlessHost, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a control request.

    Raises:
        UserError, ToolError: If it is unknown, or cannot be carried out.
        AttributeError, KeyError, TypeError, ValueError: If a part of it is missing or wrong.
    """
    session = host.session
    match request["subtype"]:
        case "mcp_status":
            servers = session.runtime.calls.delegates.servers
            return {"mcpServers": list(map(_server_status, servers)) if isinstance(servers, Servers) else []}
        case "get_context_usage":
            return await _context_usage(host)
        case "rewind_files":
            return await _rewind_files(host, request["user_message_id"], is_dry=bool(request.get("dry_run")))
        case "mcp_toggle":
            servers = session.runtime.calls.delegates.servers
            if not isinstance(servers, Servers):
                raise UsageError("This session has no MCP servers.")
            servers.switch(request["serverName"], session.runtime.calls, is_on=bool(request["enabled"]))
            return {}
        case "background_tasks":
            session.submit(Background())
            return {}
        case "stop_task":
            is_job = request["task_id"].startswith("job")  # else it is a subagent
            return await _run(host, "/stop" if is_job else "/agents stop", request["task_id"])
        case subtype if subtype in _COMMANDS:
            command, field = _COMMANDS[subtype]
            return await _run(host, command, request[field])
        case subtype:
            raise UsageError(f"agentcli has no control request {subtype!r}.")


async def _run(host: ScreenlessHost, command: str, argument: str) -> dict[str, Any]:
    """Run a slash command. Raises `UserError`."""
    ended = await host.run(host.require_command(f"{command} {argument}"))
    if ended.exit_code:
        raise UserError(ended.output)
    return {}


def _server_status(server: Server) -> dict[str, Any]:
    tools = [{"name": tool.name, "description": tool.description} for tool in (server.pinned or Offer()).tools]
    scope = "sdk" if server.spec.scope == "caller" else server.spec.scope
    about = {"name": server.name, "status": STATUSES.get(server.status, server.status), "scope": scope, "tools": tools}
    return about | ({"error": server.problem} if server.problem else {})


async def _context_usage(host: ScreenlessHost) -> dict[str, Any]:
    use = await host.session.runtime.context_use(host.session.state)
    used = [{"name": name, "tokens": tokens, "color": "", "kind": "used"} for name, tokens in use.parts.items()]
    free = {"name": "free", "tokens": max(0, use.window - use.request), "color": "", "kind": "free"}
    return {
        "categories": [*used, free],
        "totalTokens": use.request,
        "maxTokens": use.window,
        "rawMaxTokens": use.window,
        "percentage": round(100 * use.request / use.window),
        "model": use.model,
        "isAutoCompactEnabled": True,
        **dict.fromkeys(("gridRows", "memoryFiles", "mcpTools", "agents"), ()),
    }


async def _rewind_files(host: ScreenlessHost, message_id: str, *, is_dry: bool) -> dict[str, Any]:
    """Take back the changes of files since a prompt. Raises `UserError` and `ToolError`."""
    entries = host.session.state.conversation.entries
    if all(entry.id != message_id for entry in entries):
        raise UsageError(f"The session has no message {message_id!r}.")
    changes = History(entries).since(message_id)
    if changes is None:
        return {"canRewind": True, "filesChanged": []}
    result = await undo_in(host.session, "undo", "list" if is_dry else "yes", host.confirm, turn=changes)
    files = [file.path for file in result.files if file.how != "kept"]
    if conflicts := [file.path for file in result.files if file.how == "conflict"]:
        return {"canRewind": False, "error": f"Others have changed {', '.join(conflicts)}.", "filesChanged": files}
    return {"canRewind": True, "filesChanged": files}
