"""Answers the requests of MCP servers to the model ("sampling"), where the person or a rule allows it.

The model sees what the server sends, and nothing of the conversation.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentcli.agent.calls.model import Call, TurnCalls
from agentcli.agent.events import Notice
from agentcli.agent.interfaces import HookAnswer
from agentcli.agent.session import Session
from agentcli.errors import ToolError, UserError
from agentcli.extensions.mcp.tools import NoArguments, tool_name
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, ToolUse, repair_messages
from agentcli.llm.models import RequestTarget
from agentcli.llm.provider import Prefix
from agentcli.tools.tool import Tool, ToolContext, ToolOutput

if TYPE_CHECKING:
    import mcp_types as types  # which a connection has loaded before a server can ask

_USED = ("maxTokens", "systemPrompt", "messages")  # of a request: the rest is not for this client, or a hint
_STOP_REASONS = {"end_turn": "endTurn", "max_tokens": "maxTokens"}


class Sampling:
    """Answers the servers of a session. The cost is held to `budgets`, those of the newest turn."""

    def __init__(self, session: Session) -> None:
        self._session, self.budgets = session, session.state.budgets

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
        import mcp_types as types

        from agentcli.agent.commands.model import reply_aside
        from agentcli.agent.requests.request import build_request, describe_error
        from agentcli.extensions.mcp.messages import parts_of

        asked, session, runtime = await self._permit(server, params), self._session, self._session.runtime
        target = RequestTarget(*await runtime.models.resolve(session.state))
        messages = tuple(Message(message.role, parts_of(message.content_as_list)) for message in asked.messages)
        request = build_request(
            runtime,
            session.state,
            Prefix(asked.system_prompt or "", ()),
            repair_messages(messages),
            max_tokens=min(asked.max_tokens, target.info.max_output),
        )
        try:
            reply = await reply_aside(session, target, request, self.budgets, reason="server")
        except (ProviderError, UserError) as error:
            session.publish(Notice(f"{target.name} did not answer the MCP server {server}: {describe_error(error)}"))
            raise ToolError("The model could not answer.", kind="dependency_error") from error  # no details for servers
        tokens = reply.usage.context_tokens
        session.publish(Notice(f"The MCP server {server} asked {target.name}: {tokens:,} tokens."))
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(type="text", text=reply.message.text),
            model=target.name.rpartition("/")[2],  # a local one is a file, whose folder stays private
            stop_reason=_STOP_REASONS.get(reply.stop_reason, reply.stop_reason),
        )

    async def _permit(self, server: str, params: dict[str, Any]) -> types.CreateMessageRequestParams:
        """Return the request without secrets, and as the person has changed it. Raises `ToolError` if it is denied."""
        import mcp_types as types

        from agentcli.agent.permissions.approvals import permit

        calls, tool = self._session.runtime.calls, _stand_in(server)
        await calls.services.know_secrets()
        input = {key: params[key] for key in _USED if key in params}
        input = input if calls.services.mask is None else calls.services.mask.value(input)[0]
        turn = TurnCalls(session=calls, state=self._session.state, emit=self._session.publish)
        call = Call(ToolUse(f"sampling_{secrets.token_hex(6)}", tool.name, input), turn)
        context = ToolContext(calls.workspace, call.use.id)
        while await permit(call, tool, call.use.input, context, hooks=HookAnswer()) is None:
            pass  # the person has changed the request
        try:
            return types.CreateMessageRequestParams.model_validate(call.use.input)
        except ValueError as error:
            raise ToolError("The user's changes to the request are not valid.", kind="invalid_parameters") from error


def _stand_in(server: str) -> Tool:
    """Return a tool that no model sees: rules and modes decide about a server's requests as about its calls."""

    async def run(arguments: object, context: ToolContext) -> ToolOutput:
        raise ToolError("Only the MCP server can make this request.", kind="internal_error")

    name = tool_name(server, "sampling")
    return Tool(name, "", NoArguments, run, "foreign", source=f"mcp:{server}", mode="session", schema={})


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
