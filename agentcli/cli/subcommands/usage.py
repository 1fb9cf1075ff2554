"""`agentcli usage`: what the stored sessions used, by day, model, tool and user."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from agentcli.agent.accounting.usage import Tally, UsageCollector, by_cost, counted
from agentcli.cli.output import draws_tables, echo, print_table
from agentcli.cli.subcommands.shared import AsJson, print_json, single_command, wait_for, with_store

MAX_BAR = 20  # columns
_A_DAY = 86_400
_MAX_DAYS = 36_500
_FIGURES = ("requests", "in", "cached", "out", "cost")


@single_command
def app(
    days: Annotated[int, typer.Option(min=0, max=_MAX_DAYS, help="Of so many days, today included; 0: all.")] = 30,
    session: Annotated[str, typer.Option(help="Of one session, on all its days: its id, or its name.")] = "",
    json: AsJson = False,
) -> None:
    """Show what the stored sessions used, by day, model, tool and user."""
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    since = midnight - (days - 1) * _A_DAY if days and not session else 0.0
    found = wait_for(with_store(lambda store: store.usage(since=since, session=session)))
    if json:
        print_json(found.report())
    elif not found.total.requests:
        echo("Nothing was used." if session or not days else f"Nothing was used in {days} days (--days 0 shows all).")
    else:
        _report(found, one_session=bool(session))


def _report(found: UsageCollector, *, one_session: bool) -> None:
    total = found.total
    took = f", {_duration(total.duration_ms)} of requests" if total.duration_ms else ""
    retries = f", {counted(total.retries, 'retry', 'retries')}" if total.retries else ""
    sessions = "" if one_session else f" in {counted(len(found.sessions), 'session')}"
    echo(f"{_money(total)} for {counted(total.requests, 'request')}{sessions}{took}{retries}\n")
    _tallies("day", sorted(found.days.items()), has_bars=True)
    _tallies("model", by_cost(found.models))
    if len(found.users) > 1:
        _tallies("user", [(user or "(none)", tally) for user, tally in by_cost(found.users)])
    if found.tools:
        rows = []
        for name, tool in sorted(found.tools.items(), key=lambda item: -item[1].calls):
            errors = ", ".join(f"{kind} {count}" for kind, count in tool.errors.most_common(3))
            figures = f"{tool.success_rate:.0%} ok", f"{tool.mean_ms:,.0f} ms", f"{tool.tokens:,} tokens"
            rows.append((name, counted(tool.calls, "call"), *figures, errors))
        headings = ("tool", "calls", "success", "ms", "tokens", "errors")
        print_table(headings, rows, numeric={"calls", "ms", "tokens"})
    if total.unpriced:
        echo(f"\nThe price of {counted(total.unpriced, 'request')} is not known; no cost holds them.")


def _tallies(heading: str, tallies: list[tuple[str, Tally]], *, has_bars: bool = False) -> None:
    """A table; on a terminal with a bar for the cost, or for the tokens where nothing cost anything."""
    by_cost = any(tally.cost_usd for _, tally in tallies)
    sizes = [tally.cost_usd if by_cost else tally.usage.context_tokens for _, tally in tallies]
    bars = has_bars and draws_tables() and max(sizes) > 0
    rows = [
        (name, *_figures(tally), *(("▇" * round(MAX_BAR * size / max(sizes)),) if bars else ()))
        for (name, tally), size in zip(tallies, sizes, strict=True)
    ]
    print_table((heading, *_FIGURES, *(("",) if bars else ())), rows, numeric=set(_FIGURES))
    echo("")


def _figures(tally: Tally) -> tuple[str, ...]:
    usage = tally.usage
    cached = f"{usage.cache_read_input_tokens / usage.prompt_tokens:.0%}" if usage.prompt_tokens else "0%"
    requests = counted(tally.requests, "request")
    return requests, f"{usage.prompt_tokens:,} in", cached, f"{usage.output_tokens:,} out", _money(tally)


def _money(tally: Tally) -> str:
    if tally.unpriced == tally.requests and tally.requests:
        return "price unknown"
    return f"${tally.cost_usd:,.2f}" if tally.cost_usd >= 1 or not tally.cost_usd else f"${tally.cost_usd:.4f}"


def _duration(ms: float) -> str:
    seconds = round(ms / 1000)
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3_600:,} h {seconds % 3_600 // 60} min"
