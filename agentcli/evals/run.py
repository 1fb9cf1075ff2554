"""Makes the attempts of a run, several at a time, and stores the outcome of each at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from agentcli.errors import UserError
from agentcli.evals.outcome import Attempted, Outcome
from agentcli.evals.store import EvalRun, EvalStore
from agentcli.evals.task import Task

MAX_FAILURES_IN_A_ROW = 3  # then the cause will not pass by itself


class Engine(Protocol):
    """Makes attempts: `LocalEngine` on this machine, `RayEngine` on a cluster."""

    async def make(self, task: Task, sample: int) -> Attempted:
        """Attempt a task once; `sample` counts from 1. Raises `UserError`. Cancelling it ends the attempt."""
        ...

    async def aclose(self) -> None: ...


class RunFailed(UserError):
    """Attempts could not be made; the others are stored."""


async def carry_out(
    store: EvalStore,
    run: EvalRun,
    tasks: Sequence[Task],
    engine: Engine,
    *,
    parallel: int,
    on_outcome: Callable[[Outcome], None],
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
                on_outcome(attempted.outcome)
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
