"""Shows how a run of tasks gets on: a line for each attempt, and on a terminal what runs now."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self

from agentcli.evals.engines.engine import Job
from agentcli.evals.outcome import Outcome

LONGEST = 78  # columns of the line that is drawn anew


class LineProgress:
    """A line on stderr for each attempt that ends; on a terminal a last line, drawn anew, says what runs."""

    def __init__(self, total: int, made: Sequence[Outcome]) -> None:
        self._total = total
        self._made = [*made]
        self._running: dict[tuple[str, int], float] = {}
        self._draws = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def started(self, job: Job) -> None:
        self._running[job.task.name, job.sample] = time.monotonic()
        self._draw()

    def finished(self, outcome: Outcome) -> None:
        self._running.pop((outcome.task, outcome.sample), None)
        if not outcome.failure:
            self._made.append(outcome)
        sign = "!" if outcome.failure else "✓" if outcome.passed else "✗"
        why = outcome.failure or outcome.reason or outcome.error
        told = f": {why.splitlines()[0][:100]}" if why and not outcome.passed else ""
        self._clear()
        print(
            f"{sign} {len(self._made)}/{self._total} {outcome.task} #{outcome.sample} ({outcome.seconds:.1f} s){told}",
            file=sys.stderr,
        )
        self._draw()

    def _draw(self) -> None:
        if self._draws and self._running:
            passed = sum(outcome.passed for outcome in self._made)
            names = ", ".join(name for name, _ in self._running)
            sys.stderr.write(f"\r\x1b[K{f'{passed} passed of {len(self._made)}; now {names}'[:LONGEST]}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._draws:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
