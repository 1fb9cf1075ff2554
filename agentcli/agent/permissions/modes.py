"""Permission modes, and the decision on a call."""

from pathlib import Path
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

from agentcli.errors import UsageError

Mode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]
MODES: tuple[Mode, ...] = get_args(Mode)


class ModeText(NamedTuple):
    name: str
    meaning: str


MODE_TEXTS: dict[Mode, ModeText] = {
    "default": ModeText("ask before edits", "asks before edits and before anything outside the project"),
    "acceptEdits": ModeText("accept edits", "edits project files without asking"),
    "plan": ModeText("plan", "changes nothing and presents a plan"),
    "auto": ModeText("auto", "asks only before actions outside the sandbox or the project"),
    "dontAsk": ModeText("never ask", "never asks; denies instead"),
    "bypassPermissions": ModeText("bypass permissions", "never asks; allows nearly everything"),
}
_LIKE_MODES = {"manual": "default", "auto_edit": "acceptEdits", "yolo": "bypassPermissions"}  # names in other agents


def parse_mode(text: str) -> Mode:
    """Return the mode of that name. Raises `UsageError`, which lists the modes."""
    mode = _LIKE_MODES.get(text, text)
    if mode not in MODES:
        raise UsageError(f"Unknown permission mode {text!r}. Choose one of {', '.join(MODES)}.")
    return mode


class PolicyDecision(Struct, frozen=True, kw_only=True):
    """The decision of the rules and the mode on a call, with its reason."""

    outcome: Literal["allow", "dry_run", "ask", "deny"]
    reason: str
    includes_grants: bool = True  # an allowed call gets the files and hosts that it needs and the sandbox would block
    only_reads: bool = False  # the sandbox keeps the command from changing anything
    runs_outside: bool = False  # a yes runs the command outside the sandbox
    exposed_files: tuple[Path, ...] = ()  # secret files that a yes lets commands read
