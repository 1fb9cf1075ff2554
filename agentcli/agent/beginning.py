"""Begins turns: with a prompt, or where an earlier one was cut short."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agentcli.agent.accounting.budgets import MemoryAccount
from agentcli.agent.calls.model import TurnCalls
from agentcli.agent.events import Emit, Notice
from agentcli.agent.requests.request import add_notes
from agentcli.agent.runtime import Runtime
from agentcli.agent.state import AgentState
from agentcli.agent.turn_log import Turn, add, add_one, answer_open_calls, charge_subagent, queue_changed, settled
from agentcli.agent.usage_limits import awaited_reset
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Result, User, reminder
from agentcli.conversation.mentions import unattached_files
from agentcli.llm.messages import Block, Text

GO_ON = (
    "The connection broke in the middle of your answer. Go on exactly where it stopped, within a word if need be: "
    "repeat nothing of it, and say nothing about this. If it had begun a tool call, nothing of that has run: "
    "make the call again."
)


def begin_turn(
    state: AgentState,
    runtime: Runtime,
    prompts: Sequence[Sequence[Block]],
    emit: Emit,
    *,
    from_queue: bool = False,
) -> Turn:
    """Add a prompt to the conversation, with `from_queue` in one transaction with its leaving the queue.

    Nothing is waited for: whatever is queued next is queued after this.
    """
    turn = _new_turn(state, runtime, emit)
    answer_open_calls(turn)
    if runtime.calls.skills is not None:
        runtime.calls.skills.begin_turn(state.conversation)
    add_notes(turn)
    turn.prompt_ids = say(turn, prompts, from_queue=from_queue)
    turn.entry_ids = list(turn.prompt_ids)
    return turn


def cut_turn(state: AgentState, runtime: Runtime, emit: Emit, is_killed: bool = False) -> Turn | None:
    """Go on where the conversation was cut short: at a question that waits, or in an answer that broke off.

    With `is_killed` also where the model has not answered.
    """
    conversation = state.conversation
    if conversation.asked_again:
        return resume_turn(state, runtime, emit)
    if half_answer(conversation):
        return go_on_turn(state, runtime, emit)
    return resume_turn(state, runtime, emit) if is_killed and is_unanswered(conversation) else None


def is_unanswered(conversation: Conversation) -> bool:
    """True if a prompt, a call or a result has no answer of the model's yet."""
    said = (entry.body for entry in reversed(conversation.path))
    match next((body for body in said if isinstance(body, User | Assistant | Result)), None):
        case User() | Result():
            return True
        case _:
            return bool(conversation.open_calls)


def go_on_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    """Go on with the answer that broke off at the end of the turn before; the rest joins its first part."""
    turn = _new_turn(state, runtime, emit)
    turn.answer, turn.has_half_answer = [half_answer(state.conversation)], True
    turn.resets_at = awaited_reset(state.conversation)
    add_notes(turn)
    add(turn, reminder(GO_ON))
    return turn


def resume_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    """Go on with a turn that the end of the program cut short, at the question that nobody had answered, if any.

    Calls before it get a result that says what is known of them; it and those behind it have not begun.
    """
    turn = _new_turn(state, runtime, emit)
    turn.left = state.conversation.asked_again
    if runtime.calls.skills is not None:
        runtime.calls.skills.begin_turn(state.conversation, is_resumed=True)
    answer_open_calls(turn, apart_from=turn.left)
    turn.resets_at = awaited_reset(state.conversation)
    return turn


def _new_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    budgets = state.budgets.within(MemoryAccount("turn", runtime.limits.budgets))
    turn = Turn(state, runtime, emit, TurnCalls(runtime.calls, state, emit), runtime.limits.max_turns, budgets)
    turn.calls.store, turn.calls.settle = partial(add_one, turn), partial(settled, turn)
    turn.calls.budgets, turn.calls.charge = budgets, partial(charge_subagent, turn)
    return turn


def half_answer(conversation: Conversation) -> str:
    """The text of the answer that broke off at the end of the conversation; else empty."""
    parts: list[str] = []
    for entry in reversed(conversation.path):
        match entry.body:
            case Assistant(content, stop_reason="interrupted"):
                parts.append("".join(block.text for block in content if isinstance(block, Text)))
            case Assistant() | Result() | User(is_reminder=False):
                break
            case _:
                pass
    return "".join(reversed(parts))


def say(turn: Turn, messages: Sequence[Sequence[Block]], *, from_queue: bool) -> list[str]:
    """Add the person's messages; gives the ids of their entries."""
    said: list[Body] = [User(tuple(message)) for message in messages]
    turn.runtime.calls.history.forget_results()
    for notice in (notice for message in messages for notice in unattached_files(message)):
        turn.emit(Notice(notice))
    if not from_queue:
        return [entry.id for entry in add(turn, *said)]
    entries = add(turn, *said, turn.state.conversation.queue.entry())
    turn.emit(queue_changed(turn.state))
    return [entry.id for entry in entries[:-1]]
