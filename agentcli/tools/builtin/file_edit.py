"""Changes parts of a file; nothing is written unless every edit applies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileEdit
from agentcli.tools.builtin.files import (
    as_text,
    naming_similar,
    read_bytes,
    require_certain_encoding,
    unknown_encoding,
    write_bytes,
)
from agentcli.tools.summary import diff_counts
from agentcli.tools.text.apply import apply_edits
from agentcli.tools.text.diff import bounded_diff, unified_diff, with_hunks
from agentcli.tools.text.edit import Edit
from agentcli.tools.text.encoding import shown as without_surrogates
from agentcli.tools.text.syntax import syntax_note
from agentcli.tools.tool import ToolContext, ToolOutput, Workspace


class PartialEdit(FileEdit, frozen=True):
    """An edit of which only some hunks are made."""

    hunks: tuple[int, ...] = ()


async def run(given: FileEdit, context: ToolContext) -> ToolOutput:
    path = context.writable(given.path)
    return await naming_similar(asyncio.to_thread(_edit, given, path, context), path, context.workspace)


async def preview(given: FileEdit, context: ToolContext) -> str:
    """The diff the call would make. Raises `ToolError` when an edit does not apply."""
    path = context.writable(given.path)
    return await naming_similar(asyncio.to_thread(_preview, given, path, context), path, context.workspace)


async def narrow(given: FileEdit, context: ToolContext, hunks: Sequence[int]) -> FileEdit:
    return PartialEdit(given.path, edits=_edits(given), hunks=tuple(hunks))


class _EditedFile(Struct, frozen=True):
    """The new contents of a file: its bytes, the diff, and notes for the model."""

    content: bytes
    diff: str
    notes: tuple[str, ...]


def _change(given: FileEdit, before: bytes, path: Path, workspace: Workspace) -> _EditedFile:
    """Raises `ToolError` when an edit does not apply to these bytes."""
    shown, old, edits = workspace.shown(path), as_text(before, path, workspace), _edits(given)
    if not old.is_certain and any(_has_other_characters(edit, without_surrogates(old.text)) for edit in edits):
        raise unknown_encoding(old, shown)
    applied = apply_edits(before, old, edits)
    content, new = applied.content, applied.decoded
    require_certain_encoding(old, new.text, shown)
    if old.bom != new.bom:
        old, new = old.with_mark_in_text(), new.with_mark_in_text()
    text = new.text
    if isinstance(given, PartialEdit):
        text = with_hunks(old.text, text, given.hunks)
        content = old.encoded(text)
    return _EditedFile(content, unified_diff(shown, old.text, text), applied.notes)


def _has_other_characters(edit: Edit, text: str) -> bool:
    """True for characters beyond ASCII that the text does not have."""
    return any(not char.isascii() and char not in text for char in {*edit.old_string, *edit.new_string})


def _edits(given: FileEdit) -> tuple[Edit, ...]:
    if given.edits:
        if given.old_string or given.new_string:
            raise ToolError(
                "file_edit takes old_string and new_string, or edits, not both: put this one among edits.",
                kind="invalid_parameters",
            )
        return given.edits
    if given.old_string is None or given.new_string is None:
        raise ToolError("file_edit needs old_string and new_string, or edits.", kind="invalid_parameters")
    return (Edit(given.old_string, given.new_string, given.replace_all),)


def _preview(given: FileEdit, path: Path, context: ToolContext) -> str:
    before = read_bytes(path, context.workspace)
    change = _change(given, before, path, context.workspace)
    context.workspace.files.approve(context.call_id, path, before)
    return change.diff


def _edit(given: FileEdit, path: Path, context: ToolContext) -> ToolOutput:
    files, shown = context.workspace.files, context.workspace.shown(path)
    before = read_bytes(path, context.workspace)
    files.require_as_approved(context.call_id, path, before)
    change = _change(given, before, path, context.workspace)
    write_bytes(path, change.content, context.workspace)
    files.replaced(path, before, change.content)
    notes = [note for note in (*change.notes, syntax_note(path, change.content)) if note]
    diff = bounded_diff(change.diff)
    content = "\n".join([diff.rstrip("\n"), *notes]) if notes else diff
    return ToolOutput(content, {"path": shown, "diff": diff}, diff_counts(diff))
