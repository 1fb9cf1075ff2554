"""Creates a file, or replaces one that was read and has not changed since, with the encoding and line ends it had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.tools.builtin.arguments import FileWrite
from agentcli.tools.builtin.files import charset_of, is_there, read_bytes, require_certain_encoding, write_bytes
from agentcli.tools.summary import diff_counts
from agentcli.tools.text.diff import bounded_diff, unified_diff, with_hunks
from agentcli.tools.text.encoding import BOM, DecodedText, decode, require_encodable
from agentcli.tools.text.syntax import syntax_note
from agentcli.tools.tool import ToolContext, ToolOutput, Workspace


class PartialWrite(FileWrite, frozen=True):
    """A replacement of which only some hunks are made."""

    hunks: tuple[int, ...] = ()


async def run(given: FileWrite, context: ToolContext) -> ToolOutput:
    path = context.writable(given.path)
    return await asyncio.to_thread(_write, given, path, context)


async def preview(given: FileWrite, context: ToolContext) -> str:
    """The diff the call would make. Raises `ToolError` when the file may not be replaced."""
    path = context.writable(given.path)
    return await asyncio.to_thread(_preview, given, path, context)


async def narrow(given: FileWrite, context: ToolContext, hunks: Sequence[int]) -> FileWrite:
    return PartialWrite(given.path, given.content, hunks=tuple(hunks))


class _WrittenFile(Struct, frozen=True):
    """The new contents of a file: its bytes, the diff, and a note for the model."""

    content: bytes
    diff: str
    note: str


def _preview(given: FileWrite, path: Path, context: ToolContext) -> str:
    before = _before(path, context)
    change = _change(given, before or b"", path, context.workspace)
    context.workspace.files.approve(context.call_id, path, before or b"")
    return change.diff


def _write(given: FileWrite, path: Path, context: ToolContext) -> ToolOutput:
    files, shown = context.workspace.files, context.workspace.shown(path)
    before = _before(path, context)
    files.require_as_approved(context.call_id, path, before or b"")
    change = _change(given, before or b"", path, context.workspace)
    write_bytes(path, change.content, context.workspace)
    files.saw(path, change.content)
    done = f"{'Created' if before is None else 'Replaced'} {shown}.{change.note}"
    if note := syntax_note(path, change.content):
        done = f"{done} {note}"
    diff = bounded_diff(change.diff)
    return ToolOutput(done, {"path": shown, "diff": diff}, diff_counts(diff))


def _before(path: Path, context: ToolContext) -> bytes | None:
    """The bytes that would be replaced; None for a new file. Raises `ToolError` when they may not be."""
    if not is_there(path, context.workspace):
        return None
    content = read_bytes(path, context.workspace)
    context.workspace.files.require_current(path, content)
    return content


def _change(given: FileWrite, before: bytes, path: Path, workspace: Workspace) -> _WrittenFile:
    """Raises `ToolError` for a character that the file's encoding does not have."""
    require_encodable(given.content, "content")
    shown, charset = workspace.shown(path), charset_of(path, workspace, is_ascii=before.isascii())
    decoded = decode(before, charset) or DecodedText("", "utf-8")  # a binary file is replaced by UTF-8
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
    note = f" [The file {'keeps' if before else 'has'} {' and '.join(kept)}.]" if kept else ""
    if 0 < crlf_ends < all_ends:
        note += " [It had LF and CRLF line ends; now it has those of content.]"
    if isinstance(given, PartialWrite):
        text = with_hunks(decoded.text, text, given.hunks)
    return _WrittenFile(decoded.encoded(text), unified_diff(shown, decoded.text, text), note)
