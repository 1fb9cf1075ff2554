"""Defines what makes the attempts of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from agentcli.evals.outcome import Attempted
from agentcli.evals.task import Task


class Job(Struct, frozen=True):
    """An attempt to be made; `sample` counts those of a task from 1."""

    task: Task
    sample: int


class Engine(Protocol):
    def attempts(self, jobs: Sequence[Job], started: Callable[[Job], None]) -> AsyncGenerator[Attempted, None]:
        """What came of the jobs, in the order in which they end; `started` hears of each that begins.

        Raises `UserError`. What runs when it is closed is ended.
        """
        ...
