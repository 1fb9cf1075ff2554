"""The agent loop: ask the model, run its calls, until it stops asking."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from agentcli.agent.call_batches import Interrupted, not_run, run_calls
from agentcli.agent.events import (
    ApprovalRequested,
    Approve,
    Done,
    DoneReason,
    Emit,
    EntryStored,
    Notice,
    ProviderSwitched,
    Retry,
    TextDelta,
    ThinkingDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    UsageReported,
)
from agentcli.agent.hooks import NoHooks, TurnHooks
from agentcli.agent.interfaces import Appended, SessionLog
from agentcli.agent.queue import queue_changed, queue_event
from agentcli.agent.report import INTERRUPTED
from agentcli.agent.state import AgentState
from agentcli.agent.tool_calls import CallRunner
from agentcli.agent.usage import aside_event, paid
from agentcli.conversation.entries import (
    Assistant,
    Body,
    ContextNote,
    Entry,
    Result,
    SystemEvent,
    ToolLog,
    User,
    kept,
    open_calls,
    reminder,
    to_messages,
)
from agentcli.errors import StorageError, UserError
from agentcli.llm import provider as llm
from agentcli.llm.building import built
from agentcli.llm.errors import AuthError, BillingError, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.messages import Block, Message, Text, ToolUse, Usage
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Effort, Provider, Request, ToolSpec
from agentcli.llm.retry import RetryPolicy, stream_with_retry, with_wait
from agentcli.llm.tokens import estimate
from agentcli.llm.transcript import doctor
from agentcli.tools.registry import ToolRegistry

log = logging.getLogger(__name__)

UNKNOWN_OUTCOME = "Interrupted: the outcome is unknown; look before doing it again."
MOST_WINDOWS = 4  # beyond that no error of the estimate explains it
GO_ON = (
    "The connection broke in the middle of your answer. Go on exactly where it stopped, within a word if need be: "
    "repeat nothing of it, and say nothing about this."
)
MOST_CONTINUATIONS = 3  # of a reply that was cut by length, in a row

Resolve = Callable[[AgentState], Awaitable[tuple[Provider, ModelInfo]]]
ContextTransform = Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]]


class Limits(msgspec.Struct, frozen=True):
    """`max_turns` requests for one prompt; `max_tokens` for one reply (None: what the model may, up to 32,000).

    With `asks` the person is asked at the limit of requests whether the turn goes on.
    """

    max_turns: int = 25
    max_tokens: int | None = None
    max_budget_usd: float | None = None
    asks: bool = False


async def unchanged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return messages


class Prefix(msgspec.Struct, frozen=True):
    """What every request of a kind of model begins with: the same objects, so the same bytes, each time."""

    system: str
    tools: tuple[ToolSpec, ...]


@dataclass
class Runtime:
    """What a turn works with and does not change. `resolve` chooses the provider before each request.

    `fallback_model` is taken when the chosen one has no room. From the share `warn_at` of the window on, the person
    is told how full it is. So many times in a turn as `most_breaks` an answer that breaks off is gone on with unasked.
    """

    resolve: Resolve
    calls: CallRunner
    log: SessionLog
    prefix_for: Callable[[ModelInfo, ToolRegistry], Prefix]
    limits: Limits = Limits()
    fallback_model: str = ""
    warn_at: float = 0.8
    most_breaks: int = 0
    retry: RetryPolicy = RetryPolicy()
    temperature: float | None = None
    effort: Effort | None = None
    hooks: TurnHooks = field(default_factory=NoHooks)
    context_transform: ContextTransform = unchanged

    def prefix(self, info: ModelInfo) -> Prefix:
        """What every request to a model begins with: the same bytes while the tools are the same."""
        return self.prefix_for(info, self.calls.tools)


@dataclass
class Turn:
    """One prompt being answered."""

    state: AgentState
    runtime: Runtime
    emit: Emit
    most_rounds: int
    number: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    answer: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    more_tokens: int = 0
    continuations: int = 0
    breaks: int = 0
    has_half_answer: bool = False  # a reply broke off in its text, and no other has come since
    pending: list[asyncio.Task[None]] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)


def begin_turn(
    state: AgentState,
    runtime: Runtime,
    prompts: Sequence[Sequence[Block]],
    emit: Emit,
    *,
    from_queue: bool = False,
) -> Turn:
    """Put what the person says into the conversation, with `from_queue` in one transaction with its leaving the queue.

    Nothing is waited for: whatever is queued next is queued after this.
    """
    turn = Turn(state, runtime, emit, runtime.limits.max_turns)
    runtime.calls.denials.clear()
    runtime.calls.is_stopped = False
    answer_open_calls(turn)
    add_notes(turn)
    turn.prompt_ids = say(turn, prompts, from_queue=from_queue)
    turn.entry_ids = list(turn.prompt_ids)
    return turn


def go_on_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    """Go on with the answer that broke off at the end of the turn before; what comes joins what was said."""
    limit = runtime.limits.max_turns
    turn = Turn(state, runtime, emit, limit, answer=[half_answer(state)], has_half_answer=True)
    runtime.calls.denials.clear()
    runtime.calls.is_stopped = False
    add_notes(turn)
    add(turn, reminder(GO_ON))
    return turn


def half_answer(state: AgentState) -> str:
    """The text with which the conversation ends where it broke off; else empty."""
    parts: list[str] = []
    for entry in reversed(kept(state.entries)):
        match entry.body:
            case Assistant(content, stop_reason="interrupted"):
                parts.append("".join(block.text for block in content if isinstance(block, Text)))
            case SystemEvent() | ContextNote() | User(is_reminder=True):
                pass
            case _:
                break
    return "".join(reversed(parts))


def say(turn: Turn, messages: Sequence[Sequence[Block]], *, from_queue: bool) -> list[str]:
    said: list[Body] = [User(tuple(message)) for message in messages]
    turn.runtime.calls.forget_results()
    if not from_queue:
        return [entry.id for entry in add(turn, *said)]
    entries = add(turn, *said, queue_event(turn.state))
    turn.emit(queue_changed(turn.state))
    return [entry.id for entry in entries[:-1]]


async def run_turn(turn: Turn) -> Done | TurnFailed:
    """Answer a prompt, however many requests and calls it takes; gives its last event.

    When cancelled, what was said is kept, every open call is answered, and the last event is `Done` all the same.
    """
    try:
        end = await _answered(turn)
    except asyncio.CancelledError:
        answer_open_calls(turn, INTERRUPTED)
        await settled_in_any_case(turn)
        turn.emit(_done(turn, "interrupted"))
        raise
    turn.emit(end)
    return end


async def _answered(turn: Turn) -> Done | TurnFailed:
    try:
        reason = await _rounds(turn)
        await settled(turn)
    except (ProviderError, UserError) as error:
        return await _failure(turn, error)
    return _done(turn, reason)


async def _rounds(turn: Turn) -> DoneReason:
    """Requests and their calls, until the model asks for nothing more."""
    if over_budget(turn):
        take_back_prompt(turn)
        turn.emit(Notice("The message was taken back: the session had used up its budget before."))
        return "max_budget"
    while turn.number < turn.most_rounds or await goes_on(turn):
        turn.number += 1
        turn.emit(TurnStarted(turn.number))
        try:
            reply = await request_reply(turn)
        except ProviderError as error:
            if not goes_on_after(turn, error):
                raise
            continue
        calls = reply.message.tool_uses
        if not await hook_allows(turn, reply):
            return refuse_calls(turn, calls, "stopped", "Not run: the turn was stopped.")
        if over_budget(turn):
            return refuse_calls(turn, calls, "max_budget", "Not run: the budget is used up.")
        if calls and turn.number == turn.most_rounds and not await goes_on(turn):
            return refuse_calls(turn, calls, "max_turns", f"Not run: the limit of {turn.number} rounds is reached.")
        if calls:
            turn.said += turn.answer
            turn.answer.clear()
            add_results(turn, await run_calls_of(turn, calls))
            if turn.runtime.calls.is_stopped:
                return "declined"
        steered = add_steering(turn)
        if not calls and not steered and not continue_reply(turn, reply):
            return "max_tokens" if reply.stop_reason == "max_tokens" else "end_turn"
    return "max_turns"


async def goes_on(turn: Turn) -> bool:
    """Whether the person, asked at the limit of rounds, allows as many more; words of theirs are the next prompt."""
    limits, ask, state = turn.runtime.limits, turn.runtime.calls.ask, turn.state
    if not limits.asks or ask is None:
        return False
    id = f"limit_{turn.number}"
    title = f"{turn.number} rounds are done: {limits.max_turns} more?"
    reason = f"The limit is limits.max_turns = {limits.max_turns} (--max-turns)."
    answer = await ask(ApprovalRequested(id, ToolUse(id, "", {}), title, reason, ""), None)
    if not isinstance(answer, Approve):
        return False
    if answer.allowed:
        turn.most_rounds += limits.max_turns
    elif answer.comment:
        state.steering.append((Text(answer.comment),))
        add(turn, queue_event(state))
        turn.emit(queue_changed(state))
    return answer.allowed


def goes_on_after(turn: Turn, error: ProviderError) -> bool:
    """Whether an answer that broke off is gone on with by itself, as a reminder then asks."""
    is_over = turn.number >= turn.most_rounds or over_budget(turn)
    if is_over or not can_go_on(turn, error) or turn.breaks >= turn.runtime.most_breaks:
        return False
    turn.breaks += 1
    turn.emit(Notice(f"The answer broke off ({told(error).rstrip('.')}): going on where it stopped."))
    add(turn, reminder(GO_ON))
    return True


def can_go_on(turn: Turn, error: ProviderError | UserError) -> bool:
    return turn.has_half_answer and isinstance(error, ProviderError) and error.is_retryable


async def request_reply(turn: Turn) -> llm.Done:
    """One request to the model, its text passed on as it arrives; the reply is stored before this returns."""
    try:
        return await _request(turn)
    except ProviderError as error:
        fallback = turn.runtime.fallback_model
        if error.shown or not error.is_retryable or fallback in ("", turn.state.model):
            raise
        turn.emit(Notice(f"{turn.state.model} failed ({told(error)}): going on with {fallback}."))
        turn.state.model = fallback
        return await _request(turn)


async def _request(turn: Turn) -> llm.Done:
    state, runtime = turn.state, turn.runtime
    provider, info = await runtime.resolve(state)
    note_switch(turn, f"{provider.name}/{provider.model}")
    add_notes(turn)
    entries = tuple(state.entries)
    messages = await runtime.context_transform(await built(len(entries), lambda: doctor(to_messages(entries))))
    prefix = runtime.prefix(info)
    request = Request(
        prefix.system,
        messages,
        prefix.tools,
        max_tokens=reply_tokens(turn, info),
        temperature=runtime.temperature,
        effort=state.effort or runtime.effort,
        earlier_messages=min(state.sent_messages, len(messages)),
    )
    state.sent_messages = len(messages)
    if turn.number == 1:
        refuse_what_cannot_fit(request, info)
        await settled(turn)  # an answer that could not be kept is not asked for
    reply = await _streamed(turn, provider, info, request)
    await keep_reply(turn, reply, provider, info)
    return reply


def refuse_what_cannot_fit(request: Request, info: ModelInfo) -> None:
    """Raise `ContextOverflow` for what is many times the window: some servers cut it silently, or bill it."""
    tokens = estimate(request, info).tokens
    if tokens > MOST_WINDOWS * info.window * (1 if info.is_known else 2):  # the window is a guess then
        raise ContextOverflow(f"The prompt is about {tokens:,} tokens, the window of {info.id} {info.window:,}")


async def _streamed(turn: Turn, provider: Provider, info: ModelInfo, request: Request) -> llm.Done:
    """The stream's events as ours. Interrupted or broken, what had arrived is kept, and what the server had counted."""
    text_so_far: list[str] = []
    has_call = False
    used = Usage()

    def on_retry(number: int, delay_s: float, error: ProviderError) -> None:
        nonlocal used
        keep_partial(turn, provider, info, "", used)
        used = Usage()
        turn.emit(Retry(number, delay_s, told(error)))

    stream = stream_with_retry(provider, request, policy=turn.runtime.retry, on_retry=on_retry)
    try:
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case llm.TextDelta(text):
                        text_so_far.append(text)
                        turn.emit(TextDelta(text))
                    case llm.ThinkingDelta(text):
                        turn.emit(ThinkingDelta(text))
                    case llm.ToolCallStarted():
                        has_call = True  # it is shown when it starts to run
                    case llm.UsageUpdate(usage):
                        used = usage
                    case llm.Done():
                        return event
                    case _:
                        pass
    except (asyncio.CancelledError, ProviderError):
        text = "".join(text_so_far)
        if text.strip():
            turn.has_half_answer = not has_call
        keep_partial(turn, provider, info, text, used)
        raise
    raise AssertionError(f"{provider.name} ended its stream without Done")


async def keep_reply(turn: Turn, reply: llm.Done, provider: Provider, info: ModelInfo) -> None:
    """Store the reply together with the starts of its calls, then tell everybody. A refusal is kept out of the log."""
    state = turn.state
    state.last_used = f"{provider.name}/{provider.model}"
    cost = book(turn, state.last_used, info, reply.usage)
    if reply.stop_reason == "refusal":
        refused = SystemEvent("refused", {"note": reply.note} | paid(state.last_used, reply.usage, cost))
        add(turn, refused, SystemEvent("retracted", {"ids": turn.entry_ids}))
        why = reply.note or "the provider's safety rules"
        raise UserError(f"The model refused to answer ({why}). The message was taken back: rephrase it or use /model.")
    turn.answer.append(reply.message.text)
    turn.has_half_answer = False
    bodies: list[Body] = [
        Assistant(reply.message.content, provider.name, provider.model, reply.usage, reply.stop_reason, cost)
    ]
    if reply.message.tool_uses:
        bodies.append(ToolLog("started", {"ids": [use.id for use in reply.message.tool_uses]}))
    add(turn, *bodies)
    await settled(turn)
    turn.emit(UsageReported(reply.usage, cost, state.meter.cost_usd, provider.model, provider.name))
    turn.emit(TurnEnded(turn.number, reply.stop_reason, provider.model, provider.name))
    if reply.note:
        turn.emit(Notice(reply.note))
    warn_when_full(turn, reply.usage, info)
    if reply.stop_reason == "model_context_window_exceeded":
        raise UserError("The conversation does not fit the model's window any more: begin anew, or use a larger model.")


def book(turn: Turn, model: str, info: ModelInfo, usage: Usage) -> float | None:
    """Count what a request used; gives its price in USD, None where that is not known."""
    cost = info.cost(usage)
    turn.state.meter.add(model, usage, cost)
    turn.usage = turn.usage + usage
    turn.cost_usd = None if turn.cost_usd is None or cost is None else turn.cost_usd + cost
    return cost


def warn_when_full(turn: Turn, usage: Usage, info: ModelInfo) -> None:
    used = turn.state.window_share = usage.context_tokens / info.window
    if info.is_known and used >= turn.runtime.warn_at:
        turn.emit(Notice(f"The conversation fills {used:.0%} of the model's window ({info.window:,} tokens)."))


async def run_calls_of(turn: Turn, calls: Sequence[ToolUse]) -> list[Result]:
    try:
        return await run_calls(turn.runtime.calls, turn.state, calls, turn.emit, reply_id=_reply_id(turn))
    except Interrupted as interrupt:
        add_results(turn, interrupt.results)
        raise


def _reply_id(turn: Turn) -> str:
    """The id of the newest reply."""
    return next((entry.id for entry in reversed(turn.state.entries) if isinstance(entry.body, Assistant)), "")


def add_results(turn: Turn, results: Sequence[Result]) -> None:
    """Results join the state at once; storing them may overlap the next request."""
    add(turn, *results)


def refuse_calls(turn: Turn, calls: Sequence[ToolUse], reason: DoneReason, why: str) -> DoneReason:
    if calls:
        add_results(turn, [not_run(call, why) for call in calls])
    return reason


def add_notes(turn: Turn) -> None:
    """Tell the model what has changed since its last request; appended, so that earlier bytes stay the same."""
    while turn.state.notes:
        add(turn, turn.state.notes.popleft())


def add_steering(turn: Turn) -> bool:
    """Put what the person said meanwhile where the model reads it next."""
    messages = list(turn.state.steering)
    turn.state.steering.clear()
    if messages:
        say(turn, messages, from_queue=True)
    return bool(messages)


def continue_reply(turn: Turn, reply: llm.Done) -> bool:
    """Whether a reply that is no answer yet goes on, with a note that says how (stop reasons of the Messages API)."""
    after_results = turn.number > 1 and not reply.message.text.strip()
    if reply.stop_reason == "pause_turn":
        return True
    if turn.continuations >= MOST_CONTINUATIONS:
        return False
    if reply.lost_tool_call:
        turn.more_tokens = max(turn.more_tokens, 1) * 2
        note = "Your reply was cut off inside a tool call, which was not run. Make the call again, in smaller parts."
    elif reply.stop_reason == "max_tokens":
        note = "Your reply was cut off by its length limit. Go on exactly where it stopped."
    elif reply.stop_reason == "end_turn" and after_results and turn.continuations == 0:
        note = "Go on: answer with what the results say."
    else:
        return False
    turn.continuations += 1
    add(turn, reminder(note))
    return True


def reply_tokens(turn: Turn, info: ModelInfo) -> int:
    """How long the reply may be; doubled after one that was cut inside a call."""
    usual = turn.runtime.limits.max_tokens or min(info.max_output, 32_000)
    return min(usual * max(1, turn.more_tokens), info.max_output)


def over_budget(turn: Turn) -> bool:
    budget, spent = turn.runtime.limits.max_budget_usd, turn.state.meter.cost_usd
    return budget is not None and spent is not None and spent >= budget


def note_switch(turn: Turn, now: str) -> None:
    before = turn.state.last_used
    if before and before != now:
        add(turn, SystemEvent("provider_switched", {"before": before, "after": now}))
        turn.emit(ProviderSwitched(before, now))
        turn.state.last_used = now


def answer_open_calls(turn: Turn, why: str = UNKNOWN_OUTCOME) -> None:
    """Give calls left open by an interrupt or a crash a result; providers refuse a request without one."""
    open_ids = set(open_calls(turn.state.entries))
    if not open_ids:
        return
    calls = {
        block.id: block
        for entry in turn.state.entries
        if isinstance(entry.body, Assistant)
        for block in entry.body.content
        if isinstance(block, ToolUse) and block.id in open_ids
    }
    add_results(turn, [not_run(call, why) for call in calls.values()])


def keep_partial(turn: Turn, provider: Provider, info: ModelInfo, text: str, used: Usage) -> None:
    """Keep the text of a broken reply, and what the server had counted of it (`used`) even where there is no text.

    Unsigned thinking and calls are not kept, since nothing of them may run.
    """
    if not text.strip() and used == Usage():
        return
    model = f"{provider.name}/{provider.model}"
    cost = book(turn, model, info, used) if used != Usage() else None
    if text.strip():
        turn.answer.append(text)
        add(turn, Assistant((Text(text),), provider.name, provider.model, used, "interrupted", cost))
    else:
        add(turn, aside_event(model, used, cost))
    if used.prompt_tokens:
        turn.emit(UsageReported(used, cost, turn.state.meter.cost_usd, provider.model, provider.name))


def add(turn: Turn, *bodies: Body) -> tuple[Entry, ...]:
    """Let entries join the state and queue them to be stored; their `EntryStored` events follow the commit."""
    entries, stored = store(turn.state, turn.runtime, turn.emit, *bodies)
    turn.entry_ids += [entry.id for entry in entries]
    turn.pending.append(stored)
    return entries


def store(
    state: AgentState, runtime: Runtime, emit: Emit, *bodies: Body
) -> tuple[tuple[Entry, ...], asyncio.Task[None]]:
    """As `add`, outside of a turn. The task ends with the commit and raises `StorageError`."""
    appended = runtime.log.append(*bodies)
    state.entries.extend(appended.entries)
    stored = asyncio.ensure_future(_announce(runtime, emit, appended))
    # One failure ends the turn: those behind it, for which nobody waits any more, are not to be complained about.
    stored.add_done_callback(lambda done: done.cancelled() or done.exception())
    return appended.entries, stored


async def _announce(runtime: Runtime, emit: Emit, appended: Appended) -> None:
    stored = await appended.committed
    for position, entry in enumerate(stored.entries):
        emit(EntryStored(entry, stored.first_seq + position))
        if isinstance(entry.body, Assistant | Result):
            await tell_message(runtime, entry)


async def settled(turn: Turn) -> None:
    """Wait until all that was added is on disk. Raises `StorageError`."""
    while turn.pending:
        await asyncio.shield(turn.pending[0])
        turn.pending.pop(0)


async def settled_in_any_case(turn: Turn) -> None:
    """As `settled`, also when somebody interrupts once more; what could not be stored is told and ends nothing."""
    while True:
        try:
            return await settled(turn)
        except asyncio.CancelledError:
            continue
        except StorageError as unstored:
            return turn.emit(Notice(str(unstored)))


async def hook_allows(turn: Turn, reply: llm.Done) -> bool:
    """An error in on_turn_end ends the turn: it guards something, and a guard that fails must not let through."""
    name, _, model = turn.state.last_used.partition("/")
    try:
        return await turn.runtime.hooks.on_turn_end(turn.number, reply.usage, model, name)
    except Exception as error:  # a hook is foreign code: whatever it raises ends the turn and nothing else
        log.exception("on_turn_end failed")
        refuse_calls(turn, reply.message.tool_uses, "stopped", "Not run: the turn was stopped.")
        raise UserError(f"The on_turn_end hook failed: {error!r}") from error


async def tell_message(runtime: Runtime, entry: Entry) -> None:
    try:
        await runtime.hooks.on_message(entry)
    except Exception:  # a hook is foreign code: its errors are logged, the turn goes on
        log.exception("on_message failed")


async def tell_error(runtime: Runtime, text: str, *, is_retryable: bool) -> None:
    try:
        await runtime.hooks.on_error(text, is_retryable)
    except Exception:  # a hook is foreign code: while an error is handled another one is only in the way
        log.debug("on_error failed", exc_info=True)


def take_back_prompt(turn: Turn) -> None:
    add(turn, SystemEvent("retracted", {"ids": turn.prompt_ids}))


async def _failure(turn: Turn, error: ProviderError | UserError) -> TurnFailed:
    """What to tell of a failure. A prompt that the provider would refuse again and again is taken back."""
    is_taken_back = isinstance(error, AuthError | ContextOverflow) and turn.number == 1 and bool(turn.prompt_ids)
    broke_off = can_go_on(turn, error)
    if is_taken_back:
        take_back_prompt(turn)
    is_retryable = isinstance(error, ProviderError) and error.is_retryable
    await tell_error(turn.runtime, str(error), is_retryable=is_retryable)
    try:
        await settled(turn)
    except StorageError as unstored:
        error = unstored
    said = [told(error), _ADVICE.get(type(error), ""), "The message was taken back." if is_taken_back else ""]
    text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in said if part)
    denials = tuple(turn.runtime.calls.denials)
    kind = type(error).__name__
    return TurnFailed(text, is_retryable, kind, turn.number, turn.usage, turn.cost_usd, denials, broke_off)


def told(error: ProviderError | UserError) -> str:
    """The error in the provider's words, with the HTTP status, and the wait it asks for where that is too long."""
    if not isinstance(error, ProviderError):
        return str(error)
    text = f"{str(error).rstrip('.')} (HTTP {error.status})" if error.status else str(error)
    return with_wait(text, error)


# What to do next, where the provider's own words do not say it.
_ADVICE: dict[type[Exception], str] = {
    AuthError: "Check the provider's key (agentcli models check).",
    ModelNotFound: "Choose another with -m or /model; agentcli models list shows those that are known.",
    ContextOverflow: "Shorten the prompt, begin a new conversation, or use a model with a larger window.",
    BillingError: "Top up the account, or use another provider with -m or /model.",
}


def _done(turn: Turn, reason: DoneReason) -> Done:
    """The answer; where the turn ended before there was one, what was said on the way."""
    text = "".join(turn.answer).strip() or "\n\n".join(part for part in turn.said if part.strip())
    return Done(text, turn.number, turn.usage, reason, turn.cost_usd, tuple(turn.runtime.calls.denials))
