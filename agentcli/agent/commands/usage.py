"""The usage of a session: tokens, money and time, and what its prompt cache gave, both computed from the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from agentcli.agent.accounting.budgets import in_words
from agentcli.agent.accounting.usage import UsageCollector, counted
from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand
from agentcli.agent.session import Session
from agentcli.conversation.entries import Assistant, Compaction, Entry
from agentcli.errors import UsageError
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo, Prices

MOST_TOOLS = 12


async def _usage(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    meter = session.state.meter
    if not meter.by_model:
        return "Nothing was used yet."
    rows = [_usage_row(model, usage, cost) for model, (usage, cost) in meter.by_model.items()]
    if len(rows) > 1:
        rows.append(_usage_row("total", meter.total.usage, meter.total.whole_usd))
    others = _lines(session)
    width = max(len(row[0]) for row in (*rows, *others))
    lines = [f"  {name:<{width}}  {text}" for name, text in (*rows, *others)]
    return "\n".join([*lines, "agentcli usage shows days and other sessions, /cache what the prompt cache saves."])


def _usage_row(name: str, usage: Usage, cost: float | None) -> tuple[str, str]:
    price = "price unknown" if cost is None else f"${cost:.4f}"
    cached = usage.cache_read_input_tokens
    return name, f"{usage.prompt_tokens:,} tokens in ({cached:,} cached), {usage.output_tokens:,} out, {price}"


def _lines(session: Session) -> list[tuple[str, str]]:
    """The newest turn, the conversation, its tools and budgets."""
    entries = session.state.conversation.entries
    prompts = [number for number, entry in enumerate(entries) if entry.is_prompt]
    whole, newest = _collected(entries), _collected(entries[prompts[-1] :] if prompts else ())
    lines = []
    if newest.total.requests:
        name, text = _usage_row("last turn", newest.total.usage, newest.total.whole_usd)
        lines.append((name, f"{text}, {counted(newest.total.requests, 'request')}, {_seconds(newest)}"))
    (conversation,) = whole.sessions.values()
    counts = [(conversation.turns, "turn"), (conversation.rounds, "round"), (conversation.messages, "message")]
    if conversation.compactions:
        counts.append((conversation.compactions, "compaction"))
    said = ", ".join(counted(count, noun) for count, noun in counts)
    retries = f", {counted(whole.total.retries, 'retry', 'retries')}" if whole.total.retries else ""
    lines.append(("session", f"{said}{retries}, {_seconds(whole)}"))
    tools = sorted(whole.tools.items(), key=lambda item: -item[1].calls)
    for name, tool in tools[:MOST_TOOLS]:
        errors = "".join(f", {kind} {count}" for kind, count in tool.errors.most_common(2))
        said = f"{counted(tool.calls, 'call')}, {tool.success_rate:.0%} ok, {tool.mean_ms:,.0f} ms on average"
        lines.append((name, f"{said}, about {tool.tokens:,} tokens{errors}"))
    for account, kind, limit, spent in session.state.budgets.limits():
        said = f"{in_words(kind, spent)} of {in_words(kind, limit)} ({spent / limit:.0%})"
        lines.append((f"{account.scope}'s budget", said))
    return lines


def _collected(entries: Iterable[Entry]) -> UsageCollector:
    collector = UsageCollector()
    for entry in entries:
        collector.add("", entry)
    return collector


def _seconds(used: UsageCollector) -> str:
    return f"{used.total.duration_ms / 1000:,.1f} s of requests"


TIME_TO_LIVE_S = 300  # since the prefix was last sent, which Anthropic promises and others come close to
_STEP_TOKENS = 128  # by which OpenAI's automatic cache grows
_MIN_CACHED_TOKENS = 1_024  # a prompt that is shorter is cached by nobody
_MAX_ENTRIES_BACK, _MAX_LOSSES = 24, 10
CAUSES = {
    "model": "another model answered",
    "compaction": "the conversation was compacted",
    "tools": "the tools changed",
    "system": "the system text changed",
    "time to live": f"more than {TIME_TO_LIVE_S // 60} minutes had passed",
    "provider": "the provider had dropped it, or earlier messages were sent in another form",
}


class CacheLoss(Struct, frozen=True, kw_only=True):
    """The tokens of a request that the cache held and did not give. `usd` is None where the price is unknown."""

    time: float
    reply: Assistant
    held: int
    lost: int
    usd: float | None
    cause: str


def cache_losses(entries: Sequence[Entry], model_info: Callable[[str], ModelInfo]) -> Iterator[CacheLoss]:
    """Yield the losses of a log, each of a reply compared with the one before it on its branch."""
    numbers: dict[str | None, int] = {}  # by id: those of results are a model's and may come again
    parents: list[int | None] = []
    for number, entry in enumerate(entries):
        parents.append(numbers.get(entry.parent_id))
        numbers[entry.id] = number
        if not isinstance(reply := entry.body, Assistant) or reply.is_estimated or reply.stop_reason == "interrupted":
            continue
        prices, is_compacted = model_info(f"{reply.provider}/{reply.model}").prices, False
        for earlier in islice(_ancestors(number, entries, parents), _MAX_ENTRIES_BACK):
            is_compacted |= isinstance(before := earlier.body, Compaction)
            if isinstance(before, Assistant) and (held := _held(before, prices, reply.usage)):
                held = min(held, reply.usage.prompt_tokens)
                lost = held - reply.usage.cache_read_input_tokens
                if lost > (0 if _is_explicit(prices, before.usage) else 2 * _STEP_TOKENS):
                    cause = "compaction" if is_compacted else _cause(before, reply, _sent(entry) - _sent(earlier))
                    usd = None
                    if prices:  # what the lost tokens cost more than if they had been read from the cache
                        written = min(lost, reply.usage.cache_creation_input_tokens)
                        hit = reply.usage + Usage(written - lost, 0, -written, lost)
                        usd = prices.cost(reply.usage) - prices.cost(hit)
                    yield CacheLoss(time=entry.time, reply=reply, held=held, lost=lost, usd=usd, cause=cause)
                break


def _ancestors(number: int, entries: Sequence[Entry], parents: Sequence[int | None]) -> Iterator[Entry]:
    while (parent := parents[number]) is not None:
        number = parent
        yield entries[number]


def _sent(entry: Entry) -> float:
    return entry.time - (entry.body.duration_ms / 1000 if isinstance(entry.body, Assistant) else 0)


def _is_explicit(prices: Prices | None, usage: Usage) -> bool:
    """True where writing to the cache has a price, and is counted."""
    return usage.cache_creation_input_tokens > 0 or (prices is not None and prices.cache_write is not None)


def _held(before: Assistant, prices: Prices | None, now: Usage) -> int:
    """Return the tokens that the cache held after a request; 0 where its provider caches nothing that could be seen."""
    used = Usage() if before.is_estimated else before.usage
    written = used.cache_read_input_tokens + used.cache_creation_input_tokens
    if _is_explicit(prices, used):
        return written
    is_cached = written or now.cache_read_input_tokens or (prices is not None and prices.cache_read is not None)
    is_long = used.prompt_tokens >= _MIN_CACHED_TOKENS
    return used.prompt_tokens // _STEP_TOKENS * _STEP_TOKENS if is_cached and is_long else 0


def _cause(before: Assistant, now: Assistant, passed_s: float) -> str:
    if (before.provider, before.model) != (now.provider, now.model):
        return "model"
    for part, earlier, later in zip(("tools", "system"), before.prefix.split("."), now.prefix.split("."), strict=False):
        if earlier not in ("", later):
            return part
    return "time to live" if passed_s > TIME_TO_LIVE_S else "provider"


async def _show_cache(host: CommandHost, argument: str) -> Outcome:
    if argument not in ("", "why"):
        raise UsageError("Write /cache, or /cache why for the newest losses and their causes.")
    entries = host.session.state.conversation.entries
    losses = list(cache_losses(entries, host.session.runtime.models.info))
    if argument:
        return "\n".join(map(_line, losses[-_MAX_LOSSES:])) or "Nothing was lost."
    usage = sum((entry.body.usage for entry in entries if isinstance(entry.body, Assistant)), Usage())
    if not (sent := usage.prompt_tokens):
        return "Nothing was sent yet."
    read = usage.cache_read_input_tokens
    lines = [f"{sent:,} tokens were sent, {read:,} of them were read from the cache ({read / sent:.0%})."]
    for cause in dict.fromkeys(loss.cause for loss in losses):
        caused = [loss for loss in losses if loss.cause == cause]
        lines.append(f"  lost by {cause}: {sum(loss.lost for loss in caused):,} tokens, {_usd(caused)}")
    lines.append("/cache why shows the newest losses." if losses else "Nothing that it held was lost.")
    return "\n".join(lines)


def _line(loss: CacheLoss) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(loss.time))
    read = f"{loss.reply.usage.cache_read_input_tokens:,} of {loss.held:,} tokens read"
    return f"  {at}  {loss.reply.model}: {read}, {_usd([loss])} lost: {CAUSES[loss.cause]}"


def _usd(losses: Sequence[CacheLoss]) -> str:
    known = [loss.usd for loss in losses if loss.usd is not None]
    return f"${sum(known):.4f}" if known else "price unknown"


USAGE_COMMANDS = (
    SlashCommand("usage", "show what the session used and cost", _usage, aliases=("cost", "stats")),
    SlashCommand("cache", "show what the prompt cache gave and lost", _show_cache, "[why]", forms=("", "why")),
)
