"""Makes a run's missing attempts, in parallel; compares two runs."""

import asyncio
import random
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct

from agentcli.errors import UsageError, UserError
from agentcli.evals.store import EvalAttempt, EvalRun, EvalStore, Outcome
from agentcli.evals.task import Task

if TYPE_CHECKING:  # importing it takes a while
    from agentcli.evals.attempt import LocalEngine, RayEngine

MAX_FAILURES_IN_A_ROW = 3  # after so many, more attempts would fail for the same reason


class RunFailed(UserError):
    """Attempts could not be made; the others are stored."""


async def finish_run(
    store: EvalStore,
    run: EvalRun,
    tasks: Sequence[Task],
    engine: "LocalEngine | RayEngine",
    *,
    parallel: int,
    on_attempt: Callable[[EvalAttempt], None],
) -> EvalRun:
    """Make the attempts that a run lacks, at most `parallel` at a time, store each as it ends, and close the engine.

    Raises `RunFailed` at the end if the provider or this machine failed in some attempts, or after three failures in a
    row, and another `UserError` if a task or the settings are wrong.
    """
    tasks_by_name = {task.name: task for task in tasks}
    stored = {(outcome.task, outcome.sample) for outcome in run.outcomes}
    missing = iter([attempt for attempt in run.plan.attempts if attempt not in stored])
    running: set[asyncio.Task[EvalAttempt]] = set()
    failures: list[str] = []
    failures_in_a_row = 0
    try:
        while failures_in_a_row < MAX_FAILURES_IN_A_ROW:
            while len(running) < parallel and (planned := next(missing, None)) is not None:
                name, sample = planned
                running.add(asyncio.create_task(engine.attempt_task(tasks_by_name[name], sample)))
            if not running:
                break
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for attempt in [one.result() for one in ended]:
                if attempt.failure:
                    failures.append(attempt.failure)
                    failures_in_a_row += 1
                else:
                    store.add(run.id, attempt)
                    failures_in_a_row = 0
                on_attempt(attempt)
    finally:
        for one in running:  # some are left after an error, or after three failures in a row
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await engine.aclose()
    if failures:
        raise RunFailed(
            f"{len(failures)} attempts failed to run: {failures[-1]} "
            f"The other results are saved. To continue run {run.id}, repeat the command."
        )
    store.end(run.id)
    return store.find(run.id)


LEVEL = 0.05  # a difference is significant if chance makes it less often than this
ROUNDS = 4_000  # how often scores are shuffled; the seed is fixed, so that results are repeatable


class Pair(Struct, frozen=True):
    """One task in both runs. Scores and pass rates are means over the samples, 0 to 1."""

    task: str
    a: tuple[Outcome, ...]
    b: tuple[Outcome, ...]

    @property
    def pass_rates(self) -> tuple[float, float]:
        return fmean(outcome.passed for outcome in self.a), fmean(outcome.passed for outcome in self.b)

    @property
    def difference(self) -> float:
        """The mean score in B minus that in A; negative where B is worse."""
        mean_a, mean_b = (fmean(outcome.check.score for outcome in outcomes) for outcomes in (self.a, self.b))
        return mean_b - mean_a


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences of two runs, paired by task at the same version."""

    a: EvalRun
    b: EvalRun
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]  # tasks without a pair
    measures: dict[str, tuple[float, float]]  # by name: means over the tasks in A and in B
    chance: float  # the one-sided p of a permutation test over each task's attempts

    @property
    def better(self) -> list[str]:
        return [pair.task for pair in self.pairs if pair.difference > 0]

    @property
    def worse(self) -> list[str]:
        return [pair.task for pair in self.pairs if pair.difference < 0]

    @property
    def score_difference(self) -> float:
        return float(fmean(pair.difference for pair in self.pairs))

    @property
    def is_worse(self) -> bool:
        """True if B's scores are lower than chance alone would make them."""
        return self.score_difference < 0 and self.chance < LEVEL


def compare(a: EvalRun, b: EvalRun) -> Comparison:
    """Compare two runs. Raises `UsageError` where they have no task in common."""
    versions_a, versions_b = ({task.name: task.version for task in run.plan.tasks} for run in (a, b))
    names = list(dict.fromkeys((*versions_a, *versions_b)))
    pairs = tuple(
        Pair(name, tuple(a.of_task(name)), tuple(b.of_task(name)))
        for name in names
        if versions_a.get(name) == versions_b.get(name) and a.of_task(name) and b.of_task(name)  # with attempts
    )
    if not pairs:
        raise UsageError(f"Runs {a.id} and {b.id} have no task version in common.")
    left_out = tuple(name for name in names if name not in {pair.task for pair in pairs})
    return Comparison(a=a, b=b, pairs=pairs, left_out=left_out, measures=_measures(pairs), chance=_chance(pairs))


def _chance(pairs: Sequence[Pair]) -> float:
    """Return how often shuffled attempts come out as badly for B as the real ones did.

    If B is no worse than A, the attempts at one task can be exchanged between them.
    """
    generator = random.Random(1)  # noqa: S311 - not for secrets
    scores_by_task = [([outcome.check.score for outcome in (*pair.a, *pair.b)], len(pair.a)) for pair in pairs]
    real_difference = sum(pair.difference for pair in pairs)
    rounds_as_bad = 0
    for _ in range(ROUNDS):
        difference = 0.0
        for scores, number_of_a in scores_by_task:
            generator.shuffle(scores)
            difference += fmean(scores[number_of_a:]) - fmean(scores[:number_of_a])
        if difference <= real_difference + 1e-9:  # sums of floats in another order differ by less
            rounds_as_bad += 1
    return (rounds_as_bad + 1) / (ROUNDS + 1)  # + 1: the real order, so that it is never 0


_MEASURES: dict[str, Callable[[Outcome], float]] = {
    "passed": lambda outcome: float(outcome.passed),
    "score": lambda outcome: outcome.check.score,
    "cost, USD": lambda outcome: outcome.spent.cost_usd or 0.0,
    "tokens": lambda outcome: float(outcome.spent.usage.prompt_tokens + outcome.spent.usage.output_tokens),
    "seconds": lambda outcome: outcome.spent.seconds,
    "requests": lambda outcome: float(outcome.work.requests),
    "verified": lambda outcome: float(outcome.work.verified),
    "false claims": lambda outcome: float(outcome.work.claims.get("refuted", 0)),
}


def _measures(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """Return the means of each measure in A and in B, weighting tasks equally; no cost if one is unknown."""

    def mean(measure: Callable[[Outcome], float], outcomes_by_task: Sequence[Sequence[Outcome]]) -> float:
        return fmean(fmean(map(measure, outcomes)) for outcomes in outcomes_by_task)

    in_a, in_b = [pair.a for pair in pairs], [pair.b for pair in pairs]
    has_unknown_cost = any(outcome.spent.cost_usd is None for outcomes in (*in_a, *in_b) for outcome in outcomes)
    return {
        name: (mean(measure, in_a), mean(measure, in_b))
        for name, measure in _MEASURES.items()
        if not (has_unknown_cost and name == "cost, USD")
    }
