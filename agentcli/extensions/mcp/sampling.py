"""Answers the requests of MCP servers to the model ("sampling"), where the person or a rule allows it.

The model sees what the server sends, and nothing of the conversation.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agentcli.agent.calls.model import Call, at_once
from agentcli.agent.events import Notice
from agentcli.agent.runtime import Turn
from agentcli.agent.session import Session
from agentcli.agent.turn_log import charge_request
from agentcli.conversation.entries import Paid, PaidReason
from agentcli.errors import ToolError, UserError
from agentcli.extensions.mcp.tools import NoArguments, tool_name
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, ToolUse, Usage, repair_messages
from agentcli.llm.models import RequestTarget
from agentcli.llm.provider import Done, Prefix
from agentcli.tools.tool import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    import mcp_types as types

_USED = ("maxTokens", "systemPrompt", "messages", "modelPreferences", "stopSequences")  # and shown to the person
_STOP_REASONS = {"end_turn": "endTurn", "max_tokens": "maxTokens", "stop_sequence": "stopSequence"}


class Sampling:
    """Answers the servers of a session while a `turn` runs, to which the cost is charged."""

    def __init__(self, session: Session, small_model: Callable[[str], str]) -> None:
        self._session, self._small_model = session, small_model  # the small model of a model's provider
        self.turn: Turn | None = None

    def may_ask(self, server: str) -> bool:
        """Return True if a rule or the mode allows the server's requests, or somebody can be asked about them."""
        from agentcli.agent.permissions.decide import decide
        from agentcli.agent.permissions.facts import find_facts

        state, calls = self._session.state, self._session.runtime.calls
        facts = find_facts(_stand_in(server), {}, calls.workspace)
        decision = decide(facts, state.mode_before_plan, state.rules).decision
        return decision == "allow" or (decision == "ask" and calls.ask is not None)

    async def answer(self, server: str, params: dict[str, Any]) -> types.CreateMessageResult:
        """Answer a request, whose `params` are those of the protocol. Raises `ToolError`, also if it is not allowed."""
        import mcp_types as types  # which the connection has loaded

        if (turn := self.turn) is None:
            raise ToolError("The model answers only while a prompt is being answered.", kind="permission_denied")
        request = await _permit(turn, server, params)
        target = await self._choose_model(request.model_preferences)
        reply = await _ask_model(turn, target, server, request)
        text, reason = reply.message.text, _STOP_REASONS.get(reply.stop_reason, reply.stop_reason)
        for stop in filter(None, request.stop_sequences or ()):  # not every provider takes them
            text, found, _ = text.partition(stop)
            reason = "stopSequence" if found else reason
        content = types.TextContent(type="text", text=text)
        model = target.name.rpartition("/")[2]  # a local one is a file, whose folder stays private
        return types.CreateMessageResult(role="assistant", content=content, model=model, stop_reason=reason)

    async def _choose_model(self, wishes: types.ModelPreferences | None) -> RequestTarget:
        """Return the session's model, or the small one of its provider if the first hint that fits names that."""
        state, own = self._session.state, self._session.state.model.name
        hints = [hint.name for hint in (wishes.hints if wishes else None) or () if hint.name]
        name = next((name for hint in hints for name in (own, self._small_model(own)) if hint in name), own)
        state = replace(state, model=replace(state.model, name=name))
        return RequestTarget(*await self._session.runtime.models.resolve(state))


class CallClock:
    """The time limit of a call, which stands still while the person or the model is asked."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit, self._stops, self._left_s = limit, 0, 0.0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        now = asyncio.get_running_loop().time
        if not self._stops:
            self._left_s = (self._limit.when() or now()) - now()
            self._limit.reschedule(None)
        self._stops += 1
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops:
                with suppress(RuntimeError):  # the call has ended
                    self._limit.reschedule(now() + self._left_s)


def _stand_in(server: str) -> Tool:
    """Return a tool that no model sees: rules and modes decide about a server's requests as about its calls."""

    async def run(arguments: object, context: ToolContext) -> ToolOutput:
        raise ToolError("Only the MCP server can make this request.", kind="internal_error")

    name = tool_name(server, "sampling")
    return Tool(name, "", NoArguments, run, "foreign", source=f"mcp:{server}", mode="session", schema={})


async def _permit(turn: Turn, server: str, params: dict[str, Any]) -> types.CreateMessageRequestParams:
    """Return the request without secrets, and as the person has changed it. Raises `ToolError` if it is not allowed."""
    import mcp_types as types
    from pydantic import ValidationError

    from agentcli.agent.interfaces import HookAnswer
    from agentcli.agent.permissions.approvals import permit

    services, tool = turn.runtime.calls.services, _stand_in(server)
    await services.know_secrets()
    used = {key: params[key] for key in _USED if key in params}
    masked = used if services.mask is None else services.mask.value(used)[0]
    # The log gets no question about it, because after a crash no server waits for the answer.
    calls = replace(turn.calls, store=at_once, commit=at_once)
    call = Call(ToolUse(f"sampling_{secrets.token_hex(6)}", tool.name, masked), calls)
    context = ToolContext(services.workspace, call.use.id)
    while await permit(call, tool, call.use.input, context, hooks=HookAnswer()) is None:
        pass  # the person has changed the request
    try:
        return types.CreateMessageRequestParams.model_validate(call.use.input)
    except ValidationError as error:
        raise ToolError("The user's changes to the request are not valid.", kind="invalid_parameters") from error


async def _ask_model(turn: Turn, target: RequestTarget, server: str, request: types.CreateMessageRequestParams) -> Done:
    """Send the request within the turn's budgets, and tell the person what it took. Raises `ToolError`."""
    from agentcli.agent.requests.attempts import PaidRequest
    from agentcli.agent.requests.request import build_request, describe_error
    from agentcli.extensions.mcp.messages import parts_of

    def charge(used: Usage, reason: PaidReason = "broken") -> None:
        cost, duration_ms = charge_request(turn, target, used), paid.attempt.duration_ms
        turn.calls.store(Paid(model=target.name, usage=used, cost_usd=cost, reason=reason, duration_ms=duration_ms))

    budgets, runtime = turn.spending.budgets, turn.runtime
    said = tuple(Message(message.role, parts_of(message.content_as_list)) for message in request.messages)
    prefix, max_tokens = Prefix(request.system_prompt or "", ()), min(request.max_tokens, target.info.max_output)
    paid = PaidRequest(target=target, budgets=budgets, policy=runtime.models.retry, on_broken=charge)
    try:
        reply = await paid.reply(
            build_request(runtime, turn.state, prefix, repair_messages(said), max_tokens=max_tokens)
        )
    except (ProviderError, UserError) as error:
        turn.emit(Notice(f"{target.name} could not answer the MCP server {server}: {describe_error(error)}"))
        raise ToolError("The model could not answer.", kind="dependency_error") from error  # no details for servers
    charge(reply.usage, "server")
    if reply.stop_reason == "refusal":
        raise ToolError("The model refused to answer.", kind="execution_error")
    turn.emit(Notice(f"The MCP server {server} asked {target.name}: {reply.usage.context_tokens:,} tokens."))
    for warning in budgets.warnings(target.info):
        turn.emit(Notice(warning))
    return reply
