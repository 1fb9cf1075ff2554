"""What a session's prompt cache gave, and what was lost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentcli.agent.commands.command import Command, CommandHost, Outcome
from agentcli.conversation.cache_ledger import TIME_TO_LIVE_S
from agentcli.conversation.entries import Assistant, CacheCause, CacheUse, Entry
from agentcli.errors import UsageError

MOST_LOSSES = 10
CAUSES: dict[CacheCause, str] = {
    "": "",
    "model": "another model answered",
    "compaction": "the conversation was compacted",
    "tools": "the tools changed",
    "system": "the system text changed",
    "messages": "earlier messages may have been sent otherwise: by a caller's code, or without what was refused",
    "time to live": f"more than {TIME_TO_LIVE_S // 60} minutes had passed",
    "provider": "the provider had dropped it; nothing had changed here",
}


async def _cache(host: CommandHost, argument: str) -> Outcome:
    if argument not in ("", "why"):
        raise UsageError("Write /cache, or /cache why for the newest losses and their causes.")
    entries = host.session.state.conversation.entries
    replies = [(entry, entry.body) for entry in entries if isinstance(entry.body, Assistant)]
    losses = [(entry, reply, reply.cache) for entry, reply in replies if reply.cache and reply.cache.lost_tokens]
    if argument:
        return "\n".join(_loss(*loss) for loss in losses[-MOST_LOSSES:]) or "Nothing was lost."
    usages = [reply.usage for _, reply in replies]
    sent, read = (
        sum(getattr(usage, name) for usage in usages) for name in ("prompt_tokens", "cache_read_input_tokens")
    )
    if not sent:
        return "Nothing was sent yet."
    lines = [f"{sent:,} tokens were sent, {read:,} of them were read from the cache ({read / sent:.0%})."]
    for cause in dict.fromkeys(cache.cause for _, _, cache in losses):
        of_cause = [cache for _, _, cache in losses if cache.cause == cause]
        tokens = sum(cache.lost_tokens for cache in of_cause)
        lines.append(f"  lost by {cause}: {tokens:,} tokens, {_usd([cache.lost_usd for cache in of_cause])}")
    lines.append("/cache why shows the newest losses." if losses else "Nothing that it held was lost.")
    return "\n".join(lines)


def _loss(entry: Entry, reply: Assistant, cache: CacheUse) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(entry.time))
    read = f"{reply.usage.cache_read_input_tokens:,} of {cache.expected:,} tokens read"
    return f"  {at}  {reply.model}: {read}, {_usd([cache.lost_usd])} lost: {CAUSES[cache.cause]}"


def _usd(amounts: Sequence[float | None]) -> str:
    known = [amount for amount in amounts if amount is not None]
    return f"${sum(known):.4f}" if known else "price unknown"


CACHE_COMMAND = Command(
    "cache", "show what the prompt cache gave, and what was lost", _cache, "[why]", forms=("", "why")
)
