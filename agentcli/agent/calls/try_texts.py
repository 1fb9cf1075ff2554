"""What of a try's changes was chosen, and the words for it: the person's question, and what the model reads."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary
from agentcli.tools.text.diff import diff_hunks
from agentcli.tools.tool import Attempt, ToolOutput

_LONGEST_COMMAND = 60


class Chosen(Struct, frozen=True):
    """The changes to keep, by name, and who says so; `why` nothing was asked where something is dropped.

    Of those in `parts` only these hunks are kept; `left_out` is the text of the others.
    """

    names: tuple[str, ...] = ()
    parts: dict[str, tuple[int, ...]] = {}
    left_out: str = ""
    is_answered: bool = False
    comment: str = ""
    why: str = ""
    is_denied: bool = False


def hunks_of(change: ChangeSummary, text: str) -> tuple[str, ...]:
    """The parts of a change that can be kept, each with the lines that name the file."""
    parts = diff_hunks(text)
    if change.hunks == 1 or len(parts) != change.hunks:  # masking has joined some
        return (text,)
    head = text[: text.index("\n@@ ") + 1]
    return tuple(head + part for part in parts)


def shown_change(change: ChangeSummary) -> str:
    """A change as text: what to know before it is kept, then its diff; without one, what it is."""
    notes = "".join(f"  {note}\n" for note in change.notes)
    if change.diff and change.what != "repository":
        return f"{change.name}\n{notes}{change.diff}" if notes else change.diff
    size = (
        f" · {change.files:,} files · {_size(change.size)}" if change.what in ("folder", "repository", "tree") else ""
    )
    did = "changed mode of" if change.kind == "mode" else change.kind
    return f"{did} {change.what} {change.name}{size}\n{notes}{change.diff}"


def short_command(command: str) -> str:
    line, *more = command.strip().splitlines() or [""]
    return f"{line[:_LONGEST_COMMAND]} …" if more or len(line) > _LONGEST_COMMAND else line


def _size(size: int) -> str:
    for unit, one in (("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)):
        if size >= one:
            return f"{size / one:.1f} {unit}"
    return f"{size} bytes"


def counted(changes: Sequence[ChangeSummary]) -> str:
    return f"{len(changes)} change{'' if len(changes) == 1 else 's'}"


def ending_of(attempt: Attempt) -> str:
    result = attempt.trial.result
    if result.timed_out:
        return "it ran out of time"
    return f"exit code {result.exit_code}" if result.exit_code else ""


def remark_of(chosen: Chosen, kept: ApplyOutcome, changes: Sequence[ChangeSummary]) -> str:
    """Tells the model what is so in the workspace now."""
    stayed = {*kept.names, *(conflict.name for conflict in kept.conflicts)}
    dropped = [change.name for change in changes if change.name not in stayed]
    if not kept.names and not kept.conflicts:
        who = "the user dropped its changes" if chosen.is_answered else f"its changes were dropped: {chosen.why}"
        said = [f"It ran on a stand-in of the workspace, and {who}. No file was changed: {_named(dropped)}."]
    else:
        whole = [name for name in kept.names if name not in chosen.parts]
        some = [_part(name, chosen, changes) for name in kept.names if name in chosen.parts]
        said = [f"Kept: {_named(whole)}."] if whole else []
        said += [f"Kept in part: {_named(some)}."] if some else []
        if dropped:
            said.append(f"Dropped, so not changed: {_named(dropped)}{f' ({chosen.why})' if chosen.why else ''}.")
        said += [f"Not kept: {conflict.name} ({conflict.why})." for conflict in kept.conflicts]
    if chosen.comment:
        said.append(f"The user says: {chosen.comment}")
    if chosen.left_out:
        said.append(f"The user rejected this part, so it is not in the workspace:\n{chosen.left_out.rstrip()}")
    return " ".join(said) if dropped or kept.conflicts or chosen.comment or chosen.parts else ""


def _part(name: str, chosen: Chosen, changes: Sequence[ChangeSummary]) -> str:
    hunks = next(change.hunks for change in changes if change.name == name)
    return f"{name} ({len(chosen.parts[name])} of {hunks} hunks)"


def _named(names: Sequence[str]) -> str:
    shown, more = names[:20], len(names) - 20
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"


def answer_told(chosen: Chosen, kept: ApplyOutcome, changes: Sequence[ChangeSummary]) -> str:
    """The answer in words for the person; empty where nobody was asked."""
    if not chosen.is_answered:
        return ""
    said = "kept" if len(kept.names) == len(changes) else f"kept {len(kept.names)} of {len(changes)}"
    said += "".join(f" · {_part(name, chosen, changes)}" for name in kept.names if name in chosen.parts)
    said = said if kept.names else "dropped"
    return f"{said} · “{chosen.comment}”" if chosen.comment else said


def summary_of(kept: ApplyOutcome, changes: Sequence[ChangeSummary]) -> str:
    if len(kept.names) == len(changes):
        return f"kept {counted(changes)}"
    return f"kept {len(kept.names)} of {counted(changes)}" if kept.names else f"dropped {counted(changes)}"


def told_output(attempt: Attempt, remark: str, summary: str) -> ToolOutput:
    output = attempt.output()
    text = output.content if isinstance(output.content, str) else ""
    notes = [f"[{remark}]"] if remark else []
    if cached := attempt.trial.cached:
        whose = f"{_named(cached)} {'is a cache' if len(cached) == 1 else 'are caches'}"
        notes.append(f"[{whose}, so not in the workspace itself: only commands that are tried see it]")
    content = "\n".join(part for part in (text, *notes) if part)
    return replace(output, content=content, summary=f"{output.summary}; {summary}" if output.summary else summary)
