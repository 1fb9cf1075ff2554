"""Reviews the changes of a dry run, and words it: the person's question, and what the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from agentcli.agent.events import ChangesApproval
from agentcli.agent.permissions.decide import Verdict
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary
from agentcli.tools.text.diff import diff_hunks
from agentcli.tools.tool import Attempt, ToolOutput

PLAN = "plan mode keeps no changes"
_LONGEST_COMMAND = 60


@dataclass(kw_only=True)
class Review:
    """Says which changes of a dry run are applied, by name, and who decided.

    Only the hunks in `parts` are applied of a change named there; `left_out` is the text of the others. `why` is the
    reason for which changes are discarded without a question.
    """

    attempt: Attempt
    names: list[str] = field(default_factory=list)
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: str = ""
    is_answered: bool = False
    comment: str = ""
    why: str = ""
    is_denied: bool = False

    def decide(self, verdict: Verdict, changes: Sequence[ChangeSummary]) -> None:
        """Take or discard changes that nobody is asked about."""
        if verdict.decision == "allow":
            self.names += [change.name for change in changes]
        else:
            self.why = verdict.reason
            self.is_denied |= verdict.reason != PLAN

    def take(self, request: ChangesApproval, hunks: Sequence[int] | None, comment: str) -> None:
        """Take the changes of which the person took a hunk, by number, or all."""
        self.is_answered = True
        self.comment = "; ".join(filter(None, (self.comment, comment)))
        first = 0
        for change in request.changes:
            own = range(change.hunks)
            taken = tuple(number for number in own if hunks is None or first + number in hunks)
            if taken:
                self.names.append(change.name)
            if 0 < len(taken) < change.hunks:
                self.parts[change.name] = taken
                self.left_out += "".join(request.hunks[first + number] for number in own if number not in taken)
            first += change.hunks

    def remark(self, kept: ApplyOutcome) -> str:
        """Tells the model what is so in the workspace now."""
        stayed = {*kept.names, *(conflict.name for conflict in kept.conflicts)}
        dropped = [change.name for change in self.attempt.trial.changes if change.name not in stayed]
        if not stayed:
            who = "the user dropped its changes" if self.is_answered else f"its changes were dropped: {self.why}"
            said = [f"It ran on a stand-in of the workspace, and {who}. No file was changed: {_named(dropped)}."]
        else:
            whole = [name for name in kept.names if name not in self.parts]
            some = [self._part(name) for name in kept.names if name in self.parts]
            said = [f"Kept: {_named(whole)}."] if whole else []
            said += [f"Kept in part: {_named(some)}."] if some else []
            if dropped:
                said.append(f"Dropped, so not changed: {_named(dropped)}{f' ({self.why})' if self.why else ''}.")
            said += [f"Not kept: {conflict.name} ({conflict.why})." for conflict in kept.conflicts]
        if self.comment:
            said.append(f"The user says: {self.comment}")
        if self.left_out:
            said.append(f"The user rejected this part, so it is not in the workspace:\n{self.left_out.rstrip()}")
        return " ".join(said) if dropped or kept.conflicts or self.comment or self.parts else ""

    def answer(self, kept: ApplyOutcome) -> str:
        """The answer in words for the person; empty where nobody was asked."""
        if not self.is_answered:
            return ""
        count, made = len(kept.names), len(self.attempt.trial.changes)
        said = "kept" if count == made else f"kept {count} of {made}"
        said += "".join(f" · {self._part(name)}" for name in kept.names if name in self.parts)
        said = said if kept.names else "dropped"
        return f"{said} · “{self.comment}”" if self.comment else said

    def _part(self, name: str) -> str:
        hunks = next(change.hunks for change in self.attempt.trial.changes if change.name == name)
        return f"{name} ({len(self.parts[name])} of {hunks} hunks)"


def hunks_of(change: ChangeSummary, text: str) -> tuple[str, ...]:
    """The parts of a change that can be kept, each with the lines that name the file."""
    parts = diff_hunks(text)
    if change.hunks == 1 or len(parts) != change.hunks:  # masking has joined some
        return (text,)
    head = text[: text.index("\n@@ ") + 1]
    return tuple(head + part for part in parts)


def shown_change(change: ChangeSummary) -> str:
    """Return a change as text: notes on it, then its diff, or a description where there is no diff."""
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
    result = attempt.result
    if result.timed_out:
        return "it ran out of time"
    return f"exit code {result.exit_code}" if result.exit_code else ""


def _named(names: Sequence[str]) -> str:
    shown, more = names[:20], len(names) - 20
    return f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"


def summary_of(kept: ApplyOutcome, changes: Sequence[ChangeSummary]) -> str:
    if len(kept.names) == len(changes):
        return f"kept {counted(changes)}"
    return f"kept {len(kept.names)} of {counted(changes)}" if kept.names else f"dropped {counted(changes)}"


def dry_run_output(attempt: Attempt, remark: str, summary: str) -> ToolOutput:
    output = attempt.output()
    text = output.content if isinstance(output.content, str) else ""
    notes = [f"[{remark}]"] if remark else []
    if cached := attempt.trial.cached:
        whose = f"{_named(cached)} {'is a cache' if len(cached) == 1 else 'are caches'}"
        notes.append(f"[{whose}, so not in the workspace itself: only commands that are tried see it]")
    content = "\n".join(part for part in (text, *notes) if part)
    return replace(output, content=content, summary=f"{output.summary}; {summary}" if output.summary else summary)
