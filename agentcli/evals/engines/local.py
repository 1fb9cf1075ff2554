"""Makes attempts in this process, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from agentcli.evals.attempt import Attempts
from agentcli.evals.engines.engine import Engine, Job
from agentcli.evals.outcome import Attempted, Variant
from agentcli.settings.load import Config


class LocalEngine:
    """`parallel` attempts run at a time; `person` is the configuration of whoever runs them."""

    def __init__(self, person: Config, variant: Variant, *, parallel: int) -> None:
        self._attempts = Attempts(person, variant)
        self._parallel = parallel

    async def attempts(self, jobs: Sequence[Job], started: Callable[[Job], None]) -> AsyncGenerator[Attempted, None]:
        waiting = iter(jobs)
        running: set[asyncio.Task[Attempted]] = set()
        try:
            while True:
                while len(running) < self._parallel and (job := next(waiting, None)) is not None:
                    started(job)
                    running.add(asyncio.create_task(self._attempts.make(job.task, job.sample)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    yield one.result()
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._attempts.aclose()


_: type[Engine] = LocalEngine
