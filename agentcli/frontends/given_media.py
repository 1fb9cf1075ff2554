"""Checks images and documents that a program gives with a prompt."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from agentcli.llm.messages import Document, Image, Text

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DOCUMENT_TYPES = ("application/pdf",)


def check_media(blocks: Sequence[Text | Image | Document]) -> None:
    """Raises `ValueError` for what no model takes: another type, or data that is not base64."""
    for block in blocks:
        if isinstance(block, Text):
            continue
        source = block.source
        kind, known = ("image", IMAGE_TYPES) if isinstance(block, Image) else ("document", DOCUMENT_TYPES)
        if source.media_type not in known:
            raise ValueError(f"the media_type of an {kind} is {' or '.join(known)}, not {source.media_type!r}")
        try:
            data = base64.b64decode(source.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"the {kind}'s data is not base64 ({error})") from error
        if not data:
            raise ValueError(f"the {kind} has no data")
