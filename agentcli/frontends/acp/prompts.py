"""Turns the content blocks of a client's prompt into text, attachments and media."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from agentcli.frontends.acp.messages import Content, ImageContent, LinkContent, Resource, ResourceContent, TextContent
from agentcli.frontends.acp.rpc import INVALID_PARAMS, RpcError
from agentcli.frontends.json_forms.input import DOCUMENT_TYPES, IMAGE_TYPES, check_media
from agentcli.llm.messages import Base64Source, Document, Image, Text

_LINES = re.compile(r"L(\d+)(?:[:-]L?(\d+))?")


class PromptParts(Struct, frozen=True):
    """A prompt's text, in which a link to a file reads `@path`. `links` holds the same links, quoted.

    `more` holds what is embedded in the prompt.
    """

    text: str
    links: tuple[str, ...]
    more: tuple[Text | Image | Document, ...]


def parse_prompt(content: Sequence[Content], cwd: Path) -> PromptParts:
    """Raises `RpcError` for an empty prompt, and for images or documents that no model takes."""
    text = ""
    links: list[str] = []
    more: list[Text | Image | Document] = []
    for before, part in zip((None, *content), content, strict=False):
        if text and not text[-1].isspace():
            text += "\n" if isinstance(before, TextContent) and isinstance(part, TextContent) else " "
        match part:
            case TextContent(said):
                text += said
            case LinkContent(uri, name) if (file := _file(uri, cwd)) is not None:
                links.append(f'@"{file[0]}"{file[1]}')
                text += f"@{file[0]}{file[1]}"
            case LinkContent(uri, name):
                text += f"[{name}]({uri})"
            case ResourceContent(resource):
                text += f"@{_name(resource.uri, cwd)}"
                more += _contents(resource, cwd)
            case ImageContent(data, mime_type):
                more.append(Image(Base64Source(mime_type, data)))
    try:
        check_media(more)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {error}.") from error
    if not text.strip() and not more:
        raise RpcError(INVALID_PARAMS, "Invalid params: the prompt is empty.")
    return PromptParts(text, tuple(links), tuple(more))


def _file(uri: str, cwd: Path) -> tuple[str, str] | None:
    """Split a `file:` address into its path, relative to `cwd` if inside, and its lines: `:10-20` for `#L10:20`."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path, errors="replace").removeprefix(f"{os.path.normpath(cwd)}/")
    lines = _LINES.fullmatch(parts.fragment)
    return path, f":{lines[1]}-{lines[2] or lines[1]}" if lines else ""


def _name(uri: str, cwd: Path) -> str:
    return "".join(_file(uri, cwd) or (uri,))


def _contents(resource: Resource, cwd: Path) -> Iterator[Text | Image | Document]:
    name = _name(resource.uri, cwd)
    kind = resource.mime_type or ""
    if resource.text is not None:
        yield Text(f'<file path="{name}">\n{resource.text}\n</file>')
    elif kind in IMAGE_TYPES:
        yield Image(Base64Source(kind, resource.blob or ""))
    elif kind in DOCUMENT_TYPES:
        yield Document(Base64Source(kind, resource.blob or ""))
    else:
        size = len(resource.blob or "") * 3 // 4
        yield Text(f'<file path="{name}">\n[{kind or "binary"}, about {size:,} bytes: not shown]\n</file>')
