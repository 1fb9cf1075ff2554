"""Translates calls between agentcli's names of tools and arguments, which the log uses, and those of other agents."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentcli.agent.permissions.rules import ALIASES

# Other agents' names of our tools, by our names. A tool that they do not have keeps our name.
CLAUDE_CODE_NAMES = {ours: theirs for theirs, ours in ALIASES.items()} | {
    "file_edit": "Edit",
    "file_list": "Glob",
    "create_subagent": "Task",
    "todo": "TodoWrite",
    "jobs": "BashOutput",
}
# For each tool: other agents' names of its arguments, and ours.
ARGUMENTS: dict[str, dict[str, str]] = {
    **{tool: {"file_path": "path"} for tool in ("file_read", "file_write", "file_edit")},
    "bash": {"timeout": "timeout_ms", "run_in_background": "background"},
    "grep_search": {"-i": "ignore_case", "head_limit": "limit"},
    "todo": {"todos": "items"},
    "create_subagent": {"prompt": "task", "subagent_type": "agent"},
    "skill": {"skill": "name"},
}


def input_with_both_names(tool: str, input: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """Return the arguments under our names and under those of other agents, whose `file_path` is absolute."""
    both = dict(input)
    for theirs, ours in ARGUMENTS.get(tool, {}).items():
        if ours in input:
            value = input[ours]
            both[theirs] = str(cwd / value) if theirs == "file_path" and isinstance(value, str) else value
    return both


def own_input(tool: str, updated: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hook's `updated` arguments under our names. They were `sent` to it under both names of each.

    If the hook has changed the value under one name only, that value applies.
    """
    own = dict(updated)
    for theirs, ours in ARGUMENTS.get(tool, {}).items():
        value = own.pop(theirs, None)
        has_changed_only_theirs = value != sent.get(theirs) and own.get(ours) == sent.get(ours)
        if value is not None and (ours not in own or has_changed_only_theirs):
            own[ours] = value
    return own


def claude_code_call(tool: str, input: Mapping[str, Any], cwd: Path) -> tuple[str, dict[str, Any]]:
    """Return a call with only the names of other agents."""
    if tool == "ask_user":  # its arguments have another form there
        return CLAUDE_CODE_NAMES[tool], claude_code_question(str(input.get("question", "")), input.get("options") or ())
    own_names = ARGUMENTS.get(tool, {}).values()
    both = input_with_both_names(tool, input, cwd)
    return CLAUDE_CODE_NAMES.get(tool, tool), {name: value for name, value in both.items() if name not in own_names}


def claude_code_question(question: str, options: Sequence[str]) -> dict[str, Any]:
    """Return a question to the person as the arguments of `AskUserQuestion`."""
    choices = [{"label": option, "description": ""} for option in options]
    return {"questions": [{"question": question, "header": "", "options": choices, "multiSelect": False}]}
