"""Writes a run as one HTML page with charts, which needs no network and runs nothing."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from urllib.parse import quote

import msgspec

from agentcli.agent.accounting.metrics import counted
from agentcli.conversation.titles import shortened
from agentcli.evals.outcome import Outcome, Variant
from agentcli.evals.report.charts import Point, Row, bars, one_line, points
from agentcli.evals.report.figures import Figures, by_task, comparable, why_failed
from agentcli.evals.store import PlannedTask, Run
from agentcli.frontends.export.markdown import money, when
from agentcli.frontends.printable import pictured
from agentcli.safety.secrets.masking import mask

Tasks = Sequence[tuple[PlannedTask, Figures]]


def as_page(run: Run, transcript_links: Mapping[tuple[str, int], str], baseline: Run | None = None) -> str:
    """Links are paths from the page on, by task and number of the attempt."""
    # Transcripts and reports look alike.
    style = "".join(
        (files(folder) / "page.css").read_text("utf-8") for folder in ("agentcli.frontends.export", __package__)
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    parts = (*_head(run, baseline), *_charts(run, baseline), *_attempts(run, transcript_links))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>Eval run {one_line(run.about.name or run.id)}</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{one_line(title)}</summary><pre>{escape(pictured(text))}</pre></details>"


def _head(run: Run, baseline: Run | None) -> Iterator[str]:
    about = run.about
    facts = {
        "Run": run.id,
        "Model": about.variant.model,
        "Date": when(run.created),
        "agentcli": f"{about.agentcli}, Python {about.python}",
        "Machine": f"{about.machine}, engine {about.engine}",
        **_settings(about.variant),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{one_line(fact)}</dd>" for name, fact in facts.items() if fact)
    yield f"<h1>{one_line(about.name) or 'Eval run'}</h1>"
    yield f'<p class="told">{_summary(run)}</p>'
    if baseline:
        yield f"<p>Baseline {one_line(baseline.about.name or baseline.id)}: {_summary(baseline)}</p>"
    yield f"<dl>{rows}</dl>"
    for name, text in (
        ("System prompt", about.variant.system_prompt),
        ("Text appended to the system prompt", about.variant.append_system_prompt),
        ("Settings", msgspec.json.format(msgspec.json.encode(about.variant.settings)).decode()),
    ):
        if text and text != "{}":
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            yield _folded(f"{name} ({counted(len(text), 'character')}, SHA-256 {digest}…)", mask(text))


def _settings(variant: Variant) -> dict[str, str]:
    limits = {"seconds": variant.time_s, "requests for each prompt": variant.turns, "US dollars": variant.cost_usd}
    return {
        "Permissions": variant.permission_mode,
        "Skills": ", ".join(variant.skills),
        "Limits": ", ".join(f"{most:g} {name}" for name, most in limits.items() if most is not None),
    }


def _summary(run: Run) -> str:
    whole, planned = Figures(run.outcomes), len(run.about.jobs)
    usage, claims = whole.usage, sum(outcome.claims.get("refuted", 0) for outcome in run.outcomes)
    told = (
        f"<b>{whole.passed} of {len(run.outcomes)} passed</b>",
        "" if run.ended else f"unfinished: {len(run.outcomes)} of {planned} attempts made",
        f"mean score {whole.score:.2f}",
        f"cost {money(whole.cost_usd)}",
        f"{usage.context_tokens:,} tokens",
        f"{whole.seconds:,.0f} s of work",
        f"{whole.mean(lambda outcome: outcome.verified):.0%} verified",
        counted(claims, "false claim"),
    )
    return " · ".join(filter(None, told))


def _charts(run: Run, baseline: Run | None) -> Iterator[str]:
    tasks, before = by_task(run), comparable(run, baseline)

    def rate(name: str, figures: Figures) -> Row:
        old = before[name].pass_rate if name in before else None
        return Row(name, (("passed", figures.pass_rate),), f"{figures.passed} of {len(figures.outcomes)}", old)

    def seconds(name: str, figures: Figures) -> Row:
        mean = figures.seconds / len(figures.outcomes)
        return Row(name, (("time", mean),), f"{mean:,.1f} s")

    def tokens(name: str, figures: Figures) -> Row:
        usage, count = figures.usage, len(figures.outcomes)
        new, cached = usage.input_tokens + usage.cache_creation_input_tokens, usage.cache_read_input_tokens
        parts = (("in", new / count), ("cached", cached / count), ("out", usage.output_tokens / count))
        return Row(name, parts, f"{usage.context_tokens / count:,.0f}")

    marks = {"passed": "passed"} | ({"mark": "baseline"} if before else {})
    yield '<div class="charts">'
    yield _figure("Pass rate per task", bars("Pass rate per task", _rows(tasks, rate), most=1.0), marks)
    yield _quality(tasks, before)
    yield _figure("Time per task, mean", bars("Mean seconds per task", _rows(tasks, seconds)))
    drawn = bars("Mean tokens per task: in, cached, out", _rows(tasks, tokens))
    yield _figure("Tokens per task, mean", drawn, {"in": "in", "cached": "in, cached", "out": "out"})
    yield _tools(run)
    yield "</div>"


def _rows(tasks: Tasks, draw: Callable[[str, Figures], Row]) -> list[Row]:
    rows = []
    for difficulty, group in groupby(tasks, key=lambda pair: pair[0].difficulty):
        rows.append(Row(difficulty))
        for task, figures in group:
            rows.append(draw(task.name, figures) if figures.outcomes else Row(task.name, told="not tried"))
    return rows


def _quality(tasks: Tasks, before: Mapping[str, Figures]) -> str:
    """Cost against score; tokens where no cost is known."""
    tried = [(task.name, figures) for task, figures in tasks if figures.outcomes]
    has_costs = any(figures.cost_usd for figures in (*before.values(), *(figures for _, figures in tried)))
    name, x_told = ("Cost", lambda x: f"${x:.3g}") if has_costs else ("Tokens", lambda x: f"{x:,.0f}")

    def at(figures: Figures | None) -> tuple[float, float] | None:
        if figures is None:
            return None
        whole = figures.cost_usd if has_costs else figures.usage.context_tokens
        return None if whole is None else (whole / len(figures.outcomes), figures.score)

    found = [Point(task, *now, at(before.get(task))) for task, figures in tried if (now := at(figures))]
    told = f"{name} against quality, mean per task"
    drawn = points(told, found, x_told) if any(point.x for point in found) else ""
    left_out = len(tried) - len(found)
    note = f"{counted(left_out, 'task')} of unknown cost left out." if left_out else ""
    legend = {"now": "this run"} | ({"before": "baseline"} if before else {})
    return _figure(told, drawn, legend, f"Across: {name.lower()}; up: score. {note}")


def _tools(run: Run) -> str:
    calls, failed = Counter[str](), Counter[str]()
    for outcome in run.outcomes:
        calls.update(outcome.tools)
        failed.update(outcome.tool_errors)
    rows = [
        Row(
            tool,
            (("call", max(count - failed[tool], 0)), ("failed", failed[tool])),
            f"{count:,}" + (f" · {failed[tool]:,} ✗" if failed[tool] else ""),
        )
        for tool, count in calls.most_common()
    ]
    legend = {"call": "calls", "failed": "failed calls (✗)"}
    return _figure("Tool use", bars("Calls and failed calls by tool", rows), legend)


def _figure(title: str, drawn: str, legend: Mapping[str, str] = {}, note: str = "") -> str:
    if not drawn:
        return f"<figure><h2>{title}</h2><p>There is nothing to draw.</p></figure>"
    keys = "".join(f'<i class="{kind}"></i>{name}' for kind, name in legend.items())
    told = "<br>".join(filter(None, (keys, note)))
    return f'<figure><h2>{title}</h2><div class="chart">{drawn}</div><figcaption>{told}</figcaption></figure>'


_COLUMNS = "task difficulty sample result score turns tokens cost seconds verified claims end reason transcript".split()
_NUMBERS = frozenset(("sample", "score", "turns", "tokens", "cost", "seconds"))


def _attempts(run: Run, links: Mapping[tuple[str, int], str]) -> Iterator[str]:
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    yield '<h2 id="attempts">Attempts</h2><p>Claims: true / false / unverified.</p>'
    yield f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>'
    for task, figures in by_task(run):
        for outcome in figures.outcomes:
            cells = zip(_COLUMNS, _cells(task, outcome, links), strict=True)
            row = "".join(
                f'<td class="n">{cell}</td>' if name in _NUMBERS else f"<td>{cell}</td>" for name, cell in cells
            )
            yield f"<tr>{row}</tr>"
    yield "</tbody></table></div>"


def _cells(task: PlannedTask, outcome: Outcome, links: Mapping[tuple[str, int], str]) -> Iterable[str]:
    true, false, open_ = (outcome.claims.get(verdict, 0) for verdict in ("verified", "refuted", "unverified"))
    link = links.get((outcome.task, outcome.sample))
    why = why_failed(outcome)
    return (
        f"{one_line(task.title)}<small>{one_line(task.name)}</small>",
        one_line(task.difficulty),
        str(outcome.sample),
        '<span class="good">✓ passed</span>' if outcome.passed else '<span class="bad">✗ failed</span>',
        f"{outcome.score:.2f}",
        f"{outcome.turns:,}",
        f"{outcome.usage.context_tokens:,}",
        money(outcome.cost_usd),
        f"{outcome.seconds:,.1f}",
        "yes" if outcome.verified else "no",
        f'{true} / <span class="false{min(false, 1)}">{false}</span> / {open_}',
        outcome.end.replace("_", " "),
        _folded(shortened(why.splitlines()[0], 30), why) if why else "",
        f'<a href="{escape(quote(link))}">transcript</a>' if link else "",
    )
