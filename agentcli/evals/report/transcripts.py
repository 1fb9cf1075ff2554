"""Writes the conversation of each attempt of a run as a page of its own, beside the report."""

from __future__ import annotations

from pathlib import Path

from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.masking import Mask
from agentcli.conversation.portable import unpacked
from agentcli.errors import UserError
from agentcli.evals.store import EvalStore, Run
from agentcli.frontends.export.documents import document
from agentcli.safety.secrets.masking import Masker


def write_transcripts(store: EvalStore, run: Run, report: Path) -> dict[tuple[str, int], str]:
    """Write them into `NAME-transcripts/`; gives the link to each, from the report on. Raises `UserError`."""
    folder = report.with_name(f"{report.stem}-transcripts")
    titles = {task.name: task.title for task in run.about.tasks}
    links = {}
    for outcome in run.outcomes:
        entries, _ = unpacked(store.transcript(run.id, outcome.task, outcome.sample))
        times = [entry.time for entry in entries] or [run.created]
        id = f"{outcome.task}-{outcome.sample}"
        title = f"{titles[outcome.task]} (attempt {outcome.sample}: {'passed' if outcome.passed else 'not passed'})"
        info = SessionInfo(id, "", title, times[0], times[-1], len(entries))
        text, _ = document("html", info, entries, Mask(Masker))
        write_file(folder / f"{id}.html", text)
        links[outcome.task, outcome.sample] = f"{folder.name}/{id}.html"
    return links


def write_file(path: Path, text: str) -> None:
    """Raises `UserError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"Could not write {path}: {error.strerror}.") from error
