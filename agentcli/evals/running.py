"""Makes the attempts of a run that are still to be made, and stores what comes of each at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from agentcli.errors import UserError
from agentcli.evals.engines.engine import Engine, Job
from agentcli.evals.outcome import Outcome
from agentcli.evals.store import EvalStore, Run, done_jobs
from agentcli.evals.task import Task

MOST_FAILURES = 3  # in a row; then whatever is wrong will not pass by itself


class Progress(Protocol):
    """Hears how a run gets on."""

    def started(self, job: Job) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...


class RunFailed(UserError):
    """Attempts could not be made; what was made is stored."""


async def carry_out(store: EvalStore, run: Run, tasks: Sequence[Task], engine: Engine, progress: Progress) -> Run:
    """Finish a run; gives it with its outcomes. Raises `RunFailed`, `UserError`."""
    by_name = {task.name: task for task in tasks}
    done = done_jobs(run)
    jobs = [Job(by_name[task], sample) for task, sample in run.about.jobs if (task, sample) not in done]
    failures: list[str] = []
    in_row = 0
    async with aclosing(engine.attempts(jobs, progress.started)) as attempts:
        async for attempted in attempts:
            outcome = attempted.outcome
            if outcome.failure:
                failures.append(outcome.failure)
                in_row += 1
            else:
                store.add(run.id, attempted)
                in_row = 0
            progress.finished(outcome)
            if in_row == MOST_FAILURES:
                break
    if failures:
        raise RunFailed(
            f"{len(failures)} attempts could not be made: {failures[-1]} "
            f"What was made is kept: the same command goes on with run {run.id}."
        )
    store.end(run.id)
    return store.find(run.id)
