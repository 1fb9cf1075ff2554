"""Reads a file: text as numbered lines, images and PDFs as blocks."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.builtin.arguments import FileRead
from agentcli.tools.builtin.files import as_text, read_bytes
from agentcli.tools.observation import PAGE_BYTES, cut_line
from agentcli.tools.tool import ToolContext, ToolOutput, Workspace

DEFAULT_LINES = 2_000
LARGEST_IMAGE = 5 * 1024 * 1024  # bytes; the Messages API takes no larger one
LARGEST_PDF = 20 * 1024 * 1024

_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


async def run(given: FileRead, context: ToolContext) -> ToolOutput:
    path = context.workspace.readable(given.path)
    return await asyncio.to_thread(read_file, given, path, context.workspace)


def read_file(given: FileRead, path: Path, workspace: Workspace) -> ToolOutput:
    """What the model sees of the file at the real path `path`. Raises `ToolError`."""
    shown = workspace.shown(path)
    content = read_bytes(path, workspace)
    if media_type := _media_type(content):
        return _as_block(content, media_type, shown)
    decoded = as_text(content, shown)
    workspace.files.saw(path, content)
    return _numbered(decoded.text, decoded.encoding, given, shown)


def _numbered(text: str, encoding: str, given: FileRead, shown: str) -> ToolOutput:
    lines = text.split("\n")
    ends_with_newline = lines[-1] == ""
    if ends_with_newline:
        lines.pop()
    total, first = len(lines), given.offset or 1
    if first > max(total, 1):
        raise ToolError(f"{shown} has {total} lines; offset {first} is past its end.", kind="invalid_parameters")
    limit = DEFAULT_LINES if given.limit is None else (given.limit or total)
    numbered: list[str] = []
    size = 0
    for number, line in enumerate(lines[first - 1 : first - 1 + limit], first):
        row = f"{number}\t{cut_line(line.removesuffix(chr(13)))}"
        size += len(row) + 1
        if size > PAGE_BYTES and numbered and given.limit != 0:
            break
        numbered.append(row)
    last = first + len(numbered) - 1
    raw = "\n".join(lines[first - 1 : last])
    if numbered and (last < total or ends_with_newline):
        raw += "\n"
    if last < total:
        numbered.append(f"[lines {first}-{last} of {total}; go on with offset={last + 1}]")
    body = "\n".join(numbered) if total else "[the file is empty]"
    summary = (
        f"{total} line{'' if total == 1 else 's'}" if last - first + 1 == total else f"lines {first}-{last} of {total}"
    )
    return ToolOutput(body, {"text": raw, "total_lines": total, "encoding": encoding}, summary)


def _media_type(head: bytes) -> str:
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if head.startswith(b"%PDF-"):
        return "application/pdf"
    return next((media_type for magic, media_type in _IMAGES if head.startswith(magic)), "")


def _as_block(content: bytes, media_type: str, shown: str) -> ToolOutput:
    largest = LARGEST_PDF if media_type == "application/pdf" else LARGEST_IMAGE
    if len(content) > largest:
        raise ToolError(
            f"{shown} is {len(content) / 1e6:.1f} MB; a model takes at most {largest / 1e6:.0f} MB of {media_type}. "
            "Make it smaller with bash first.",
            kind="resource_error",
        )
    source = Base64Source(media_type, base64.b64encode(content).decode())
    block = Document(source) if media_type == "application/pdf" else Image(source)
    note = f"{shown}: {media_type}, {len(content):,} bytes"
    return ToolOutput((Text(note), block), {"media_type": media_type, "bytes": len(content)}, note)
