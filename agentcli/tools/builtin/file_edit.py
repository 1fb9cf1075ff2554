"""Changes parts of a file; nothing is written unless every edit applies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileEdit
from agentcli.tools.builtin.files import read_bytes, read_text, require_same, write_bytes
from agentcli.tools.summary import diff_counts
from agentcli.tools.text_edit import Edit, apply_edits, unified_diff, with_hunks
from agentcli.tools.tool import ToolContext, ToolOutput


class SomeHunks(FileEdit, frozen=True):
    """An edit of which only some hunks are made, in the file as it was when a person chose them."""

    hunks: tuple[int, ...] = ()
    seen: bytes = b""


async def run(given: FileEdit, context: ToolContext) -> ToolOutput:
    path = context.workspace.writable(given.path)
    return await asyncio.to_thread(_edit, given, path, context)


def _edits(given: FileEdit) -> list[Edit]:
    if given.edits:
        return list(given.edits)
    if given.old_string is None or given.new_string is None:
        raise ToolError("file_edit needs old_string and new_string, or edits.", kind="invalid_parameters")
    return [Edit(given.old_string, given.new_string, given.replace_all)]


async def preview(given: FileEdit, context: ToolContext) -> str:
    """The diff the call would make. Raises `ToolError` when an edit does not apply."""
    path = context.workspace.writable(given.path)
    return (await asyncio.to_thread(_changed, given, path, context)).diff


async def narrow(given: FileEdit, context: ToolContext, hunks: Sequence[int]) -> FileEdit:
    path = context.workspace.writable(given.path)
    seen = await asyncio.to_thread(read_bytes, path, context.workspace)
    return SomeHunks(given.path, edits=tuple(_edits(given)), hunks=tuple(hunks), seen=seen)


class _Change(Struct, frozen=True):
    before: bytes
    content: bytes
    diff: str


def _changed(given: FileEdit, path: Path, context: ToolContext) -> _Change:
    shown = context.workspace.shown(path)
    before, decoded = read_text(path, context.workspace)
    after = apply_edits(decoded.text, _edits(given))
    if isinstance(given, SomeHunks):
        require_same(before, given.seen, shown)
        after = with_hunks(decoded.text, after, given.hunks)
    return _Change(before, decoded.encoded(after), unified_diff(shown, decoded.text, after))


def _edit(given: FileEdit, path: Path, context: ToolContext) -> ToolOutput:
    shown = context.workspace.shown(path)
    change = _changed(given, path, context)
    write_bytes(path, change.content, context.workspace)
    context.workspace.files.replaced(path, change.before, change.content)
    return ToolOutput(change.diff, {"path": shown, "diff": change.diff}, diff_counts(change.diff))
