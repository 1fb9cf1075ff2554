"""Reads a file: text as numbered lines, images and PDFs as blocks."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.llm.media import LARGEST_IMAGE, LONGEST_EDGE, dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.builtin.files import HOW_TO_NAME_CHARSET, binary, charset_of, naming_similar, opened
from agentcli.tools.builtin.toolset import FileRead
from agentcli.tools.observation import MAX_LINE_CHARS, PAGE_BYTES, cut_line
from agentcli.tools.text.encoding import SNIFFED
from agentcli.tools.text.stream import LONGEST_KEPT, FileLine, LineRange, LinesRead, read_lines
from agentcli.tools.tool import ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace

DEFAULT_LINES = 2_000
# A block that is refused stays in the conversation and every later request fails with it, so nothing is sent that could
# be. The limits are those of Anthropic's Messages API, the strictest there is (platform.claude.com/docs, "Vision" and
# "PDF support", read 2026-11; that the 5 MB are counted in base64 is what its error message says): an image has at most
# 5 MB as base64 and 8,000 pixels on each side, 2,000 in a request with more than 20, and is scaled to 1,568 before a
# model sees it; a request has at most 32 MB, a PDF at most 100 pages and no password.
LARGEST_MEDIA = 50 * 1024 * 1024  # bytes of a file that is made smaller here
LARGEST_PDF = 20 * 1024 * 1024  # bytes: 27 MB as base64, which leaves room for the conversation
MOST_PAGES = 100
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
            return _as_block(content, media_type, given, shown)
        read = read_lines(head, file, _choice(given), lambda: charset_of(path, workspace))
    if read is None:
        raise binary(shown, size)
    workspace.files.record_digest(path, read.digest)
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


def _as_block(content: bytes, media_type: str, given: FileRead, shown: str) -> ToolOutput:
    """Return an image or a PDF as the model sees it. Raises `ToolError` if it is broken or cannot be made to fit."""
    if len(content) > LARGEST_MEDIA:
        raise ToolError(
            f"{shown} is larger than {LARGEST_MEDIA / 1e6:.0f} MB: make it smaller with bash first.",
            kind="validation_error",
        )
    if media_type == "application/pdf":
        return _document(content, given, shown)
    return _image(content, media_type, shown)


def _image(content: bytes, media_type: str, shown: str) -> ToolOutput:
    size = dimensions_of(content)
    if size is None or min(size) == 0 or max(size) > LONGEST_EDGE or len(content) > LARGEST_IMAGE:
        # Pillow imports in 15 to 60 ms, and most images need nothing done.
        from agentcli.tools.builtin.images import fitted

        content, media_type, about = fitted(content, shown)
    else:
        about = f"{size[0]} x {size[1]} pixels"
    return _output(Image(_source(content, media_type)), f"{shown}: {media_type}, {about}", content)


def _document(content: bytes, given: FileRead, shown: str) -> ToolOutput:
    content, about = _chosen_pages(content, given.offset, given.limit, shown)
    if len(content) > LARGEST_PDF:
        raise ToolError(
            f"{shown} is {len(content) / 1e6:.1f} MB; a model takes at most {LARGEST_PDF / 1e6:.0f} MB of a PDF. Read "
            "fewer pages (offset is the first page, limit how many), or its text with bash (pdftotext).",
            kind="validation_error",
        )
    source = _source(content, "application/pdf")
    return _output(Document(source), f"{shown}: application/pdf, {about}", content)


def _chosen_pages(content: bytes, first: int | None, most: int | None, shown: str) -> tuple[bytes, str]:
    """The document from page `first` on (1-based), at most `most` pages, and a word about which these are.

    Raises `ToolError` for a PDF that is broken, has a password, or would be longer than a model takes.
    """
    from pypdf import PdfReader, PdfWriter  # 200 ms, and most sessions read no PDF
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it says of odd files would land in the terminal
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted:
            raise ToolError(
                f"{shown} has a password, which no model takes: remove it with bash first (qpdf --decrypt).",
                kind="validation_error",
            )
        total = len(reader.pages)
        start = (first or 1) - 1
        end = total if not most else min(start + most, total)
        if start >= max(total, 1):
            raise ToolError(
                f"{shown} has {total} pages; offset {start + 1} is past its end.", kind="invalid_parameters"
            )
        if end - start > MOST_PAGES:
            raise ToolError(
                f"{shown} has {total} pages; a model takes {MOST_PAGES} at a time. Read some with limit={MOST_PAGES} "
                "(offset is the first page), or its text with bash (pdftotext).",
                kind="validation_error",
            )
        if (start, end) == (0, total):
            return content, f"{total} page{'' if total == 1 else 's'}"
        writer, output = PdfWriter(), io.BytesIO()
        for page in reader.pages[start:end]:
            writer.add_page(page)
        writer.write(output)
    except (PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ToolError(
            f"{shown} is a broken PDF ({error}): look at it with bash (file, pdftotext).", kind="validation_error"
        ) from error
    return output.getvalue(), f"pages {start + 1}-{end} of {total}"


def _source(content: bytes, media_type: str) -> Base64Source:
    return Base64Source(media_type, base64.b64encode(content).decode())


def _output(block: Image | Document, note: str, content: bytes) -> ToolOutput:
    note = f"{note}, {len(content):,} bytes"
    return ToolOutput((Text(note), block), {"media_type": block.source.media_type, "bytes": len(content)}, note)
