"""Offers a session's settings as modes and config options: permission mode, model, thought level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from agentcli.agent.ops import Op, SetEffort, SetMode
from agentcli.agent.permissions.modes import MODES, Mode, parse_mode
from agentcli.agent.snapshot import SessionSnapshot
from agentcli.errors import UsageError
from agentcli.llm.provider import Effort

_MODES: dict[Mode, tuple[str, str]] = {
    "default": ("Ask", "asks before edits, and about what commands changed"),
    "acceptEdits": ("Accept edits", "edits in the project are not asked about"),
    "plan": ("Plan", "changes nothing, and ends with a plan"),
    "auto": ("Auto", "asks for nothing that stays inside the sandbox and the project"),
    "dontAsk": ("Don't ask", "what would ask is denied"),
    "bypassPermissions": ("Bypass permissions", "asks for nothing"),
}
_EFFORTS: tuple[Effort, ...] = get_args(Effort)
AS_SET = "default"  # the effort of the settings


def modes(shown: SessionSnapshot) -> dict[str, Any]:
    rows = [{"id": mode, "name": _MODES[mode][0], "description": _MODES[mode][1]} for mode in MODES]
    return {"currentModeId": shown.mode, "availableModes": rows}


def config_options(shown: SessionSnapshot, models: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """`models` are names and what is known of each; the one in use need not be among them."""
    if shown.model not in (name for name, _ in models):
        models = [(shown.model, ""), *models]
    efforts = [(AS_SET, "Default", "as the settings or the model have it")]
    efforts += [(effort, effort.capitalize(), "") for effort in _EFFORTS]
    return [
        _select("mode", "Permission mode", "mode", shown.mode, [(mode, *_MODES[mode]) for mode in MODES]),
        _select("model", "Model", "model", shown.model, [(name, name, detail) for name, detail in models]),
        _select("effort", "Thinking", "thought_level", shown.effort or AS_SET, efforts),
    ]


def _select(id: str, name: str, category: str, current: str, options: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    rows = [
        {"value": value, "name": label, **({"description": detail} if detail else {})}
        for value, label, detail in options
    ]
    return {
        "id": id,
        "name": name,
        "category": category,
        "type": "select",
        "currentValue": current,
        "options": rows,
    }


def setting(id: str, value: str) -> Op:
    """The operation for another mode or thought level. Raises `UsageError`."""
    match id:
        case "mode":
            return SetMode(parse_mode(value))
        case "effort":
            effort = next((effort for effort in _EFFORTS if effort == value), None)
            if effort is None and value != AS_SET:
                raise UsageError(f"No thought level {value!r}; there is {', '.join((AS_SET, *_EFFORTS))}.")
            return SetEffort(effort)
        case _:
            raise UsageError(f"There is no option {id!r}; there is mode, model, effort.")
