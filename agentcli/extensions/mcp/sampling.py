"""Lets MCP servers ask the model ("sampling"), if the person or a rule allows it.

The model sees the messages of the server, and nothing of the conversation.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentcli.agent.calls.model import Call, TurnCalls, client_tool
from agentcli.agent.events import Notice
from agentcli.agent.interfaces import HookAnswer
from agentcli.agent.runtime import Turn
from agentcli.agent.session import Session
from agentcli.agent.turn_log import charge_request
from agentcli.conversation.entries import Paid, PaidReason
from agentcli.errors import ToolError, UserError
from agentcli.extensions.mcp.tools import tool_name
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, ToolUse, Usage, repair_messages
from agentcli.llm.models import RequestTarget
from agentcli.llm.provider import Prefix, ToolSpec
from agentcli.tools.tool import ToolContext

if TYPE_CHECKING:
    import mcp_types as types  # which a connection has loaded before a server can ask

_USED = ("maxTokens", "systemPrompt", "messages")  # fields of a request; the others are hints, or not supported
_STOP_REASONS = {"end_turn": "endTurn", "max_tokens": "maxTokens"}


def is_sampling_allowed(session: Session, server: str) -> bool:
    """Return True if no rule denies the server's requests, and a rule allows them or a person can be asked."""
    name, rules = tool_name(server, "sampling"), session.state.rules
    if any(rule.names(name) for rule in rules.deny):
        return False
    return session.runtime.calls.ask is not None or any(rule.names(name) for rule in rules.allow)


async def answer_sampling(turn: Turn, server: str, params: dict[str, Any]) -> types.CreateMessageResult:
    """Answer a request that came during a turn, at the cost of this turn. `params` are the protocol's.

    Raises `ToolError`, also if the request is denied.
    """
    import mcp_types as types

    from agentcli.agent.requests.attempts import PaidRequest
    from agentcli.agent.requests.request import build_request
    from agentcli.extensions.mcp.messages import parts_of

    def charge(used: Usage, reason: PaidReason = "broken") -> None:
        cost_usd, duration_ms = charge_request(turn, target, used), paid.attempt.duration_ms
        entry = Paid(model=target.name, usage=used, cost_usd=cost_usd, reason=reason, duration_ms=duration_ms)
        turn.calls.store(entry)

    runtime, permitted = turn.runtime, await _permit(turn, server, params)
    target = RequestTarget(*await runtime.models.resolve(turn.state))
    paid = PaidRequest(target=target, budgets=turn.spending.budgets, policy=runtime.models.retry, on_broken=charge)
    try:
        asked = types.CreateMessageRequestParams.model_validate(permitted)
        messages = tuple(Message(message.role, parts_of(message.content_as_list)) for message in asked.messages)
        prefix, max_tokens = Prefix(asked.system_prompt or "", ()), min(asked.max_tokens, target.info.max_output)
        request = build_request(runtime, turn.state, prefix, repair_messages(messages), max_tokens=max_tokens)
        charge((reply := await paid.reply(request)).usage, "server")
    except (ProviderError, UserError, ValueError) as error:
        turn.emit(Notice(f"{target.name} did not answer the MCP server {server}: {error}"))
        raise ToolError("The model could not answer.", kind="dependency_error") from error  # no details for servers
    turn.emit(Notice(f"The MCP server {server} asked {target.name}: {reply.usage.context_tokens:,} tokens."))
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=reply.message.text),
        model=target.name.rpartition("/")[2],  # a local model's name is a path; its folder stays private
        stop_reason=_STOP_REASONS.get(reply.stop_reason, reply.stop_reason),
    )


async def _permit(turn: Turn, server: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the request with secrets masked and the person's changes. Raises `ToolError` if it is denied."""
    from agentcli.agent.permissions.approvals import permit

    # Rules and modes decide about the request as about a call of this tool, which no model sees.
    tool = client_tool(ToolSpec(tool_name(server, "sampling"), "", {}))
    tool, calls = replace(tool, effect="foreign", source=f"mcp:{server}"), turn.runtime.calls
    await calls.services.load_secrets()
    input = {key: params[key] for key in _USED if key in params}
    input, _ = calls.services.mask.value(input)
    # The question is not logged, because after a crash no server would be waiting for its answer.
    unlogged = TurnCalls(session=calls, state=turn.state, emit=turn.emit, denials=turn.calls.denials)
    call = Call(ToolUse(f"sampling_{secrets.token_hex(6)}", tool.name, input), unlogged)
    context = ToolContext(calls.workspace, call.use.id)
    while await permit(call, tool, call.use.input, context, hooks=HookAnswer()) is None:
        pass  # the person has changed the request, which is checked again
    return call.use.input
