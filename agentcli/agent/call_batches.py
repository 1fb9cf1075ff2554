"""The calls of one reply: what runs together, what waits for what, and a result for each of them in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from agentcli.agent.events import Emit, Steered
from agentcli.agent.report import INTERRUPTED
from agentcli.agent.state import AgentState
from agentcli.agent.tool_calls import CallRunner, run_call
from agentcli.conversation.entries import Result
from agentcli.llm.messages import ToolResult, ToolUse


async def run_calls(
    runner: CallRunner, state: AgentState, calls: Sequence[ToolUse], emit: Emit, *, reply_id: str = ""
) -> list[Result]:
    """A result for every call, in the order of the calls; `reply_id` is the entry they stand in.

    Neighbouring calls that only read run together, the others one after another; those that a client has to run come
    last, all together. Before each start the steering queue is looked at: what has not started then is skipped and
    says so; so is what would come after a no that stops the turn. Raises `Interrupted`, with a result for every call,
    when the turn is cancelled meanwhile.
    """
    done: dict[str, Result] = {}
    try:
        for batch in _batches(runner, calls):
            if state.conversation.queue.steering or runner.is_stopped:
                break
            await _run_batch(runner, state, batch, emit, done, reply_id)
    except asyncio.CancelledError as interrupt:
        raise Interrupted([done.get(call.id) or _unfinished(call) for call in calls]) from interrupt
    skipped = [call for call in calls if call.id not in done]
    why = "the user declined another call" if runner.is_stopped else "a new message from the user came first"
    for call in skipped:
        done[call.id] = not_run(call, f"Not run: {why}.")
    if skipped and not runner.is_stopped:
        emit(Steered(tuple(skipped)))
    return [done[call.id] for call in calls]


class Interrupted(asyncio.CancelledError):
    """The turn was interrupted while calls ran; `results` answers every one of them."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__()
        self.results = results


def _batches(runner: CallRunner, calls: Sequence[ToolUse]) -> Iterator[list[ToolUse]]:
    for_client = [call for call in calls if runner.is_for_client(call)]
    batch: list[ToolUse] = []
    for call in calls:
        if call in for_client:
            continue
        overlaps = call.name in runner.tools and runner.tools.get(call.name).may_overlap
        if overlaps:
            batch.append(call)
            continue
        if batch:
            yield batch
            batch = []
        yield [call]
    if batch:
        yield batch
    if for_client:
        yield for_client


async def _run_batch(
    runner: CallRunner, state: AgentState, batch: list[ToolUse], emit: Emit, done: dict[str, Result], reply_id: str
) -> None:
    if len(batch) == 1:
        await run_call(runner, state, batch[0], emit, done, reply_id=reply_id)
        return
    places = asyncio.Semaphore(len(batch) if runner.is_for_client(batch[0]) else runner.max_parallel)

    async def run_one(call: ToolUse) -> None:
        async with places:
            if not state.conversation.queue.steering and not runner.is_stopped:
                await run_call(runner, state, call, emit, done, reply_id=reply_id)

    async with asyncio.TaskGroup() as group:
        for call in batch:
            group.create_task(run_one(call))


def not_run(call: ToolUse, why: str) -> Result:
    return Result(ToolResult(call.id, why, is_error=True), call.name, summary=why)


def _unfinished(call: ToolUse) -> Result:
    return not_run(call, INTERRUPTED)
