"""Changes parts of a file; nothing is written unless every edit applies."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileEdit
from agentcli.tools.builtin.files import read_text, write_bytes
from agentcli.tools.summary import diff_counts
from agentcli.tools.text_edit import Edit, apply_edits, unified_diff
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: FileEdit, context: ToolContext) -> ToolOutput:
    edits = _edits(given)
    path = context.workspace.writable(given.path)
    return await asyncio.to_thread(_edit, edits, path, context)


def _edits(given: FileEdit) -> list[Edit]:
    if given.edits:
        return list(given.edits)
    if given.old_string is None or given.new_string is None:
        raise ToolError("file_edit needs old_string and new_string, or edits.", kind="invalid_parameters")
    return [Edit(given.old_string, given.new_string, given.replace_all)]


async def preview(given: FileEdit, context: ToolContext) -> str:
    """The diff the call would make. Raises `ToolError` when an edit does not apply."""
    path = context.workspace.writable(given.path)
    return (await asyncio.to_thread(_changed, _edits(given), path, context)).diff


class _Change(Struct, frozen=True):
    before: bytes
    content: bytes
    diff: str


def _changed(edits: list[Edit], path: Path, context: ToolContext) -> _Change:
    shown = context.workspace.shown(path)
    before, decoded = read_text(path, shown)
    after = apply_edits(decoded.text, edits)
    return _Change(before, decoded.encoded(after), unified_diff(shown, decoded.text, after))


def _edit(edits: list[Edit], path: Path, context: ToolContext) -> ToolOutput:
    shown = context.workspace.shown(path)
    change = _changed(edits, path, context)
    write_bytes(path, change.content, shown)
    context.workspace.files.replaced(path, change.before, change.content)
    return ToolOutput(change.diff, {"path": shown, "diff": change.diff}, diff_counts(change.diff))
