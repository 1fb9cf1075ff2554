"""Makes calls that a program asks for, which are permitted, confined and recorded like those of the model.

A call under a key is made once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentcli.agent.calls.model import Ask, Call, TurnCalls, at_once
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import CallError, Event, ToolFinished
from agentcli.agent.session import Session
from agentcli.conversation.entries import Body, FilesChanged
from agentcli.errors import ToolError, UsageError
from agentcli.llm.messages import ToolResult, ToolUse

MAX_KEYS = 1_000  # the oldest are forgotten
KEY_TTL_S = 24 * 3600.0


class DirectCall(NamedTuple):
    """The end of a call, or its failure once it had begun. Making it again does no harm if it `can_repeat`."""

    end: ToolFinished | Exception
    can_repeat: bool

    def finished(self) -> ToolFinished:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


class KeyedCall(NamedTuple):
    """The first call of a key, which is forgotten once the monotonic time is past `expires`, unless it still runs."""

    use: ToolUse
    task: asyncio.Task[DirectCall]
    expires: float


class KeyedCalls:
    """Calls by key: the first of a key is made, later ones get its result and wait for it while it runs."""

    def __init__(self) -> None:
        self._calls: dict[str, KeyedCall] = {}

    async def once(
        self, key: str, use: ToolUse, make: Callable[[], Coroutine[Any, Any, DirectCall]], *, ttl_s: float = KEY_TTL_S
    ) -> DirectCall:
        """Make the call of a key unless it was made, and return its end. Raises `UsageError` for another call's key."""
        self._forget_old()
        if key not in self._calls:
            self._calls[key] = KeyedCall(use, asyncio.create_task(make()), time.monotonic() + ttl_s)
        first, task, _ = kept = self._calls[key]
        if (first.name, first.input) != (use.name, use.input):
            raise UsageError(f"The idempotency key {key!r} was already used for another call, of {first.name}.")
        try:
            return await asyncio.shield(task)
        finally:
            may_retry = task.done() and (task.cancelled() or task.exception() is not None or task.result().can_repeat)
            if may_retry and self._calls.get(key) == kept:  # else another caller has removed it
                del self._calls[key]

    def _forget_old(self) -> None:
        """Forget the keys that have expired, and the oldest of too many; what runs is never made twice."""
        ended = {key: kept.expires for key, kept in self._calls.items() if kept.task.done()}
        excess = max(0, len(self._calls) + 1 - MAX_KEYS)
        for place, (key, expires) in enumerate(ended.items()):
            if place < excess or expires <= time.monotonic():
                del self._calls[key]

    async def cancel(self) -> None:
        running = [kept.task for kept in self._calls.values() if not kept.task.done()]
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
    limit = asyncio.timeout(timeout_s)

    def emit(event: Event) -> None:
        if isinstance(event, ToolFinished):
            event = _timed_out(event, timeout_s) if limit.expired() else event
            ended.append(event)
        session.publish(event)

    def store(body: Body) -> Awaitable[object]:
        """Store what undo and blame need: other entries belong to calls of the model."""
        return session.append(body) if isinstance(body, FilesChanged) else at_once()

    turn = TurnCalls(session=calls, state=session.state, emit=emit, store=store, budgets=session.state.budgets)
    call = Call(use, turn)
    try:
        async with limit:
            await run_call(call)
    except Exception as error:
        is_over_limit = isinstance(error, TimeoutError) and limit.expired()  # then the call's end says so
        if call.report.is_running and not is_over_limit:
            return DirectCall(error, can_repeat=False)
        if not is_over_limit:
            raise
    return DirectCall(ended[-1], _can_repeat(call, ended[-1]))


def _timed_out(interrupted: ToolFinished, timeout_s: float | None) -> ToolFinished:
    """Return the end of a call that its caller's time limit has interrupted."""
    message = f"{interrupted.name} did not finish within {timeout_s:g} s and was stopped."
    failure = ToolError(message, kind="timeout")
    return replace(
        interrupted,
        result=ToolResult(interrupted.id, failure.line, is_error=True),
        summary=message,
        error_kind=failure.kind,
        error=CallError(failure.kind, failure.code, message, interrupted.id, failure.is_retryable),
    )


def _can_repeat(call: Call, finished: ToolFinished) -> bool:
    """Return True if the call failed, and making it again can do no harm."""
    error = finished.error
    if error is None:
        return False
    if not call.report.is_running:  # the call failed before its tool was run, so it changed nothing
        return True
    tools, name = call.turn.session.tools, call.use.name
    tool = tools.get(name) if name in tools else None  # the tool's server may be gone
    # Functions of the library's user may change anything, whatever effect they declare. Those without a rule have no
    # retries.
    is_repeatable = tool is not None and tool.may_be_repeated and tool.retry.max_retries > 0
    # A rate limit refuses a call before it has any effect, so any tool may be called again.
    return error.kind == "rate_limit" or (error.is_retryable and is_repeatable)
