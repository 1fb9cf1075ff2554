"""Makes calls that a program asks for, which are permitted, confined and recorded like those of the model.

A call under a key is made once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentcli.agent.calls.model import Ask, Call, TurnCalls, at_once
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import CallError, Event, ToolFinished
from agentcli.agent.session import Session
from agentcli.conversation.entries import Body, FilesChanged
from agentcli.errors import UsageError
from agentcli.llm.messages import ToolResult, ToolUse

MAX_KEYS = 1_000  # the oldest are forgotten


class DirectCall(NamedTuple):
    """The end of a call, or its failure once it had begun. Making it again does no harm if it `can_repeat`."""

    end: ToolFinished | Exception
    can_repeat: bool

    def finished(self) -> ToolFinished:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


class KeyedCalls:
    """Calls by key: the first of a key is made, later ones get its result and wait for it while it runs."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[ToolUse, asyncio.Task[DirectCall]]] = {}

    async def once(self, key: str, use: ToolUse, make: Callable[[], Coroutine[Any, Any, DirectCall]]) -> DirectCall:
        """Make the call of a key unless it was made, and return its end. Raises `UsageError` for another call's key."""
        if key not in self._calls:
            ended = [key for key, (_, task) in self._calls.items() if task.done()]  # what runs is never made twice
            excess = len(self._calls) + 1 - MAX_KEYS
            for oldest in ended[: max(0, excess)]:
                del self._calls[oldest]
            self._calls[key] = use, asyncio.create_task(make())
        first, task = self._calls[key]
        if (first.name, first.input) != (use.name, use.input):
            raise UsageError(f"The idempotency key {key!r} was already used for another call, of {first.name}.")
        try:
            return await asyncio.shield(task)
        finally:
            may_retry = task.done() and (task.cancelled() or task.exception() is not None or task.result().can_repeat)
            if may_retry and self._calls.get(key) == (first, task):  # else another caller has removed it
                del self._calls[key]

    async def cancel(self) -> None:
        running = [task for _, task in self._calls.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._calls.clear()


async def call_directly(
    session: Session, use: ToolUse, *, ask: Ask | None = None, caller_id: str = "", timeout_s: float | None = None
) -> DirectCall:
    """Make a call that no model reads, and return its end. A failure before the tool has begun is raised.

    Without `ask`, a call that would ask is denied. `caller_id` names the caller where the call is recorded.
    """
    if (servers := session.runtime.calls.delegates.servers) is not None:
        await servers.join(session.runtime.calls)
    calls = replace(session.runtime.calls, ask=ask, agent_id=caller_id or session.runtime.calls.agent_id)
    ended: list[ToolFinished] = []

    def emit(event: Event) -> None:
        session.publish(event)
        if isinstance(event, ToolFinished):
            ended.append(event)

    def store(body: Body) -> Awaitable[object]:
        """Store what undo and blame need: other entries belong to calls of the model."""
        return session.append(body) if isinstance(body, FilesChanged) else at_once()

    turn = TurnCalls(session=calls, state=session.state, emit=emit, store=store, budgets=session.state.budgets)
    call = Call(use, turn)
    try:
        async with asyncio.timeout(timeout_s):
            await run_call(call)
        finished = ended[-1]
    except TimeoutError:
        message = f"{use.name} did not finish within {timeout_s:g} s and was stopped."
        error = CallError("timeout", "timeout", message, use.id)
        result = ToolResult(use.id, f"timeout: {message}", is_error=True)
        finished = ToolFinished(use.id, use.name, result, (timeout_s or 0) * 1000, error_kind="timeout", error=error)
    except Exception as error:
        if call.report.is_running:
            return DirectCall(error, can_repeat=False)
        raise
    return DirectCall(finished, _can_repeat(call, finished))


def _can_repeat(call: Call, finished: ToolFinished) -> bool:
    """Return True if the call failed, and making it again can do no harm."""
    error = finished.error
    if error is None:
        return False
    if not call.report.is_running:  # the call failed before its tool was run, so it changed nothing
        return True
    tools, name = call.turn.session.tools, call.use.name
    tool = tools.get(name) if name in tools else None  # the tool's server may be gone
    # Functions of the library's user may change anything, whatever effect they declare; they have `retry.most` 0.
    is_repeatable = tool is not None and tool.may_be_repeated and tool.retry.most > 0
    # A rate limit refuses a call before it has any effect, so any tool may be called again.
    return error.kind == "rate_limit" or (error.is_retryable and is_repeatable)
