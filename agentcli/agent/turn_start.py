"""Begins turns, with a prompt or where an earlier one was cut short, and stores what belongs to none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agentcli.agent.accounting.budgets import Account
from agentcli.agent.calls.model import SubagentSpending, TurnCalls
from agentcli.agent.events import Emit, Notice, TakenOver
from agentcli.agent.interfaces import SessionLog
from agentcli.agent.ops import Interrupt, Op
from agentcli.agent.requests.request import add_notes
from agentcli.agent.runtime import AnswerText, Runtime, Spending, Turn
from agentcli.agent.state import AgentState
from agentcli.agent.turn_log import add, add_one, answer_open_calls, charge_subagent, queue_changed, settled
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Result, User, reminder
from agentcli.conversation.mentions import unattached_files
from agentcli.llm.messages import Block, Text

TAKE_OVER_POLL_S = 0.5
GO_ON = (
    "The connection broke in the middle of your answer. Go on exactly where it stopped, within a word if need be: "
    "repeat nothing of it, and say nothing about this. If it had begun a tool call, nothing of that has run: "
    "make the call again."
)


def begin_turn(
    state: AgentState, runtime: Runtime, prompts: Sequence[Sequence[Block]], emit: Emit, *, from_queue: bool = False
) -> Turn:
    """Add a prompt to the conversation, without waiting; with `from_queue` it leaves the queue in one transaction."""
    turn = _new_turn(state, runtime, emit)
    answer_open_calls(turn)
    for step in turn.steps:
        step.start(turn, is_resumed=False)
    add_notes(turn)
    turn.log.prompt_ids = add_messages(turn, prompts, from_queue=from_queue)
    turn.log.entry_ids = list(turn.log.prompt_ids)
    return turn


def cut_turn(state: AgentState, runtime: Runtime, emit: Emit, is_killed: bool = False) -> Turn | None:
    """Go on where the conversation was cut short: at a question that waits, or in an answer that broke off.

    With `is_killed` also where the model has not answered. Calls that may have begun get a result that says so.
    """
    conversation = state.conversation
    half = "" if conversation.asked_again else half_answer(conversation)
    if not (conversation.asked_again or half or (is_killed and is_unanswered(conversation))):
        return None
    turn = _new_turn(state, runtime, emit)
    if half:  # the rest joins it
        turn.answer = AnswerText(parts=[half], is_half=True)
        add_notes(turn)
        add(turn, reminder(GO_ON))
        return turn
    for step in turn.steps:
        step.start(turn, is_resumed=True)
    answer_open_calls(turn, apart_from=conversation.asked_again)
    return turn


def is_unanswered(conversation: Conversation) -> bool:
    """True if a prompt, a call or a result has no answer of the model's yet."""
    bodies = (entry.body for entry in reversed(conversation.path))
    newest = next((body for body in bodies if isinstance(body, User | Assistant | Result)), None)
    return isinstance(newest, User | Result) or bool(conversation.open_calls)


def _new_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    budgets = state.budgets.within(Account("turn", runtime.limits.budgets))
    turn = Turn(
        state=state,
        runtime=runtime,
        calls=TurnCalls(session=runtime.calls, state=state, emit=emit, spending=SubagentSpending(budgets=budgets)),
        steps=[make() for make in runtime.steps],
        spending=Spending(budgets=budgets),
    )
    turn.calls.store, turn.calls.commit = partial(add_one, turn), partial(settled, turn)
    turn.calls.spending.charge = partial(charge_subagent, turn)
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


def add_messages(turn: Turn, messages: Sequence[Sequence[Block]], *, from_queue: bool) -> list[str]:
    """Add the person's messages, and return the ids of their entries."""
    bodies: list[Body] = [User(tuple(message)) for message in messages]
    turn.runtime.calls.history.forget_results()
    for notice in (notice for message in messages for notice in unattached_files(message)):
        turn.emit(Notice(notice))
    if not from_queue:
        return [entry.id for entry in add(turn, *bodies)]
    entries = add(turn, *bodies, turn.state.conversation.queue.entry())
    turn.emit(queue_changed(turn.state))
    return [entry.id for entry in entries[:-1]]


# What belongs to no turn


class Storing:
    """Entries stored outside of a turn: a failure is only reported, and the end of a session waits for them."""

    def __init__(self, publish: Emit) -> None:
        self._publish = publish
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._publish(Notice(str(error)))

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)


async def watch_for_takeover(log: SessionLog, submit: Callable[[Op], None], publish: Emit) -> None:
    """Stop, and have the front end leave, once another program asks for the session."""
    while not log.is_wanted():
        await asyncio.sleep(TAKE_OVER_POLL_S)
    submit(Interrupt())
    publish(Notice("Another agentcli goes on with this conversation: this one ends."))
    publish(TakenOver())
