"""One turn's state, and how what happens in it reaches the conversation, the log and the hooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from agentcli.agent import events
from agentcli.agent.accounting.budgets import Budgets
from agentcli.agent.calls.batches import not_run
from agentcli.agent.calls.model import TurnCalls
from agentcli.agent.events import Emit, EntryStored, Notice, QueueChanged
from agentcli.agent.interfaces import Appended
from agentcli.agent.permissions.modes import untold_mode
from agentcli.agent.runtime import Runtime
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    Compaction,
    Entry,
    HeadMoved,
    Paid,
    Result,
    Retracted,
    Rewound,
    reminder,
)
from agentcli.errors import StorageError, UserError
from agentcli.llm.messages import ToolUse, Usage
from agentcli.llm.models import ModelInfo

log = logging.getLogger(__name__)

UNKNOWN_OUTCOME = "Interrupted: the outcome is unknown; look before doing it again."
DROPPED = "Dropped: the program ended while this ran on a stand-in of the workspace; nothing of it was kept."
NOT_ANSWERED = "Not run: the program ended before the user had answered whether it may run."
NOT_BEGUN = "Not run: the program ended while a question about another call waited."


@dataclass(kw_only=True)
class Turn:
    """One prompt being answered. `round` counts its requests, from 1.

    `answer` holds the parts of the answer so far, `said` texts that came before calls, or before the turn was sent
    on. `has_half_answer`: a reply broke off in its text, and no other has come since. `has_overflowed`: a request was
    too long, and the conversation was compacted for it. `is_refused`: the provider takes the newest request in no
    form. `dearer_model` is the one that a cheaper one has just replaced. `left` are calls of an earlier reply that
    are still to run. `stops` counts how often hooks let it go on, `tries_to_fit` how often an answer did not fit a
    schema; a prompt may be `is_refused_by_hook`. The model asked last may be `is_small`. An earlier run of the program
    waited for a usage limit that `resets_at` this time; one that `has_waited` does not wait again. `pending` are
    entries being stored, oldest first; of `entry_ids` the first `accepted` were in a request that was answered.
    """

    state: AgentState
    runtime: Runtime
    emit: Emit
    calls: TurnCalls
    most_rounds: int
    budgets: Budgets
    round: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    answer: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    more_tokens: int = 0
    continuations: int = 0
    breaks: int = 0
    has_half_answer: bool = False
    has_overflowed: bool = False
    is_refused: bool = False
    dearer_model: str = ""
    left: tuple[ToolUse, ...] = ()
    stops: int = 0
    is_refused_by_hook: bool = False
    tries_to_fit: int = 0
    is_small: bool = False
    resets_at: float = 0.0
    has_waited: bool = False
    pending: list[asyncio.Task[None]] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    accepted: int = 0


def begin_answer(turn: Turn) -> None:
    """Set aside what was said so far: what the model says next is an answer of its own."""
    turn.said += turn.answer
    turn.answer.clear()


def add(turn: Turn, *bodies: Body) -> tuple[Entry, ...]:
    """Add entries to the conversation and queue them to be stored; `EntryStored` events follow the commit."""
    entries, stored = store(turn.state, turn.runtime, turn.emit, *bodies)
    turn.entry_ids += [entry.id for entry in entries]
    turn.pending.append(stored)
    return entries


def add_one(turn: Turn, body: Body) -> asyncio.Task[None]:
    """As `add`; the task ends with the commit and raises `StorageError`."""
    add(turn, body)
    return turn.pending[-1]


def store(
    state: AgentState, runtime: Runtime, emit: Emit, *bodies: Body
) -> tuple[tuple[Entry, ...], asyncio.Task[None]]:
    """As `add`, outside of a turn. The task ends with the commit and raises `StorageError`."""
    match bodies:
        case (HeadMoved(to), *_):
            appended = runtime.log.append(*bodies, parent_id=to)
        case (Rewound(before), *_):
            appended = runtime.log.append(*bodies, parent_id=state.conversation.parent_of(before))
        case _:
            appended = runtime.log.append(*bodies)
    state.conversation.add(*appended.entries)
    for entry in appended.entries:
        runtime.collect(runtime.log.session_id, entry)
    stored = asyncio.ensure_future(_announce(runtime, emit, appended))
    # One failure ends the turn; nobody waits for the tasks behind it, which must not complain of theirs.
    stored.add_done_callback(lambda done: done.cancelled() or done.exception())
    return appended.entries, stored


async def _announce(runtime: Runtime, emit: Emit, appended: Appended) -> None:
    stored = await appended.committed
    for position, entry in enumerate(stored.entries):
        emit(EntryStored(entry, stored.first_seq + position))
        if isinstance(entry.body, Assistant | Result):
            await run_message_hook(runtime, entry)


async def settled(turn: Turn) -> None:
    """Wait until everything added is on disk. Raises `StorageError`."""
    while turn.pending:
        first = turn.pending[0]
        try:
            await asyncio.shield(first)
        finally:
            is_over = first.cancelled() or (first.done() and first.exception() is None)
            if is_over and turn.pending and turn.pending[0] is first:  # else another one waited too
                turn.pending.pop(0)


async def settled_in_any_case(turn: Turn) -> None:
    """As `settled`, also through further interrupts; entries that could not be stored are only told of."""
    while True:
        try:
            return await settled(turn)
        except asyncio.CancelledError:
            continue
        except StorageError as unstored:
            return turn.emit(Notice(str(unstored)))


def answer_open_calls(turn: Turn, why: str = "", *, apart_from: Collection[ToolUse] = ()) -> None:
    """Give calls left open by an interrupt or a crash a result; providers refuse a request without one."""
    conversation = turn.state.conversation
    calls = tuple(call for call in conversation.open_calls.values() if call not in apart_from)
    if calls:
        add(turn, *(not_run(call, why or _what_became_of(call, conversation)) for call in calls))


def _what_became_of(call: ToolUse, conversation: Conversation) -> str:
    if call.id in conversation.tried:
        return DROPPED
    if names := conversation.kept.get(call.id):
        return f"The program ended before the output was stored. Kept of what it changed: {', '.join(names)}."
    if call.id in conversation.unanswered:
        return NOT_ANSWERED
    return NOT_BEGUN if call in conversation.asked_again else UNKNOWN_OUTCOME


def refuse_calls(turn: Turn, calls: Sequence[ToolUse], why: str) -> None:
    if calls:
        add(turn, *(not_run(call, why) for call in calls))


def compacted(state: AgentState, emit: Emit, compaction: Compaction) -> None:
    """Note that the cache is gone, and tell the mode again where the compaction left that out."""
    state.window_share = 0.0
    known = [entry.body for entry in state.conversation.request_entries]
    state.notes.extend(untold_mode(state.mode, [*known, *state.notes]))
    before, after = compaction.tokens_before, compaction.tokens_after
    emit(events.Compaction(before, after, compaction.strategy, compaction.trigger, compaction.cost_usd))


def queue_changed(state: AgentState) -> QueueChanged:
    queue = state.conversation.queue
    return QueueChanged(tuple(queue.steering), tuple(queue.follow_ups))


def take_back_prompt(turn: Turn) -> None:
    add(turn, Retracted(tuple(turn.prompt_ids)))


def take_back_refused(turn: Turn) -> str:
    """Take back what the turn added since the provider last took a request; gives a sentence that says so."""
    ids = tuple(turn.entry_ids[turn.accepted :])
    if not ids:
        return ""
    add(turn, Retracted(ids))
    if not turn.accepted:
        return "The message was taken back."
    turn.state.notes.append(
        reminder("Calls that ran since are left out here, since the provider refused to read them.")
    )
    return "The last reply and the results of its calls were taken back."


def book(turn: Turn, model: str, info: ModelInfo, usage: Usage) -> float | None:
    """Count a request's tokens; gives its price in USD, None where that is not known."""
    cost = info.cost(usage)
    turn.state.meter.add_request(model, usage, cost)
    turn.usage = turn.usage + usage
    turn.cost_usd = None if turn.cost_usd is None or cost is None else turn.cost_usd + cost
    return cost


def charge_subagent(turn: Turn, model: str, usage: Usage, cost_usd: float | None) -> None:
    """Count a request of a subagent as the turn's; the budgets it was reserved in know of it."""
    turn.state.meter.add_request(model, usage, cost_usd)
    turn.usage = turn.usage + usage
    turn.cost_usd = None if turn.cost_usd is None or cost_usd is None else turn.cost_usd + cost_usd
    add(turn, Paid(model, usage, cost_usd, "subagent"))


async def hook_allows(turn: Turn, usage: Usage) -> bool:
    """False if on_turn_end ends the turn. Its error does too: a guard that fails must not let anything through."""
    name, _, model = turn.state.last_used.partition("/")
    try:
        return await turn.runtime.hooks.on_turn_end(turn.round, usage, model, name)
    except Exception as error:  # a hook is foreign code: whatever it raises ends the turn and nothing else
        log.exception("on_turn_end failed")
        raise UserError(f"The on_turn_end hook failed: {error!r}") from error


async def run_message_hook(runtime: Runtime, entry: Entry) -> None:
    try:
        await runtime.hooks.on_message(entry)
    except Exception:  # a hook is foreign code: its errors are logged, the turn goes on
        log.exception("on_message failed")


async def run_error_hook(runtime: Runtime, text: str, *, is_retryable: bool) -> None:
    try:
        await runtime.hooks.on_error(text, is_retryable)
    except Exception:  # a hook is foreign code: while an error is handled another one is only in the way
        log.debug("on_error failed", exc_info=True)
