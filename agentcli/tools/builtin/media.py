"""Images and PDFs as blocks of a message, within what a model's API takes.

One that is refused stays in the conversation and every later request fails with it, so nothing is sent that could be.
The limits are those of Anthropic's Messages API, the strictest there is (platform.claude.com/docs, "Vision" and "PDF
support", read 2026-11; that the 5 MB are counted in base64 is what its error message says): an image has at most 5 MB
as base64 and 8,000 pixels on each side, 2,000 in a request with more than 20, and is scaled to 1,568 before a model
sees it; a request has at most 32 MB, a PDF at most 100 pages and no password.
"""

from __future__ import annotations

import base64

from agentcli.errors import ToolError
from agentcli.llm.media import LARGEST_IMAGE, LONGEST_EDGE, dimensions_of
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.builtin.arguments import FileRead
from agentcli.tools.tool import ToolOutput

LARGEST_MEDIA = 50 * 1024 * 1024  # bytes of a file that is made smaller here
LARGEST_PDF = 20 * 1024 * 1024  # bytes: 27 MB as base64, which leaves room for the conversation


def as_block(content: bytes, media_type: str, given: FileRead, shown: str) -> ToolOutput:
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
    # pypdf imports in 200 ms, and most sessions read no PDF.
    from agentcli.tools.builtin import pdf_pages

    content, about = pdf_pages.chosen(content, given.offset, given.limit, shown)
    if len(content) > LARGEST_PDF:
        raise ToolError(
            f"{shown} is {len(content) / 1e6:.1f} MB; a model takes at most {LARGEST_PDF / 1e6:.0f} MB of a PDF. Read "
            "fewer pages (offset is the first page, limit how many), or its text with bash (pdftotext).",
            kind="validation_error",
        )
    source = _source(content, "application/pdf")
    return _output(Document(source), f"{shown}: application/pdf, {about}", content)


def _source(content: bytes, media_type: str) -> Base64Source:
    return Base64Source(media_type, base64.b64encode(content).decode())


def _output(block: Image | Document, note: str, content: bytes) -> ToolOutput:
    note = f"{note}, {len(content):,} bytes"
    return ToolOutput((Text(note), block), {"media_type": block.source.media_type, "bytes": len(content)}, note)
