"""Translates calls into the names that hooks of other tools know, and their answers back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentcli.agent.permissions.rules import ALIASES

# The name of a tool where the field has several.
_MAIN = {
    "file_edit": "Edit", "file_list": "Glob", "create_subagent": "Task", "todo": "TodoWrite", "jobs": "BashOutput",
}  # fmt: skip
_FIELD_NAMES = {ours: theirs for theirs, ours in ALIASES.items()} | _MAIN
# Our arguments by the field's, for each tool.
_KEYS: dict[str, dict[str, str]] = {
    "file_read": {"file_path": "path"},
    "file_write": {"file_path": "path"},
    "file_edit": {"file_path": "path"},
    "bash": {"timeout": "timeout_ms", "run_in_background": "background"},
    "grep_search": {"-i": "ignore_case", "head_limit": "limit"},
    "todo": {"todos": "items"},
    "create_subagent": {"prompt": "task", "subagent_type": "agent"},
    "skill": {"skill": "name"},
}


def field_name(tool: str) -> str:
    """`Edit` for file_edit; a tool that the field does not know keeps its name."""
    return _FIELD_NAMES.get(tool, tool)


def names_of(tool: str) -> tuple[str, ...]:
    """All names that a matcher may use for a tool."""
    return (tool, *(theirs for theirs, ours in ALIASES.items() if ours == tool))


def field_input(tool: str, input: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """The arguments under the field's names beside ours; the path of a file is absolute, as there."""
    shown = dict(input)
    for theirs, ours in _KEYS.get(tool, {}).items():
        if ours in input:
            value = input[ours]
            shown[theirs] = str(cwd / value) if theirs == "file_path" and isinstance(value, str) else value
    return shown


def own_input(tool: str, updated: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a hook gave in place of those it was sent, under our names."""
    given = dict(updated)
    for theirs, ours in _KEYS.get(tool, {}).items():
        value = given.pop(theirs, None)
        if value is not None and (ours not in given or (value != sent.get(theirs) and given[ours] == sent.get(ours))):
            given[ours] = value
    return given
