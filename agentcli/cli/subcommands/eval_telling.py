"""Tells in words how two runs differ."""

from __future__ import annotations

from collections.abc import Iterator

from agentcli.cli.output import print_table, tell
from agentcli.evals.comparing import LEVEL, Comparison, Measure, Pair
from agentcli.evals.store import Run


def tell_comparison(found: Comparison) -> None:
    a, b = found.a, found.b
    tell(f"A  {_named(a)}\nB  {_named(b)}")
    for line in _differences(a, b):
        tell(f"   {line}")
    tell("")
    print_table(
        ("task", "A", "B", "score", ""),
        [_row(pair) for pair in found.pairs],
        numeric={"A", "B", "score"},
    )
    tell("")
    headings = ("per task", "A", "B", "B - A", "95 % interval")
    print_table(headings, [_measured(one) for one in found.measures], numeric={"A", "B", "B - A"})
    tell("")
    if found.left_out:
        tell(f"Left out, as only one run has them or their versions differ: {', '.join(found.left_out)}.")
    if found.better:
        tell(f"Better: {', '.join(found.better)}.")
    if found.worse:
        tell(f"Worse (regressions): {', '.join(found.worse)}.")
    tell(f"Sign test over tasks ({len(found.better)} better, {len(found.worse)} worse): p = {found.sign:.3f}.")
    tell(_verdict(found))


def _verdict(found: Comparison) -> str:
    chance = "less than 0.1 %" if found.chance < 0.001 else f"{found.chance:.1%}"
    told = f"{found.score_difference:+.3f}; chance gives as much in {chance} of cases"
    if found.is_worse:
        return f"B is worse beyond chance: mean score {told}, below {LEVEL:.0%}."
    if found.score_difference < 0:
        return f"B scores lower, which may be chance: mean score {told}. More --samples tell more."
    return f"B is not worse: mean score {found.score_difference:+.3f}."


def _named(run: Run) -> str:
    name = f" ({run.about.name})" if run.about.name else ""
    state = "" if run.ended else ", unfinished"
    return f"{run.id}{name}: {run.passed} of {len(run.outcomes)} passed, {run.about.variant.model}{state}"


def _differences(a: Run, b: Run) -> Iterator[str]:
    """What the runs differ in, besides their results."""
    for field in a.about.variant.__struct_fields__:
        before, after = (getattr(run.about.variant, field) for run in (a, b))
        if before != after:
            yield f"differs: {field.replace('_', ' ')}"
    if a.about.agentcli != b.about.agentcli:
        yield f"differs: agentcli {a.about.agentcli} and {b.about.agentcli}"
    if _prefixes(a).isdisjoint(_prefixes(b)):
        yield "differs: the tools or the system text that the model was given"


def _prefixes(run: Run) -> set[str]:
    return {outcome.prefix for outcome in run.outcomes if outcome.prefix}


def _row(pair: Pair) -> tuple[str, ...]:
    before, after = pair.pass_rates
    sign = "worse" if pair.difference < 0 else "better" if pair.difference > 0 else ""
    rates = (
        f"{before * len(pair.a):.0f}/{len(pair.a)}",
        f"{after * len(pair.b):.0f}/{len(pair.b)}",
    )
    return pair.task, *rates, f"{pair.difference:+.2f}", sign


def _measured(one: Measure) -> tuple[str, ...]:
    interval = f"{_number(one.low)} to {_number(one.high)}"
    return one.name, _number(one.a), _number(one.b), _number(one.b - one.a), interval


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
