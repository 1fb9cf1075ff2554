"""Runs the calls of one reply: those that may overlap together, the others in order, each with a result in any case."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import groupby

from agentcli.agent.calls.model import Call, TurnCalls
from agentcli.agent.calls.report import INTERRUPTED
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import Steered
from agentcli.conversation.entries import Result
from agentcli.llm.messages import ToolResult, ToolUse


async def run_calls(turn: TurnCalls, uses: Sequence[ToolUse], *, reply_id: str = "") -> list[Result]:
    """Run the calls of a reply, whose entry `reply_id` is, and store a result for each; gives them in that order.

    Neighbouring calls that only read run together, the others one after another; those of a client come last, all
    together. Calls that have not started when the person says something, or stops or cancels the turn, are skipped,
    and their results say so.
    """
    calls = [Call(use, turn, reply_id=reply_id) for use in uses]
    results: list[Result] = []

    def store(why: str = "") -> None:
        """Store results in the order of the calls: up to the first that has none, or with a reason all of them."""
        for call in calls[len(results) :]:
            if call.report.result is None and not why:
                return
            results.append(call.report.result or not_run(call.use, why))
            turn.store(results[-1])

    try:
        for batch in _batches(turn, calls):
            if turn.must_pause:
                break
            await _run_batch(turn, batch)
            store()
    except asyncio.CancelledError:
        store(INTERRUPTED)
        raise
    skipped = tuple(call.use for call in calls if call.report.result is None)
    if skipped and not turn.is_stopped:
        turn.emit(Steered(skipped))
    why = "the user declined another call" if turn.is_stopped else "a new message from the user came first"
    store(f"Not run: {why}.")
    return results


def _batches(turn: TurnCalls, calls: Sequence[Call]) -> Iterator[list[Call]]:
    tools = turn.session.tools
    for_client = [call for call in calls if turn.session.is_for_client(call.use)]
    ours = (call for call in calls if call not in for_client)
    for overlaps, batch in groupby(ours, lambda call: call.use.name in tools and tools.get(call.use.name).may_overlap):
        together = list(batch)
        yield from [together] if overlaps else [[call] for call in together]
    if for_client:
        yield for_client


async def _run_batch(turn: TurnCalls, batch: list[Call]) -> None:
    if len(batch) == 1:
        await run_call(batch[0])
        return
    session = turn.session
    places = asyncio.Semaphore(len(batch) if session.is_for_client(batch[0].use) else session.services.max_parallel)

    async def run_one(call: Call) -> None:
        async with places:
            if not turn.must_pause:
                await run_call(call)

    async with asyncio.TaskGroup() as group:
        for call in batch:
            group.create_task(run_one(call))


def not_run(call: ToolUse, why: str) -> Result:
    return Result(ToolResult(call.id, why, is_error=True), call.name, summary=why)
