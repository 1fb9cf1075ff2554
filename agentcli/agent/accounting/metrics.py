"""Adds up what conversations used: tokens, money and time by day, model and user, and what tools did.

All of it is read from the entries of logs, so that it can be told of any session, also long after it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from agentcli.agent.accounting.meter import spent
from agentcli.conversation.entries import Assistant, Compaction, Entry, Paid, Result, User
from agentcli.llm.messages import Usage
from agentcli.llm.tokens import estimate_text


@dataclass
class Tally:
    """Requests and what they took. `cost_usd` leaves out the `unpriced` requests, whose price is not known."""

    requests: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    unpriced: int = 0
    duration_ms: int = 0
    retries: int = 0

    def add(self, usage: Usage, cost_usd: float | None, duration_ms: int, retries: int) -> None:
        self.requests += 1
        self.usage = self.usage + usage
        self.cost_usd += cost_usd or 0.0
        self.unpriced += cost_usd is None
        self.duration_ms += duration_ms
        self.retries += retries

    def as_dict(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_creation_input_tokens": usage.cache_creation_input_tokens,
            "cache_read_input_tokens": usage.cache_read_input_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "cost_usd": None if self.requests and self.unpriced == self.requests else self.cost_usd,
            "requests": self.requests,
            "unpriced_requests": self.unpriced,
            "duration_ms": self.duration_ms,
            "retries": self.retries,
        }


@dataclass
class ToolTally:
    """The calls of one tool. `tokens` are an estimate of what its results added to the conversation."""

    calls: int = 0
    failed: int = 0
    duration_ms: float = 0.0
    tokens: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    output_levels: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.calls += 1
        self.failed += result.result.is_error
        self.duration_ms += result.duration_ms
        self.tokens += estimate_text(result.result.text) if result.result.content else 0
        self.retries += result.retry_count
        if result.result.is_error:
            self.errors[result.error_code or result.error_kind or "not run"] += 1
        if result.output_level:
            self.output_levels[result.output_level] += 1

    @property
    def success_rate(self) -> float:
        return 1 - self.failed / self.calls if self.calls else 1.0

    @property
    def mean_ms(self) -> float:
        return self.duration_ms / self.calls if self.calls else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "success_rate": round(self.success_rate, 4),
            "mean_duration_ms": round(self.mean_ms, 1),
            "tokens": self.tokens,
            "retries": self.retries,
            "errors": dict(self.errors),
            "output_levels": dict(self.output_levels),
        }


@dataclass
class SessionTally:
    """One conversation. `turns` are the person's messages, `rounds` replies; times are seconds since 1970."""

    tally: Tally = field(default_factory=Tally)
    messages: int = 0
    turns: int = 0
    rounds: int = 0
    compactions: int = 0
    started: float = 0.0
    ended: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("messages", "turns", "rounds", "compactions")}
        return {**self.tally.as_dict(), **counts, "started": self.started, "ended": self.ended}


class UsageCollector:
    """What all conversations that it is given to used, as far as they were stored since.

        collector = UsageCollector()
        async with Agent(model, usage=collector) as one, Agent(model, usage=collector) as other:
            ...
        print(collector.report()["total"]["cost_usd"])

    Agents in several threads may share one.
    """

    def __init__(self) -> None:
        self.total = Tally()
        self.days: defaultdict[str, Tally] = defaultdict(Tally)
        self.models: defaultdict[str, Tally] = defaultdict(Tally)
        self.users: defaultdict[str, Tally] = defaultdict(Tally)
        self.tools: defaultdict[str, ToolTally] = defaultdict(ToolTally)
        self.sessions: defaultdict[str, SessionTally] = defaultdict(SessionTally)
        self._lock = threading.Lock()

    def add(self, session_id: str, entry: Entry, *, user_id: str = "") -> None:
        """Count an entry of a log."""
        with self._lock:
            self._count(self.sessions[session_id], entry, user_id)

    def _count(self, session: SessionTally, entry: Entry, user_id: str) -> None:
        session.started = session.started or entry.time
        session.ended = max(session.ended, entry.time)
        body = entry.body
        session.messages += isinstance(body, User | Assistant | Result)
        match body:
            case User(is_reminder=False):
                session.turns += 1
            case Assistant():
                session.rounds += 1
            case Result():
                self.tools[body.name].add(body)
            case Compaction():
                session.compactions += 1
            case _:
                pass
        if isinstance(body, Assistant | Paid) and (paid := spent(body)) is not None:
            model, usage, cost = paid
            day = time.strftime("%Y-%m-%d", time.localtime(entry.time))
            retries = body.retries if isinstance(body, Assistant) else 0
            for tally in (self.total, self.days[day], self.models[model], self.users[user_id], session.tally):
                tally.add(usage, cost, body.duration_ms, retries)

    def report(self) -> dict[str, Any]:
        """As `agentcli usage --json` prints it: days and sessions the oldest first, the others by what they took."""
        return {
            "total": self.total.as_dict(),
            "days": [{"day": day, **tally.as_dict()} for day, tally in sorted(self.days.items())],
            "models": [{"model": model, **tally.as_dict()} for model, tally in dearest(self.models)],
            "tools": [
                {"tool": name, **tally.as_dict()}
                for name, tally in sorted(self.tools.items(), key=lambda item: -item[1].calls)
            ],
            "users": [{"user_id": user, **tally.as_dict()} for user, tally in dearest(self.users)],
            "sessions": [
                {"session_id": id, **tally.as_dict()}
                for id, tally in sorted(self.sessions.items(), key=lambda item: item[1].started)
            ],
        }


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def dearest(tallies: dict[str, Tally]) -> list[tuple[str, Tally]]:
    """The dearest first; of those that cost the same the one with the most tokens."""
    return sorted(tallies.items(), key=lambda item: (-item[1].cost_usd, -item[1].usage.context_tokens, item[0]))
