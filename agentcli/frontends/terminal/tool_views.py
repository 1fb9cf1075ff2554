"""What a finished call shows: a summary line, then what of its output is worth a look; the rest stays folded."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from agentcli.agent.events import ToolFinished
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.diff import diff_fragments
from agentcli.frontends.terminal.fragments import Fragment
from agentcli.frontends.terminal.text_width import clipped, width

DIFF_LINES = 30
OUTPUT_LINES = 5
LONGEST_LINE = 400  # characters of an output line that are shown folded


class Folded(Struct, frozen=True):
    """Something shown in part: its title and the whole of it."""

    title: str
    text: str
    is_diff: bool = False


class View(Struct, frozen=True):
    """`fragments` go on the screen; `folded` is what unfolding shows."""

    fragments: list[Fragment]
    folded: Folded | None = None


def tool_view(
    event: ToolFinished, title: str, *, columns: int, diff_was_shown: bool = False, unfold_key: str = "Ctrl-O"
) -> View:
    """The view of a finished call; `unfold_key` shows the whole of what is cut, where there is one."""
    head = summary_line(event, title, columns)
    diff, rest = _diff_of(event), f" ({unfold_key} shows all)" if unfold_key else ""
    if event.result.is_error:
        body = _output(event.result.text, rest)
    elif diff and diff_was_shown:
        body = []
    else:
        body = _BODIES.get(event.name, _nothing)(event, columns, rest)
    whole = printable(diff or event.result.text)
    is_cut = not body or any("more line" in text for role, text in body if role == "muted")
    folded = Folded(title, whole, is_diff=bool(diff)) if whole.strip() and is_cut else None
    return View([*head, *body], folded)


def summary_line(event: ToolFinished, title: str, columns: int) -> list[Fragment]:
    """`✓ Read a.py · 12 lines · 3 ms`; a long title is cut so that the outcome stays on its line."""
    mark: Fragment = ("error", "✗") if event.result.is_error else ("ok", "✓")
    took = duration(event.duration_ms) if event.duration_ms else ""  # a call that did not run took no time
    parts = [" ".join(printable(event.summary).split()), took]
    outcome = "".join(f" · {part}" for part in parts if part)
    room = max(12, columns - 2 - width(outcome))
    return [mark, ("", " "), *clipped([("", title)], room), ("muted", outcome + "\n")]


def duration(milliseconds: float) -> str:
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(round(milliseconds / 1000), 60)
    return f"{minutes} min {seconds} s"


def _nothing(event: ToolFinished, columns: int, rest: str) -> list[Fragment]:
    return []


def _first_lines(event: ToolFinished, columns: int, rest: str) -> list[Fragment]:
    output = event.structured.get("output") if isinstance(event.structured, dict) else None
    return _output(output if isinstance(output, str) else event.result.text, rest)


def _output(text: str, rest: str) -> list[Fragment]:
    """The last lines, since that is where a command says how it ended."""
    lines = printable(text).strip("\n").split("\n")
    if lines == [""]:
        return []
    hidden = len(lines) - OUTPUT_LINES
    shown: list[Fragment] = []
    if hidden > 0:
        lines = lines[-OUTPUT_LINES:]
        shown.append(("muted", f"  … {hidden:,} more line{'s' if hidden > 1 else ''}{rest}\n"))
    return [*shown, *(("muted", f"  {_cut(line)}\n") for line in lines)]


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"


def _diff_of(event: ToolFinished) -> str:
    diff = event.structured.get("diff") if isinstance(event.structured, dict) else None
    return diff if isinstance(diff, str) else ""


def _diff(event: ToolFinished, columns: int, rest: str) -> list[Fragment]:
    return diff_fragments(_diff_of(event), width=columns, most_lines=DIFF_LINES, rest=rest)


def _todo(event: ToolFinished, columns: int, rest: str) -> list[Fragment]:
    return [("muted", f"  {line}\n") for line in printable(event.result.text).strip().split("\n")[:20]]


_BODIES: dict[str, Callable[[ToolFinished, int, str], list[Fragment]]] = {
    "bash": _first_lines,
    "file_edit": _diff,
    "file_write": _diff,
    "todo": _todo,
}
