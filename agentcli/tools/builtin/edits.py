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
    syntax_note,
    unknown_encoding_error,
    write_bytes,
)
from agentcli.tools.builtin.toolset import FileEdit, FileWrite
from agentcli.tools.observation import diff_counts
from agentcli.tools.text import Edit
from agentcli.tools.text.apply import apply_edits
from agentcli.tools.text.diff import bounded_diff, unified_diff, with_hunks
from agentcli.tools.text.encoding import BOM, DecodedText, decode, require_encodable
from agentcli.tools.text.encoding import shown as without_surrogates
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


async def run(arguments: FileWrite | FileEdit, context: ToolContext) -> ToolOutput:
    path = context.writable(arguments.path)
    return await naming_similar(asyncio.to_thread(_write, arguments, path, context), path, context.workspace)


async def preview(arguments: FileWrite | FileEdit, context: ToolContext) -> str:
    """Return the diff that the call would make.

    Raises:
        ToolError: If the file may not be replaced, or an edit does not apply.
    """
    path = context.writable(arguments.path)
    return await naming_similar(asyncio.to_thread(_preview, arguments, path, context), path, context.workspace)


async def narrow(arguments: FileWrite | FileEdit, context: ToolContext, hunks: Sequence[int]) -> FileWrite | FileEdit:
    if isinstance(arguments, FileWrite):
        return PartialWrite(arguments.path, arguments.content, hunks=tuple(hunks))
    return PartialEdit(arguments.path, edits=_edits_of(arguments), hunks=tuple(hunks))


def _preview(arguments: FileWrite | FileEdit, path: Path, context: ToolContext) -> str:
    before = _read_before(arguments, path, context.workspace) or b""
    change = _new_content(arguments, before, path, context.workspace)
    context.workspace.files.approve(context.call_id, path, before)
    return change.diff


def _write(arguments: FileWrite | FileEdit, path: Path, context: ToolContext) -> ToolOutput:
    files, shown = context.workspace.files, context.workspace.shown(path)
    found = _read_before(arguments, path, context.workspace)
    before = found or b""
    files.require_as_approved(context.call_id, path, before)
    change = _new_content(arguments, before, path, context.workspace)
    write_bytes(path, change.content, context.workspace)
    notes = [note for note in (*change.notes, syntax_note(path, change.content)) if note]
    diff = bounded_diff(change.diff)
    if isinstance(arguments, FileWrite):
        files.record(path, change.content)
        content = " ".join([f"{'Created' if found is None else 'Replaced'} {shown}.", *notes])
    else:
        files.record_change(path, before, change.content)
        content = "\n".join([diff.rstrip("\n"), *notes]) if notes else diff
    return ToolOutput(content, {"path": shown, "diff": diff}, diff_counts(diff))


def _read_before(arguments: FileWrite | FileEdit, path: Path, workspace: Workspace) -> bytes | None:
    """Return the bytes that would be changed; None for a new file. Raises `ToolError` if they may not be changed."""
    try:
        if isinstance(arguments, FileWrite) and not workspace.look(path).is_there:
            return None
    except OSError as error:  # the system does not say: no permission, or a name that is too long
        raise file_failure("look for", workspace.shown(path), error) from error
    content = read_bytes(path, workspace)
    if isinstance(arguments, FileWrite):
        workspace.files.require_current(path, content)
    return content


def _new_content(arguments: FileWrite | FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    if isinstance(arguments, FileWrite):
        return _replace_file(arguments, before, path, workspace)
    return _edit_file(arguments, before, path, workspace)


def _replace_file(arguments: FileWrite, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    require_encodable(arguments.content, "content")
    shown = workspace.shown(path)
    # A binary file is replaced by UTF-8.
    decoded = decode(before, workspace.settings.charset) or DecodedText("", "utf-8")
    text, preserved = arguments.content, []
    if decoded.bom or decoded.encoding != "utf-8":
        text = text.removeprefix(BOM)
    if decoded.bom or (decoded.encoding != "utf-8" and not (before.isascii() and text.isascii())):
        preserved.append(f"{decoded.encoding}{' with its byte order mark' if decoded.bom else ''}")
    all_ends, crlf_ends = decoded.text.count("\n"), decoded.text.count("\r\n")
    if 0 < crlf_ends == all_ends and "\n" in text:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        preserved.append("CRLF line ends")
    require_certain_encoding(decoded, text, shown)
    notes = [f"[The file {'keeps' if before else 'has'} {' and '.join(preserved)}.]"] if preserved else []
    if 0 < crlf_ends < all_ends:
        notes.append("[It had LF and CRLF line ends; now it has those of content.]")
    if isinstance(arguments, PartialWrite):
        text = with_hunks(decoded.text, text, arguments.hunks)
    return NewContent(decoded.encoded(text), unified_diff(shown, decoded.text, text), tuple(notes))


def _edit_file(arguments: FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    shown, old, edits = workspace.shown(path), decode_file(before, path, workspace), _edits_of(arguments)
    if not old.is_certain and any(_has_characters_beyond(edit, without_surrogates(old.text)) for edit in edits):
        raise unknown_encoding_error(old, shown)
    applied = apply_edits(before, old, edits)
    content, new = applied.content, applied.decoded
    require_certain_encoding(old, new.text, shown)
    if old.bom != new.bom:
        old, new = old.with_mark_in_text(), new.with_mark_in_text()
    text = new.text
    if isinstance(arguments, PartialEdit):
        text = with_hunks(old.text, text, arguments.hunks)
        content = old.encoded(text)
    return NewContent(content, unified_diff(shown, old.text, text), applied.notes)


def _has_characters_beyond(edit: Edit, text: str) -> bool:
    return any(not char.isascii() and char not in text for char in {*edit.old_string, *edit.new_string})


def _edits_of(arguments: FileEdit) -> tuple[Edit, ...]:
    if arguments.edits:
        if arguments.old_string or arguments.new_string:
            raise ToolError(
                "file_edit takes old_string and new_string, or edits, not both: put this one among edits.",
                kind="invalid_parameters",
            )
        return arguments.edits
    if arguments.old_string is None or arguments.new_string is None:
        raise ToolError("file_edit needs old_string and new_string, or edits.", kind="invalid_parameters")
    return (Edit(arguments.old_string, arguments.new_string, arguments.replace_all),)
