"""Counts the tokens of images and PDFs by their size, as providers document it."""

from __future__ import annotations

import base64
import binascii
import io
import logging
from math import ceil

from agentcli.llm.media_types import dimensions_of

TOKENS_PER_IMAGE = 1_600  # what an image of the largest useful size costs; for those whose size is not known
# A page is text and a picture of it: 1,500 to 3,000 tokens for the text (platform.claude.com/docs, "PDF support").
TOKENS_PER_PAGE = 3_000
BYTES_PER_PAGE = 50_000  # of a PDF that cannot be read here
SPEECH_BYTES, WAV_BYTES = 8_000, 32_000  # of a second: speech as MP3 or the like, and as samples of 16 bits at 16 kHz

_pages: dict[int, int] = {}  # by the hash of the PDF


def image_tokens(data: str, family: str) -> int:
    """Tokens of an image in base64. Providers scale it down first.

    Anthropic: width · height / 750, at most about 1,600 ("Vision"), which is taken for all others too. OpenAI: 85 and
    170 for each tile of 512 pixels, scaled to 2,048 and then to 768 on the shorter side ("Images and vision").
    Gemini: 258 up to 384 pixels, else for each tile of 768 ("Understand and count tokens").
    """
    try:
        size = dimensions_of(base64.b64decode(data))
    except (binascii.Error, ValueError):
        size = None
    if size is None or min(size) == 0:
        return TOKENS_PER_IMAGE
    width, height = size
    if family == "gpt":
        scale = min(1.0, 2_048 / max(size), 768 / min(size))
        return 85 + 170 * ceil(width * scale / 512) * ceil(height * scale / 512)
    if family == "gemini":
        return 258 if max(size) <= 384 else 258 * ceil(width / 768) * ceil(height / 768)
    return max(1, min(TOKENS_PER_IMAGE, ceil(width * height / 750)))


def document_tokens(data: str, family: str) -> int:
    """Tokens of a PDF in base64, by its pages; Gemini takes 258 for each."""
    return pdf_pages(data) * (258 if family == "gemini" else TOKENS_PER_PAGE)


def audio_tokens(data: str, form: str, family: str) -> int:
    """Tokens of a recording in base64, by its bytes.

    OpenAI: ten a second ("Managing costs" of its Realtime API). Gemini: 32 ("Audio understanding"), taken for the rest.
    """
    seconds = len(data) * 3 / 4 / (WAV_BYTES if form in ("wav", "pcm16") else SPEECH_BYTES)
    return max(1, ceil(seconds * (10 if family == "gpt" else 32)))


def pdf_pages(data: str) -> int:
    """How many pages a PDF has; a guess by its size where it cannot be read."""
    return readable_pages(data) or 1 + len(data) * 3 // 4 // BYTES_PER_PAGE


def readable_pages(data: str) -> int:
    """How many pages a PDF has, 0 where it cannot be read. Each content is looked at once."""
    key = hash(data)  # strings keep theirs
    if key not in _pages:
        _pages[key] = _read_pages(data)
    return _pages[key]


def _read_pages(data: str) -> int:
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    import pypdf  # 200 ms, which most sessions never need

    try:
        return len(pypdf.PdfReader(io.BytesIO(base64.b64decode(data))).pages)
    except (pypdf.errors.PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0
