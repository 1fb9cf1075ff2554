"""What a session has used and cost so far, by model."""

from __future__ import annotations

from dataclasses import dataclass, field

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


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
