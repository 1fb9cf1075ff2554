"""Commands about the model: choosing it, its effort, window, usage and cache, and side questions."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from msgspec import Struct

from agentcli.agent.accounting import UsageCollector, format_amount
from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand, marked_list, split_keep
from agentcli.agent.ops import SetEffort, SetModel
from agentcli.agent.requests.attempts import PaidRequest, without
from agentcli.agent.requests.request import build_request
from agentcli.agent.session import Session
from agentcli.conversation.entries import Assistant, Entry, PaidReason
from agentcli.conversation.history import counted
from agentcli.errors import UsageError, UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Text, Usage, repair_messages
from agentcli.llm.models import ModelInfo, Prices, RequestTarget
from agentcli.llm.provider import Effort, Request

_LEVELS: tuple[Effort, ...] = get_args(Effort)
_EFFORT_HINTS: dict[str, str] = {
    "low": "fast and cheap, for simple tasks",
    "medium": "everyday work",
    "high": "harder problems",
    "xhigh": "problems that need long reasoning",
    "max": "maximum effort, at any cost",
}
MAX_ANSWER_TOKENS = 4_096  # to a side question
_PREAMBLE = (
    "<system-reminder>This is a side question. Answer it in a few sentences from what you know. "
    "Call no tools and change nothing.</system-reminder>\n"
)
NEARLY_FULL = 0.8  # of the window
TIME_TO_LIVE_S = 300  # of a cached prefix after its last use: Anthropic's promise, and about that of others
_STEP_TOKENS = 128  # the size of the steps in which OpenAI's automatic cache grows
_MIN_CACHED_TOKENS = 1_024  # no provider caches a shorter prompt
_MAX_LOSSES = 10  # in /cache why
_WHY_LOST = (
    "The provider drops its cache when you switch models, when the tools or the system prompt change, when the "
    f"conversation is compacted, or after {TIME_TO_LIVE_S // 60} minutes without a request."
)


async def _run_model(host: CommandHost, argument: str) -> Outcome:
    """Switch to the model `NAME [EFFORT] [keep]`, or to one chosen from a list. `keep` makes both the default."""
    name, keeps = split_keep(argument)
    name, _, effort = name.partition(" ")
    if not name:
        options, name_now = list(await host.models()), host.session.state.model.name
        if name_now not in (label for label, _ in options):  # the model in use need not be a listed one
            options.insert(0, (name_now, ""))
        current = [label for label, _ in options].index(name_now)
        picked = await host.choose("Model · window · $ per million tokens", options, current=current)
        if picked is None:
            return marked_list(
                options, current, "To switch: /model PROVIDER/MODEL (models that are not listed work too)"
            )
        name = options[picked][0]
    level = _parse_effort(effort) if effort.strip() else None
    sentences = [await host.check_model(name)]  # raises an error if the model cannot be used
    host.session.submit(SetModel(name))
    if level:
        host.session.submit(SetEffort(level))
        sentences.append(f"Effort {level}.")
    if keeps:
        sentences.append(await host.store_setting("provider.model", name))
        sentences += [await host.store_setting("tokens.effort", level)] if level else []
    else:
        sentences.append(f"For this session only. To make it the default: /model {name} keep")
    return " ".join(sentences)


async def _run_effort(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    level, keeps = split_keep(argument)
    if not level:
        options = [("default", f"{session.runtime.models.effort or 'model default'}"), *_EFFORT_HINTS.items()]
        names = [name for name, _ in options]
        current = names.index(session.state.model.effort or "default")
        picked = await host.choose("Reasoning effort", options, current=current)
        if picked is None:
            return marked_list(options, current, "To change it: /effort LEVEL")
        level = names[picked]
    effort = None if level == "default" else _parse_effort(level)
    session.submit(SetEffort(effort))
    text = f"Effort is {effort or session.runtime.models.effort or 'the model default'} from the next request on"
    if keeps:
        return f"{text}. {await host.store_setting('tokens.effort', effort)}"
    return f"{text}, in this session only. To make it the default: /effort {level} keep"


def _parse_effort(text: str) -> Effort:
    for level in _LEVELS:
        if level == text.strip():
            return level
    raise UsageError(f"Unknown effort {text.strip()!r}. Choose one of {', '.join(_LEVELS)}.")


async def _run_context(host: CommandHost, argument: str) -> Outcome:
    use = await host.session.runtime.context_use(host.session.state)
    share = use.request / use.window
    rows = [*use.parts.items(), ("free", max(0, use.window - use.request))]
    lines = [f"{use.model}: the next request uses about {use.request:,} of {use.window:,} tokens ({share:.0%})"]
    lines += [f"  {name:<12}  {tokens:>9,}  {tokens / use.window:>6.1%}" for name, tokens in rows if tokens]
    lines.append(
        "The total builds on the provider's newest count, if it has sent one; each source's share is estimated."
    )
    if share >= NEARLY_FULL:
        lines.append("The window is nearly full: /compact summarizes older turns, /clear starts a new session.")
    return "\n".join(lines)


async def _run_btw(host: CommandHost, question: str) -> Outcome:
    if not question:
        raise UsageError("Add a question: /btw QUESTION. It does not become part of the conversation.")
    return await answer_side_question(host.session, question)


MODEL_COMMANDS = (
    SlashCommand(
        "model",
        "show the models, or switch to another one",
        _run_model,
        "[MODEL]",
        forms=("", "PROVIDER/MODEL", "PROVIDER/MODEL EFFORT", "PROVIDER/MODEL [EFFORT] keep"),
    ),
    SlashCommand(
        "effort",
        "show or set the reasoning effort",
        _run_effort,
        "[LEVEL]",
        forms=("", f"{'|'.join(_LEVELS)}|default", "LEVEL keep"),
    ),
    SlashCommand("context", "show what fills the context window", _run_context),
    SlashCommand("btw", "ask a side question", _run_btw, "QUESTION", aliases=("side",), is_parallel=True),
)


async def answer_side_question(session: Session, question: str) -> str:
    """Return the model's answer to a question, even during a turn. Its calls are not run. Raises `UserError`."""
    state, runtime = session.state, session.runtime
    target = RequestTarget(*await runtime.models.resolve(state))
    info = target.info
    prefix = runtime.prefix(info)  # the same as in turns, so that the provider has it in its cache
    messages = repair_messages((*state.conversation.messages, Message("user", (Text(_PREAMBLE + question),))))
    request = build_request(runtime, state, prefix, messages, max_tokens=min(MAX_ANSWER_TOKENS, info.max_output))
    try:
        answer = await side_reply(session, target, without(request, state.model.rejected.get(target.name, ())))
    except ProviderError as error:
        raise UserError(f"Could not answer the question: {error}") from error
    return answer or "(The model gave no answer.)"


async def side_reply(session: Session, target: RequestTarget, request: Request) -> str:
    """Return the text of a reply that is not part of the conversation. Raises `ProviderError`, `OverBudget`."""

    def charge(used: Usage, reason: PaidReason = "broken") -> None:
        session.record_cost(target.name, used, target.info.cost(used), reason, duration_ms=paid.attempt.duration_ms)

    paid = PaidRequest(
        target=target, budgets=session.state.budgets, policy=session.runtime.models.retry, on_broken=charge
    )
    reply = await paid.reply(request)
    charge(reply.usage, "aside")
    return reply.message.text.strip()


async def _run_usage(host: CommandHost, argument: str) -> Outcome:
    meter = host.session.state.meter
    if not meter.by_model:
        return "No requests in this session yet."
    rows = [_usage_row(model, usage, cost) for model, (usage, cost) in meter.by_model.items()]
    if len(rows) > 1:
        rows.append(_usage_row("total", meter.total.usage, meter.total.full_cost_usd))
    rows += _further_usage(host.session)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    return "\n".join([*lines, "More, also of tools and other sessions: agentcli usage. Cache savings: /cache"])


def _usage_row(name: str, usage: Usage, cost: float | None) -> tuple[str, str]:
    price = "price unknown" if cost is None else f"${cost:.4f}"
    tokens_in = f"{usage.prompt_tokens:,} tokens in ({usage.cache_read_input_tokens:,} cached)"
    return name, f"{tokens_in}, {usage.output_tokens:,} out, {price}"


def _further_usage(session: Session) -> list[tuple[str, str]]:
    """Return rows (name, text) about the newest turn and the budgets."""
    entries = session.state.conversation.entries
    prompts = [number for number, entry in enumerate(entries) if entry.is_prompt]
    newest = UsageCollector(entries[prompts[-1] :] if prompts else ()).total
    lines = []
    if newest.requests:
        name, text = _usage_row("last turn", newest.usage, newest.full_cost_usd)
        seconds = f"{newest.duration_ms / 1000:,.1f} s waiting for the model"
        lines.append((name, f"{text}, {counted(newest.requests, 'request')}, {seconds}"))
    for account, kind, limit, spent in session.state.budgets.limits():
        text = f"{format_amount(kind, spent)} of {format_amount(kind, limit)} ({spent / limit:.0%})"
        lines.append((f"{account.scope}'s budget", text))
    return lines


class CacheLoss(Struct, frozen=True, kw_only=True):
    """Tokens of a request that the cache held, but that were not read from it."""

    time: float
    reply: Assistant
    held: int
    lost: int
    usd: float | None  # the extra cost; None if the price is unknown


def cache_losses(entries: Sequence[Entry], model_info: Callable[[str], ModelInfo]) -> Iterator[CacheLoss]:
    """Yield each loss in a log: a reply that read less from the cache than the previous request had left there."""
    newest: dict[str | None, Assistant] = {}  # by the id of an entry: the newest counted reply on the path to it
    for entry in entries:
        before, reply = newest.get(entry.parent_id), entry.body
        if before is not None:
            newest[entry.id] = before
        if not isinstance(reply, Assistant) or reply.is_estimated or reply.usage == Usage():
            continue
        newest[entry.id] = reply
        if before is None or reply.stop_reason == "interrupted":
            continue
        prices = model_info(f"{reply.provider}/{reply.model}").prices
        held = min(_cached_tokens(before.usage, reply.usage, prices), reply.usage.prompt_tokens)
        lost = held - reply.usage.cache_read_input_tokens
        # Without counts of cache writes, `held` is an estimate, which may be wrong by a step or two.
        tolerance = 0 if _counts_cache_writes(prices, before.usage) else 2 * _STEP_TOKENS
        if lost > tolerance:
            usd = _extra_cost(reply.usage, lost, prices) if prices else None
            yield CacheLoss(time=entry.time, reply=reply, held=held, lost=lost, usd=usd)


def _extra_cost(usage: Usage, lost: int, prices: Prices) -> float:
    """Return the USD that a request cost more than if its `lost` tokens had been read from the cache."""
    lost_writes = min(lost, usage.cache_creation_input_tokens)  # lost tokens that were billed as cache writes
    lost_input = lost - lost_writes
    moved = Usage(input_tokens=-lost_input, cache_creation_input_tokens=-lost_writes, cache_read_input_tokens=lost)
    return prices.cost(usage) - prices.cost(usage + moved)


def _counts_cache_writes(prices: Prices | None, usage: Usage) -> bool:
    """Return True if a provider reports which tokens it has written to its cache, as Anthropic does."""
    return usage.cache_creation_input_tokens > 0 or (prices is not None and prices.cache_write is not None)


def _cached_tokens(usage: Usage, next_usage: Usage, prices: Prices | None) -> int:
    """Return the tokens that the cache held between two requests with these usages; 0 without signs of a cache."""
    if _counts_cache_writes(prices, usage):
        return usage.cache_read_input_tokens + usage.cache_creation_input_tokens
    has_read_cache = usage.cache_read_input_tokens or next_usage.cache_read_input_tokens
    has_cache = has_read_cache or (prices is not None and prices.cache_read is not None)
    if not has_cache or usage.prompt_tokens < _MIN_CACHED_TOKENS:
        return 0
    return usage.prompt_tokens // _STEP_TOKENS * _STEP_TOKENS  # assume that it caches whole prompts, in full steps


async def _run_cache(host: CommandHost, argument: str) -> Outcome:
    if argument not in ("", "why"):
        raise UsageError("Usage: /cache, or /cache why to list the latest cache misses.")
    entries = host.session.state.conversation.entries
    losses = list(cache_losses(entries, host.session.runtime.models.info))
    if argument:
        return "\n".join([*map(_loss_line, losses[-_MAX_LOSSES:]), _WHY_LOST]) if losses else "No cache misses."
    usage = sum((entry.body.usage for entry in entries if isinstance(entry.body, Assistant)), Usage())
    if not (sent := usage.prompt_tokens):
        return "No requests in this session yet."
    read = usage.cache_read_input_tokens
    lines = [f"{sent:,} input tokens, {read:,} of them read from the cache ({read / sent:.0%})."]
    if losses:
        lines += [f"  missed: {sum(loss.lost for loss in losses):,} tokens, {_usd(losses)}"]
    lines.append("To list the latest misses: /cache why" if losses else "No cache misses.")
    return "\n".join(lines)


def _loss_line(loss: CacheLoss) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(loss.time))
    read = f"{loss.reply.usage.cache_read_input_tokens:,} of {loss.held:,} tokens read"
    return f"  {at}  {loss.reply.model}: {read}, extra cost: {_usd([loss])}"


def _usd(losses: Sequence[CacheLoss]) -> str:
    known = [loss.usd for loss in losses if loss.usd is not None]
    return f"${sum(known):.4f}" if known else "price unknown"


USAGE_COMMANDS = (
    SlashCommand("usage", "show this session's tokens and cost", _run_usage, aliases=("cost", "stats")),
    SlashCommand("cache", "show the hits and misses of the prompt cache", _run_cache, "[why]", forms=("", "why")),
)
