"""Prints how a run proceeds, its outcomes, and how two runs differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from agentcli.cli.output import echo, print_table
from agentcli.evals.comparison import LEVEL, Comparison, Pair
from agentcli.evals.outcome import Outcome
from agentcli.evals.store import EvalRun

MAX_COLUMNS = 78  # of the line that is redrawn


class LineProgress:
    """Prints a line on stderr for each attempt that ends; on a terminal a last line, redrawn, names what runs."""

    def __init__(self, total: int, made: Sequence[Outcome]) -> None:
        self._total = total
        self._made = [*made]
        self._running: list[tuple[str, int]] = []
        self._draws = sys.stderr.isatty()

    def started(self, task: str, sample: int) -> None:
        self._running.append((task, sample))
        self._draw()

    def finished(self, outcome: Outcome) -> None:
        self._running.remove((outcome.task, outcome.sample))
        if not outcome.failure:
            self._made.append(outcome)
        sign = "!" if outcome.failure else "✓" if outcome.passed else "✗"
        why = outcome.failure or outcome.reason or outcome.error
        reason = f": {why.splitlines()[0][:100]}" if why and not outcome.passed else ""
        attempt = f"{outcome.task} #{outcome.sample} ({outcome.seconds:.1f} s)"
        self.clear()
        print(f"{sign} {len(self._made)}/{self._total} {attempt}{reason}", file=sys.stderr)
        self._draw()

    def _draw(self) -> None:
        if self._draws and self._running:
            passed = sum(outcome.passed for outcome in self._made)
            names = ", ".join(name for name, _ in self._running)
            sys.stderr.write(f"\r\x1b[K{f'{passed} passed of {len(self._made)}; now {names}'[:MAX_COLUMNS]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._draws:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    return {
        "a": found.a.id,
        "b": found.b.id,
        "worse_beyond_chance": found.is_worse,
        "score_difference": found.score_difference,
        "chance": found.chance,
        "better": found.better,
        "worse": found.worse,
        "left_out": found.left_out,
        "tasks": [
            {
                "task": one.task,
                "samples": [len(one.a), len(one.b)],
                "pass_rate": one.pass_rates,
                "difference": one.difference,
            }
            for one in found.pairs
        ],
        "measures": [{"name": name, "a": a, "b": b} for name, (a, b) in found.measures.items()],
    }


def print_comparison(found: Comparison) -> None:
    a, b = found.a, found.b
    echo(f"A  {_named(a)}\nB  {_named(b)}")
    for line in _differences(a, b):
        echo(f"   {line}")
    echo("")
    print_table(("task", "A", "B", "score", ""), [_row(pair) for pair in found.pairs], numeric={"A", "B", "score"})
    echo("")
    rows = [(name, *(_number(value) for value in (a, b, b - a))) for name, (a, b) in found.measures.items()]
    print_table(("per task", "A", "B", "B - A"), rows, numeric={"A", "B", "B - A"})
    echo("")
    if found.left_out:
        echo(f"Left out, because only one run has them or their versions differ: {', '.join(found.left_out)}.")
    if found.better:
        echo(f"Better: {', '.join(found.better)}.")
    if found.worse:
        echo(f"Worse (regressions): {', '.join(found.worse)}.")
    echo(_verdict(found))


def _verdict(found: Comparison) -> str:
    chance = "less than 0.1 %" if found.chance < 0.001 else f"{found.chance:.1%}"
    told = f"{found.score_difference:+.3f}; chance gives as much in {chance} of cases"
    if found.is_worse:
        return f"B is worse beyond chance: mean score {told}, below {LEVEL:.0%}."
    if found.score_difference < 0:
        return f"B scores lower, which may be chance: mean score {told}. More --samples tell more."
    return f"B is not worse: mean score {found.score_difference:+.3f}."


def _named(run: EvalRun) -> str:
    name = f" ({run.about.name})" if run.about.name else ""
    state = "" if run.ended else ", unfinished"
    return f"{run.id}{name}: {run.passed} of {len(run.outcomes)} passed, {run.about.variant.model}{state}"


def _differences(a: EvalRun, b: EvalRun) -> Iterator[str]:
    """Name the differences of the runs besides their results."""
    for field in a.about.variant.__struct_fields__:
        before, after = (getattr(run.about.variant, field) for run in (a, b))
        if before != after:
            yield f"differs: {field.replace('_', ' ')}"
    if a.about.agentcli != b.about.agentcli:
        yield f"differs: agentcli {a.about.agentcli} and {b.about.agentcli}"
    if _prefixes(a).isdisjoint(_prefixes(b)):
        yield "differs: the tools or the system text that the model was given"


def _prefixes(run: EvalRun) -> set[str]:
    return {outcome.prefix for outcome in run.outcomes if outcome.prefix}


def _row(pair: Pair) -> tuple[str, ...]:
    before, after = pair.pass_rates
    sign = "worse" if pair.difference < 0 else "better" if pair.difference > 0 else ""
    rates = [f"{rate * len(side):.0f}/{len(side)}" for rate, side in ((before, pair.a), (after, pair.b))]
    return pair.task, *rates, f"{pair.difference:+.2f}", sign


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
