"""The agent loop: ask the model, run its calls, until it stops asking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from agentcli.agent import steps
from agentcli.agent import turn_log as log
from agentcli.agent.accounting.budgets import OverBudget
from agentcli.agent.calls.batches import run_calls
from agentcli.agent.calls.report import INTERRUPTED
from agentcli.agent.events import Done, DoneReason, LimitQuestion, Notice, TurnFailed, TurnStarted
from agentcli.agent.hooks import fire
from agentcli.agent.ops import Approve
from agentcli.agent.plans import settle_plan
from agentcli.agent.requests.request import describe_error, request_reply
from agentcli.agent.turn_log import Turn
from agentcli.agent.turn_start import GO_ON, add_messages, is_unanswered
from agentcli.conversation.entries import Result, User, reminder
from agentcli.errors import LoopError, StorageError, UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    ProviderError,
)
from agentcli.llm.messages import Text, ToolUse
from agentcli.llm.providers.catalog import provider_display_name


async def run_turn(turn: Turn) -> Done | TurnFailed:
    """Answer a prompt, however many requests and calls it takes, and return its last event.

    When cancelled, the text so far is kept, every open call is answered, and the last event is `Done` all the same.
    """
    try:
        end = await _answered(turn)
    except asyncio.CancelledError as cancelled:
        log.answer_open_calls(turn, INTERRUPTED)
        await log.settled_in_any_case(turn)
        why = str(cancelled.args[0]) if any(cancelled.args) else ""  # a reason of the program's own
        turn.emit(_failed(turn, why, True, "GivenUp") if why else _done(turn, "interrupted"))
        raise
    turn.emit(end)
    return end


async def _answered(turn: Turn) -> Done | TurnFailed:
    try:
        try:
            await steps.run_prompt_hooks(turn)
            await join_servers(turn)
            if turn.runtime.answer_schema is not None:
                turn.state.notes.append(reminder(turn.runtime.answer_schema.request))
            reason = await _rounds(turn)
        finally:
            if (skills := turn.runtime.calls.skills) is not None:
                skills.end_turn(partial(log.add, turn))
        await log.settled(turn)
    except (ProviderError, UserError) as error:
        return await _failure(turn, error)
    done = _done(turn, reason)
    return replace(done, claims=await steps.check_answer(done.text, turn)) if reason == "end_turn" else done


async def join_servers(turn: Turn) -> None:
    """Have the tools of MCP servers before the first request, and the resources that the prompt names."""
    if (servers := turn.runtime.calls.servers) is not None:
        await servers.join(turn.runtime.calls)
        await servers.attach_named(turn.state, turn.prompt_ids, turn.emit)


async def _rounds(turn: Turn) -> DoneReason:
    """Make requests and run their calls, until the model asks for nothing more."""
    if turn.left:
        await run_calls_of(turn, turn.left)
        if turn.calls.is_stopped:
            return "declined"
    if turn.resets_at:
        await steps.wait_until(turn, turn.resets_at)
    while turn.round < turn.most_rounds or await goes_on(turn):
        turn.round += 1
        turn.emit(TurnStarted(turn.round))
        try:
            reply = await request_reply(turn)
        except ProviderError as error:
            if await steps.wait_for_reset(turn, error):
                turn.round -= 1
            elif not goes_on_after(turn, error):
                raise
            continue
        except OverBudget as over:
            turn.round -= 1
            if await gets_more(turn, over):
                continue
            turn.emit(Notice(str(over)))
            if turn.round == 0 and turn.prompt_ids:
                log.take_back_prompt(turn)
                turn.emit(Notice("The message was taken back."))
            return "max_budget"
        calls, is_over = reply.message.tool_uses, False
        if (refusal := await _refusal(turn, reply)) is not None:
            reason, why = refusal
            log.refuse_calls(turn, calls, why)
            return reason
        if calls:
            log.begin_answer(turn)
            results = await run_calls_of(turn, calls)
            own = (one.duration_ms for one in results if one.name != "create_subagent")  # which charges its own
            turn.budgets.charge({"seconds": sum(own) / 1000})
            await note_instructions(turn, calls)
            if turn.calls.is_stopped or not await may_repeat(turn):
                return "declined"
            is_over = steps.is_complete(turn, reply, results)
        steered = add_steering(turn)
        reported = await add_reports(turn, waits=not calls and not steered)
        if steered or reported:
            log.begin_answer(turn)
        has_more = (calls and not is_over) or steered or reported or steps.continue_reply(turn, reply)
        has_more = has_more or await settle_plan(turn) or steps.ask_for_schema(turn) or steps.nudge(turn)
        if not has_more:
            steps.require_answer(turn, reply)
        if not has_more and not await steps.run_stop_hooks(turn):
            return "max_tokens" if reply.stop_reason == "max_tokens" else "end_turn"
        if not has_more:
            log.begin_answer(turn)
    return "max_turns"


async def _refusal(turn: Turn, reply: llm.Done) -> tuple[DoneReason, str] | None:
    """Return why a turn ends though the reply has calls, and what those calls are answered; None if it goes on."""
    stopped = "Not run: the turn was stopped."
    try:
        is_allowed = await log.hook_allows(turn, reply.usage)
    except UserError:
        log.refuse_calls(turn, reply.message.tool_uses, stopped)
        raise
    if not is_allowed:
        return "stopped", stopped
    if reply.message.tool_uses and not await may_call(turn, len(reply.message.tool_uses)):
        return "max_budget", "Not run: the budget is used up."
    if reply.message.tool_uses and turn.round == turn.most_rounds and not await goes_on(turn):
        return "max_turns", f"Not run: the limit of {turn.round} rounds is reached."
    return None


async def may_repeat(turn: Turn) -> bool:
    """False where the person stops a call that is made again and again. Raises `LoopError` if nobody can be asked."""
    history = turn.runtime.calls.history
    if not history.looping:
        return True
    title = f"The model makes the same call again and again ({history.looping}): let it go on?"
    if turn.runtime.limits.asks and turn.runtime.calls.ask is not None:
        is_allowed = await _asked(turn, f"loop_{turn.round}", title, "Its result was the same each time.")
        history.forget_results()
        return is_allowed
    raise LoopError(f"Stopped: the same call was made again and again, with the same result: {history.looping}.")


async def may_call(turn: Turn, calls: int) -> bool:
    """Return True if the budgets, or the person, allow so many calls and what follows them."""
    while True:
        try:
            turn.budgets.check()
            turn.budgets.begin_calls(calls)
            return True
        except OverBudget as over:
            if not await gets_more(turn, over):
                turn.emit(Notice(str(over)))
                return False


async def goes_on(turn: Turn) -> bool:
    """Ask the person at the limit of rounds; True if they allow as many more."""
    more = turn.runtime.limits.max_turns
    title = f"{turn.round} rounds are done: {more} more?"
    is_allowed = await _asked(
        turn, f"limit_{turn.round}", title, f"The limit is limits.max_turns = {more} (--max-turns)."
    )
    turn.most_rounds += more if is_allowed else 0
    return is_allowed


async def gets_more(turn: Turn, over: OverBudget) -> bool:
    """Ask the person where a budget is used up; True if they allow as much again."""
    is_allowed = await _asked(turn, over.id, f"{over} Allow {over.more} in all?", f"The budget is {over.setting}.")
    if is_allowed:
        over.allow_more()
    return is_allowed


async def _asked(turn: Turn, id: str, title: str, reason: str) -> bool:
    """Ask the person about the turn; their comment to a no is the next prompt."""
    ask, queue = turn.runtime.calls.ask, turn.state.conversation.queue
    if not turn.runtime.limits.asks or ask is None:
        return False
    answer = await ask(LimitQuestion(id, title, reason=reason), None)
    if not isinstance(answer, Approve):
        return False
    if not answer.allowed and answer.comment:
        queue.steering.append((Text(answer.comment),))
        log.add(turn, queue.entry())
        turn.emit(log.queue_changed(turn.state))
    return answer.allowed


def goes_on_after(turn: Turn, error: ProviderError) -> bool:
    """Continue an answer that broke off, unasked, with a reminder that asks for the rest; False if it is not."""
    if turn.round >= turn.most_rounds or not can_go_on(turn, error) or turn.breaks >= turn.runtime.most_breaks:
        return False
    turn.breaks += 1
    turn.emit(Notice(f"The answer broke off ({describe_error(error).rstrip('.')}): going on where it stopped."))
    log.add(turn, reminder(GO_ON))
    return True


def can_go_on(turn: Turn, error: ProviderError | UserError) -> bool:
    return turn.has_half_answer and isinstance(error, ProviderError) and error.is_retryable


async def run_calls_of(turn: Turn, calls: Sequence[ToolUse]) -> list[Result]:
    reply = turn.state.conversation.last_reply
    return await run_calls(turn.calls, calls, reply_id=reply.id if reply else "")


async def note_instructions(turn: Turn, calls: Sequence[ToolUse]) -> None:
    """Tell the model what the folders that these calls went to say of themselves."""
    if (nested := turn.runtime.nested) is None:
        return
    found = await asyncio.to_thread(nested.found, calls, turn.state.conversation)
    if note := found.note():
        turn.state.notes.append(note)
    for notice in found.notices:
        turn.emit(Notice(notice))


def add_steering(turn: Turn) -> bool:
    """Add the messages that came meanwhile where the model reads them next; False if there were none."""
    messages = turn.state.conversation.queue.take_steering()
    if messages:
        add_messages(turn, messages, from_queue=True)
    return bool(messages)


async def add_reports(turn: Turn, *, waits: bool) -> bool:
    """Add what subagents in the background report; where no person is there, an answer `waits` for them."""
    if (agents := turn.runtime.calls.agents) is None:
        return False
    if waits and not turn.runtime.limits.asks:
        await agents.finished_one()
    reports = agents.take_reports()
    log.add(turn, *(User((Text(report),), is_reminder=True) for report in reports)) if reports else ()
    return bool(reports)


async def _failure(turn: Turn, error: ProviderError | UserError) -> TurnFailed:
    """Return the event of a failure. A prompt that the provider would refuse again and again is taken back."""
    broke_off = can_go_on(turn, error)
    taken_back = ""
    if turn.is_refused and type(error) is BadRequest:
        taken_back = log.take_back_refused(turn)
    elif isinstance(error, AuthError | ContextOverflow) and turn.round == 1 and turn.prompt_ids:
        log.take_back_prompt(turn)
        taken_back = "The message was taken back."
    if turn.is_refused_by_hook:
        log.take_back_prompt(turn)
    is_retryable = isinstance(error, ProviderError) and error.is_retryable
    await fire(turn.runtime.calls, "StopFailure", error=str(error))
    await log.run_error_hook(turn.runtime, str(error), is_retryable=is_retryable)
    try:
        await log.settled(turn)
    except StorageError as unstored:
        error = unstored
    said = [_overload(turn, error) or describe_error(error), _ADVICE.get(type(error), ""), taken_back]
    if is_retryable and not broke_off:
        said += _next_steps(turn, error)
    text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in said if part)
    return _failed(turn, text, is_retryable, type(error).__name__, broke_off=broke_off)


def _failed(turn: Turn, text: str, is_retryable: bool, kind: str, *, broke_off: bool = False) -> TurnFailed:
    end = TurnFailed(text, is_retryable, kind, turn.round, turn.usage)
    return replace(end, cost_usd=turn.cost_usd, denials=tuple(turn.calls.denials), broke_off=broke_off)


def _overload(turn: Turn, error: Exception) -> str:
    """Say who is overloaded, where the server gives no more than that word. Empty for other failures."""
    is_bare = str(error).lower().strip(" .!") in ("", "overloaded", "overloaded_error")
    if not isinstance(error, Overloaded) or not is_bare:
        return ""
    error.args = (f"{provider_display_name(turn.state.model.partition('/')[0])} is overloaded",)
    return describe_error(error)


def _next_steps(turn: Turn, error: Exception) -> list[str]:
    """Say what to do about a failure that passes."""
    said = []
    if steps.has_distant_reset(error) and not turn.runtime.limits.waits_for_reset:
        said.append("With limits.wait_for_reset = true it waits, and goes on by itself.")
    if not turn.runtime.limits.asks:
        return [*said, "Try again later, or choose another model with -m."]
    way = "Press Enter to retry, or /model to switch." if is_unanswered(turn.state.conversation) else ""
    return [*said, way]


# What to do next, where the provider's own words do not say it.
_ADVICE: dict[type[Exception], str] = {
    AuthError: "Check the provider's key (agentcli models check).",
    BadRequest: "If it stays so, /rewind takes earlier messages back, and /model chooses another model.",
    ModelNotFound: "Choose another with -m or /model; agentcli models list shows those that are known.",
    ContextOverflow: "Shorten the prompt, begin a new conversation, or use a model with a larger window.",
    BillingError: "Top up the account, or use another provider with -m or /model.",
}


def _done(turn: Turn, reason: DoneReason) -> Done:
    """Return the answer; where the turn ended before there was one, what was said on the way."""
    text = "".join(turn.answer).strip() or "\n\n".join(part for part in turn.said if part.strip())
    return Done(text, turn.round, turn.usage, reason, cost_usd=turn.cost_usd, denials=tuple(turn.calls.denials))
