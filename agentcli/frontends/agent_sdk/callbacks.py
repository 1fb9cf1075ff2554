"""Sends control requests to the program at the other end: for its hooks, its MCP servers, and approvals.

In the control protocol both sides send requests and wait for the responses.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NoReturn

import msgspec

from agentcli.agent import events, ops
from agentcli.agent.interfaces import EventAnswer
from agentcli.agent.permissions.modes import parse_mode
from agentcli.agent.permissions.rules import Rule, Verb, parse_rule, parse_rules
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.extensions.claude_code_names import CLAUDE_CODE_NAMES, claude_code_call, claude_code_question, own_input
from agentcli.extensions.hooks import run as hook_runs
from agentcli.extensions.hooks.spec import EVENTS, HookSpec, read_hooks
from agentcli.extensions.mcp.tools import Parts, RemoteResult, RemoteTool
from agentcli.frontends.agent_sdk.transcripts import HookTranscript
from agentcli.frontends.json_input import IMAGE_TYPES
from agentcli.llm.messages import Base64Source, Image, Text
from agentcli.tools.tool import Ask
from agentcli.version import __version__

_MCP_VERSION = "2025-06-18"
_INVALID_PARAMETERS = -32602  # JSON-RPC 2.0 §5.1


class ClientError(UserError):
    """The program answered a request with an error or without an object, or can no longer answer."""


class ClientGone(ClientError):
    def __init__(self) -> None:
        super().__init__("The program that started agentcli has ended its input, so it cannot answer.")


class ControlChannel:
    """Sends requests to the program at the other end, and responds to its requests; `write` sends an object."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self.write = write
        self._pending: dict[str, asyncio.Future[dict[str, Any]]] = {}  # responses that have not come, by request id
        self._numbers = count(1)
        self._is_closed = False

    async def ask(self, subtype: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the response. Cancellation is reported to the program. Raises `ClientError`."""
        if self._is_closed:
            raise ClientGone
        response: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        id = self.post(subtype, **fields)
        self._pending[id] = response
        try:
            return await response
        except asyncio.CancelledError:
            self.write({"type": "control_cancel_request", "request_id": id})
            raise
        finally:
            del self._pending[id]

    def post(self, subtype: str, **fields: Any) -> str:
        id = f"agentcli-{next(self._numbers)}"
        self.write({"type": "control_request", "request_id": id, "request": {"subtype": subtype, **fields}})
        return id

    def deliver(self, response: Mapping[str, Any]) -> None:
        """Pass a response of the program to the `ask` that waits for it; a late one is ignored."""
        pending = self._pending.get(str(response.get("request_id")))
        if pending is None or pending.done():
            return
        match response.get("subtype"), response.get("response"):
            case "success", None:
                pending.set_result({})
            case "success", dict(answer):
                pending.set_result(answer)
            case "success", answer:
                pending.set_exception(ClientError(f"The answer is not an object: {answer!r:.200}"))
            case _:
                pending.set_exception(ClientError(str(response.get("error") or "The program gave no reason.")))

    def respond(self, id: str, **body: Any) -> None:
        self.write({"type": "control_response", "response": {"subtype": "success", "request_id": id, "response": body}})

    def respond_with_error(self, id: str, error: str) -> None:
        self.write({"type": "control_response", "response": {"subtype": "error", "request_id": id, "error": error}})

    def close(self) -> None:
        """Fail all waiting and later requests, because the program sends no more responses."""
        self._is_closed = True
        for pending in self._pending.values():
            if not pending.done():
                pending.set_exception(ClientGone())


def read_callbacks(table: Mapping[str, Any], report: Callable[[str], object]) -> Iterator[HookSpec]:
    """Yield the hooks of an `initialize` request, whose commands are the ids of callbacks.

    `report` gets a sentence on an unknown event. Raises `UsageError` for an invalid hook, because it may deny calls.
    """

    def refuse(why: str) -> NoReturn:
        raise UsageError(why)

    for event, matchers in table.items():
        groups: list[dict[str, Any]] = []
        for matcher in matchers or ():
            options = {key: matcher[key] for key in ("timeout", "onFailure") if matcher.get(key)}
            hooks = [{"command": str(id), **options} for id in matcher.get("hookCallbackIds", ())]
            groups += [{"matcher": matcher.get("matcher"), "hooks": hooks}] if hooks else []
        yield from read_hooks({event: groups}, "initialize", refuse if event in EVENTS else report)


class CallbackHooks(hook_runs.RunningHooks, kw_only=True):
    """Runs the program's hooks by asking the program for their answers."""

    channel: ControlChannel

    async def run(self, spec: HookSpec, input: bytes) -> EventAnswer:
        callback, event = spec.handler["command"], msgspec.json.decode(input)
        try:
            async with asyncio.timeout(spec.timeout_s):
                answer = await self.channel.ask(
                    "hook_callback", callback_id=callback, input=event, tool_use_id=event.get("tool_use_id")
                )
        except TimeoutError:
            return hook_runs.failure_answer(spec, f"it timed out after {spec.timeout_s:g} s")
        except ClientGone as error:
            fails_closed = spec.event in hook_runs.FAIL_CLOSED_EVENTS
            return hook_runs.failure_answer(spec, str(error), "deny" if fails_closed else None)
        except ClientError as error:
            return hook_runs.failure_answer(spec, str(error))
        return hook_runs.answer_in_object(spec, answer)

    def input_for_hooks(self, tool: str, input: Mapping[str, Any]) -> dict[str, Any]:
        _, claude_code_input = claude_code_call(tool, input, self.cwd)
        return claude_code_input


async def attach_callbacks(session: Session, specs: Sequence[HookSpec], channel: ControlChannel) -> None:
    if specs:
        transcript = HookTranscript(session).path
        context = hook_runs.HookContext(id=session.id, mode=lambda: session.state.mode, transcript=transcript)
        cwd = session.runtime.calls.workspace.cwd
        await hook_runs.attach_hooks(session, CallbackHooks(specs=specs, context=context, cwd=cwd, channel=channel))


class HostedServer:
    """An MCP server inside the program, which receives MCP messages in control requests. Implements `MCPClient`."""

    def __init__(self, name: str, channel: ControlChannel) -> None:
        self.name = name
        self._channel = channel
        self._ids = count(1)

    async def list_tools(self) -> Sequence[RemoteTool]:
        client = {"name": "agentcli", "version": __version__}
        await self._request("initialize", protocolVersion=_MCP_VERSION, capabilities={}, clientInfo=client)
        self._notify("notifications/initialized")
        tools = (await self._request("tools/list")).get("tools", ())
        return [
            RemoteTool(str(tool["name"]), str(tool.get("description") or ""), dict(tool.get("inputSchema") or {}))
            for tool in tools
        ]

    async def call_tool(
        self, name: str, input: dict[str, Any], *, progress: Callable[[str], None], ask: Ask | None
    ) -> RemoteResult:
        result = await self._request("tools/call", name=name, arguments=input)
        content: Parts = tuple(_to_block(block) for block in result.get("content", ()))
        return RemoteResult(content, result.get("structuredContent"), bool(result.get("isError")))

    async def close(self) -> None:
        return

    async def _request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result. Cancellation is passed on to the server. Raises `ToolError`."""
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        try:
            answer = await self._channel.ask("mcp_message", server_name=self.name, message=message)
        except asyncio.CancelledError:
            self._notify("notifications/cancelled", requestId=id)
            raise
        except ClientError as error:
            raise ToolError(str(error), kind="resource_error") from error
        match answer.get("mcp_response"):
            # The callers iterate over `tools` and `content`.
            case {"result": dict(result)} if all(isinstance(result.get(key, []), list) for key in ("tools", "content")):
                return result
            case {"error": {"code": code, "message": why}} if code == _INVALID_PARAMETERS:
                raise ToolError(str(why), kind="invalid_parameters")
            case {"error": {"message": why}}:
                raise ToolError(str(why), kind="execution_error")
        raise ToolError(f"The MCP server {self.name} gave no valid answer to {method}.", kind="execution_error")

    def _notify(self, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self._channel.post("mcp_message", server_name=self.name, message=message)


def _to_block(block: Any) -> Text | Image:
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return Text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)} if kind in IMAGE_TYPES:
            return Image(Base64Source(kind, data))
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[resource {uri}]")
        case _:
            return Text(f"[{block.get('type') if isinstance(block, dict) else 'content'}: not supported]")


Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class PermissionBridge:
    """Passes a session's questions to `can_use_tool` of the SDK, and submits the answers; `spawn` starts tasks."""

    def __init__(self, session: Session, channel: ControlChannel, spawn: Spawn) -> None:
        self._session, self._channel, self._spawn = session, channel, spawn
        self._asking: dict[str, asyncio.Task[None]] = {}  # by the question's id

    def ask(self, question: events.QuestionEvent) -> None:
        self._asking[question.id] = task = self._spawn(self._ask(question))
        task.add_done_callback(lambda done: self._asking.pop(question.id, None))

    def withdraw_settled(self) -> None:
        for id in self._asking.keys() - self._session.open_questions.keys():
            self._asking[id].cancel()

    async def _ask(self, question: events.QuestionEvent) -> None:
        """Pass a question to the program, and submit its answer; without a valid one the call is denied."""
        name, input = self._call_of(question)
        fields = {"tool_name": name, "input": input, "tool_use_id": question.call.id, "title": question.title}
        if question.agent_id != "main":
            fields["agent_id"] = question.agent_id
        suggestions = list(_permission_suggestions(question))
        try:
            answer = await self._channel.ask(
                "can_use_tool", **fields, decision_reason=question.reason, permission_suggestions=suggestions
            )
            op = self._to_operation(question, input, answer)
        except ClientError as error:
            op = ops.Approve(question.id, allowed=False, comment=str(error))
        except (AttributeError, TypeError, ValueError) as error:
            op = ops.Approve(question.id, allowed=False, comment=f"The program's answer is not valid: {error}")
        self._asking.pop(question.id, None)  # before the answer settles the question, which would cancel this task
        self._session.submit(op)

    def _call_of(self, question: events.QuestionEvent) -> tuple[str, dict[str, Any]]:
        """Return the tool and the input that `can_use_tool` is asked about, as Claude Code names them."""
        match question:
            case events.Question(title=title, options=options):
                return "AskUserQuestion", claude_code_question(title, options)
            case events.PlanApproval(preview=plan):
                return "ExitPlanMode", {"plan": plan}
            case _:
                call = question.call
                return claude_code_call(call.name, call.input, self._session.snapshot().workspace.cwd)

    def _to_operation(
        self, question: events.QuestionEvent, sent: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> ops.Approve:
        """Convert the program's answer to an operation; `sent` are the arguments that it was asked about."""
        id = question.id
        match answer:
            case {"behavior": "deny"}:
                stops = bool(answer.get("interrupt"))
                return ops.Approve(id, allowed=False, comment=str(answer.get("message") or ""), stops=stops)
            case {"behavior": "allow"} if isinstance(question, events.Question):
                return ops.Approve(id, comment=_answer_text(answer.get("updatedInput") or {}, question.title))
            case {"behavior": "allow"}:
                updated = answer.get("updatedInput") or sent
                is_changed = updated != sent and question.kind == "run"  # the other kinds do not ask about arguments
                input = own_input(question.call.name, updated, sent) if is_changed else None
                changes = self._change_permissions(answer.get("updatedPermissions") or ())
                return ops.Approve(id, allowed=True, input=input, **changes)
            case _:
                return ops.Approve(id, allowed=False, comment="The program's answer was neither allow nor deny.")

    def _change_permissions(self, updates: Sequence[Any]) -> dict[str, Any]:
        """Apply the changes of permissions that came with a yes; return the allow rules as fields of its `Approve`.

        An `Approve` can only add allow rules, so the mode and the restricting rules are changed here. If one change
        is invalid, none is applied: it may be a restriction that belongs to the others. Restrictions hold only for
        this session.
        """
        mode, is_lasting = "", False  # `is_lasting`: the allow rules are for later sessions, too
        restrictions, allowed = list[tuple[Verb, Rule]](), list[str]()
        try:
            for update in updates:
                match update:
                    case {"type": "setMode", "mode": str(name)}:
                        mode = parse_mode(name)
                    case {"type": "addRules", "behavior": "allow", "rules": list(rules)}:
                        allowed += [str(_rule(rule)) for rule in rules]
                        is_lasting |= update.get("destination") != "session"
                    case {"type": "addRules", "behavior": "deny" | "ask" as verb, "rules": list(rules)}:
                        restrictions += [(verb, _rule(rule)) for rule in rules]
                    case _:
                        raise UsageError(f"{msgspec.json.encode(update).decode()} is not supported.")
            for text in (*allowed, *(str(rule) for _, rule in restrictions)):
                self._session.check_rule(text)
        except (UserError, KeyError, TypeError) as error:
            self._session.publish(events.Notice(f"The call is allowed once, without changes of permissions: {error}"))
            return {}
        for verb, rule in restrictions:
            self._session.state.rules.of(verb).append(rule)
        if mode:
            self._session.submit(ops.SetMode(mode))
        if not allowed:
            return {}
        return {"scope": "always" if is_lasting else "session", "rule": " and ".join(allowed)}


def _rule(value: Mapping[str, Any]) -> Rule:
    content = value.get("ruleContent")
    return parse_rule(f"{value['toolName']}({content})" if content else str(value["toolName"]), "session")


def _permission_suggestions(question: events.QuestionEvent) -> Iterator[dict[str, Any]]:
    for text in question.rules:
        parsed = [(CLAUDE_CODE_NAMES.get(rule.tool, rule.tool), rule.pattern) for rule in parse_rules(text)]
        rules = [{"toolName": name} | ({"ruleContent": pattern} if pattern else {}) for name, pattern in parsed]
        yield {"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"}
    if question.mode:
        yield {"type": "setMode", "mode": question.mode, "destination": "session"}


def _answer_text(updated: Mapping[str, Any], question: str) -> str:
    """Return the answer to a question from the program's `answers`, whose keys are the texts of questions."""
    answers = updated.get("answers")
    if not isinstance(answers, Mapping):
        return ""
    only_answer = next(iter(answers.values()), "")  # there is only one question, whatever its key
    answer = answers.get(question, only_answer)
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
