"""Adds up what conversations used by day, model and user, and what tools did, from the entries of logs."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from agentcli.agent.accounting.budgets import Amounts
from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Paid, Result, User
from agentcli.llm.messages import Usage
from agentcli.llm.models import estimate_text

_TOKENS = "input_tokens output_tokens cache_creation_input_tokens cache_read_input_tokens reasoning_tokens".split()


class Tally(Struct):
    """Requests and what they took. `cost_usd` leaves out `unpriced` requests, whose price is unknown."""

    requests: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0
    unpriced: int = 0
    duration_ms: int = 0
    retries: int = 0

    def add(self, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0) -> None:
        self.requests += 1
        self.usage = self.usage + usage
        self.cost_usd += cost_usd or 0.0
        self.unpriced += cost_usd is None
        self.duration_ms += duration_ms
        self.retries += retries

    @property
    def whole_usd(self) -> float | None:
        """The cost, or None as soon as one price is unknown: the sum would be a guess."""
        return None if self.unpriced else self.cost_usd

    def as_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {name: getattr(self.usage, name) for name in _TOKENS}
        row["cost_usd"] = None if self.requests and self.unpriced == self.requests else self.cost_usd
        row |= {"requests": self.requests, "unpriced_requests": self.unpriced}
        return row | {name: getattr(self, name) for name in self.__struct_fields__[4:]}


class SessionTally(Tally):
    """The usage of one conversation. `turns` counts the person's messages, `rounds` replies; times are Unix times."""

    messages: int = 0
    turns: int = 0
    rounds: int = 0
    compactions: int = 0
    started: float = 0.0
    ended: float = 0.0


class ToolTally(Struct):
    """The calls of one tool. `tokens` estimates what its results added to the conversation."""

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
        rates = {"success_rate": round(self.success_rate, 4), "mean_duration_ms": round(self.mean_ms, 1)}
        rest = ("tokens", "retries", "errors", "output_levels")
        return {"calls": self.calls, **rates} | {name: getattr(self, name) for name in rest}


class UsageCollector:
    """Adds up the usage of all conversations that it is passed to.

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
        body = entry.body
        with self._lock:
            session = self.sessions[session_id]
            session.started = session.started or entry.time
            session.ended = max(session.ended, entry.time)
            session.messages += isinstance(body, User | Assistant | Result)
            session.turns += entry.is_prompt
            session.rounds += isinstance(body, Assistant)
            session.compactions += isinstance(body, Compaction)
            if isinstance(body, Result):
                self.tools[body.name].add(body)
            if isinstance(body, Assistant | Paid) and (cost := spent(body)) is not None:
                retries = body.retries if isinstance(body, Assistant) else 0
                day = time.strftime("%Y-%m-%d", time.localtime(entry.time))
                for tally in (self.days[day], self.users[user_id], session):
                    tally.add(*cost[1:], body.duration_ms, retries)
                self.add_request(*cost, duration_ms=body.duration_ms, retries=retries)

    def add_request(
        self, model: str, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0
    ) -> None:
        """Count a request that is no entry yet, in the total and for its model (`provider/model`)."""
        for tally in (self.total, self.models[model]):
            tally.add(usage, cost_usd, duration_ms, retries)

    @property
    def by_model(self) -> dict[str, tuple[Usage, float | None]]:
        return {model: (tally.usage, tally.whole_usd) for model, tally in self.models.items()}

    def report(self) -> dict[str, Any]:
        """Return the usage as `agentcli usage --json` prints it: days and sessions oldest first, others by cost."""
        tools = sorted(self.tools.items(), key=lambda item: -item[1].calls)
        sessions = sorted(self.sessions.items(), key=lambda item: item[1].started)
        return {
            "total": self.total.as_dict(),
            "days": _rows("day", sorted(self.days.items())),
            "models": _rows("model", by_cost(self.models)),
            "tools": _rows("tool", tools),
            "users": _rows("user_id", by_cost(self.users)),
            "sessions": _rows("session_id", sessions),
        }


def spent(body: Body) -> tuple[str, Usage, float | None] | None:
    """Return the model that an entry was paid to, its tokens and its price; None for an entry that cost nothing."""
    match body:
        case Assistant(stop_reason="interrupted") if body.usage == Usage():
            return None  # it broke off before the server had counted anything
        case Assistant():
            return f"{body.provider}/{body.model}", body.usage, body.cost_usd
        case Paid() if body.usage != Usage():
            return body.model, body.usage, body.cost_usd
        case _:
            return None


def amounts_of(body: Body) -> Amounts:
    """Return what an entry takes of budgets; an unknown price takes no money."""
    match body:
        case Result():
            return {"calls": 1.0, "seconds": body.duration_ms / 1000}
        case Assistant() | Paid():
            seconds = body.duration_ms / 1000
            return {"usd": body.cost_usd or 0.0, "tokens": body.usage.context_tokens, "seconds": seconds}
        case _:
            return {}


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def by_cost(tallies: Mapping[str, Tally]) -> list[tuple[str, Tally]]:
    """Return the tallies by cost, the highest first, and by tokens where the cost is the same."""
    return sorted(tallies.items(), key=lambda item: (-item[1].cost_usd, -item[1].usage.context_tokens, item[0]))


def _rows(key: str, tallies: Iterable[tuple[str, Tally | ToolTally]]) -> list[dict[str, Any]]:
    return [{key: name, **tally.as_dict()} for name, tally in tallies]
