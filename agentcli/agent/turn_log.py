"""Adds entries to the conversation and its log, during a turn and outside of turns."""

import asyncio
import logging
from collections.abc import Callable, Collection

from agentcli.agent import events
from agentcli.agent.calls.model import fire
from agentcli.agent.interfaces import AppendedEntries
from agentcli.agent.runtime import Runtime, Turn
from agentcli.agent.state import AgentState
from agentcli.conversation import entries
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.mentions import typed_text
from agentcli.errors import StorageError
from agentcli.llm.messages import Block, ToolUse, Usage
from agentcli.llm.models import RequestTarget

log = logging.getLogger(__name__)
PROMPT_REMOVED = "Your message was removed from the conversation."
PROMPT_RETURNED = "Change your message, then send it again."  # to a person, whose input has it again


def add(turn: Turn, *bodies: entries.Body) -> tuple[entries.Entry, ...]:
    """Add entries to the conversation and queue them to be stored; `EntryStored` events follow the commit."""
    added, stored = store(turn.state, turn.runtime, turn.emit, *bodies)
    turn.log.entry_ids += [entry.id for entry in added]
    turn.log.pending.append(stored)
    return added


def add_reminders(turn: Turn) -> None:
    """Move the waiting reminders (`notes`) to the conversation's end, so that the provider's cache stays valid."""
    while turn.state.notes:
        add(turn, turn.state.notes.popleft())


def record_switch(turn: Turn, new_name: str) -> None:
    """Add an entry about a switch if the model with the new name did not send the newest reply."""
    model = turn.state.model
    old_name, reason = model.last_used, model.switch_reason
    model.switch_reason = "chosen"  # unless somebody sets another reason for the next switch
    if old_name not in ("", new_name):
        add(turn, entries.ProviderSwitch(old_name, new_name, reason))
        turn.emit(events.ProviderSwitched(old_name, new_name, reason))
        model.last_used = new_name


def add_and_track(turn: Turn, body: entries.Body) -> asyncio.Task[None]:
    """Add an entry like `add`, and return a task that ends once it is committed, or raises `StorageError`."""
    if isinstance(body, entries.Paid) and body.reason == "subagent":  # the subagent has charged the budgets itself
        _add_spending(turn, body.model, body.usage, body.cost_usd)
    add(turn, body)
    return turn.log.pending[-1]


def store(
    state: AgentState, runtime: Runtime, emit: events.Emit, *bodies: entries.Body
) -> tuple[tuple[entries.Entry, ...], asyncio.Task[None]]:
    """Add entries like `add`, outside of a turn. The task ends with the commit and raises `StorageError`."""
    match bodies:  # a rewind begins a branch: its entries follow an older entry, not the newest one
        case (entries.HeadMoved(to), *_):
            appended = runtime.log.append(*bodies, parent_id=to)
        case (entries.Rewound(before), *_):
            appended = runtime.log.append(*bodies, parent_id=state.conversation.parent_of(before))
        case _:
            appended = runtime.log.append(*bodies)
    state.conversation.add(*appended.entries)
    for entry in appended.entries:
        runtime.collect(runtime.log.session_id, entry)
    stored = asyncio.ensure_future(_announce(runtime, emit, appended))
    # The first failure ends the turn, and nobody waits for later tasks: asyncio would log their unread exceptions.
    stored.add_done_callback(lambda done: done.cancelled() or done.exception())
    return appended.entries, stored


async def _announce(runtime: Runtime, emit: events.Emit, appended: AppendedEntries) -> None:
    """Wait until entries are on disk, publish each one, and call `on_message` for replies and results."""
    stored = await appended.committed
    for position, entry in enumerate(stored.entries):
        emit(events.EntryStored(entry, stored.first_seq + position))
        if isinstance(entry.body, entries.Assistant | entries.Result):
            try:
                await runtime.hooks.on_message(entry)
            except Exception:  # a hook is foreign code: its errors are logged, the turn goes on
                log.exception("on_message failed")


async def wait_until_stored(turn: Turn) -> None:
    """Wait until everything added is on disk. Raises `StorageError`."""
    while turn.log.pending:
        first = turn.log.pending[0]
        try:
            await asyncio.shield(first)
        finally:
            # A failed task stays at the front, so that every caller that waits gets its error.
            is_over = first.cancelled() or (first.done() and first.exception() is None)
            if is_over and turn.log.pending and turn.log.pending[0] is first:  # another caller may have removed it
                turn.log.pending.pop(0)


async def wait_until_stored_anyway(turn: Turn) -> None:
    """Wait like `wait_until_stored`, but ignore cancellation, and report a failure to store only as a notice."""
    while True:
        try:
            return await wait_until_stored(turn)
        except asyncio.CancelledError:
            continue
        except StorageError as unstored:
            return turn.emit(events.Notice(str(unstored)))


def answer_open_calls(turn: Turn, why: str = "", *, apart_from: Collection[ToolUse] = ()) -> None:
    """Add a result to each open call: `why`, or how it ended. Providers reject requests with open calls."""
    conversation = turn.state.conversation
    calls = tuple(call for call in conversation.open_calls.values() if call not in apart_from)
    if calls:
        from agentcli.agent.calls.run import not_run

        add(turn, *(not_run(call, why or _describe_open_call(call, conversation)) for call in calls))


def _describe_open_call(call: ToolUse, conversation: Conversation) -> str:
    """Return the result text for a call that an earlier run of the program left open."""
    if call.id in conversation.dry_runs:
        return (
            "Changes discarded: agentcli exited during a dry run of this command. Nothing in the workspace was changed."
        )
    if names := conversation.applied_changes.get(call.id):
        return f"agentcli exited before it stored the output. These changes were applied: {', '.join(names)}."
    if call.id in conversation.unanswered:
        return "Not run: agentcli exited before the user approved this call."
    if call.id in conversation.pending_calls:
        return "Not run: the user sent a new message before the client returned a result."
    if call in conversation.unstarted_calls:
        return "Not run: agentcli exited while another call was waiting for approval."
    return "Interrupted: the call may have partially run. Check its effects before running it again."


async def apply_compaction(
    state: AgentState,
    runtime: Runtime,
    emit: events.Emit,
    compaction: entries.Compaction,
    *,
    append: Callable[[entries.Body], object],
) -> None:
    """Add a compaction, fire its hooks, and remind the model of plan mode if that reminder was compacted."""
    trigger = compaction.trigger
    await fire(runtime.calls, "PreCompact", subject=trigger, trigger=trigger)
    append(compaction)
    state.model.window_share = 0.0  # the window has room again, so a later warning is due when it fills up
    state.add_mode_note()
    before, after = compaction.tokens_before, compaction.tokens_after
    emit(events.Compaction(before, after, compaction.strategy, trigger, compaction.cost_usd))
    if (servers := runtime.calls.delegates.servers) is not None:
        # New tools change the beginning of requests and void the provider's cache, but so does the compaction.
        servers.refresh(runtime.calls)
    await fire(runtime.calls, "PostCompact", subject=trigger, trigger=trigger)


def queue_event(state: AgentState) -> events.QueueChanged:
    queue = state.conversation.queue
    return events.QueueChanged(tuple(queue.steering), tuple(queue.follow_ups))


def take_back_prompt(turn: Turn) -> None:
    add(turn, entries.Retracted(tuple(turn.log.prompt_ids)))


def unanswered_messages(conversation: Conversation) -> dict[str, tuple[Block, ...]]:
    """Return the person's messages since the newest reply or result, oldest first, by the ids of their entries."""
    newest_first: dict[str, tuple[Block, ...]] = {}
    for entry in reversed(conversation.path):
        match entry.body:
            case entries.Assistant() | entries.Result():
                break
            case entries.User(content, is_reminder=False):
                newest_first[entry.id] = content
    return dict(reversed(newest_first.items()))


def return_messages(turn: Turn) -> None:
    """Take back the turn's unanswered messages and its waiting steering messages, for the person to send again."""
    conversation = turn.state.conversation
    if waiting := conversation.queue.take_steering():  # `Retracted` names entries, so these become entries first
        add(turn, *(entries.User(message) for message in waiting), conversation.queue.entry())
        turn.emit(queue_event(turn.state))
    own = {id: message for id, message in unanswered_messages(conversation).items() if id in turn.log.entry_ids}
    # Messages in this tag come from the program itself, such as the reports of subagents, so they stay.
    if ids := tuple(id for id, message in own.items() if not typed_text(message).startswith("<system-reminder>")):
        add(turn, entries.Retracted(ids))


def take_back_rejected(turn: Turn) -> str:
    """Take back the turn's entries since the last request that the provider accepted; return a notice about it."""
    ids = tuple(turn.log.entry_ids[turn.log.accepted_count :])
    if not ids:
        return ""
    add(turn, entries.Retracted(ids))
    if not turn.log.accepted_count:  # the prompt itself is among them
        return PROMPT_RETURNED if turn.runtime.limits.is_interactive else PROMPT_REMOVED
    turn.state.notes.append(
        entries.reminder("Calls that ran since then are omitted here because the provider rejected them.")
    )
    return "The last reply and its tool results were removed from the conversation."


def charge_request(turn: Turn, target: RequestTarget, usage: Usage) -> float | None:
    """Add a request's tokens and price to the turn's spending; return the price in USD, None if it is unknown."""
    cost = target.info.cost(usage)
    _add_spending(turn, target.name, usage, cost)
    return cost


def _add_spending(turn: Turn, model: str, usage: Usage, cost: float | None) -> None:
    spending = turn.spending
    turn.state.meter.add_request(model, usage, cost)
    spending.usage += usage
    spending.cost_usd = None if spending.cost_usd is None or cost is None else spending.cost_usd + cost
