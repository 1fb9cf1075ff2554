"""What a session has used and cost so far, by model."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcli.agent.accounting.budgets import Amounts
from agentcli.conversation.entries import Assistant, Body, Paid, Result
from agentcli.llm.messages import Usage


@dataclass
class Meter:
    """Adds up replies. `cost_usd` is None as soon as one reply's price is unknown: a sum would be a guess."""

    total: Usage = Usage()
    cost_usd: float | None = 0.0
    by_model: dict[str, tuple[Usage, float | None]] = field(default_factory=dict)

    def add(self, model: str, usage: Usage, cost_usd: float | None) -> None:
        self.total = self.total + usage
        self.cost_usd = _sum(self.cost_usd, cost_usd)
        before, spent = self.by_model.get(model, (Usage(), 0.0))
        self.by_model[model] = (before + usage, _sum(spent, cost_usd))


def spent(body: Body) -> tuple[str, Usage, float | None] | None:
    """The model an entry was paid to, its tokens and its price; None for an entry that cost nothing."""
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
    """What an entry takes of budgets; an unknown price takes no money."""
    match body:
        case Result():
            return {"calls": 1.0, "seconds": body.duration_ms / 1000}
        case Assistant() | Paid():
            seconds = body.duration_ms / 1000
            return {"usd": body.cost_usd or 0.0, "tokens": body.usage.context_tokens, "seconds": seconds}
        case _:
            return {}


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
