"""Makes the attempts of a run, several at a time, and stores the outcome of each at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Protocol

from msgspec import Struct

from agentcli.errors import UsageError, UserError
from agentcli.evals.store import Attempted, EvalRun, EvalStore, Outcome
from agentcli.evals.task import Task

MAX_FAILURES_IN_A_ROW = 3  # then the cause will not pass by itself


class Engine(Protocol):
    """Makes attempts: `LocalEngine` on this machine, `RayEngine` on a cluster."""

    async def make(self, task: Task, sample: int) -> Attempted:
        """Attempt a task once; `sample` counts from 1. Raises `UserError`. Cancelling it ends the attempt."""
        ...

    async def aclose(self) -> None: ...


class Progress(Protocol):
    """Is called as an attempt begins, and as it ends."""

    def started(self, task: str, sample: int) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class RunFailed(UserError):
    """Attempts could not be made; the others are stored."""


async def finish_run(
    store: EvalStore, run: EvalRun, tasks: Sequence[Task], engine: Engine, *, parallel: int, progress: Progress
) -> EvalRun:
    """Finish a run, and close the engine. Raises `RunFailed`, `UserError`."""
    by_name = {task.name: task for task in tasks}
    done_jobs = {(outcome.task, outcome.sample) for outcome in run.outcomes}
    waiting = iter([job for job in run.about.jobs if job not in done_jobs])
    running: set[asyncio.Task[Attempted]] = set()
    failures: list[str] = []
    in_a_row = 0
    try:
        while in_a_row < MAX_FAILURES_IN_A_ROW:
            while len(running) < parallel and (job := next(waiting, None)) is not None:
                progress.started(*job)
                running.add(asyncio.create_task(engine.make(by_name[job[0]], job[1])))
            if not running:
                break
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for attempted in [one.result() for one in ended]:
                if failure := attempted.outcome.failure:
                    failures.append(failure)
                else:
                    store.add(run.id, attempted)
                in_a_row = in_a_row + 1 if failure else 0
                progress.finished(attempted.outcome)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await engine.aclose()
    if failures:
        raise RunFailed(
            f"{len(failures)} attempts could not be made: {failures[-1]} "
            f"The other attempts are kept: the same command continues run {run.id}."
        )
    store.end(run.id)
    return store.find(run.id)


LEVEL = 0.05  # a difference that chance makes less often than this counts
ROUNDS = 4_000  # of shuffling; the seed is fixed, so the same runs give the same numbers


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
        """The difference of the mean scores; negative where B is worse."""
        difference: float = fmean(one.score for one in self.b) - fmean(one.score for one in self.a)
        return difference


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences of two runs; `measures` are means over the tasks in A and in B, by name.

    `chance` is the one-sided p of a permutation test over each task's attempts. `left_out` tasks are not compared.
    """

    a: EvalRun
    b: EvalRun
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    measures: dict[str, tuple[float, float]]
    chance: float

    @property
    def better(self) -> list[str]:
        return [pair.task for pair in self.pairs if pair.difference > 0]

    @property
    def worse(self) -> list[str]:
        return [pair.task for pair in self.pairs if pair.difference < 0]

    @property
    def score_difference(self) -> float:
        """The mean over the tasks."""
        difference: float = fmean(pair.difference for pair in self.pairs)
        return difference

    @property
    def is_worse(self) -> bool:
        """True if B's scores are lower than chance alone would make them."""
        return self.score_difference < 0 and self.chance < LEVEL


def compare(a: EvalRun, b: EvalRun) -> Comparison:
    """Compare two runs. Raises `UsageError` where they have no task in common."""
    versions = [{task.name: task.version for task in run.about.tasks} for run in (a, b)]
    names = list(dict.fromkeys((*versions[0], *versions[1])))
    pairs = tuple(
        Pair(name, tuple(a.of_task(name)), tuple(b.of_task(name)))
        for name in names
        if versions[0].get(name) == versions[1].get(name) and a.of_task(name) and b.of_task(name)
    )
    if not pairs:
        raise UsageError(f"Runs {a.id} and {b.id} have no attempts at the same version of a task.")
    left_out = tuple(name for name in names if name not in {pair.task for pair in pairs})
    return Comparison(a=a, b=b, pairs=pairs, left_out=left_out, measures=_measures(pairs), chance=_chance(pairs))


def _chance(pairs: Sequence[Pair]) -> float:
    """Attempts at one task are exchangeable if B is no worse than A."""
    random_ = random.Random(1)  # noqa: S311 - not for secrets
    pools = [([one.score for one in (*pair.a, *pair.b)], len(pair.a)) for pair in pairs]
    seen = sum(pair.difference for pair in pairs)
    count = 0
    for _ in range(ROUNDS):
        total = 0.0
        for scores, of_a in pools:
            random_.shuffle(scores)
            total += fmean(scores[of_a:]) - fmean(scores[:of_a])
        count += total <= seen + 1e-9
    return (count + 1) / (ROUNDS + 1)


_MEASURES: dict[str, Callable[[Outcome], float]] = {
    "passed": lambda outcome: float(outcome.passed),
    "score": lambda outcome: outcome.score,
    "cost, USD": lambda outcome: outcome.cost_usd or 0.0,
    "tokens": lambda outcome: float(outcome.usage.prompt_tokens + outcome.usage.output_tokens),
    "seconds": lambda outcome: outcome.seconds,
    "requests": lambda outcome: float(outcome.turns),
    "verified": lambda outcome: float(outcome.verified),
    "false claims": lambda outcome: float(outcome.claims.get("refuted", 0)),
}


def _measures(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    found = {}
    is_unpriced = any(one.cost_usd is None for pair in pairs for one in (*pair.a, *pair.b))
    for name, value in _MEASURES.items():
        if name == "cost, USD" and is_unpriced:
            continue
        means = [(fmean(map(value, pair.a)), fmean(map(value, pair.b))) for pair in pairs]
        found[name] = fmean(a for a, _ in means), fmean(b for _, b in means)
    return found
