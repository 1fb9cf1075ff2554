"""Permission modes, and the notes about them for the model, whose system text never changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from agentcli.conversation.entries import Body, User, reminder
from agentcli.errors import UsageError

Mode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
MODES: tuple[Mode, ...] = get_args(Mode)
MODE_TEXTS: dict[Mode, tuple[str, str]] = {  # the name of each for the person, and what it means
    "default": ("ask before edits", "asks before edits and before anything outside the project"),
    "acceptEdits": ("accept edits", "edits files of the project without asking"),
    "plan": ("plan", "changes nothing, and ends with a plan"),
    "auto": ("auto", "asks only before what leaves the sandbox or the project"),
    "dontAsk": ("never ask", "never asks; denies instead"),
    "bypassPermissions": ("bypass permissions", "asks for nothing"),
}
_LIKE_MODES = {"auto_edit": "acceptEdits", "yolo": "bypassPermissions"}  # other agents' names

_PLAN_ON = reminder(
    "Plan mode is on: only look, change nothing. Once you know enough, end with your plan under a heading '# Plan'."
)
_PLAN_OFF = reminder("Plan mode is off: you may make changes now.")


def parse_mode(text: str) -> Mode:
    """Return the mode of that name. Raises `UsageError`, which lists the modes."""
    mode = _LIKE_MODES.get(text, text)
    if mode not in MODES:
        raise UsageError(f"No permission mode {text!r}; there is {', '.join(MODES)}.")
    return mode


def mode_notes(before: str, after: str) -> list[User]:
    """Return the notes for the model on a change of mode: only plan mode asks something of it."""
    if after == "plan":
        return [_PLAN_ON]
    return [_PLAN_OFF] if before == "plan" else []


def untold_mode(mode: Mode, known: Iterable[Body]) -> list[User]:
    """Return the note about the mode that the model needs, if the newest one it has seen says something else."""
    newest = next((body for body in reversed([*known]) if body in (_PLAN_ON, _PLAN_OFF)), _PLAN_OFF)
    due = _PLAN_ON if mode == "plan" else _PLAN_OFF
    return [] if newest == due else [due]
