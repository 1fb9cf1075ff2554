"""Writes a run as Markdown for a pull request, or as one HTML page with links to its transcripts."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation.history import shorten
from agentcli.conversation.schema import unpack_conversation
from agentcli.errors import UserError
from agentcli.evals.store import EvalRun, EvalStore, Outcome, PlannedTask, cost_of, outcome_line
from agentcli.evals.task import DIFFICULTIES
from agentcli.frontends.export.documents import document, html_page, markdown
from agentcli.frontends.export.markdown import format_cost
from agentcli.frontends.printable import with_symbols
from agentcli.safety.secrets.masking import Masker, mask

MAX_FAILURES = 50  # a description of a pull request takes 65,536 characters
MAX_REASON_CHARS = 200
_LINKS = re.compile(r"[^/:?#]+/[^/:?#]+\.html")  # links to transcripts: `NAME-transcripts/TASK-1.html`

PairedTasks = Sequence[tuple[PlannedTask, list[Outcome], list[Outcome]]]  # with the run's outcomes and the baseline's


def as_markdown(run: EvalRun, baseline: EvalRun | None = None) -> str:
    return "\n\n".join(filter(None, _parts(run, baseline))) + "\n"


def as_page(run: EvalRun, links: Mapping[tuple[str, int], str], baseline: EvalRun | None = None) -> str:
    """Return the report as an HTML page; `links` lead from it to transcripts, by task and number of the attempt."""
    head, tasks, failures = (_render(part) for part in _parts(run, baseline))
    lines = ["Attempts:\n"]
    for outcome in run.outcomes:
        link = links.get((outcome.task, outcome.sample))
        lines.append(f"- {_escaped(outcome_line(outcome))}" + (f", [transcript]({quote(link)})" if link else ""))
    attempts = _render("\n".join(lines))
    return html_page(f"Eval run {run.plan.name or run.id}", f"<main>{head}{tasks}{failures}{attempts}</main>")


def _render(text: str) -> str:
    return str(markdown(_LINKS).render(text.replace(_NO_REFERENCE, "")))


def _pair_tasks(run: EvalRun, baseline: EvalRun | None) -> PairedTasks:
    """Return all planned tasks, easy ones first, each with its outcomes and the baseline's at the same version."""
    old_versions = {task.name: task.version for task in baseline.plan.tasks} if baseline else {}
    paired = []
    for task in run.plan.tasks:
        can_compare = old_versions.get(task.name) == task.version
        old = baseline.of_task(task.name) if baseline and can_compare else []
        paired.append((task, run.of_task(task.name), old))
    difficulties = [*DIFFICULTIES, *(task.difficulty for task in run.plan.tasks)]  # unknown ones come last
    return sorted(paired, key=lambda pair: difficulties.index(pair[0].difficulty))


def _parts(run: EvalRun, baseline: EvalRun | None) -> tuple[str, str, str]:
    plan, tasks = run.plan, _pair_tasks(run, baseline)
    facts = [
        _escaped(plan.variant.model),
        f"agentcli {_escaped(plan.agentcli)}",
        f"run {run.id}",
        f"baseline {_escaped(baseline.plan.name or baseline.id)}" if baseline else "",
        "" if run.ended else f"unfinished: {len(run.outcomes)} of {len(plan.attempts)} attempts done",
    ]
    head = f"### {_escaped(plan.name) or 'Eval run'}: {run.passed} of {len(run.outcomes)} passed"
    failed = [outcome for _, outcomes, _ in tasks for outcome in outcomes if not outcome.passed]
    failures = ["Failed:\n", *map(_failure, failed[:MAX_FAILURES])] if failed else []
    if (more := len(failed) - MAX_FAILURES) > 0:
        failures.append(f"- and {more:,} more")
    return f"{head}\n\n{' · '.join(filter(None, facts))}", "\n".join(_task_rows(tasks, baseline)), "\n".join(failures)


def _task_rows(tasks: PairedTasks, baseline: EvalRun | None) -> list[str]:
    names = ["task", "difficulty", "passed", *(["baseline"] if baseline else []), "cost", "tokens", "seconds"]
    rows = [names, ["---", "---", *(["---:"] * (len(names) - 2))]]
    all_now = [outcome for _, now, _ in tasks for outcome in now]
    all_old = [outcome for *_, old in tasks for outcome in old]
    can_compare_all = all(old for *_, old in tasks)  # else the sums are of different tasks
    by_task = [(_escaped(task.name), _escaped(task.difficulty), now, old, bool(old)) for task, now, old in tasks]
    total = ("all", "", all_now, all_old, can_compare_all)
    for name, difficulty, now, old, can_compare in (*by_task, total):
        change = _pass_rate(now) - _pass_rate(old) if can_compare and now and old else 0
        arrow = " ↑" if change > 0 else " ↓" if change < 0 else ""
        tokens = sum(outcome.spent.usage.context_tokens for outcome in now)
        seconds = sum(outcome.spent.seconds for outcome in now)
        figures = (format_cost(cost_of(now)), f"{tokens:,}", f"{seconds:,.1f}") if now else ("–", "–", "–")
        rows.append(
            [name, difficulty, _passed_share(now) + arrow, *([_passed_share(old)] if baseline else []), *figures]
        )
    return [f"| {' | '.join(cells)} |" for cells in rows]


def _pass_rate(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.passed for outcome in outcomes) / max(len(outcomes), 1)


def _passed_share(outcomes: Sequence[Outcome]) -> str:
    return f"{sum(outcome.passed for outcome in outcomes)}/{len(outcomes)}" if outcomes else "–"


def _failure(outcome: Outcome) -> str:
    """Return a line such as "- fix-a-loop (attempt 1, max turns): `2 of 3 tests failed`"."""
    end = "" if outcome.end == "end_turn" else f", {outcome.end.replace('_', ' ')}"
    why = mask("\n".join(filter(None, (outcome.check.reason, outcome.error)))).strip()
    reason = shorten(" ".join(with_symbols(why or "No reason is given.").split()), MAX_REASON_CHARS)
    # GitHub links no people and issues in code. The fence is longer than any in the text.
    fence = "`" * (max(map(len, re.findall("`+", reason)), default=0) + 1)
    return f"- {_escaped(outcome.task)} (attempt {outcome.sample}{end}): {fence} {reason} {fence}"


_NO_REFERENCE = "<!-- -->"  # after @ or #: GitHub then links no person or issue


def _escaped(text: str) -> str:
    """Return foreign text in one line, its markup escaped, in which GitHub links no person and no issue."""
    marked = re.sub(r"[\\`*_{}\[\]<>&|~$@#!]", lambda found: f"\\{found[0]}", " ".join(with_symbols(text).split()))
    return re.sub(r"\\([@#])", rf"\\\1{_NO_REFERENCE}", marked)


def write_transcripts(store: EvalStore, run: EvalRun, report: Path) -> dict[tuple[str, int], str]:
    """Write each conversation into `NAME-transcripts/`, and return the links from the report. Raises `UserError`."""
    folder = report.with_name(f"{report.stem}-transcripts")
    titles = {task.name: task.title for task in run.plan.tasks}
    links = {}
    for outcome in run.outcomes:
        entries, _ = unpack_conversation(store.transcript(run.id, outcome.task, outcome.sample))
        times = [entry.time for entry in entries] or [run.created]
        id, result = f"{outcome.task}-{outcome.sample}", "passed" if outcome.passed else "not passed"
        title = f"{titles[outcome.task]} (attempt {outcome.sample}: {result})"
        info = SessionInfo(id, cwd="", title=title, created=times[0], updated=times[-1], entries=len(entries))
        text, _ = document("html", info, entries, Mask(Masker))
        write_file(folder / f"{id}.html", text)
        links[outcome.task, outcome.sample] = f"{folder.name}/{id}.html"
    return links


def write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror}.") from error
