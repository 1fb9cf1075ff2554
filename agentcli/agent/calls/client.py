"""Tools that a client runs: their calls are handed over as an event, and answered by an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.llm.messages import ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Tool, ToolContext, ToolOutput, ToolRegistry

HandOver = Callable[[tuple[ToolUse, ...]], None]  # sends calls to the client


class _AnyArguments(Struct, frozen=True):
    """Accepts any arguments: the schema of a client's tool describes them."""


async def _run_elsewhere(arguments: object, context: ToolContext) -> ToolOutput:
    raise ToolError("Only the client can run this tool.", kind="internal_error")


def with_client_tools(tools: ToolRegistry, offered: Sequence[ToolSpec]) -> ToolRegistry:
    """Add the tools that a request brings and its sender runs. Raises `UsageError` for a name that is taken."""
    known = [tool.spec() for tool in tools if tool.mode == "client"]
    if not (new := [spec for spec in offered if spec not in known]):
        return tools
    both = tools.clone()
    for spec in new:
        both.register(
            Tool(
                spec.name,
                spec.description,
                _AnyArguments,
                _run_elsewhere,
                "none",
                source="client",
                time_limit_s=None,
                mode="client",
                schema=spec.input_schema,
            )
        )
    return both


class ClientCalls:
    """Calls that wait for the client. All that begin to wait at one moment are handed over in one event."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ToolOutput]] = {}
        self._new: list[ToolUse] = []
        self._has_client = True

    async def result_of(self, call: ToolUse, hand_over: HandOver) -> ToolOutput:
        """Hand the call to the client and wait for its result. Raises `ToolError`."""
        if call.id in self._waiting:
            raise ToolError(f"A call with the id {call.id} waits already.", kind="validation_error")
        if not self._has_client:
            raise _client_gone()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToolOutput] = loop.create_future()
        self._waiting[call.id] = answer
        self._new.append(call)
        if len(self._new) == 1:
            loop.call_soon(self._hand_over_new, hand_over)
        try:
            return await answer
        finally:
            del self._waiting[call.id]

    def _hand_over_new(self, hand_over: HandOver) -> None:
        calls, self._new = self._new, []
        hand_over(tuple(calls))

    @property
    def waiting(self) -> Collection[str]:
        """The ids of the calls that have no result yet."""
        return [id for id, answer in self._waiting.items() if not answer.done()]

    def set_attended(self, is_attended: bool) -> None:
        """Note whether a client runs its tools. Without one, calls that wait end with an error, as later ones do."""
        self._has_client = is_attended
        for answer in () if is_attended else self._waiting.values():
            if not answer.done():
                answer.set_exception(_client_gone())

    def answer(self, call_id: str, output: ToolOutput) -> bool:
        """Deliver the client's result; return False if no call with that id was waiting."""
        answer = self._waiting.get(call_id)
        if answer is None or answer.done():
            return False
        answer.set_result(output)
        return True


def _client_gone() -> ToolError:
    return ToolError("The client that runs this tool has gone: do without it.", kind="dependency_error")
