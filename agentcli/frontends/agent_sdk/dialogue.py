"""Runs a session for a program that uses an Agent SDK: reads control requests, writes Claude Code's objects."""

import asyncio
from typing import Any

from agentcli.agent import ops
from agentcli.agent.commands.sessions import undo_in
from agentcli.agent.session import Session
from agentcli.agent.undo import History
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.extensions.mcp.server import Server
from agentcli.extensions.mcp.servers import Servers
from agentcli.extensions.mcp.tools import Offer
from agentcli.frontends import json_input
from agentcli.frontends.agent_sdk.callbacks import PermissionBridge, attach_callbacks
from agentcli.frontends.agent_sdk.output import STATUSES, VERSION, ClaudeCodeOutput, ControlClient
from agentcli.frontends.hosts import ScreenlessHost
from agentcli.frontends.json_stream import Dialogue
from agentcli.llm.messages import Text


class ControlDialogue(Dialogue):
    output: ClaudeCodeOutput

    def __init__(self, host: ScreenlessHost, *, client: ControlClient, **options: Any) -> None:
        self._client, self._channel = client, client.channel
        self._is_initialized = False  # True after the first `initialize`; hooks of a later one are not used
        self._default_model = host.session.state.model.name
        self._handling: dict[str, asyncio.Task[None]] = {}  # requests being answered, by id
        super().__init__(host, client.channel.write, **options)

    def make_output(self, session: Session) -> ClaudeCodeOutput:
        if self._client.answers_questions:  # SDKs approve a command before it runs, not the changes of a dry run
            session.runtime.calls.services.dry_runs = False
        self._attaching = self.spawn(attach_callbacks(session, self._client.hooks, self._channel))
        output = ClaudeCodeOutput(session, self._client, streams=self.streams, requirements=self.requirements)
        output.questions = PermissionBridge(session, self._channel, self.spawn)
        output.init, output.is_idle = self.init, self._is_idle
        return output

    def init(self) -> dict[str, Any]:
        return super().init() | {"agents": [agent["name"] for agent in _known_agents(self.session)]}

    def parse(self, raw: bytes) -> json_input.InputLine | None:
        """Parse a line; return None if it is answered in parallel to other lines, or needs no answer."""
        try:
            line = json_input.decode_input(raw)
        except (ValueError, RecursionError) as error:
            return json_input.InputLine(raw, problem=str(error))
        match line:
            case {"type": "control_request", "request_id": str(id), "request": {"subtype": str()} as request}:
                return self._parse_request(raw, id, request)
            case {"type": "control_response", "response": response} if isinstance(response, dict):
                self._channel.deliver(response)
                return None
            case {"type": "control_cancel_request", "request_id": str(id)}:
                if (task := self._handling.get(id)) is not None:
                    task.cancel()
                return None
            case {"type": "user", "message": {"content": str(text)}, "client_composed": True} if text.strip():
                return json_input.InputLine(raw, ops.Prompt((Text(text),)))  # sent as it is, even if it begins with /
            case {"type": "user"}:
                return json_input.parse_line(raw)
            case {"type": "keep_alive" | "update_environment_variables"}:
                return None
            case _:
                return json_input.InputLine(raw, problem="This is neither a user message nor a control request.")

    def _parse_request(self, raw: bytes, id: str, request: dict[str, Any]) -> json_input.InputLine | None:
        match request:
            case {"subtype": "interrupt"}:
                return json_input.InputLine(raw, json_input.InterruptControl(), id)
            case {"subtype": "set_permission_mode", "mode": str(mode)}:
                return json_input.InputLine(raw, json_input.ModeControl(mode), id)
            case {"subtype": "set_model"}:
                name = request.get("model")
                is_default = name in (None, "default", "inherit")
                return json_input.InputLine(raw, ops.SetModel(self._default_model if is_default else str(name)), id)
            case _:
                self._handling[id] = task = self.spawn(self._answer(id, request))
                self.parallel_tasks.add(task)  # the request is answered even if the input ends first
                task.add_done_callback(lambda done: self._handling.pop(id, None))
                task.add_done_callback(self.parallel_tasks.discard)
                return None

    async def _answer(self, id: str, request: dict[str, Any]) -> None:
        try:
            if request["subtype"] == "initialize":
                answer = _server_info(self.host)
                if request.get("hooks"):
                    answer["hooks_applied"] = not self._is_initialized
                self._is_initialized = True
            else:
                answer = await _answer_request(self.host, request)
        except (UserError, ToolError) as error:
            self._channel.respond_with_error(id, str(error))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self._channel.respond_with_error(id, f"The request {request['subtype']} is not complete: {error!r}.")
        else:
            self._channel.respond(id, **answer)

    async def carry_out(self, request: json_input.Request) -> None:
        if isinstance(request, json_input.UserMessage | ops.Prompt):
            self.output.report_state("running")
            await self._attaching
        await super().carry_out(request)

    def end_input(self) -> None:
        super().end_input()
        self._channel.close()

    def _is_idle(self) -> bool:
        """Return True if no other turn follows the one that is ending."""
        queue = self.session.state.conversation.queue
        return not (queue.steering or queue.follow_ups) and self.lines.empty()


def _server_info(host: ScreenlessHost) -> dict[str, Any]:
    model = host.session.state.model.name
    commands = [
        {"name": command.name, "description": command.help, "argumentHint": command.argument}
        for command in host.commands
    ]
    return {
        "commands": commands,
        "agents": _known_agents(host.session),
        "models": [{"value": model, "displayName": model, "description": ""}],
        "hook_on_failure_supported": True,
        "claude_code_version": VERSION,
        "account": {},
        "output_style": "default",
        "available_output_styles": ["default"],
    }


def _known_agents(session: Session) -> list[dict[str, Any]]:
    delegates = session.runtime.calls.delegates
    return delegates.get_or_make_subagents().listing() if delegates.make_subagents is not None else []


async def _answer_request(host: ScreenlessHost, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a control request; return the answer. Raises `UserError`, `ToolError`, or `KeyError` and the like."""
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
            session.submit(ops.Background())
            return {}
        case "stop_task":
            is_job = request["task_id"].startswith("job")  # otherwise it is a subagent
            return await _run_command(host, "/stop" if is_job else "/agents stop", request["task_id"])
        case "mcp_reconnect":
            return await _run_command(host, "/mcp restart", request["serverName"])
        case "rename_session":
            return await _run_command(host, "/rename", request["title"])
        case subtype:
            raise UsageError(f"agentcli has no control request {subtype!r}.")


async def _run_command(host: ScreenlessHost, command: str, argument: str) -> dict[str, Any]:
    """Run a slash command, and return an empty answer. Raises `UserError` if it fails."""
    ended = await host.run(host.require_command(f"{command} {argument}"))
    if ended.exit_code:
        raise UserError(ended.output)
    return {}


def _server_status(server: Server) -> dict[str, Any]:
    tools = [{"name": tool.name, "description": tool.description} for tool in (server.approved_offer or Offer()).tools]
    return {
        "name": server.name,
        "status": STATUSES.get(server.status, server.status),
        "scope": "sdk" if server.spec.scope == "caller" else server.spec.scope,
        "tools": tools,
        **({"error": server.problem} if server.problem else {}),
    }


async def _context_usage(host: ScreenlessHost) -> dict[str, Any]:
    use = await host.session.runtime.context_use(host.session.state)
    used = [{"name": name, "tokens": tokens, "color": "", "kind": "used"} for name, tokens in use.parts.items()]
    free = {"name": "free", "tokens": max(0, use.window - use.request), "color": "", "kind": "free"}
    percentage = round(100 * use.request / use.window)
    tokens = {"totalTokens": use.request, "maxTokens": use.window, "rawMaxTokens": use.window, "percentage": percentage}
    unsupported = dict.fromkeys(("gridRows", "memoryFiles", "mcpTools", "agents"), ())
    return {"model": use.model, "isAutoCompactEnabled": True, "categories": [*used, free], **tokens, **unsupported}


async def _rewind_files(host: ScreenlessHost, message_id: str, *, is_dry: bool) -> dict[str, Any]:
    """Undo the file changes since a prompt, or only list them if `is_dry`. Raises `UserError` and `ToolError`."""
    entries = host.session.state.conversation.entries
    if all(entry.id != message_id for entry in entries):
        raise UsageError(f"The session has no message {message_id!r}.")
    changes = History(entries).since(message_id)
    if changes is None:  # nothing was changed since
        return {"canRewind": True, "filesChanged": []}
    answer = "list" if is_dry else "yes"  # to the question whether to undo
    result = await undo_in(host.session, "undo", answer, host.confirm, turn=changes)
    files = [file.path for file in result.files if file.how != "kept"]  # without those that were as before already
    if conflicts := [file.path for file in result.files if file.how == "conflict"]:
        return {"canRewind": False, "error": f"Others have changed {', '.join(conflicts)}.", "filesChanged": files}
    return {"canRewind": True, "filesChanged": files}
