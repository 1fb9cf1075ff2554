"""Shows finished calls with an excerpt of their output, and how an answer's claims match the log."""

import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.events import ToolFinished
from agentcli.conversation.evidence import Claim
from agentcli.conversation.history import shorten
from agentcli.frontends.printable import escape_hidden, printable
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment, clipped, plain, width, wrapped
from agentcli.patterns import lazy_pattern
from agentcli.tools.builtin.toolset import TodoItem
from agentcli.tools.command import STOPPED_CODES, BackgroundJob

MAX_DIFF_LINES = 30
MAX_OUTPUT_LINES = 5  # of an output with at least `MIN_FOLDED_LINES`
MIN_FOLDED_LINES = 8  # hiding one line or two saves no room, and the first of few often has the reason of a failure
MAX_QUOTED_CHARS = 60  # of a claim's subject, or an ended job's command
MIN_TITLE_CELLS = 12  # of a finished call's title, however long its outcome is
MAX_REPEATED_CELLS = 40  # of a call's title that its question has already shown
MAX_LINE_CHARS = 400  # of a line in an excerpt
# Ends of a result that repeat the call's own line: the exit code, or the interruption.
_SHOWN_IN_HEAD = lazy_pattern(
    r"^(?:\[exit code \d+\]|\[interrupted by the user[^\n]*|Not run: interrupted by the user\.)\n?\Z", re.MULTILINE
)
_SIGNS = {"completed": ("ok", "✓"), "in_progress": ("accent", "▸"), "pending": ("muted", "○")}  # role, sign


class FoldedText(Struct, frozen=True):
    """A text that is shown only in part: its title and the whole text."""

    title: str
    text: str
    is_diff: bool = False


class ToolView(Struct, frozen=True):
    """A call's `fragments` for the screen; `folded` is the whole output, which a key unfolds."""

    fragments: list[Fragment]
    folded: FoldedText | None = None


def tool_view(
    event: ToolFinished, title: str, *, columns: int, was_asked: bool, is_live: bool, unfold_key: str
) -> ToolView:
    """Return the view of a finished call. If the person `was_asked`, the diff and the answer are on the screen.

    The hint below a cut text names the `unfold_key`, if there is one. A live screen has the to-do list above the input.
    """
    structured = event.structured if isinstance(event.structured, dict) else {}
    unfold_hint = f" ({unfold_key} shows all)" if unfold_key else ""
    diff = structured.get("diff")
    if not isinstance(diff, str):  # servers may send anything by this name
        diff = ""
    is_started_job = "job_id" in structured and "exit_code" not in structured
    was_discarded = event.answer.startswith("discarded")  # an error, but with the output of the dry run
    if was_asked:  # the screen has the answer and the title
        event = replace(event, answer="")
        title = plain(clipped([("", title)], MAX_REPEATED_CELLS))
    call_line = _call_line(event, title, columns, is_started_job=is_started_job)
    if event.answer.startswith("declined"):
        return ToolView(call_line)
    if event.result.is_error and not was_discarded:
        body = _error_body(event, title, columns, unfold_hint)
    elif event.name == "bash":
        output = structured.get("output", "" if is_started_job else event.result.text)
        body = _output_excerpt(output, unfold_hint)
    elif event.name in ("file_edit", "file_write", "memory") and not was_asked:
        body = diff_fragments(diff, width=columns, max_lines=MAX_DIFF_LINES, hint=unfold_hint, wraps=is_live)
    elif event.name == "todo" and not is_live:
        body = _todo_body(event, columns, unfold_hint)
    else:
        body = []
    whole = printable(diff or event.result.text)
    # A cut body has a note such as "… 12 more lines".
    is_cut = not body or any("more line" in text for role, text in body if role == "muted")
    folded = FoldedText(title, whole, is_diff=bool(diff)) if whole.strip() and is_cut else None
    return ToolView([*call_line, *body], folded)


def _call_line(event: ToolFinished, title: str, columns: int, *, is_started_job: bool) -> list[Fragment]:
    """Return a call's line, with its title cut so that the outcome fits; a failed call's title is never cut."""
    answer = " ".join(printable(event.answer).split())
    was_declined = event.answer.startswith("declined")  # as the `answer` of `Declined` does
    is_failed = event.result.is_error or was_declined
    # An error's summary is the beginning of its message, which `_error_body` shows below the line.
    summary = "" if event.error_kind or was_declined else " ".join(printable(event.summary).split())
    job = "/tasks" if is_started_job and not is_failed else ""  # the command that shows the job
    parts = (summary, job, answer, duration(event.duration_ms))
    outcome = "".join(f" · {part}" for part in parts if part)
    if is_failed:
        return wrapped(
            [("error", "✗"), ("", f" {' '.join(title.split())}"), ("muted", f"{outcome}\n")], columns, hang=2
        )
    is_agent = event.name == "create_subagent"
    # A subagent's title is its task, which says more than the outcome does.
    min_cells = columns * 3 // 4 if is_agent else MIN_TITLE_CELLS
    shown_title = clipped([("", title)], max(min_cells, columns - 2 - width(outcome)))
    sign = ("ok", "✓")
    if is_agent and summary.startswith(("stopped", "limit")):  # a subagent's summary begins with how it ended
        sign = ("warning", "■")
    elif is_agent and summary == "in the background":
        sign = ("accent", "↗")
    line = [sign, ("", " "), *shown_title, ("muted", outcome)]
    if is_agent:  # one row, as while it ran; a long task leaves less room for the outcome
        return [*clipped(line, columns), ("", "\n")]
    return wrapped([*line, ("", "\n")], columns, hang=2)


def _error_body(event: ToolFinished, title: str, columns: int, unfold_hint: str) -> list[Fragment]:
    """Return a failed call's error without the parts that its line above shows already."""
    text = _SHOWN_IN_HEAD.sub("", event.result.text)
    if event.error_kind:  # the model's text names it before the message: `not_found (ENOENT): `
        text = re.sub(rf"(?m)^(\[?){re.escape(event.error_kind)}(?: \([^)\n]*\))?: ", r"\1", text)
    subject = title.partition(" ")[2]  # such as the path in `Read src/a.py`, with which many errors begin
    body = _output_excerpt(text.removeprefix(f"{subject} ") if subject else text, unfold_hint)
    return wrapped(body, columns, hang=2) if event.error_kind else body  # a message is prose, an output is not


def job_end(job: BackgroundJob) -> list[Fragment]:
    """Return a line about a job's end; none after a dry run, which reports its changes, or after SIGTERM."""
    outcome = job.outcome
    if outcome is None or outcome.is_dry_run or outcome.exit_code in STOPPED_CODES:
        return []
    mark = ("error", "✗") if outcome.exit_code or outcome.timed_out else ("ok", "✓")
    command = escape_hidden(shorten(" ".join(job.command.split()), MAX_QUOTED_CHARS))
    return [mark, ("", f" {job.id} {outcome.text}"), ("muted", f" · {command} · {outcome.duration_s:,.0f} s\n")]


def duration(milliseconds: float) -> str:
    if milliseconds < 59_950:  # more would round to 60.0 s
        return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else ""
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def _output_excerpt(text: str, unfold_hint: str) -> list[Fragment]:
    """Return the last lines of an output, where most commands report their result."""
    if (lines := printable(text).strip("\n").split("\n")) == [""]:
        return []
    hidden = len(lines) - MAX_OUTPUT_LINES if len(lines) >= MIN_FOLDED_LINES else 0
    more = [("muted", f"  … {hidden:,} more lines{unfold_hint}\n")] if hidden else []
    cut = (f"{line[:MAX_LINE_CHARS]}…" if len(line) > MAX_LINE_CHARS else line for line in lines[hidden:])
    return [*more, *(("muted", f"  {line}\n") for line in cut)]


def _todo_body(event: ToolFinished, columns: int, unfold_hint: str) -> list[Fragment]:
    try:
        items = msgspec.convert(event.structured["items"], tuple[TodoItem, ...])
    except (msgspec.ValidationError, TypeError, KeyError):
        return _output_excerpt(event.result.text, unfold_hint)  # another version stored the items in another form
    return [fragment for line in todo_lines(items) for fragment in wrapped([*line, ("", "\n")], columns, hang=4)]


def todo_lines(items: Sequence[TodoItem]) -> list[list[Fragment]]:
    texts = ((item.status, " " + " ".join(printable(item.content).split())) for item in items)
    return [[("", "  "), _SIGNS[status], ("muted" if status == "completed" else "", text)] for status, text in texts]


# Why a claim is not verified: if no log entry is about it, and if some are. The keys are the outcome "unchanged" and
# topics; "checks" is for all topics that are not listed.
_REASONS = {
    "file": ("no change recorded", "it has changed since"),
    "command": ("not in the log", "its exit code is not known"),
    "checks": ("no run in the log", "not run in full since the last edit"),
    "unchanged": ("not all changes are recorded",) * 2,
}


def describe_claim(claim: Claim) -> Fragment:
    """Return a claim's subject (its words if it names no file or command), and how the log bears the claim out."""
    if claim.kind == "unchecked":  # the text says that no claim could be checked
        return "warning", claim.text
    topic, _, outcome = claim.kind.partition("_")  # such as "tests" and "pass"
    words = escape_hidden(shorten(" ".join((claim.subject or f"“{claim.text}”").split()), MAX_QUOTED_CHARS))
    subject = words if claim.subject or topic in ("file", "command") else topic
    if claim.verdict == "verified":
        outcome = re.sub(r"(?<=pass|fail)(?:es|s)?$", "ed", outcome)  # `passes` becomes `passed`
        return "ok", subject if subject.startswith("“") else f"{subject} {outcome}"  # quoted words have the outcome
    # A no-break space keeps the mark and the subject in one row.
    if claim.verdict == "refuted":
        file_state = "changed" if outcome == "unchanged" else f"not {outcome}"
        return "error", f"✗\xa0{subject}: {file_state if topic == 'file' else 'the log says otherwise'}"
    without_entries, with_entries = _REASONS.get(outcome) or _REASONS.get(topic) or _REASONS["checks"]
    return "warning", f"?\xa0{subject}: {with_entries if claim.entries else without_entries}"


def claim_lines(claims: Sequence[Claim], columns: int) -> list[Fragment]:
    """Return one row with as many verified claims as fit, and the other claims below it."""
    verified = [*dict.fromkeys(describe_claim(claim)[1] for claim in claims if claim.verdict == "verified")]
    others = dict.fromkeys(describe_claim(claim) for claim in claims if claim.verdict != "verified")
    candidates = [f"✓ {' · '.join(verified)}"] if verified else []
    candidates += [f"✓ {' · '.join(verified[:-hidden])} +{hidden}" for hidden in range(1, len(verified))]
    row = next((row for row in candidates if width(row) <= columns), candidates[-1] if candidates else "")
    doubts = [part for other in others for part in (("muted", " · "), other)][1:]
    line_end = [("", "\n")] if row and doubts else []
    return [*clipped([("ok", row)], columns), *line_end, *wrapped(doubts, columns, hang=2)]
