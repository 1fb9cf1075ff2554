"""Writes a run as Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentcli.conversation.titles import shortened
from agentcli.evals.outcome import Outcome
from agentcli.evals.report.figures import Figures, by_task, comparable, why_failed
from agentcli.evals.store import Run
from agentcli.frontends.export.markdown import money
from agentcli.frontends.printable import pictured

MOST_FAILURES = 50  # named; a page of a pull request takes 65,536 characters
LONGEST_REASON = 200


def as_markdown(run: Run, baseline: Run | None = None) -> str:
    about, whole = run.about, Figures(run.outcomes)
    facts = [
        _text(about.variant.model),
        f"agentcli {_text(about.agentcli)}",
        f"run {run.id}",
        f"baseline {_text(baseline.about.name or baseline.id)}" if baseline else "",
        "" if run.ended else f"unfinished: {len(run.outcomes)} of {len(about.jobs)} attempts made",
    ]
    headline = f"### {_text(about.name) or 'Eval run'}: {whole.passed} of {len(run.outcomes)} passed"
    parts = [headline, " · ".join(filter(None, facts)), "\n".join(_table(run, baseline)), "\n".join(_failures(run))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(run: Run, baseline: Run | None) -> Iterator[str]:
    before, tasks = comparable(run, baseline), by_task(run)
    names = ["task", "difficulty", "passed", *(["baseline"] if baseline else []), "cost", "tokens", "seconds"]
    yield _row(names)
    yield _row(["---", "---", *(["---:"] * (len(names) - 2))])
    pairs = [(task.name, task.difficulty, figures, before.get(task.name, Figures(()))) for task, figures in tasks]
    both = [outcome for *_, old in pairs for outcome in old.outcomes]
    for name, difficulty, now, old in (*pairs, ("all", "", Figures(run.outcomes), Figures(both))):
        is_alike = bool(now.outcomes and old.outcomes) and (difficulty or len(before) == len(tasks))
        change = now.pass_rate - old.pass_rate if is_alike else 0
        passed = f"{_passed(now)}{' ↑' if change > 0 else ' ↓' if change < 0 else ''}"
        figures = (money(now.cost_usd), f"{now.usage.context_tokens:,}", f"{now.seconds:,.1f}")
        beside = [_passed(old)] if baseline else []
        yield _row([_text(name), _text(difficulty), passed, *beside, *(figures if now.outcomes else "–––")])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _passed(figures: Figures) -> str:
    return f"{figures.passed}/{len(figures.outcomes)}" if figures.outcomes else "–"


def _failures(run: Run) -> Iterator[str]:
    failed = [outcome for _, figures in by_task(run) for outcome in figures.outcomes if not outcome.passed]
    if failed:
        yield "Failed:\n"
    yield from map(_failure, failed[:MOST_FAILURES])
    if (more := len(failed) - MOST_FAILURES) > 0:
        yield f"- and {more:,} more"


def _failure(outcome: Outcome) -> str:
    # No "#1" for the number, which would be a link to an issue.
    end = "" if outcome.end == "end_turn" else f", {outcome.end.replace('_', ' ')}"
    reason = shortened(" ".join(pictured(why_failed(outcome)).split()), LONGEST_REASON)
    return f"- {_text(outcome.task)} (attempt {outcome.sample}{end}): {_code(reason)}"


def _code(text: str) -> str:
    """One line of foreign text as code, which mentions nobody and links to nothing."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence} {text} {fence}"


def _text(text: str) -> str:
    """One line of foreign text that is no markup, and in which GitHub finds no person and no issue."""
    marked = re.sub(r"[\\`*_{}\[\]<>&|~$@#!]", lambda found: f"\\{found[0]}", " ".join(pictured(text).split()))
    return re.sub(r"\\([@#])", r"\\\1<!-- -->", marked)
