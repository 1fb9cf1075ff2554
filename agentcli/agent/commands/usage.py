"""The usage of a session: tokens, money and time, by model and tool, and of its budgets."""

from __future__ import annotations

from collections.abc import Iterable

from agentcli.agent.accounting.budgets import in_words
from agentcli.agent.accounting.usage import UsageCollector, counted
from agentcli.agent.commands.cache import CACHE_COMMAND
from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand
from agentcli.agent.session import Session
from agentcli.conversation.entries import Entry, User
from agentcli.llm.messages import Usage

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
    prompts = [n for n, entry in enumerate(entries) if isinstance(entry.body, User) and not entry.body.is_reminder]
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


USAGE_COMMANDS = (
    SlashCommand("usage", "show what the session used and cost", _usage, aliases=("cost", "stats")),
    CACHE_COMMAND,
)
