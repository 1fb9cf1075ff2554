"""Makes calls for a program, once per idempotency key, and stores the results that a client sends for paused turns."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentcli.agent.calls.model import Ask, Call, TurnCalls, done_future
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import ToolFinished
from agentcli.agent.ops import ClientResult, GoOn
from agentcli.agent.session import Session
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Body, CallsHandedOver, FilesChanged
from agentcli.errors import UsageError
from agentcli.llm.messages import ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import ToolOutput

MAX_KEYS = 1_000  # the oldest are forgotten
KEY_TTL_S = 24 * 3600.0


class DirectCall(NamedTuple):
    """The end of a call, or the exception of one that had begun. If it `can_repeat`, another try does no harm."""

    end: ToolFinished | Exception
    can_repeat: bool

    def finished(self) -> ToolFinished:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


class KeyedCalls:
    """Calls by idempotency key: only the first call of a key is made; later ones wait for its result and return it."""

    def __init__(self) -> None:
        # By key: the first call, its task, and the monotonic time at which it expires if it has ended.
        self._calls: dict[str, tuple[ToolUse, asyncio.Task[DirectCall], float]] = {}

    async def once(
        self, key: str, use: ToolUse, make: Callable[[], Coroutine[Any, Any, DirectCall]], *, ttl_s: float = KEY_TTL_S
    ) -> DirectCall:
        """Make the call of a key unless it was made before; return its end.

        Raises `UsageError` if the key was used for another call.
        """
        self._forget_ended()
        if key not in self._calls:
            self._calls[key] = use, asyncio.create_task(make()), time.monotonic() + ttl_s
        first, task, _ = first_call = self._calls[key]
        if (first.name, first.input) != (use.name, use.input):
            raise UsageError(f"The idempotency key {key!r} was already used for another call, of {first.name}.")
        try:
            return await asyncio.shield(task)
        finally:
            has_failed = task.done() and (task.cancelled() or task.exception() is not None or task.result().can_repeat)
            if has_failed and self._calls.get(key) == first_call:  # another caller may have removed or replaced it
                del self._calls[key]  # so that the key can be used again

    def _forget_ended(self) -> None:
        """Forget expired calls, and the oldest to make room for one more. Running ones stay: no call is made twice."""
        ended = [(key, expires) for key, (_, task, expires) in self._calls.items() if task.done()]  # oldest first
        excess = len(self._calls) + 1 - MAX_KEYS
        for position, (key, expires) in enumerate(ended):
            if position < excess or expires <= time.monotonic():
                del self._calls[key]

    async def cancel(self) -> None:
        running = [task for _, task, _ in self._calls.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._calls.clear()


async def call_directly(
    session: Session, use: ToolUse, *, ask: Ask | None = None, caller_id: str = "", timeout_s: float | None = None
) -> DirectCall:
    """Make a program's call, permitted and recorded like the model's, and return its result.

    A denial, a timeout or the tool's own error is such a result. Any other error is raised if the tool had not begun;
    otherwise it is returned, because the tool may have changed something.
    """
    if (servers := session.runtime.calls.delegates.servers) is not None:
        await servers.update_tools(session.runtime.calls)
    calls = replace(session.runtime.calls, ask=ask, agent_id=caller_id or session.runtime.calls.agent_id)
    limit = asyncio.timeout(timeout_s)

    def store(body: Body) -> Awaitable[object]:
        """Store only the changes to files, for undo and blame: other entries belong to the model's calls."""
        return session.append(body) if isinstance(body, FilesChanged) else done_future()

    state = session.state
    turn = TurnCalls(session=calls, state=state, emit=session.publish, store=store, budgets=state.budgets)
    call = Call(use, turn)
    timeout_text = f"{use.name} did not finish within {timeout_s or 0:g} s and was stopped."
    call.report.timeout_text = lambda: timeout_text if limit.expired() else ""
    try:
        async with limit:
            await run_call(call)
    except Exception as error:
        if not (isinstance(error, TimeoutError) and limit.expired()):  # after a timeout, the report has a result
            if call.report.is_running:  # the tool may have changed something
                return DirectCall(error, can_repeat=False)
            raise
    return DirectCall(call.report.finished, _can_repeat(call, call.report.finished))


def _can_repeat(call: Call, finished: ToolFinished) -> bool:
    """Return True if the call failed, and another try can do no harm."""
    error = finished.error
    if error is None:
        return False
    if not call.report.is_running:  # the call failed before its tool was run, so it changed nothing
        return True
    tools, name = call.turn.session.tools, call.use.name
    tool = tools.get(name) if name in tools else None  # the tool's server may be gone
    # A library user's own function may change anything, whatever effect it declares, so only a retry rule allows it.
    is_repeatable = tool is not None and tool.may_be_repeated and tool.retry.max_retries > 0
    # A rate limit rejects a call before it has any effect, so any tool may be called again.
    return error.kind == "rate_limit" or (error.is_retryable and is_repeatable)


def pending_uses(conversation: Conversation, results: Sequence[ClientResult]) -> list[ToolUse]:
    """Return the pending calls of these results. Raises `UsageError` for a result without a pending call."""
    pending = dict(conversation.pending_calls)
    try:
        return [pending.pop(result.id) for result in results]
    except KeyError as missing:  # its text is the id in quotation marks
        waiting = ", ".join(pending) or "none"
        raise UsageError(
            f"No call {missing} waits for a result: there is none, or it has one already. Waiting: {waiting}."
        ) from None


async def store_results(session: Session, results: Sequence[ClientResult], tools: Sequence[ToolSpec] = ()) -> bool:
    """Store results of the client, and offer its tools again; return True if no call waits for a result any more.

    Raises `UserError` for a result without a pending call; then nothing is stored.
    """
    await session.idle()  # the turn may be about to pause, which makes its calls pending
    conversation, calls = session.state.conversation, session.runtime.calls
    turn = TurnCalls(session=calls, state=session.state, emit=session.publish)
    received = [Call(use, turn) for use in pending_uses(conversation, results)]
    session.offer_tools(tools)
    # After a restart of the program, the session has lost the client's tools, but the log has them.
    handed_over = [body for entry in conversation.path if isinstance(body := entry.body, CallsHandedOver)]
    known = session.next_tools or calls.tools
    session.offer_tools([spec for spec in handed_over[-1].tools if spec.name not in known])
    for call, result in zip(received, results, strict=True):
        await run_call(call, ToolOutput(result.content, result.structured, is_error=result.is_error))
    pending_uses(conversation, results)  # meanwhile a prompt or other results may have answered the calls
    await session.append(*(call.report.result for call in received if call.report.result is not None))
    return not conversation.pending_calls


async def continue_with(session: Session, result: ClientResult) -> None:
    """Store a result, and continue the turn if no other call waits for one. Raises `UserError`."""
    try:
        if await store_results(session, (result,)):
            session.submit(GoOn(if_unanswered=True))  # unless another operation has continued the turn meanwhile
    finally:  # the result is in the log now, or has failed to get there
        session.runtime.calls.delegates.client.received_ids.discard(result.id)
