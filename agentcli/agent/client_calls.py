"""Calls that a client runs: handed over as an event, answered by an operation."""

from __future__ import annotations

import asyncio

from agentcli.agent.events import ClientToolRequested, Emit
from agentcli.errors import ToolError
from agentcli.llm.messages import ToolUse
from agentcli.tools.tool import ToolOutput


class ClientCalls:
    """Those that wait for their results. All calls that begin to wait at one moment are told in one event."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[ToolOutput]] = {}
        self._untold: list[ToolUse] = []

    async def result_of(self, call: ToolUse, emit: Emit) -> ToolOutput:
        if call.id in self._waiting:
            raise ToolError(f"A call with the id {call.id} waits already.", kind="validation_error")
        answer: asyncio.Future[ToolOutput] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = answer
        self._untold.append(call)
        if len(self._untold) == 1:
            asyncio.get_running_loop().call_soon(self._tell, emit)
        try:
            return await answer
        finally:
            del self._waiting[call.id]

    def _tell(self, emit: Emit) -> None:
        calls, self._untold = self._untold, []
        emit(ClientToolRequested(tuple(calls)))

    def answer(self, call_id: str, output: ToolOutput) -> bool:
        """Whether a call with that id was waiting."""
        answer = self._waiting.get(call_id)
        if answer is None or answer.done():
            return False
        answer.set_result(output)
        return True
