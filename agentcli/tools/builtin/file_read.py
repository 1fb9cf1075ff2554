"""Reads a file: text as numbered lines, images and PDFs as blocks."""

from __future__ import annotations

import asyncio
import base64
import codecs
import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.llm.media import MAX_EDGE, MAX_IMAGE_BYTES, dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.builtin import files
from agentcli.tools.builtin.toolset import FileRead
from agentcli.tools.observation import MAX_LINE_CHARS, PAGE_BYTES, cut_line
from agentcli.tools.text import encoding as encodings
from agentcli.tools.tool import ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace

# A block that the provider rejects would stay in the conversation and make every later request fail, so nothing is sent
# that could be rejected. The limits are those of Anthropic's Messages API, the strictest: an image has at most 5 MB as
# base64 and 8,000 pixels on each side (2,000 in a request with more than 20 images), and is scaled to 1,568 before a
# model sees it; a request has at most 32 MB; a PDF has at most 100 pages and no password. (platform.claude.com/docs,
# "Vision" and "PDF support", read 2026-11; its error message says that the 5 MB are counted in base64.)
MAX_MEDIA_BYTES = 50 * 1024 * 1024  # a larger file is not scaled down here
MAX_PDF_BYTES = 20 * 1024 * 1024  # 27 MB as base64, which leaves room for the conversation
MAX_PDF_PAGES = 100
MAX_TEXT_BYTES = 50 * 1024 * 1024  # returned by one call with limit 0
MAX_TEXT_LINES = 1_000_000  # the same limit in lines: while it is handled, a short line takes ten times its bytes


async def run(arguments: FileRead, context: ToolContext) -> ToolOutput:
    path = context.readable(arguments.path)
    reading = asyncio.to_thread(read_file, arguments, path, context.workspace)
    return await files.with_similar_names(reading, path, context.workspace)


def read_file(arguments: FileRead, path: Path, workspace: Workspace) -> ToolOutput:
    """Read the file at the real path `path` in the form that the model sees. Raises `ToolError`."""
    shown = workspace.shown(path)
    max_lines, max_bytes, max_line_bytes = arguments.limit or 2_000, PAGE_BYTES, MAX_LINE_CHARS
    if arguments.limit == 0:  # the whole file, for programs
        max_lines, max_bytes, max_line_bytes = MAX_TEXT_LINES, MAX_TEXT_BYTES, MAX_KEPT_BYTES
    first = arguments.offset or 1
    line_range = LineRange(first=first, max_lines=max_lines, max_bytes=max_bytes, max_line_bytes=max_line_bytes)
    with files.opened(path, workspace) as (file, size):
        head = file.read(encodings.SNIFFED_BYTES)
        if media_type := media_type_of(head):
            return _format_media(head + file.read(MAX_MEDIA_BYTES), media_type, arguments, shown)
        if path.suffix == ".ipynb" and size <= files.MAX_EDITABLE_BYTES:
            from agentcli.tools.text.notebooks import cells_as_text

            content = head + file.read()
            if (cells := cells_as_text(content, with_outputs=True)) is not None:
                text = io.BytesIO(cells.encode(errors="replace"))
                if read := read_lines(text.read(encodings.SNIFFED_BYTES), text, line_range, ""):
                    workspace.files.record_digest(path, hashlib.sha256(content).digest())
                    return _format_lines(read, arguments, shown)
            file.seek(len(head))  # it cannot be shown as cells, so it is read like any text
        read = read_lines(head, file, line_range, workspace.settings.charset)
    if read is None:
        raise files.binary_file_error(shown, size)
    workspace.files.record_digest(path, read.digest)  # file_write replaces only contents that the session has seen
    return _format_lines(read, arguments, shown)


def _format_lines(read: LinesRead, arguments: FileRead, shown: str) -> ToolOutput:
    """Return the lines with their numbers, and notes on what was left out. Raises `ToolError`."""
    total, first = read.total_lines, arguments.offset or 1
    if first > max(total, 1):
        raise ToolError(f"{shown} has {total} lines; offset {first} is past its end.", kind="invalid_parameters")
    if arguments.limit == 0 and (read.is_full or total - first >= MAX_TEXT_LINES):
        message = f"These are more than {MAX_TEXT_BYTES / 1e6:.0f} MB or {MAX_TEXT_LINES:,} lines"
        raise ToolError(f"{message}: give a limit, or use grep_search.", kind="validation_error")
    rows: list[str] = []
    size = 0
    for number, line in enumerate(read.lines, first):
        text = cut_line(line.text.removesuffix("\r"))  # ends with `[… more characters]` if the line is too long
        row = f"{number}\t{text}" + (f"[and {line.cut:,} bytes behind them]" if line.cut else "")
        size += len(row.encode()) + 1  # includes the line number, so fewer lines may fit than were read
        if size > PAGE_BYTES and rows and arguments.limit != 0:
            break
        rows.append(row)
    last = first + len(rows) - 1
    text = "\n".join(line.text for line in read.lines[: len(rows)])
    if rows and (last < total or read.ends_with_newline):
        text += "\n"
    if last < total:
        rows.append(f"[lines {first}-{last} of {total}; continue with offset={last + 1}]")
    if not read.is_certain:
        rows.append(
            f"[The file is not UTF-8. It was read as {read.encoding}, which is a guess. {files.HOW_TO_NAME_CHARSET}]"
        )
    content = "\n".join(rows) if total else "[the file is empty]"
    is_whole = last - first + 1 == total
    summary = f"{total} line{'' if total == 1 else 's'}" if is_whole else f"lines {first}-{last} of {total}"
    return ToolOutput(content, {"text": text, "total_lines": total, "encoding": read.encoding}, summary)


def _format_media(content: bytes, media_type: str, arguments: FileRead, shown: str) -> ToolOutput:
    """Return an image or a PDF as a block. Raises `ToolError` if it is broken or cannot be made to fit."""
    if len(content) > MAX_MEDIA_BYTES:
        message = f"{shown} is larger than {MAX_MEDIA_BYTES / 1e6:.0f} MB: make it smaller with bash first."
        raise ToolError(message, kind="validation_error")
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
    """Return a PDF of at most `limit` pages from `offset` (1-based) on, and the range's name. Raises `ToolError`."""
    from pypdf import PdfReader, PdfWriter  # imports in 200 ms, and most sessions read no PDF
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings would appear in the terminal
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted:
            message = f"{shown} is protected by a password. Remove it with bash first (qpdf --decrypt)."
            raise ToolError(message, kind="validation_error")
        total = len(reader.pages)
        start = (arguments.offset or 1) - 1
        end = min(start + arguments.limit, total) if arguments.limit else total
        if start >= max(total, 1):
            message = f"{shown} has {total} pages; offset {start + 1} is past its end."
            raise ToolError(message, kind="invalid_parameters")
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
        message = f"{shown} is a broken PDF ({error}): look at it with bash (file, pdftotext)."
        raise ToolError(message, kind="validation_error") from error
    return output.getvalue(), f"pages {start + 1}-{end} of {total}"


# Lines of a text file of any size, which is read once from beginning to end in constant memory

MAX_KEPT_BYTES = 1 << 20  # of one line; the rest of it is only counted


class LineRange(Struct, frozen=True, kw_only=True):
    """Up to `max_lines` lines from `first` (1-based) on, or `max_bytes`; a line counts as at most `max_line_bytes`."""

    first: int
    max_lines: int
    max_bytes: int
    max_line_bytes: int


class FileLine(Struct, frozen=True):
    """A line without its line feed; `cut` counts the bytes (as UTF-8) left out of a line over `MAX_KEPT_BYTES`."""

    text: str
    cut: int = 0


class LinesRead(Struct, frozen=True, kw_only=True):
    """The chosen lines of a file, and facts about all of it."""

    lines: tuple[FileLine, ...]
    is_full: bool  # the byte limit left out some of the chosen lines
    total_lines: int
    ends_with_newline: bool
    encoding: str
    digest: bytes  # SHA-256
    is_certain: bool = True  # False if the encoding is a guess


def read_lines(head: bytes, file: BinaryIO, line_range: LineRange, declared_charset: str) -> LinesRead | None:
    """Return the chosen lines of a file whose first 64 KiB, `head`, were read already; None for a binary file."""
    guess, head_end = encodings.EncodingGuess(head), file.tell()
    if guess.encoding() is None:  # the beginning is binary: the rest need not be read
        return None
    digest, collector = hashlib.sha256(), _LineCollector(line_range)
    try:
        for body in _bodies(head, file, digest.update, guess):
            collector.feed(body)
    except UnicodeDecodeError:
        return None
    if (encoding := guess.encoding()) is None:
        return None
    is_certain = guess.is_certain
    # Larger files cannot be edited, so their charset matters less.
    if declared_charset and not is_certain and file.tell() <= files.MAX_EDITABLE_BYTES:
        file.seek(head_end)
        if declared := encodings.declared_codec(declared_charset, head + file.read()):
            encoding, is_certain = declared, True
    codec = "utf-8" if guess.wide_encoding else encoding  # UTF-16 and UTF-32 were turned into UTF-8 while read
    errors = encodings.error_handler_of(encoding)
    if errors == "strict":  # another program may have changed the file since its encoding was found
        errors = "replace"
    return LinesRead(
        lines=tuple(_decode_line(content, cut, codec, errors) for content, cut in collector.lines),
        is_full=collector.is_full,
        total_lines=collector.newlines + (not collector.ends_with_newline),
        ends_with_newline=collector.ends_with_newline,
        encoding=encoding,
        digest=digest.digest(),
        is_certain=is_certain,
    )


def _decode_line(content: bytes, cut: int, encoding: str, errors: str) -> FileLine:
    """Return a line, of which `content` was kept and `cut` bytes were not; its text ends with a whole character."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    text = decoder.decode(content, final=not cut)
    bytes_left, _ = decoder.getstate()  # the beginning of an incomplete character
    return FileLine(encodings.without_surrogates(text), cut + len(bytes_left) if cut else 0)


def _bodies(
    head: bytes, file: BinaryIO, hash_chunk: Callable[[bytes], None], guess: encodings.EncodingGuess
) -> Iterator[bytes]:
    """Yield the bytes after the BOM; UTF-16 and UTF-32 become UTF-8. Raises `UnicodeDecodeError`."""
    chunk, skipped = head, len(guess.bom)
    decoder = codecs.getincrementaldecoder(guess.wide_encoding)("surrogatepass") if guess.wide_encoding else None
    while chunk:
        hash_chunk(chunk)
        body, skipped = chunk[skipped:], 0
        if decoder is None:
            guess.feed(body)
            yield body
        else:
            yield decoder.decode(body).encode("utf-8", "surrogatepass")
        chunk = file.read(1 << 20)
    if decoder is not None:
        decoder.decode(b"", final=True)


class _LineCollector:
    """Collects the chosen lines from the bytes it is fed, and counts all lines."""

    def __init__(self, line_range: LineRange) -> None:
        self._range = line_range
        self._line = bytearray()  # the line that has not ended yet
        self._cut = self._counted = 0  # bytes left out of that line; bytes of the chosen lines before it
        self._complete: list[tuple[bytes, int]] = []  # the chosen lines that have ended, as in `lines`
        self.newlines = 0  # in all of the file so far
        self.is_full = False  # True once the chosen lines have more than `max_bytes`
        self.ends_with_newline = True  # also for an empty file

    @property
    def lines(self) -> list[tuple[bytes, int]]:
        """The chosen lines, each with the number of bytes left out of it."""
        return [*self._complete, *([(bytes(self._line), self._cut)] if self._line else [])]

    def feed(self, chunk: bytes) -> None:
        if not chunk:
            return
        self.ends_with_newline = chunk.endswith(b"\n")
        to_skip = max(self._range.first - 1 - self.newlines, 0)  # line feeds before the chosen lines
        self.newlines += chunk.count(b"\n")
        lines_left = self._range.max_lines - len(self._complete)
        if self.newlines < self._range.first - 1 or lines_left == 0 or self.is_full:
            return  # before or after the chosen lines
        # The part after the skipped lines, split into the chosen ones and the rest.
        *complete, unfinished = chunk.split(b"\n", to_skip)[-1].split(b"\n", lines_left)
        for line in complete:
            self._add(line)
            self._finish_line()
            if self.is_full:
                return
        if len(complete) < lines_left:
            self._add(unfinished)

    def _add(self, part: bytes) -> None:
        """Add bytes to the line that has not ended; those beyond `MAX_KEPT_BYTES` are only counted."""
        bytes_left = MAX_KEPT_BYTES - len(self._line)
        self._line += part[:bytes_left]
        self._cut += max(len(part) - bytes_left, 0)

    def _finish_line(self) -> None:
        self._complete.append((bytes(self._line), self._cut))
        self._counted += min(len(self._line), self._range.max_line_bytes) + 1
        self.is_full = self._counted > self._range.max_bytes
        self._line.clear()
        self._cut = 0
