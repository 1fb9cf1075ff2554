"""PDFs as a model's API takes them: whole, or some of their pages."""

from __future__ import annotations

import io
import logging

from pypdf import PdfReader, PdfWriter
from pypdf.errors import PyPdfError

from agentcli.errors import ToolError

MOST_PAGES = 100

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it says of odd files would land in the terminal's picture


def chosen(content: bytes, first: int | None, most: int | None, shown: str) -> tuple[bytes, str]:
    """The document from page `first` on (1-based), at most `most` pages, and a word about which these are.

    Raises `ToolError` for a PDF that is broken, has a password, or would be longer than a model takes.
    """
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
