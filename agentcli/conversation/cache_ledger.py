"""Compares what a provider's prompt cache gave with what it could have given, and says why it gave less."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import islice

import msgspec
from msgspec import Struct, structs

from agentcli.conversation.entries import Assistant, CacheCause, CacheUse, Compaction, Entry
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo, Prices
from agentcli.llm.provider import Request

TIME_TO_LIVE_S = 300  # since the prefix was last sent, which Anthropic promises and others come close to
STEP = 128  # tokens by which OpenAI's automatic cache grows
MOST_LOOKED_AT = 24  # entries back to a reply that says what was cached
SMALLEST = 1_024  # a prompt that is shorter is cached by nobody


class Asked(Struct, frozen=True):
    """A request that was answered: what it began with, when it was sent (seconds since 1970), what it used.

    `is_changed` says that earlier messages may have been sent otherwise than before.
    """

    model: str
    prefix: str
    sent: float
    usage: Usage
    is_changed: bool = False


def prefix_hash(request: Request) -> str:
    """A short hash each of the tools and of the system text."""
    tools = zlib.crc32(msgspec.json.encode(request.tools))
    return f"{tools:08x}.{zlib.crc32(request.system.encode(errors='replace')):08x}"


def cache_use(path: Sequence[Entry], asked: Asked, info: ModelInfo) -> CacheUse | None:
    """What the cache could have given to a request that goes on from `path`; None where nothing can be said."""
    is_compacted = False
    for entry in islice(reversed(path), MOST_LOOKED_AT):
        match entry.body:
            case Compaction():
                is_compacted = True
            case Assistant() as before if held := _held(before, info.prices, asked.usage):
                expected = min(held, asked.usage.prompt_tokens)
                lost = expected - asked.usage.cache_read_input_tokens
                if lost <= (0 if _is_explicit(info.prices, before.usage) else 2 * STEP):
                    return CacheUse(expected)
                cause = _cause(before, asked, entry.time, is_compacted=is_compacted)
                return CacheUse(expected, lost, _price(asked.usage, lost, info), cause)
            case _:
                pass
    return None


def cold_read_usd(tokens: int, info: ModelInfo) -> float | None:
    """USD for a prompt that the cache has dropped; None where there is no cache, or no known price."""
    if info.prices is None or info.prices.cache_read is None:
        return None
    per_token, _ = info.prices.dearest(tokens)
    return tokens * per_token


def _is_explicit(prices: Prices | None, usage: Usage) -> bool:
    """True where writing to the cache has a price, and is counted."""
    return usage.cache_creation_input_tokens > 0 or (prices is not None and prices.cache_write is not None)


def _held(before: Assistant, prices: Prices | None, now: Usage) -> int:
    """Tokens that the cache held after a request; 0 where its provider caches nothing that could be seen."""
    used = Usage() if before.is_estimated else before.usage
    written = used.cache_read_input_tokens + used.cache_creation_input_tokens
    if _is_explicit(prices, used):
        return written
    is_cached = written or now.cache_read_input_tokens or (prices is not None and prices.cache_read is not None)
    return used.prompt_tokens // STEP * STEP if is_cached and used.prompt_tokens >= SMALLEST else 0


def _cause(before: Assistant, asked: Asked, ended: float, *, is_compacted: bool) -> CacheCause:
    tools, _, system = asked.prefix.partition(".")
    tools_before, _, system_before = before.prefix.partition(".")
    if f"{before.provider}/{before.model}" != asked.model:
        return "model"
    if is_compacted:
        return "compaction"
    if tools_before not in ("", tools):
        return "tools"
    if system_before not in ("", system):
        return "system"
    if asked.sent - (ended - before.duration_ms / 1000) > TIME_TO_LIVE_S:
        return "time to live"
    return "messages" if asked.is_changed else "provider"


def _price(usage: Usage, lost: int, info: ModelInfo) -> float | None:
    """USD that the lost tokens cost more than if they had been read from the cache."""
    if info.prices is None:
        return None
    written = min(lost, usage.cache_creation_input_tokens)
    hit = structs.replace(
        usage,
        cache_read_input_tokens=usage.cache_read_input_tokens + lost,
        cache_creation_input_tokens=usage.cache_creation_input_tokens - written,
        input_tokens=max(0, usage.input_tokens - (lost - written)),
    )
    return info.prices.cost(usage) - info.prices.cost(hit)
