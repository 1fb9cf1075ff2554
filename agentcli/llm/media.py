"""Fits a conversation's images and PDFs to what an API takes: a text stands for what it would refuse."""

from __future__ import annotations

import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from agentcli.llm.media_types import dimensions_of, media_type_of
from agentcli.llm.messages import Base64Source, Document, Image, Message, Text, ToolResult
from agentcli.llm.tokens.media import readable_pages

MOST_MEDIA_BYTES = 24 * 1024 * 1024  # of one request; Anthropic takes 32 MB with all the text, others 50
KEPT_SHARE = 0.75  # what is left when the oldest go; more at a time, so that the beginning changes seldom
_PDF = "application/pdf"

log = logging.getLogger(__name__)
Part = Text | Image | Document


class MediaRules(Struct, frozen=True):
    """What an API takes in one request: so many images, their size in bytes of base64, their longest edge in pixels.

    All PDFs together have at most `pages`. In a request with more than `crowd` images each edge is at most
    `crowded_edge`.
    """

    images: int = 0
    documents: bool = False
    pages: int = 100  # platform.claude.com/docs, "PDF support", read 2026-11
    image_types: tuple[str, ...] = ("image/png", "image/jpeg", "image/gif", "image/webp")
    image_bytes: int = 20 * 1024 * 1024
    edge: int = 16_000
    crowd: int = 1_000
    crowded_edge: int = 16_000


@runtime_checkable
class BoundsMedia(Protocol):
    """A provider that tells what media it would take now."""

    @property
    def media_rules(self) -> MediaRules: ...


def fitted(messages: tuple[Message, ...], rules: MediaRules) -> tuple[Message, ...]:
    """The messages with a text in place of each image or PDF that the API would refuse.

    Where there are too many, the newest stay. What is left out stays so while the conversation grows.
    """
    media = list(media_in(messages))
    if not media:
        return messages
    reasons = iter(_refusals(media, rules))
    return with_media(messages, lambda block: _left_out(block, why) if (why := next(reasons)) else _labelled(block))


def told_left_out(messages: tuple[Message, ...], rules: MediaRules) -> list[str]:
    """What `fitted` leaves out and why, each once, in words for the person."""
    media = list(media_in(messages))
    told = (_words(block, why) for block, why in zip(media, _refusals(media, rules), strict=True) if why)
    return list(dict.fromkeys(told))


def _refusals(media: list[Image | Document], rules: MediaRules) -> list[str]:
    """Why each of them is left out; empty for what stays."""
    refusals = [_refusal(block, rules, rules.edge) for block in media]
    if sum(isinstance(block, Image) and not why for block, why in zip(media, refusals, strict=True)) > rules.crowd:
        refusals = [_refusal(block, rules, rules.crowded_edge) for block in media]
    for number in _too_many(media, refusals, rules):
        refusals[number] = "newer ones fill the request"
    return refusals


def with_media(messages: tuple[Message, ...], change: Callable[[Image | Document], Part]) -> tuple[Message, ...]:
    """The messages with each image and PDF as `change` gives it, in the order of `media_in`."""

    def changed(block: Part) -> Part:
        return change(block) if isinstance(block, Image | Document) else block

    def rebuilt(message: Message) -> Message:
        if not any(media_in((message,))):
            return message
        return replace(
            message,
            content=tuple(
                replace(block, content=tuple(map(changed, block.content)))
                if isinstance(block, ToolResult) and isinstance(block.content, tuple)
                else change(block)
                if isinstance(block, Image | Document)
                else block
                for block in message.content
            ),
        )

    return tuple(map(rebuilt, messages))


def media_in(messages: Iterable[Message]) -> Iterator[Image | Document]:
    """The images and documents of messages, those inside results too."""
    for message in messages:
        for block in message.content:
            if isinstance(block, Image | Document):
                yield block
            elif isinstance(block, ToolResult) and not isinstance(block.content, str):
                yield from (part for part in block.content if isinstance(part, Image | Document))


def _refusal(block: Image | Document, rules: MediaRules, edge: int) -> str:
    """Why the API would not take this; empty where it does."""
    kind, size = _facts(block.source)
    if isinstance(block, Document):
        if not rules.documents:
            return "this model takes none; read its text with a tool, such as pdftotext"
        if kind != _PDF:
            return "it is broken"
        pages = readable_pages(block.source.data)
        return f"it has {pages} pages, more than {rules.pages}" if pages > rules.pages else ""
    if not rules.images:
        return "this model sees no images"
    if size is None or min(size) == 0:
        return "it is broken"
    if kind not in rules.image_types:
        return f"this model takes no {kind}"
    if len(block.source.data) > rules.image_bytes:
        return f"it has more than {rules.image_bytes // 4 * 3 / 1e6:.1f} MB"
    return f"it has {size[0]} x {size[1]} pixels, more than {edge} on a side" if max(size) > edge else ""


def _too_many(media: list[Image | Document], refusals: list[str], rules: MediaRules) -> Iterator[int]:
    """The oldest media, a quarter of the bound at a time, as they would have gone one request after the other."""
    waiting: deque[int] = deque()
    used, bounds = [0, 0, 0], (rules.images, rules.pages, MOST_MEDIA_BYTES)
    for number, block in enumerate(media):
        if refusals[number]:
            continue
        waiting.append(number)
        used = [so_far + its for so_far, its in zip(used, _used(block), strict=True)]
        share = 1.0
        while len(waiting) > 1 and any(has > most * share for has, most in zip(used, bounds, strict=True)):
            share, oldest = KEPT_SHARE, waiting.popleft()
            used = [so_far - its for so_far, its in zip(used, _used(media[oldest]), strict=True)]
            yield oldest


def _used(block: Image | Document) -> tuple[int, int, int]:
    """Images, pages of PDFs, and bytes of base64."""
    is_image = isinstance(block, Image)
    return is_image, 0 if is_image else readable_pages(block.source.data), len(block.source.data)


def _left_out(block: Image | Document, why: str) -> Text:
    told = f"[{_words(block, why)}]"
    _log(told)
    return Text(told)


def _words(block: Image | Document, why: str) -> str:
    return f"{'PDF' if isinstance(block, Document) else f'Image ({block.source.media_type})'} left out: {why}"


def _labelled(block: Image | Document) -> Image | Document:
    """The block under the type that its bytes have: APIs refuse a PNG that is called a JPEG."""
    kind, _ = _facts(block.source)
    return block if kind == block.source.media_type else replace(block, source=Base64Source(kind, block.source.data))


_known: dict[int, tuple[str, tuple[int, int] | None]] = {}


def _facts(source: Base64Source) -> tuple[str, tuple[int, int] | None]:
    """The media type by the first bytes, and the size of an image that is whole; decoded once for each content."""
    key = hash(source.data)  # strings keep theirs
    if key not in _known:
        if len(_known) > 1_000:
            _known.clear()
        try:
            content = base64.b64decode(source.data, validate=True)
        except (binascii.Error, ValueError):
            content = b""
        _known[key] = media_type_of(content), dimensions_of(content)
    return _known[key]


@lru_cache(maxsize=64)
def _log(told: str) -> None:
    """Log what is left out once, however many requests it is left out of."""
    log.warning(told)
