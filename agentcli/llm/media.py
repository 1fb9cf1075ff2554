"""Images and PDFs: their types and sizes, the tokens they cost, and which of them an API accepts."""

import base64
import binascii
import io
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from operator import add, sub
from typing import NamedTuple

from msgspec import Struct, structs

from agentcli.llm.messages import Base64Source, Block, Document, Image, Message, Text, ToolResult, log_once

MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3  # that a provider accepts; they are 5 MB as base64
MAX_EDGE = 1_568  # pixels; providers scale larger images down
MAX_MEDIA_BYTES = 24 * 1024 * 1024  # of one request; Anthropic takes 32 MB with all the text, others 50
TOKENS_PER_IMAGE = 1_600  # for an image of the largest useful size, and for one of unknown size
# A page is text and a picture of it: 1,500 to 3,000 tokens for the text (platform.claude.com/docs, "PDF support").
TOKENS_PER_PAGE = 3_000
_MAGIC = {  # the first bytes of a file, and its media type
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}  # fmt: skip
_END_MARKS = {"png": b"IEND", "jpeg": b"\xff\xd9", "gif": b";"}  # Pillow itself rejects a WebP image that is cut

Medium = Image | Document


class MediaFacts(NamedTuple):
    """The media type by the first bytes, the size of an image that is complete, the pages of a PDF that is readable."""

    media_type: str
    size: tuple[int, int] | None
    pages: int


class MediaRules(Struct, frozen=True, kw_only=True):
    """An API's limits. Sides are in pixels; `max_side_of_many` applies to more than `max_large_images` images."""

    images: int = 0
    documents: bool = False
    pages: int = 100  # platform.claude.com/docs, "PDF support", read 2026-11
    image_types: tuple[str, ...] = ("image/png", "image/jpeg", "image/gif", "image/webp")
    image_bytes: int = 20 * 1024 * 1024  # of the base64
    max_side: int = 16_000
    max_large_images: int = 1_000
    max_side_of_many: int = 16_000


def media_type_of(head: bytes) -> str:
    """Return the media type of a PNG, JPEG, GIF or WebP image or a PDF; empty for anything else."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MAGIC.items() if head.startswith(magic)), "")


def dimensions_of(image: bytes) -> tuple[int, int] | None:
    """Return width and height from the header; None if it is not an image, or if its end is missing."""
    kind, _, name = media_type_of(image).partition("/")
    if kind != "image":
        return None
    from PIL import Image as Pillow  # 15 to 60 ms, which only images need

    warnings.filterwarnings("ignore", module=r"PIL\.")  # warnings about odd files would land on the screen
    try:
        with Pillow.open(io.BytesIO(image), formats=(name,)) as found:
            end_of_header = found.fp.tell() if found.fp else 0
            # The end mark must come after the header. A GIF's is one character, which must be the last one. WebP has
            # none, and b"" is always found at the end.
            earliest = len(image) - 1 if name == "gif" else end_of_header
            return found.size if image.rfind(_END_MARKS.get(name, b"")) >= earliest else None
    except (OSError, SyntaxError, ValueError, EOFError, OverflowError, Pillow.DecompressionBombError):
        return None


def pages_of(pdf: bytes) -> int:
    """Return the number of pages; 0 for a broken PDF, and for anything else."""
    if media_type_of(pdf) != "application/pdf":
        return 0
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    import pypdf  # 200 ms, which most sessions never need

    try:
        return len(pypdf.PdfReader(io.BytesIO(pdf)).pages)
    except (pypdf.errors.PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 0


_facts_by_hash: dict[int, MediaFacts] = {}  # by hash, so that no content is kept alive


def facts_of(data: str) -> MediaFacts:
    """Return the facts of an image or a PDF in base64; each content is decoded once."""
    key = hash(data)
    if key not in _facts_by_hash:
        if len(_facts_by_hash) > 1_000:  # so that a long conversation does not fill the memory
            _facts_by_hash.clear()
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            content = b""
        _facts_by_hash[key] = MediaFacts(media_type_of(content), dimensions_of(content), pages_of(content))
    return _facts_by_hash[key]


def image_tokens(data: str, family: str) -> int:
    """Count the tokens of an image in base64 for a family of models, as scaled down by its provider.

    Anthropic (and others): width · height / 750, about 1,600 at most ("Vision"). OpenAI: 85 and 170 for each tile of
    512 pixels, scaled to 2,048 and then 768 ("Images and vision"). Gemini: 258 for each tile of 768 ("Understand and
    count tokens").
    """
    size = facts_of(data).size
    if size is None or min(size) == 0:
        return TOKENS_PER_IMAGE
    width, height = size
    if family == "gpt":
        scale = min(1.0, 2_048 / max(size), 768 / min(size))
        return 85 + 170 * ceil(width * scale / 512) * ceil(height * scale / 512)
    if family == "gemini":
        return 258 if max(size) <= 384 else 258 * ceil(width / 768) * ceil(height / 768)  # a small one is one tile
    return max(1, min(TOKENS_PER_IMAGE, ceil(width * height / 750)))


def document_tokens(data: str, family: str) -> int:
    """Count the tokens of a PDF in base64 by its pages, or by its size if it is broken; Gemini takes 258 a page."""
    pages = facts_of(data).pages or 1 + len(data) * 3 // 4 // 50_000  # about 50 KB a page
    return pages * (258 if family == "gemini" else TOKENS_PER_PAGE)


def media_in(messages: Iterable[Message]) -> Iterator[Medium]:
    """Yield the images and documents of messages, also those inside results."""
    for message in messages:
        for block in message.content:
            parts = block.parts if isinstance(block, ToolResult) else (block,)
            yield from (part for part in parts if isinstance(part, Medium))


def replace_media(
    messages: tuple[Message, ...], change: Callable[[Medium], Text | Medium], positions: Sequence[int]
) -> tuple[Message, ...]:
    """Return the messages with each image and PDF at these positions replaced by what `change` returns, in order."""

    def changed(block: Block) -> Block:
        if isinstance(block, ToolResult) and isinstance(block.content, tuple):
            parts = tuple(change(part) if isinstance(part, Medium) else part for part in block.content)
            return structs.replace(block, content=parts)
        return change(block) if isinstance(block, Medium) else block

    edited = [*messages]
    for n in positions:
        edited[n] = structs.replace(messages[n], content=tuple(map(changed, messages[n].content)))
    return tuple(edited)


def fit_media(messages: tuple[Message, ...], rules: MediaRules, positions: Sequence[int]) -> tuple[Message, ...]:
    """Put a text in place of each image or PDF that the API would reject; of too many, the newest are kept.

    `positions` are those of all messages with media.
    """
    reasons = iter(_rejection_reasons(list(media_in(messages[n] for n in positions)), rules))

    def replaced(block: Medium) -> Text | Medium:
        if why := next(reasons):  # `replace_media` goes through the media in the same order
            text = f"[{_notice(block, why)}]"
            log_once(text)
            return Text(text)
        # APIs reject a PNG that is called a JPEG.
        source = Base64Source(facts_of(block.source.data).media_type, block.source.data)
        return block if source == block.source else structs.replace(block, source=source)

    return replace_media(messages, replaced, positions)


def omission_notices(messages: Iterable[Message], rules: MediaRules) -> list[str]:
    """Return sentences for the person on the media that `fit_media` leaves out, and why; each sentence once."""
    reasons = zip(media := list(media_in(messages)), _rejection_reasons(media, rules), strict=True)
    return list(dict.fromkeys(_notice(block, why) for block, why in reasons if why))


def _rejection_reasons(media: list[Medium], rules: MediaRules) -> list[str]:
    """Return for each medium the reason why the API would reject it; empty if it is sent."""
    reasons = [_rejection_reason(block, rules, rules.max_side) for block in media]
    sent_images = [block for block, why in zip(media, reasons, strict=True) if isinstance(block, Image) and not why]
    if len(sent_images) > rules.max_large_images:  # so many images must be smaller
        reasons = [_rejection_reason(block, rules, rules.max_side_of_many) for block in media]
    for number in _excess(media, reasons, rules):
        reasons[number] = "newer ones fill the request"
    return reasons


def _rejection_reason(block: Medium, rules: MediaRules, max_side: int) -> str:
    if isinstance(block, Document) and not rules.documents:
        return "this model takes none; read its text with a tool, such as pdftotext"
    if isinstance(block, Image) and not rules.images:
        return "this model sees no images"
    kind, size, pages = facts_of(block.source.data)
    if isinstance(block, Document):
        if kind != "application/pdf":
            return "it is broken"
        return f"it has {pages} pages, more than {rules.pages}" if pages > rules.pages else ""
    if size is None or min(size) == 0:
        return "it is broken"
    if kind not in rules.image_types:
        return f"this model takes no {kind}"
    if len(block.source.data) > rules.image_bytes:
        return f"it has more than {rules.image_bytes // 4 * 3 / 1e6:.1f} MB"  # of the file
    return f"it has {size[0]} x {size[1]} pixels, more than {max_side} on a side" if max(size) > max_side else ""


def _excess(media: list[Medium], reasons: list[str], rules: MediaRules) -> Iterator[int]:
    """Yield the positions of the oldest media that exceed the limits; the newest one always stays.

    A medium with a reason is left out already. If a limit is exceeded, media are left out until the others fill at most
    three quarters of it, so that the next requests mostly leave out the same ones.
    """
    kept: deque[int] = deque()
    used, limits = [0, 0, 0], (rules.images, rules.pages, MAX_MEDIA_BYTES)
    for number in (number for number, why in enumerate(reasons) if not why):
        kept.append(number)
        used = [*map(add, used, _size_in_request(media[number]))]
        share = 1.0
        while len(kept) > 1 and any(size > limit * share for size, limit in zip(used, limits, strict=True)):
            share, oldest = 0.75, kept.popleft()
            used = [*map(sub, used, _size_in_request(media[oldest]))]
            yield oldest


def _size_in_request(block: Medium) -> tuple[int, int, int]:
    return isinstance(block, Image), facts_of(block.source.data).pages, len(block.source.data)


def _notice(block: Medium, why: str) -> str:
    return f"{'PDF' if isinstance(block, Document) else f'Image ({block.source.media_type})'} left out: {why}"
