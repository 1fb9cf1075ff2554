"""Reads a file: text as numbered lines, images and PDFs as blocks."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.llm.media import MAX_EDGE, MAX_IMAGE_BYTES, dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.builtin.files import HOW_TO_NAME_CHARSET, binary_file_error, naming_similar, opened
from agentcli.tools.builtin.toolset import FileRead
from agentcli.tools.observation import MAX_LINE_CHARS, PAGE_BYTES, cut_line
from agentcli.tools.text.encoding import LARGEST_EDITABLE, SNIFFED_BYTES
from agentcli.tools.text.notebooks import cells_as_text
from agentcli.tools.text.stream import MAX_KEPT_BYTES, FileLine, LineRange, LinesRead, read_lines
from agentcli.tools.tool import ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace

DEFAULT_LINES = 2_000
# A block that the provider rejects stays in the conversation, and every later request fails with it, so nothing is sent
# that could be rejected. The limits are those of Anthropic's Messages API, the strictest there is: an image has at most
# 5 MB as base64 and 8,000 pixels on each side, 2,000 in a request with more than 20, and is scaled to 1,568 before a
# model sees it; a request has at most 32 MB, a PDF at most 100 pages and no password. (platform.claude.com/docs,
# "Vision" and "PDF support", read 2026-11; its error message says that the 5 MB are counted in base64.)
MAX_MEDIA_BYTES = 50 * 1024 * 1024  # of a file that is made smaller here
MAX_PDF_BYTES = 20 * 1024 * 1024  # 27 MB as base64, which leaves room for the conversation
MAX_PDF_PAGES = 100
MAX_TEXT_BYTES = 50 * 1024 * 1024  # that one call with limit 0 returns
MAX_TEXT_LINES = 1_000_000  # the same in lines: a short line takes ten times its bytes while it is handled


async def run(arguments: FileRead, context: ToolContext) -> ToolOutput:
    path = context.readable(arguments.path)
    return await naming_similar(
        asyncio.to_thread(read_file, arguments, path, context.workspace), path, context.workspace
    )


def read_file(arguments: FileRead, path: Path, workspace: Workspace) -> ToolOutput:
    """Read the file at the real path `path` in the form that the model sees. Raises `ToolError`."""
    shown, first = workspace.shown(path), arguments.offset or 1
    choice = LineRange(
        first=first, max_lines=arguments.limit or DEFAULT_LINES, max_bytes=PAGE_BYTES, max_counted=MAX_LINE_CHARS
    )
    if arguments.limit == 0:
        choice = LineRange(first=first, max_lines=MAX_TEXT_LINES, max_bytes=MAX_TEXT_BYTES, max_counted=MAX_KEPT_BYTES)
    with opened(path, workspace) as (file, size):
        head = file.read(SNIFFED_BYTES)
        if media_type := media_type_of(head):
            content = head + file.read(MAX_MEDIA_BYTES)
            return _format_media(content, media_type, arguments, shown)
        if path.suffix == ".ipynb" and size <= LARGEST_EDITABLE:
            content = head + file.read()
            if (cells := cells_as_text(content, with_outputs=True)) is not None:
                text = io.BytesIO(cells.encode(errors="replace"))
                if read := read_lines(text.read(SNIFFED_BYTES), text, choice, ""):
                    workspace.files.record_digest(path, hashlib.sha256(content).digest())
                    return _format_lines(read, arguments, shown)
            file.seek(len(head))
        read = read_lines(head, file, choice, workspace.settings.charset)
    if read is None:
        raise binary_file_error(shown, size)
    workspace.files.record_digest(path, read.digest)
    return _format_lines(read, arguments, shown)


def _format_lines(read: LinesRead, arguments: FileRead, shown: str) -> ToolOutput:
    """Return the lines with their numbers, and notes on what is left out. Raises `ToolError`."""
    total, first = read.total_lines, arguments.offset or 1
    if first > max(total, 1):
        raise ToolError(f"{shown} has {total} lines; offset {first} is past its end.", kind="invalid_parameters")
    if arguments.limit == 0 and (read.is_full or total - first >= MAX_TEXT_LINES):
        raise ToolError(
            f"These are more than {MAX_TEXT_BYTES / 1e6:.0f} MB or {MAX_TEXT_LINES:,} lines: give a limit, or use "
            "grep_search.",
            kind="validation_error",
        )
    rows: list[str] = []
    size = 0
    for number, line in enumerate(read.lines, first):
        row = f"{number}\t{_format_line(line)}"
        size += len(row.encode()) + 1
        if size > PAGE_BYTES and rows and arguments.limit != 0:
            break
        rows.append(row)
    last = first + len(rows) - 1
    text = "\n".join(line.text for line in read.lines[: len(rows)])
    if rows and (last < total or read.ends_with_newline):
        text += "\n"
    if last < total:
        rows.append(f"[lines {first}-{last} of {total}; go on with offset={last + 1}]")
    if not read.is_certain:
        rows.append(f"[not UTF-8; read as {read.encoding}, which is a guess. {HOW_TO_NAME_CHARSET}]")
    content = "\n".join(rows) if total else "[the file is empty]"
    summary = f"lines {first}-{last} of {total}"
    if last - first + 1 == total:
        summary = f"{total} line{'' if total == 1 else 's'}"
    return ToolOutput(content, {"text": text, "total_lines": total, "encoding": read.encoding}, summary)


def _format_line(line: FileLine) -> str:
    text = cut_line(line.text.removesuffix("\r"))
    return f"{text}[and {line.cut:,} bytes behind them]" if line.cut else text


def _format_media(content: bytes, media_type: str, arguments: FileRead, shown: str) -> ToolOutput:
    """Return an image or a PDF as a block. Raises `ToolError` if it is broken or cannot be made to fit."""
    if len(content) > MAX_MEDIA_BYTES:
        raise ToolError(
            f"{shown} is larger than {MAX_MEDIA_BYTES / 1e6:.0f} MB: make it smaller with bash first.",
            kind="validation_error",
        )
    block: type[Image | Document] = Image
    if media_type == "application/pdf":
        block = Document
        content, about = _select_pages(content, arguments, shown)
        if len(content) > MAX_PDF_BYTES:
            raise ToolError(
                f"{shown} is {len(content) / 1e6:.1f} MB; a model takes at most {MAX_PDF_BYTES / 1e6:.0f} MB of a PDF. "
                "Read fewer pages (offset is the first page, limit how many), or its text with bash (pdftotext).",
                kind="validation_error",
            )
    else:
        size = dimensions_of(content)
        if size is None or min(size) == 0 or max(size) > MAX_EDGE or len(content) > MAX_IMAGE_BYTES:
            # Pillow imports in 15 to 60 ms, and most images need nothing done.
            from agentcli.tools.builtin.images import fit_image

            content, media_type, about = fit_image(content, shown)
        else:
            about = f"{size[0]} x {size[1]} pixels"
    summary = f"{shown}: {media_type}, {about}, {len(content):,} bytes"
    source = Base64Source(media_type, base64.b64encode(content).decode())
    return ToolOutput((Text(summary), block(source)), {"media_type": media_type, "bytes": len(content)}, summary)


def _select_pages(content: bytes, arguments: FileRead, shown: str) -> tuple[bytes, str]:
    """Return the pages of a PDF from `offset` (1-based) on, at most `limit`, and words about which these are.

    Raises:
        ToolError: If the PDF is broken, has a password, or has more pages than a model takes.
    """
    from pypdf import PdfReader, PdfWriter  # imports in 200 ms, and most sessions read no PDF
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings would appear in the terminal
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted:
            raise ToolError(
                f"{shown} has a password, which no model takes: remove it with bash first (qpdf --decrypt).",
                kind="validation_error",
            )
        total = len(reader.pages)
        start = (arguments.offset or 1) - 1
        end = min(start + arguments.limit, total) if arguments.limit else total
        if start >= max(total, 1):
            raise ToolError(
                f"{shown} has {total} pages; offset {start + 1} is past its end.", kind="invalid_parameters"
            )
        if end - start > MAX_PDF_PAGES:
            raise ToolError(
                f"{shown} has {total} pages; a model takes {MAX_PDF_PAGES} at a time. Read some with "
                f"limit={MAX_PDF_PAGES} (offset is the first page), or its text with bash (pdftotext).",
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
