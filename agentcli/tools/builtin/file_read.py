"""Reads a file: text as numbered lines, images and PDFs as blocks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.llm.media import media_type_of
from agentcli.tools.builtin.arguments import FileRead
from agentcli.tools.builtin.files import HOW_TO_NAME_CHARSET, binary, charset_of, naming_similar, opened
from agentcli.tools.builtin.media import LARGEST_MEDIA, as_block
from agentcli.tools.observation import MAX_LINE_CHARS, PAGE_BYTES, cut_line
from agentcli.tools.text.encoding import SNIFFED
from agentcli.tools.text.stream import LONGEST_KEPT, FileLine, LineRange, LinesRead, read_lines
from agentcli.tools.tool import ToolContext, ToolOutput, Workspace

DEFAULT_LINES = 2_000
LARGEST_CHOICE = 50 * 1024 * 1024  # bytes of text that one call with limit 0 gives
MOST_CHOSEN_LINES = 1_000_000  # the same in lines: a short one takes ten times its bytes while it is handled


async def run(given: FileRead, context: ToolContext) -> ToolOutput:
    path = context.readable(given.path)
    return await naming_similar(asyncio.to_thread(read_file, given, path, context.workspace), path, context.workspace)


def read_file(given: FileRead, path: Path, workspace: Workspace) -> ToolOutput:
    """Read the file at the real path `path` in the form that the model sees. Raises `ToolError`."""
    shown = workspace.shown(path)
    with opened(path, workspace) as (file, size):
        head = file.read(SNIFFED)
        if media_type := media_type_of(head):
            content = head + file.read(LARGEST_MEDIA)
            return as_block(content, media_type, given, shown)
        read = read_lines(head, file, _choice(given), lambda: charset_of(path, workspace))
    if read is None:
        raise binary(shown, size)
    workspace.files.saw_digest(path, read.digest)
    return _numbered(read, given, shown)


def _choice(given: FileRead) -> LineRange:
    first = given.offset or 1
    if given.limit == 0:
        return LineRange(first, MOST_CHOSEN_LINES, LARGEST_CHOICE, LONGEST_KEPT)
    return LineRange(first, given.limit or DEFAULT_LINES, PAGE_BYTES, MAX_LINE_CHARS)


def _numbered(read: LinesRead, given: FileRead, shown: str) -> ToolOutput:
    total, first = read.total_lines, given.offset or 1
    if first > max(total, 1):
        raise ToolError(f"{shown} has {total} lines; offset {first} is past its end.", kind="invalid_parameters")
    if given.limit == 0 and (read.is_full or total - first >= MOST_CHOSEN_LINES):
        raise ToolError(
            f"These are more than {LARGEST_CHOICE / 1e6:.0f} MB or {MOST_CHOSEN_LINES:,} lines: give a limit, or use "
            "grep_search.",
            kind="validation_error",
        )
    rows: list[str] = []
    size = 0
    for number, line in enumerate(read.lines, first):
        row = f"{number}\t{_row(line)}"
        size += len(row.encode()) + 1
        if size > PAGE_BYTES and rows and given.limit != 0:
            break
        rows.append(row)
    last = first + len(rows) - 1
    raw = "\n".join(line.text for line in read.lines[: len(rows)])
    if rows and (last < total or read.ends_with_newline):
        raw += "\n"
    if last < total:
        rows.append(f"[lines {first}-{last} of {total}; go on with offset={last + 1}]")
    if not read.is_certain:
        rows.append(f"[not UTF-8; read as {read.encoding}, which is a guess. {HOW_TO_NAME_CHARSET}]")
    body = "\n".join(rows) if total else "[the file is empty]"
    lines = f"{total} line{'' if total == 1 else 's'}"
    summary = lines if last - first + 1 == total else f"lines {first}-{last} of {total}"
    return ToolOutput(body, {"text": raw, "total_lines": total, "encoding": read.encoding}, summary)


def _row(line: FileLine) -> str:
    """A line as the model sees it, with a note of what is missing."""
    text = cut_line(line.text.removesuffix("\r"))
    return f"{text}[and {line.cut:,} bytes behind them]" if line.cut else text
