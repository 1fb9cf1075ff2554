"""Shows a finished call: a summary line, then the part of its output worth a look; the rest stays folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
from msgspec import Struct

from agentcli.agent.events import ToolFinished
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment, clipped, width, wrapped
from agentcli.tools.builtin.arguments import TodoItem

DIFF_LINES = 30
OUTPUT_LINES = 5
LONGEST_LINE = 400  # characters of an output line that are shown folded

# Texts that the call's own line says too.
_SAID_ABOVE = re.compile(
    r"^(?:\[exit code \d+\]|\[interrupted by the user[^\n]*|Not run: interrupted by the user\.)\n?\Z", re.MULTILINE
)

_SIGNS = {"completed": ("ok", "✓"), "in_progress": ("accent", "▸"), "pending": ("muted", "○")}


class FoldedText(Struct, frozen=True):
    """Something shown in part: its title and the whole of it."""

    title: str
    text: str
    is_diff: bool = False


class ToolView(Struct, frozen=True):
    """`fragments` go on the screen; `folded` is the whole for unfolding."""

    fragments: list[Fragment]
    folded: FoldedText | None = None


def tool_view(
    event: ToolFinished, title: str, *, columns: int, diff_was_shown: bool = False, unfold_key: str = "Ctrl-O"
) -> ToolView:
    """The view of a finished call; `unfold_key`, where there is one, shows the whole of a cut text."""
    structured = event.structured if isinstance(event.structured, dict) else {}
    diff, rest = structured.get("diff"), f" ({unfold_key} shows all)" if unfold_key else ""
    diff = diff if isinstance(diff, str) else ""
    if event.answer.startswith("declined"):  # which the line says
        return ToolView(_failed_line(event, title, columns))
    if event.result.is_error:
        head, body = _failed(event, title, columns, rest)
    else:
        # A long title is cut so that the outcome stays on its line.
        answer, own_row = _answer(event, columns)
        outcome = _outcome(event.summary, "/tasks" if _is_started_job(event) else "", answer, event.duration_ms)
        room = max(12, columns - 2 - width(outcome))
        head = [("ok", "✓"), ("", " "), *clipped([("", title)], room), ("muted", outcome + "\n"), *own_row]
        body = [] if diff and diff_was_shown else _body(event, diff, columns, rest)
    whole = printable(diff or event.result.text)
    is_cut = not body or any("more line" in text for role, text in body if role == "muted")
    folded = FoldedText(title, whole, is_diff=bool(diff)) if whole.strip() and is_cut else None
    return ToolView([*head, *body], folded)


def _outcome(*parts: str | float) -> str:
    texts = (duration(part) if isinstance(part, float | int) else " ".join(printable(part).split()) for part in parts)
    return "".join(f" · {text}" for text in texts if text)


def _answer(event: ToolFinished, columns: int) -> tuple[str, list[Fragment]]:
    """The person's answer to the call: beside its outcome, or, when long, in rows of its own."""
    answer = " ".join(printable(event.answer).split())
    if 2 * width(answer) <= columns:
        return answer, []
    return "", wrapped([("muted", f"  {answer}\n")], columns, hang=2)


def _failed(event: ToolFinished, title: str, columns: int, rest: str) -> tuple[list[Fragment], list[Fragment]]:
    """The error stands below the line, once."""
    text = _SAID_ABOVE.sub("", event.result.text)
    said = _error_kind(event.error_kind).sub(r"\1", text) if event.error_kind else text
    subject = title.partition(" ")[2]
    body = _output(said.removeprefix(f"{subject} ") if subject else said, rest)
    if event.error_kind:
        body = wrapped(body, columns, hang=2)
    return _failed_line(event, title, columns), body


def _failed_line(event: ToolFinished, title: str, columns: int) -> list[Fragment]:
    """The target is never cut."""
    answer, own_row = _answer(event, columns)
    is_told = bool(event.error_kind) or event.answer.startswith("declined")
    outcome = _outcome("" if is_told else event.summary, answer, event.duration_ms)
    head = [("error", "✗"), ("", f" {' '.join(title.split())}"), ("muted", outcome), ("", "\n")]
    return [*wrapped(head, columns, hang=2), *own_row]


def duration(milliseconds: float) -> str:
    """From a second on; less is nothing to speak of."""
    if milliseconds < 1000:
        return ""
    if milliseconds < 59_950:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def _is_started_job(event: ToolFinished) -> bool:
    return isinstance(event.structured, dict) and "job_id" in event.structured and "exit_code" not in event.structured


def _body(event: ToolFinished, diff: str, columns: int, rest: str) -> list[Fragment]:
    match event.name:
        case "bash":
            output = event.structured.get("output") if isinstance(event.structured, dict) else None
            if isinstance(output, str):
                return _output(output, rest)
            return [] if _is_started_job(event) else _output(event.result.text, rest)
        case "file_edit" | "file_write":
            return diff_fragments(diff, width=columns, max_lines=DIFF_LINES, rest=rest)
        case "todo":
            try:
                items = msgspec.convert(event.structured["items"], tuple[TodoItem, ...])
            except (msgspec.ValidationError, TypeError, KeyError):
                return _output(event.result.text, rest)  # an older or a newer version's
            lines = (wrapped([*line, ("", "\n")], columns, hang=4) for line in todo_lines(items))
            return [fragment for line in lines for fragment in line]
        case _:
            return []


def _output(text: str, rest: str) -> list[Fragment]:
    """The last lines: there a command says how it ended."""
    lines = printable(text).strip("\n").split("\n")
    if lines == [""]:
        return []
    hidden = len(lines) - OUTPUT_LINES
    shown: list[Fragment] = []
    if hidden > 0:
        lines = lines[-OUTPUT_LINES:]
        shown.append(("muted", f"  … {hidden:,} more line{'s' if hidden > 1 else ''}{rest}\n"))
    cut = (line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…" for line in lines)
    return [*shown, *(("muted", f"  {line}\n") for line in cut)]


def todo_lines(items: Sequence[TodoItem]) -> list[list[Fragment]]:
    """A line for each item, indented by two columns, without line ends."""
    texts = ((item, " " + " ".join(printable(item.content).split())) for item in items)
    roles = {"completed": "muted"}
    return [[("", "  "), _SIGNS[item.status], (roles.get(item.status, ""), text)] for item, text in texts]


@lru_cache(maxsize=16)
def _error_kind(kind: str) -> re.Pattern[str]:
    """Before an error's message, for the model: `not_found (ENOENT): `."""
    return re.compile(rf"^(\[?){re.escape(kind)}(?: \([^)\n]*\))?: ", re.MULTILINE)
