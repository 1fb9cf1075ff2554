"""Creates, replaces and edits files with the encoding and line ends they had; nothing is written by halves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.builtin.files import (
    decode_file,
    file_failure,
    naming_similar,
    read_bytes,
    require_certain_encoding,
    unknown_encoding_error,
    write_bytes,
)
from agentcli.tools.builtin.toolset import FileEdit, FileWrite
from agentcli.tools.summary import diff_counts
from agentcli.tools.text import Edit
from agentcli.tools.text.apply import apply_edits
from agentcli.tools.text.diff import bounded_diff, unified_diff, with_hunks
from agentcli.tools.text.encoding import BOM, DecodedText, decode, require_encodable
from agentcli.tools.text.encoding import shown as without_surrogates
from agentcli.tools.text.syntax import syntax_note
from agentcli.tools.tool import ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace


class PartialWrite(FileWrite, frozen=True):
    """A replacement of which only some hunks are applied."""

    hunks: tuple[int, ...] = ()


class PartialEdit(FileEdit, frozen=True):
    """An edit of which only some hunks are applied."""

    hunks: tuple[int, ...] = ()


class NewContent(Struct, frozen=True):
    """The new contents of a file: its bytes, the diff, and notes for the model."""

    content: bytes
    diff: str
    notes: tuple[str, ...]


async def run(given: FileWrite | FileEdit, context: ToolContext) -> ToolOutput:
    path = context.writable(given.path)
    return await naming_similar(asyncio.to_thread(_write, given, path, context), path, context.workspace)


async def preview(given: FileWrite | FileEdit, context: ToolContext) -> str:
    """Return the diff that the call would make.

    Raises:
        ToolError: If the file may not be replaced, or an edit does not apply.
    """
    path = context.writable(given.path)
    return await naming_similar(asyncio.to_thread(_preview, given, path, context), path, context.workspace)


async def narrow(given: FileWrite | FileEdit, context: ToolContext, hunks: Sequence[int]) -> FileWrite | FileEdit:
    if isinstance(given, FileWrite):
        return PartialWrite(given.path, given.content, hunks=tuple(hunks))
    return PartialEdit(given.path, edits=_edits_of(given), hunks=tuple(hunks))


def _preview(given: FileWrite | FileEdit, path: Path, context: ToolContext) -> str:
    before = _read_before(given, path, context.workspace) or b""
    change = _new_content(given, before, path, context.workspace)
    context.workspace.files.approve(context.call_id, path, before)
    return change.diff


def _write(given: FileWrite | FileEdit, path: Path, context: ToolContext) -> ToolOutput:
    files, shown = context.workspace.files, context.workspace.shown(path)
    found = _read_before(given, path, context.workspace)
    before = found or b""
    files.require_as_approved(context.call_id, path, before)
    change = _new_content(given, before, path, context.workspace)
    write_bytes(path, change.content, context.workspace)
    notes = [note for note in (*change.notes, syntax_note(path, change.content)) if note]
    diff = bounded_diff(change.diff)
    if isinstance(given, FileWrite):
        files.record(path, change.content)
        content = " ".join([f"{'Created' if found is None else 'Replaced'} {shown}.", *notes])
    else:
        files.record_change(path, before, change.content)
        content = "\n".join([diff.rstrip("\n"), *notes]) if notes else diff
    return ToolOutput(content, {"path": shown, "diff": diff}, diff_counts(diff))


def _read_before(given: FileWrite | FileEdit, path: Path, workspace: Workspace) -> bytes | None:
    """Return the bytes that would be changed; None for a new file. Raises `ToolError` if they may not be changed."""
    try:
        if isinstance(given, FileWrite) and not workspace.look(path).is_there:
            return None
    except OSError as error:  # the system does not say: no permission, or a name that is too long
        raise file_failure("look for", workspace.shown(path), error) from error
    content = read_bytes(path, workspace)
    if isinstance(given, FileWrite):
        workspace.files.require_current(path, content)
    return content


def _new_content(given: FileWrite | FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    if isinstance(given, FileWrite):
        return _replace_file(given, before, path, workspace)
    return _edit_file(given, before, path, workspace)


def _replace_file(given: FileWrite, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    require_encodable(given.content, "content")
    shown = workspace.shown(path)
    # A binary file is replaced by UTF-8.
    decoded = decode(before, workspace.settings.charset) or DecodedText("", "utf-8")
    text, kept = given.content, []
    if decoded.bom or decoded.encoding != "utf-8":
        text = text.removeprefix(BOM)
    if decoded.bom or (decoded.encoding != "utf-8" and not (before.isascii() and text.isascii())):
        kept.append(f"{decoded.encoding}{' with its byte order mark' if decoded.bom else ''}")
    all_ends, crlf_ends = decoded.text.count("\n"), decoded.text.count("\r\n")
    if 0 < crlf_ends == all_ends and "\n" in text:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        kept.append("CRLF line ends")
    require_certain_encoding(decoded, text, shown)
    notes = [f"[The file {'keeps' if before else 'has'} {' and '.join(kept)}.]"] if kept else []
    if 0 < crlf_ends < all_ends:
        notes.append("[It had LF and CRLF line ends; now it has those of content.]")
    if isinstance(given, PartialWrite):
        text = with_hunks(decoded.text, text, given.hunks)
    return NewContent(decoded.encoded(text), unified_diff(shown, decoded.text, text), tuple(notes))


def _edit_file(given: FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    shown, old, edits = workspace.shown(path), decode_file(before, path, workspace), _edits_of(given)
    if not old.is_certain and any(_has_characters_beyond(edit, without_surrogates(old.text)) for edit in edits):
        raise unknown_encoding_error(old, shown)
    applied = apply_edits(before, old, edits)
    content, new = applied.content, applied.decoded
    require_certain_encoding(old, new.text, shown)
    if old.bom != new.bom:
        old, new = old.with_mark_in_text(), new.with_mark_in_text()
    text = new.text
    if isinstance(given, PartialEdit):
        text = with_hunks(old.text, text, given.hunks)
        content = old.encoded(text)
    return NewContent(content, unified_diff(shown, old.text, text), applied.notes)


def _has_characters_beyond(edit: Edit, text: str) -> bool:
    return any(not char.isascii() and char not in text for char in {*edit.old_string, *edit.new_string})


def _edits_of(given: FileEdit) -> tuple[Edit, ...]:
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
