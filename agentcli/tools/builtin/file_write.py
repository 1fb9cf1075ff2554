"""Creates a file, or replaces one that was read and has not changed since."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agentcli.tools.builtin.arguments import FileWrite
from agentcli.tools.builtin.files import is_there, read_bytes, require_same, write_bytes
from agentcli.tools.summary import diff_counts
from agentcli.tools.text_edit import DecodedText, decode, unified_diff, with_hunks
from agentcli.tools.tool import ToolContext, ToolOutput


class SomeHunks(FileWrite, frozen=True):
    """A replacement of which only some hunks are made: `result` takes the place of `seen`."""

    seen: bytes = b""
    result: bytes = b""


async def run(given: FileWrite, context: ToolContext) -> ToolOutput:
    path = context.workspace.writable(given.path)
    return await asyncio.to_thread(_write, given, path, context)


async def preview(given: FileWrite, context: ToolContext) -> str:
    """The diff the call would make. Raises `ToolError` when the file may not be replaced."""
    path = context.workspace.writable(given.path)
    return unified_diff(context.workspace.shown(path), await asyncio.to_thread(_before, path, context), given.content)


async def narrow(given: FileWrite, context: ToolContext, hunks: Sequence[int]) -> FileWrite:
    """Raises `ToolError` for a character that the file's encoding does not have."""
    path = context.workspace.writable(given.path)
    return await asyncio.to_thread(_narrowed, given, path, context, hunks)


def _narrowed(given: FileWrite, path: Path, context: ToolContext, hunks: Sequence[int]) -> FileWrite:
    seen = read_bytes(path, context.workspace) if is_there(path, context.workspace) else b""
    decoded = decode(seen) or DecodedText("", "utf-8")
    content = with_hunks(decoded.text, given.content, hunks)
    return SomeHunks(given.path, content, seen, decoded.encoded(content))


def _before(path: Path, context: ToolContext) -> str:
    """The text that would be replaced; empty for a new file."""
    if not is_there(path, context.workspace):
        return ""
    content = read_bytes(path, context.workspace)
    context.workspace.files.require_current(path, content)
    decoded = decode(content)
    return decoded.text if decoded else ""


def _write(given: FileWrite, path: Path, context: ToolContext) -> ToolOutput:
    shown = context.workspace.shown(path)
    existed = is_there(path, context.workspace)
    before = _before(path, context)
    content = given.content.encode("utf-8", "replace")
    if isinstance(given, SomeHunks):
        require_same(read_bytes(path, context.workspace) if existed else b"", given.seen, shown)
        content = given.result
    write_bytes(path, content, context.workspace)
    context.workspace.files.saw(path, content)
    diff = unified_diff(shown, before, given.content)
    done = f"{'Replaced' if existed else 'Created'} {shown}."
    return ToolOutput(done, {"path": shown, "diff": diff}, diff_counts(diff))
