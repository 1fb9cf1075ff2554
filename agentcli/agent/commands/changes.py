"""Finds what a session has changed in files: its edits taken together, against the state before the first of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from agentcli.agent.commands.command import FileDiff
from agentcli.agent.permissions.judge import analysis_of
from agentcli.conversation.entries import Assistant, Entry, Result
from agentcli.errors import ToolError
from agentcli.llm.messages import ToolUse
from agentcli.settings.files import read_small_file
from agentcli.tools.builtin.arguments import Bash
from agentcli.tools.builtin.files import charset_of
from agentcli.tools.text.diff import diff_hunks, text_before, unified_diff
from agentcli.tools.text.encoding import decode
from agentcli.tools.tool import Workspace

LARGEST_COMPARED = 10_000_000  # bytes of a file


class Edits(Struct, frozen=True):
    """What the log tells: the diffs of each file in their order, and the commands that may have changed files too."""

    diffs: dict[str, list[str]]
    commands: int


def edits_in(entries: Iterable[Entry], workspace: Workspace) -> Edits:
    """Also those of prompts that were taken back: files stay as they are."""
    diffs: dict[str, list[str]] = {}
    uses: dict[str, ToolUse] = {}
    commands = 0
    for entry in entries:
        match entry.body:
            case Assistant(content):
                uses |= {block.id: block for block in content if isinstance(block, ToolUse)}
            case Result(_, "bash") as result:
                use = uses.get(result.result.tool_use_id)
                commands += use is not None and _may_change(use, workspace)
            case Result(structured={"path": str(path), "diff": str(diff)}):
                diffs.setdefault(path, []).append(diff)
            case _:
                pass
    return Edits(diffs, commands)


def _may_change(use: ToolUse, workspace: Workspace) -> bool:
    command = use.input.get("command")
    try:
        return not isinstance(command, str) or analysis_of(Bash(command), workspace).verdict != "allow"
    except ToolError:
        return True


def net_changes(edits: Edits, workspace: Workspace) -> tuple[list[FileDiff], list[str]]:
    """The diff of each file, and the files whose single edits it shows, as something else has changed them since."""
    files: list[FileDiff] = []
    apart: list[str] = []
    for path, diffs in edits.diffs.items():
        after = before = _text(workspace.real_path(path), workspace)
        for diff in reversed(diffs):
            before = None if before is None else text_before(diff, before)
        if after is None or before is None:
            hunks = (hunk for diff in diffs[1:] for hunk in diff_hunks(diff))
            files.append(FileDiff(path, "".join([diffs[0], *hunks])))
            apart.append(path)
        else:
            files.append(FileDiff(path, unified_diff(path, before, after)))
    return [file for file in files if file.diff], apart


def _text(file: Path, workspace: Workspace) -> str | None:
    """None where there is no such file any more, or no text."""
    try:
        content = read_small_file(file, most=LARGEST_COMPARED)
    except OSError:
        return None
    decoded = decode(content, charset_of(file, workspace, is_ascii=content.isascii()))
    return decoded.text if decoded else None
