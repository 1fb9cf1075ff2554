"""Writes a run as Markdown for a pull request, or as one HTML page with links to its transcripts."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation.history import shorten
from agentcli.conversation.schema import unpack_conversation
from agentcli.errors import UserError
from agentcli.evals.store import EvalRun, EvalStore, Outcome, cost_of, outcome_line
from agentcli.frontends.export.documents import document, html_page, markdown
from agentcli.frontends.export.markdown import format_cost
from agentcli.frontends.printable import replace_hidden
from agentcli.safety.secrets.masking import Masker, mask

MAX_FAILURES = 50  # a description of a pull request takes 65,536 characters
MAX_REASON_CHARS = 200
_LINKS = re.compile(r"[^/:?#]+/[^/:?#]+\.html")  # links to transcripts: `NAME-transcripts/TASK-1.html`


def as_markdown(run: EvalRun) -> str:
    plan = run.plan
    head = f"### {_escaped(plan.name) or 'Eval run'}: {run.passed} of {len(run.outcomes)} passed"
    facts = f"{_escaped(plan.variant.model)} · agentcli {_escaped(plan.agentcli)} · run {run.id}"
    if not run.ended:
        facts += f" · unfinished: {len(run.outcomes)} of {len(plan.attempts)} attempts done"
    parts = [head, facts, "\n".join(_task_rows(run))]
    if failed := [outcome for outcome in run.outcomes if not outcome.passed]:
        more = len(failed) - MAX_FAILURES
        note = [f"- and {more:,} more"] if more > 0 else []
        parts.append("\n".join(("Failed:\n", *map(_failure_line, failed[:MAX_FAILURES]), *note)))
    return "\n\n".join(parts) + "\n"


def as_page(run: EvalRun, links: Mapping[tuple[str, int], str]) -> str:
    """Return the report as an HTML page; `links` lead from it to transcripts, by task and number of the attempt."""
    lines = [as_markdown(run).replace(_NO_REFERENCE, ""), "Attempts:\n"]
    for outcome in run.outcomes:
        link = links.get((outcome.task, outcome.sample))
        attempt = _escaped(outcome_line(outcome)).replace(_NO_REFERENCE, "")
        lines.append(f"- {attempt}" + (f", [transcript]({quote(link)})" if link else ""))
    body = markdown(_LINKS).render("\n".join(lines))
    return html_page(f"Eval run {run.plan.name or run.id}", f"<main>{body}</main>")


def _task_rows(run: EvalRun) -> Iterator[str]:
    yield "| task | difficulty | passed | cost | tokens | seconds |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    by_task = [(_escaped(task.name), _escaped(task.difficulty), run.of_task(task.name)) for task in run.plan.tasks]
    for name, difficulty, outcomes in (*by_task, ("all", "", run.outcomes)):
        cells = ["–"] * 4  # no attempt was made yet
        if outcomes:
            tokens = sum(outcome.spent.usage.context_tokens for outcome in outcomes)
            seconds = sum(outcome.spent.seconds for outcome in outcomes)
            passed = f"{sum(outcome.passed for outcome in outcomes)}/{len(outcomes)}"
            cells = [passed, format_cost(cost_of(outcomes)), f"{tokens:,}", f"{seconds:,.1f}"]
        yield f"| {' | '.join((name, difficulty, *cells))} |"


def _failure_line(outcome: Outcome) -> str:
    """Return a line such as "- fix-a-loop (attempt 1, max turns): `2 of 3 tests failed`"."""
    end = "" if outcome.end == "end_turn" else f", {outcome.end.replace('_', ' ')}"
    why = mask("\n".join(filter(None, (outcome.check.reason, outcome.error)))).strip()
    reason = shorten(" ".join(replace_hidden(why or "No reason is given.").split()), MAX_REASON_CHARS)
    # GitHub links no people and issues in code. The fence is longer than any in the text.
    fence = "`" * (max(map(len, re.findall("`+", reason)), default=0) + 1)
    return f"- {_escaped(outcome.task)} (attempt {outcome.sample}{end}): {fence} {reason} {fence}"


_NO_REFERENCE = "<!-- -->"  # after @ or #: GitHub then links no person or issue


def _escaped(text: str) -> str:
    """Return foreign text in one line, its markup escaped, in which GitHub links no person and no issue."""
    marked = re.sub(r"[\\`*_{}\[\]<>&|~$@#!]", lambda found: f"\\{found[0]}", " ".join(replace_hidden(text).split()))
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
