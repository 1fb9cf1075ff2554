"""Turns the content of MCP results and resources into what models read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import mcp_types as types

from agentcli.extensions.mcp.client import Parts
from agentcli.llm.messages import Base64Source, Document, Image, Text

_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # what all providers take


def parts_of(blocks: Iterable[types.ContentBlock]) -> Parts:
    """Text, images and PDFs as they are; a line about anything else."""
    return tuple(_part(block) for block in blocks)


def _part(block: types.ContentBlock) -> Text | Image | Document:
    match block:
        case types.TextContent():
            return Text(block.text)
        case types.ImageContent():
            return _media(block.data, block.mime_type, "an image")
        case types.AudioContent():
            return Text(f"[audio, {block.mime_type}, which cannot be shown]")
        case types.ResourceLink():
            about = " · ".join(part for part in (block.title or block.name, block.description, block.mime_type) if part)
            return Text(f"[resource {block.uri}: {about}]")
        case types.EmbeddedResource():
            return resource_part(block.resource)


def resource_part(contents: types.TextResourceContents | types.BlobResourceContents) -> Text | Image | Document:
    match contents:
        case types.TextResourceContents():
            return Text(contents.text)
        case types.BlobResourceContents():
            return _media(contents.blob, contents.mime_type or "", str(contents.uri))


def _media(data: str, mime_type: str, what: str) -> Text | Image | Document:
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        return Text(f"[{what} that is no base64]")
    if mime_type in _IMAGES:
        return Image(Base64Source(mime_type, data))
    if mime_type == "application/pdf":
        return Document(Base64Source(mime_type, data))
    return Text(f"[{what}, {mime_type or 'of an unknown type'}, which cannot be shown]")
