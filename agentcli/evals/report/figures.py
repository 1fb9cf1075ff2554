"""Sums up the attempts of a run for its report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct

from agentcli.evals.outcome import Outcome
from agentcli.evals.store import PlannedTask, Run
from agentcli.evals.task import DIFFICULTIES
from agentcli.llm.messages import Usage
from agentcli.safety.secrets.masking import mask


class Figures(Struct, frozen=True):
    """Some attempts in numbers. Rates and means are 0 where there are no attempts."""

    outcomes: Sequence[Outcome]

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def pass_rate(self) -> float:
        return self.mean(lambda outcome: outcome.passed)

    @property
    def score(self) -> float:
        return self.mean(lambda outcome: outcome.score)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def usage(self) -> Usage:
        return sum((outcome.usage for outcome in self.outcomes), Usage())

    @property
    def cost_usd(self) -> float | None:
        """None where the price of an attempt is not known."""
        costs = [outcome.cost_usd for outcome in self.outcomes if outcome.cost_usd is not None]
        return sum(costs) if len(costs) == len(self.outcomes) else None

    def mean(self, value: Callable[[Outcome], float]) -> float:
        mean: float = fmean([value(outcome) for outcome in self.outcomes] or [0.0])
        return mean


def by_task(run: Run) -> list[tuple[PlannedTask, Figures]]:
    """All planned tasks, easy ones first, also those without attempts so far."""
    tasks = sorted(run.about.tasks, key=lambda task: [*DIFFICULTIES, task.difficulty].index(task.difficulty))
    return [(task, Figures(run.of_task(task.name))) for task in tasks]


def comparable(run: Run, baseline: Run | None) -> dict[str, Figures]:
    """By task, what the baseline attempted of the same version."""
    versions = {(task.name, task.version) for task in run.about.tasks}
    found = by_task(baseline) if baseline else []
    return {task.name: figures for task, figures in found if figures.outcomes and (task.name, task.version) in versions}


def why_failed(outcome: Outcome) -> str:
    """What is known of the reason, without secrets; empty for an attempt that passed."""
    told = (outcome.reason, outcome.error, outcome.failure)
    return "" if outcome.passed else mask("\n".join(filter(None, told))).strip() or "No reason is given."
