"""The agent loop: ask the model, run its calls, until it stops asking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from agentcli.agent import turn_log as log
from agentcli.agent.accounting.budgets import OverBudget
from agentcli.agent.calls.report import INTERRUPTED
from agentcli.agent.calls.run import run_calls
from agentcli.agent.events import Done, DoneReason, TurnFailed, TurnStarted
from agentcli.agent.requests.request import request_reply
from agentcli.agent.runtime import EarlyEnd, Turn
from agentcli.agent.turn import check_answer, done, failed, failure
from agentcli.conversation.entries import Result
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError


async def run_turn(turn: Turn) -> Done | TurnFailed:
    """Answer a prompt, however many requests and calls it takes, and return the turn's last event.

    When cancelled, it keeps the text so far, answers every open call, and emits `Done` as the last event.
    """
    try:
        end = await _answer(turn)
    except asyncio.CancelledError as cancelled:
        log.answer_open_calls(turn, INTERRUPTED)
        await log.settled_in_any_case(turn)
        why = str(cancelled.args[0]) if any(cancelled.args) else ""  # a reason of the program's own
        turn.emit(failed(turn, why, True, "GivenUp") if why else done(turn, "interrupted"))
        raise
    turn.emit(end)
    return end


async def _answer(turn: Turn) -> Done | TurnFailed:
    try:
        try:
            for step in turn.steps:
                await step.begin(turn)
            reason = await _rounds(turn)
        finally:
            for step in turn.steps:
                step.end(turn)
        await log.settled(turn)
    except (ProviderError, UserError) as error:
        return await failure(turn, error)
    end = done(turn, reason)
    return replace(end, claims=await check_answer(end.text, turn)) if reason == "end_turn" else end


async def _rounds(turn: Turn) -> DoneReason:
    """Make requests and run their calls, until no step asks for another request or one ends the turn."""
    if open_calls := turn.state.conversation.unstarted_calls:  # of a reply that an earlier run of the program stored
        await run_calls(turn.calls, open_calls)
        if turn.calls.is_stopped:
            return "declined"
    while True:
        for step in turn.steps:
            if (reason := await step.before_request(turn)) is not None:
                return reason
        turn.round += 1
        turn.emit(TurnStarted(turn.round))
        try:
            reply = await request_reply(turn)
        except (ProviderError, OverBudget) as error:
            if (reason := await _recover(turn, error)) is not None:
                return reason
            continue
        if (ending := await _check(turn, reply)) is not None:
            log.answer_open_calls(turn, ending.why)
            return ending.reason
        results: list[Result] = []
        if reply.message.tool_uses:
            turn.answer.begin()
            results = await run_calls(turn.calls, reply.message.tool_uses)
            for step in turn.steps:
                if (reason := await step.after_calls(turn, reply, results)) is not None:
                    return reason
        if not await _is_request_due(turn, reply, results):
            return "max_tokens" if reply.stop_reason == "max_tokens" else "end_turn"


async def _recover(turn: Turn, error: ProviderError | OverBudget) -> DoneReason | None:
    """Return the reason to end the turn; None where another request is due. Raises the error if no step handles it."""
    for step in turn.steps:
        if outcome := await step.recover(turn, error):
            return None if outcome is True else outcome
    raise error


async def _check(turn: Turn, reply: llm.Done) -> EarlyEnd | None:
    for step in turn.steps:
        if (ending := await step.before_calls(turn, reply)) is not None:
            return ending
    return None


async def _is_request_due(turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
    if any([await step.deliver(turn, reply) for step in turn.steps]):  # every step is called
        turn.answer.begin()
        return True
    for step in turn.steps:
        if await step.after_reply(turn, reply, results):
            return True
    return False
