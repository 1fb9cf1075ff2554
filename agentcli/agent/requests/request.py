"""Makes one request: builds it, publishes the reply's stream as events, and stores the reply in the log."""

import asyncio
import zlib
from functools import partial

import msgspec

from agentcli.agent import events, turn_log
from agentcli.agent.requests.attempts import Attempt, PaidRequest, with_repairs
from agentcli.agent.runtime import Runtime, Turn, unchanged
from agentcli.agent.state import AgentState
from agentcli.conversation import entries
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ContextOverflow, ProviderError
from agentcli.llm.media import omission_notices
from agentcli.llm.messages import Message, Text, Usage, repair_messages
from agentcli.llm.models import ModelInfo, RequestTarget, estimate, max_estimate
from agentcli.tools.workspace import Workspace

COUNT_MARGIN = 1.01  # the maximum tokens of a prompt, for each token that the provider counted in it earlier
DEFAULT_MAX_TOKENS = 32_000  # of a reply
MAX_PARTIAL_CHARS = 200_000  # kept of a reply that broke off
MAX_RETRIES_BEFORE_FALLBACK = 2  # of a service that is overloaded
MAX_WINDOWS = 4  # a prompt estimated at more windows than these is too long, however wrong the estimate


async def request_reply(turn: Turn) -> llm.Done:
    """Request, stream and store a reply; retry once after a compaction, or with the fallback model."""
    try:
        return await _request(turn)
    except ContextOverflow:
        if not await compact_after_overflow(turn):
            raise
    except ProviderError as error:
        model, fallback = turn.state.model, turn.runtime.models.fallback
        if error.shown or not error.is_retryable or fallback in ("", model.name):
            raise
        why = describe_error(error).rstrip(".")
        turn.emit(events.Notice(f"{model.name} failed ({why}). Continuing with {fallback}."))
        model.name, model.switch_reason = fallback, "fallback"
    return await _request(turn)


async def _request(turn: Turn) -> llm.Done:
    """Choose the model, add due reminders and a due compaction, send the request and store the reply."""
    target = RequestTarget(*await turn.runtime.models.resolve(turn.state))
    info = target.info
    turn.state.model.is_small = info.small
    turn_log.record_switch(turn, target.name)
    turn_log.add_reminders(turn)
    policy = turn.runtime.context.policy
    conversation, prefix = turn.state.conversation, turn.runtime.prefix(info)
    if policy and (compaction := await policy(conversation, model=info, prefix=prefix, tell=turn.emit)):
        await _compact(turn, compaction)
        # The compaction may have dropped the reminder of plan mode, which is then due again.
        turn_log.add_reminders(turn)
    request = await next_request(turn, info, turn.runtime.prefix(info))  # a compaction may have changed the tools
    if turn.round == 1:
        check_size(request, info)  # only for prompts: results are limited, so they cannot be that long
        await turn_log.wait_until_stored(turn)  # a prompt that could not be stored is not sent
    report_omitted_media(turn, target, request)
    reply, attempt = await with_repairs(
        request,
        partial(_stream, turn, target),
        turn.emit,
        model=target.name,
        info=info,
        rejected=turn.state.model.rejected,
    )
    report_omitted_media(turn, target, request)  # some servers reveal only with a reply which media a model accepts
    await store_reply(turn, target, reply, attempt)
    return reply


def report_omitted_media(turn: Turn, target: RequestTarget, request: llm.Request) -> None:
    """Emit a notice, only once, about images and PDFs that a text replaces for this model."""
    rules = getattr(target.provider, "media_rules", None)  # a caller's own provider may have none
    if rules is None:
        return
    positions = request.prepared.media_or_breakpoints(request.messages)  # of all messages that may have media
    for text in omission_notices([request.messages[n] for n in positions], rules):
        notice = f"{target.name}: {text}."
        if notice not in turn.state.model.reported:
            turn.state.model.reported.add(notice)
            turn.emit(events.Notice(notice))


async def compact_after_overflow(turn: Turn) -> bool:
    """Compact a conversation that did not fit. Return False if that is impossible, or was already done in this turn."""
    watch, state = turn.runtime.context.watch, turn.state
    if watch is None or turn.log.had_overflow:
        return False
    turn.log.had_overflow = True
    _, info = await turn.runtime.models.resolve(state)
    compaction = await watch.compactor.compact_overflow(state.conversation, info, turn.runtime.prefix(info))
    if not isinstance(compaction, str):
        await _compact(turn, compaction)
    elif turn.round > 1 or len(state.conversation.messages) > 1:  # for a single prompt, the overflow error is enough
        turn.emit(events.Notice(f"The conversation is too long, and could not be compacted: {compaction}."))
    return not isinstance(compaction, str)


async def _compact(turn: Turn, compaction: entries.Compaction) -> None:
    await turn_log.apply_compaction(turn.state, turn.runtime, turn.emit, compaction, append=partial(turn_log.add, turn))


async def next_request(turn: Turn, info: ModelInfo, prefix: llm.Prefix) -> llm.Request:
    """Return the request with the prefix and the conversation's messages, changed by the transform and the steps."""
    runtime, conversation = turn.runtime, turn.state.conversation
    messages, transform = conversation.messages, runtime.context.transform
    if transform is not unchanged:
        messages = tuple(await transform(repair_messages(messages)))
    messages = conversation.prepared.valid(messages)
    max_tokens = runtime.limits.max_tokens or min(info.max_output, DEFAULT_MAX_TOKENS)
    request = build_request(runtime, turn.state, prefix, messages, max_tokens=max_tokens)
    for step in turn.steps:
        request = step.shape(request)
    return msgspec.structs.replace(request, max_tokens=min(request.max_tokens, info.max_output))


def build_request(
    runtime: Runtime, state: AgentState, prefix: llm.Prefix, messages: tuple[Message, ...], *, max_tokens: int
) -> llm.Request:
    """Return a request with the session's temperature and effort."""
    return llm.Request(
        prefix.system,
        messages,
        prefix.tools,
        max_tokens=max_tokens,
        temperature=runtime.models.temperature,
        effort=state.model.effort or runtime.models.effort,
    )


def check_size(request: llm.Request, info: ModelInfo) -> None:
    """Raise `ContextOverflow` if the new messages of a request, after those that were sent before, are far too long."""
    tokens = estimate(llm.Request("", request.messages[request.earlier_messages :]), info).tokens
    max_windows = MAX_WINDOWS if info.is_known else 2 * MAX_WINDOWS  # the window of an unknown model is a guess
    if tokens > max_windows * info.window:
        raise ContextOverflow(f"The prompt has about {tokens:,} tokens, but {info.id} has a window of {info.window:,}")


async def _stream(turn: Turn, target: RequestTarget, request: llm.Request) -> tuple[llm.Done, Attempt]:
    """Publish the stream as events; return the reply and the last attempt. A reply that breaks off is stored, too."""
    text_so_far: list[str] = []
    blocks = ReplyBlocks(target.provider, turn.emit)
    models = turn.runtime.models
    fallback = models.fallback if models.fallback != turn.state.model.name else ""
    policy = models.retry
    if fallback:  # another model can answer instead, so an overloaded service gets fewer retries
        policy = msgspec.structs.replace(policy, max_overloaded=MAX_RETRIES_BEFORE_FALLBACK)

    def on_event(event: llm.StreamEvent) -> None:
        blocks.feed(event)
        match event:
            case llm.TextDelta(text):
                text_so_far.append(text)
            case llm.ToolCallStarted() if turn.round == 1:  # in later rounds, this has usually been done
                loading = asyncio.get_running_loop().run_in_executor(None, _prepare_calls, turn.runtime.calls.workspace)
                # Reading the exception keeps asyncio from logging it: the call will fail with the same error.
                loading.add_done_callback(lambda done: done.exception())

    def on_broken(used: Usage) -> None:
        blocks.end()
        store_partial(turn, target, "".join(text_so_far), used, attempt=paid.attempt)

    def on_retry(number: int, delay_s: float, error: ProviderError) -> None:
        nonlocal blocks
        blocks = ReplyBlocks(target.provider, turn.emit)
        turn.log.is_retrying = True
        turn.emit(events.Retry(number, delay_s, describe_error(error), policy.max_retries_after(error), fallback))

    paid = PaidRequest(
        target=target,
        budgets=turn.spending.budgets,
        policy=policy,
        on_broken=on_broken,
        on_retry=on_retry,
        max_prompt_tokens=partial(max_prompt_tokens, turn, target.name),
    )
    try:
        return await paid.reply(request, on_event), paid.attempt
    except (asyncio.CancelledError, ProviderError, UserError):
        if text_so_far:
            turn.answer.is_partial = True  # it can be continued, because none of its calls has run
        raise
    finally:
        blocks.end()
        for warning in turn.spending.budgets.warnings(target.info):
            turn.emit(events.Notice(warning))


def _prepare_calls(workspace: Workspace) -> None:
    """Import the code for calls and open the sandbox, in 30 ms, while the model still writes the first call. Blocks."""
    from agentcli.agent.calls import run  # noqa: F401  # loaded ahead

    workspace.preload()


def max_prompt_tokens(turn: Turn, model: str, request: llm.Request, info: ModelInfo) -> int:
    """Return the maximum tokens of a prompt, to reserve its cost, from the newest reply's count if that is usable."""
    bodies = (entry.body for entry in reversed(turn.state.conversation.path))
    newest = next((body for body in bodies if isinstance(body, entries.Assistant | entries.Compaction)), None)
    positions = [n for n, message in enumerate(request.messages) if message.role == "assistant"]
    is_transformed = turn.runtime.context.transform is not unchanged  # then the count is not that of the entries
    if is_transformed or not positions or not isinstance(newest, entries.Assistant):
        return max_estimate(request, info)
    is_counted = newest.usage.prompt_tokens and not newest.is_estimated and newest.stop_reason != "interrupted"
    is_same_prefix = f"{newest.provider}/{newest.model}" == model and newest.prefix == prefix_hash(request)
    if not (is_counted and is_same_prefix):
        return max_estimate(request, info)
    # The next prompt has the tokens of the counted one, those of its reply, and those of the messages after that.
    reply, later = request.messages[positions[-1]], request.messages[positions[-1] + 1 :]
    reply_tokens = max(max_estimate(llm.Request("", (reply,)), info), newest.usage.output_tokens)
    return int(COUNT_MARGIN * newest.usage.prompt_tokens) + reply_tokens + max_estimate(llm.Request("", later), info)


def prefix_hash(request: llm.Request) -> str:
    """Return the hashes of the tools and of the system text, such as "0a1b2c3d.89abcdef"."""
    tools = zlib.crc32(msgspec.json.encode(request.tools))
    return f"{tools:08x}.{zlib.crc32(request.system.encode(errors='replace')):08x}"


async def store_reply(turn: Turn, target: RequestTarget, reply: llm.Done, attempt: Attempt) -> None:
    """Store a reply and the start of its calls in one transaction, and publish it.

    Raises `UserError` for a refusal, and if the conversation no longer fits the window.
    """
    turn.state.model.last_used = target.name
    cost = turn_log.charge_request(turn, target, reply.usage)
    if reply.stop_reason == "refusal":  # it is not stored, and the turn's entries are taken back
        paid = entries.Paid(
            model=target.name,
            usage=reply.usage,
            cost_usd=cost,
            reason="refused",
            note=reply.note,
            duration_ms=attempt.duration_ms,
        )
        turn_log.add(turn, paid, entries.Retracted(tuple(turn.log.entry_ids)))
        why = reply.note or "the provider's safety rules"
        raise UserError(f"The model refused to answer ({why}). Your message was removed: rephrase it, or use /model.")
    turn.answer.parts.append(reply.message.text)
    turn.answer.is_partial = False
    turn.log.accepted_count = len(turn.log.entry_ids)  # the provider has accepted all of them
    turn.log.is_retrying = False
    stored = entries.Assistant(
        content=reply.message.content,
        provider=target.provider.name,
        model=target.provider.model,
        usage=reply.usage,
        stop_reason=reply.stop_reason,
        cost_usd=cost,
        duration_ms=attempt.duration_ms,
        retries=attempt.retries,
        prefix=prefix_hash(attempt.sent),
        is_estimated=attempt.is_estimated,
        first_token_ms=attempt.first_token_ms,
    )
    calls = tuple(use.id for use in reply.message.tool_uses)
    turn_log.add(turn, stored, *([entries.CallsStarted(calls)] if calls else ()))
    await turn_log.wait_until_stored(turn)
    report_usage(turn, target, reply.usage, cost)
    turn.emit(events.TurnEnded(turn.round, reply.stop_reason, target.provider.model, target.provider.name))
    if reply.note:
        turn.emit(events.Notice(reply.note))
    warn_when_full(turn, target.info)
    if reply.stop_reason == "model_context_window_exceeded" and not await compact_after_overflow(turn):
        raise UserError("The conversation no longer fits the window. Start a new session, or use a larger model.")


def store_partial(turn: Turn, target: RequestTarget, text: str, used: Usage, *, attempt: Attempt) -> None:
    """Store the text and the cost of a reply that broke off; not its thinking, nor its calls, which must not run."""
    cost, duration_ms = turn_log.charge_request(turn, target, used), attempt.duration_ms
    if len(text) > MAX_PARTIAL_CHARS:  # all later requests contain it
        half = MAX_PARTIAL_CHARS // 2
        text = f"{text[:half]}\n\n[{len(text) - 2 * half:,} characters of this reply omitted]\n\n{text[-half:]}"
    if text.strip():
        turn.answer.parts.append(text)
        body: entries.Body = entries.Assistant(
            content=(Text(text),),
            provider=target.provider.name,
            model=target.provider.model,
            usage=used,
            stop_reason="interrupted",
            cost_usd=cost,
            duration_ms=duration_ms,
            retries=attempt.retries,
            first_token_ms=attempt.first_token_ms,
        )
    else:  # without text, only the cost is stored
        body = entries.Paid(model=target.name, usage=used, cost_usd=cost, reason="broken", duration_ms=duration_ms)
    turn_log.add(turn, body)
    if used.prompt_tokens:
        report_usage(turn, target, used, cost)


def report_usage(turn: Turn, target: RequestTarget, used: Usage, cost: float | None) -> None:
    total, provider = turn.state.meter.total.full_cost_usd, target.provider
    turn.emit(events.UsageReported(used, cost, total, provider.model, provider.name))


def warn_when_full(turn: Turn, info: ModelInfo) -> None:
    """Warn the person when the window becomes nearly full, and again only after it had room."""
    share_before, warn_at = turn.state.model.window_share, turn.runtime.context.warn_at
    prefix = turn.runtime.prefix(info)
    share = turn.state.conversation.size.tokens(prefix.system, prefix.tools, info) / info.window
    turn.state.model.window_share = share
    if info.is_known and share >= warn_at > share_before:
        turn.emit(events.Notice(f"The conversation uses {share:.0%} of the model's window ({info.window:,} tokens)."))


def describe_error(error: ProviderError | UserError) -> str:
    """Return the error in the provider's words, with the HTTP status, the tries, and a wait too long for a retry."""
    if not isinstance(error, ProviderError):
        return str(error)
    text = str(error)
    status = f"HTTP {error.status}" if error.status else ""
    tries = f"tried {error.tries} times over {llm.time_span(error.tried_s)}" if error.tries > 1 else ""
    if details := ", ".join(part for part in (status, tries) if part):
        text = f"{text.rstrip('.')} ({details})."
    return llm.with_wait(text, error)


class ReplyBlocks:
    """Publishes the blocks of one reply. They are numbered as they start; neighbouring text deltas form one block."""

    def __init__(self, provider: llm.Provider, emit: events.Emit) -> None:
        self._emit = emit
        self._first_event = events.ReplyStarted(provider.model, provider.name)
        self._count = 0  # blocks so far
        self._open: events.BlockKind | None = None  # the kind of the newest block, until its end is published
        self._calls: dict[str, int] = {}  # the numbers of the calls' open blocks, by the ids of the calls

    def feed(self, event: llm.StreamEvent) -> None:
        """Publish an event of the provider's stream as events of blocks."""
        if isinstance(event, llm.TextDelta):  # first, because nearly all events are of this kind
            if self._open != "text":
                self._start_block("text")
            self._emit(events.TextDelta(event.text))
            return
        match event:
            case llm.ThinkingDelta(text):
                if self._open != "thinking":
                    self._start_block("thinking")
                self._emit(events.ThinkingDelta(text))
            case llm.ToolCallStarted(id, name):
                self._calls[id] = self._start_block("tool_use", id, name)
            case llm.ToolCallDelta(id, partial_json):
                # A delta with an unknown id is assigned to the newest block.
                self._emit(events.InputDelta(id, partial_json, self._calls.get(id, self._count - 1)))
            case llm.ToolCallEnded(id) if id in self._calls:
                self._emit(events.BlockEnded(self._calls.pop(id)))
            case llm.UsageUpdate(usage, prompt_tokens) if prompt_tokens:
                self._emit(events.PromptProgress(usage.prompt_tokens, prompt_tokens))

    def _start_block(self, kind: events.BlockKind, id: str = "", name: str = "") -> int:
        if self._count == 0:
            self._emit(self._first_event)
        self._end_text()
        index, self._count = self._count, self._count + 1
        self._open = kind
        self._emit(events.BlockStarted(index, kind, id, name))
        return index

    def _end_text(self) -> None:
        if self._open in ("text", "thinking"):
            self._emit(events.BlockEnded(self._count - 1))
        self._open = None

    def end(self) -> None:
        self._end_text()
        for index in self._calls.values():
            self._emit(events.BlockEnded(index))
        self._calls.clear()
