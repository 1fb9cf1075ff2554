"""Holds one run against another: what became better or worse, and whether chance alone would do that.

Only what both have is compared: attempts at the same version of a task. The differences are paired by task, so that
hard tasks do not hide what happens to easy ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import comb
from statistics import fmean

from msgspec import Struct

from agentcli.errors import UsageError
from agentcli.evals.outcome import Outcome
from agentcli.evals.store import Run

LEVEL = 0.05  # a difference that chance makes less often than this is one
ROUNDS = 4_000  # of resampling; the seed is fixed, so the same runs give the same numbers
_SEED = 1


class Pair(Struct, frozen=True):
    """One task in both runs. Scores and pass rates are means over the samples, 0 to 1."""

    task: str
    a: tuple[Outcome, ...]
    b: tuple[Outcome, ...]

    @property
    def pass_rates(self) -> tuple[float, float]:
        return fmean(one.passed for one in self.a), fmean(one.passed for one in self.b)

    @property
    def difference(self) -> float:
        """Of the mean scores; negative where B is worse."""
        return _mean(self.b, _score) - _mean(self.a, _score)


class Measure(Struct, frozen=True):
    """A number in A and in B, as means over the tasks, with the 95 % interval of their difference."""

    name: str
    a: float
    b: float
    low: float
    high: float


class Comparison(Struct, frozen=True):
    """`left_out` are tasks that only one run has, or of which both have different versions.

    `sign` is the p value of the two-sided sign test over tasks: how often as many of the `better` and `worse` tasks
    would fall on one side if each fell by a coin. `chance` is that of a permutation test over attempts: how often
    shuffling each task's attempts between A and B gives a mean score that speaks as clearly against B.
    """

    a: Run
    b: Run
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    measures: tuple[Measure, ...]
    better: tuple[str, ...]
    worse: tuple[str, ...]
    sign: float
    chance: float

    @property
    def score_difference(self) -> float:
        """The mean over the tasks."""
        return _mean_of(pair.difference for pair in self.pairs)

    @property
    def is_worse(self) -> bool:
        """True if B's scores are lower than chance alone would make them."""
        return self.score_difference < 0 and self.chance < LEVEL


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs. Raises `UsageError` where they have no task in common."""
    versions = [{task.name: task.version for task in run.about.tasks} for run in (a, b)]
    names = list(dict.fromkeys((*versions[0], *versions[1])))
    pairs = [
        Pair(name, tuple(a.of_task(name)), tuple(b.of_task(name)))
        for name in names
        if versions[0].get(name) == versions[1].get(name) and a.of_task(name) and b.of_task(name)
    ]
    if not pairs:
        raise UsageError(f"Runs {a.id} and {b.id} have no attempts at the same version of a task.")
    compared = {pair.task for pair in pairs}
    better = tuple(pair.task for pair in pairs if pair.difference > 0)
    worse = tuple(pair.task for pair in pairs if pair.difference < 0)
    return Comparison(
        a,
        b,
        tuple(pairs),
        tuple(name for name in names if name not in compared),
        tuple(_measures(pairs)),
        better,
        worse,
        sign_test(len(better), len(worse)),
        _chance(pairs),
    )


def sign_test(better: int, worse: int) -> float:
    """The exact two-sided p value of the sign test; ties are left out."""
    n, most = better + worse, max(better, worse)
    return min(1.0, 2 * sum(comb(n, k) for k in range(most, n + 1)) / (1 << n))


def _chance(pairs: Sequence[Pair]) -> float:
    """The one-sided p value of a permutation test: attempts at one task are exchangeable if B is no worse than A."""
    random_ = random.Random(_SEED)  # noqa: S311 - not for secrets
    pools = [([_score(one) for one in (*pair.a, *pair.b)], len(pair.a)) for pair in pairs]
    seen = sum(pair.difference for pair in pairs)
    count = 0
    for _ in range(ROUNDS):
        total = 0.0
        for scores, of_a in pools:
            random_.shuffle(scores)
            total += fmean(scores[of_a:]) - fmean(scores[:of_a])
        count += total <= seen + 1e-9
    return (count + 1) / (ROUNDS + 1)


Value = Callable[[Outcome], float]


def _score(outcome: Outcome) -> float:
    return outcome.score


_MEASURES: dict[str, Value] = {
    "passed": lambda outcome: float(outcome.passed),
    "score": _score,
    "cost, USD": lambda outcome: outcome.cost_usd or 0.0,
    "tokens": lambda outcome: float(outcome.usage.prompt_tokens + outcome.usage.output_tokens),
    "seconds": lambda outcome: outcome.seconds,
    "requests": lambda outcome: float(outcome.turns),
    "verified": lambda outcome: float(outcome.verified),
    "false claims": lambda outcome: float(outcome.claims.get("refuted", 0)),
}


def _measures(pairs: Sequence[Pair]) -> Iterator[Measure]:
    unpriced = any(one.cost_usd is None for pair in pairs for one in (*pair.a, *pair.b))
    for name, value in _MEASURES.items():
        if name == "cost, USD" and unpriced:
            continue
        a, b = (fmean(_mean(side, value) for side in sides) for sides in zip(*((p.a, p.b) for p in pairs), strict=True))
        yield Measure(name, a, b, *_interval(pairs, value))


def _interval(pairs: Sequence[Pair], value: Value) -> tuple[float, float]:
    """The 95 % percentile interval of B's mean less A's, by a bootstrap of tasks, and of the attempts at each."""
    random_ = random.Random(_SEED)  # noqa: S311 - not for secrets
    sides = [([value(one) for one in pair.a], [value(one) for one in pair.b]) for pair in pairs]
    if all(len({*a}) == 1 and len({*b}) == 1 for a, b in sides):  # resampling attempts would change nothing
        differences = [b[0] - a[0] for a, b in sides]
        found = sorted(fmean(random_.choices(differences, k=len(differences))) for _ in range(ROUNDS))
    else:
        found = sorted(
            fmean(
                fmean(random_.choices(b, k=len(b))) - fmean(random_.choices(a, k=len(a)))
                for a, b in random_.choices(sides, k=len(sides))
            )
            for _ in range(ROUNDS)
        )
    return found[int(ROUNDS * LEVEL / 2)], found[int(ROUNDS * (1 - LEVEL / 2)) - 1]


def _mean_of(values: Iterable[float]) -> float:
    mean: float = fmean(values)
    return mean


def _mean(outcomes: Sequence[Outcome], value: Value) -> float:
    return _mean_of(value(outcome) for outcome in outcomes)
