"""Counts tokens without asking anybody: an estimate by bytes, scaled by the model's own factor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from agentcli.llm.messages import Block, Document, Image, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, TokenCount, ToolSpec
from agentcli.llm.tokens.families import family_of
from agentcli.llm.tokens.media import document_tokens, image_tokens

BYTES_PER_TOKEN = 3.0  # TOML and JSON have that few in the o200k encoding; source code and English about 4
TOKENS_PER_MESSAGE = 4
SAFETY = 1.1


class Size(NamedTuple):
    """Bytes of text, and the tokens of what is no text."""

    bytes: int = 0
    media: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.bytes + other.bytes, self.media + other.media)


def estimate(request: Request, model: ModelInfo) -> TokenCount:
    """Prompt tokens of a request, rather too many than too few."""
    size = request_size(request, model)
    tokens = size.bytes / BYTES_PER_TOKEN * model.token_factor * SAFETY
    return TokenCount(int(tokens) + TOKENS_PER_MESSAGE * len(request.messages) + size.media, exact=False)


def request_size(request: Request, model: ModelInfo) -> Size:
    size = prefix_size(request.system, request.tools)
    for message in request.messages:
        size = size.plus(size_of(message.content, model.id))
    return size


def estimate_text(text: str, model: ModelInfo | None = None) -> int:
    """Tokens of a text, with the same margin."""
    factor = model.token_factor if model else 1.0
    return int(len(text.encode(errors="replace")) / BYTES_PER_TOKEN * factor * SAFETY) + 1


def prefix_size(system: str, tools: Iterable[ToolSpec]) -> Size:
    return Size(len(system.encode(errors="replace")) + sum(len(msgspec.json.encode(tool)) for tool in tools))


def size_of(content: Iterable[Block], model: str) -> Size:
    """What the blocks of a message hold; images and documents cost what the model's family takes for them."""
    size = Size()
    for block in content:
        size = size.plus(_size(block, model))
    return size


def _size(block: Block, model: str) -> Size:
    match block:
        case Text(text):
            return Size(len(text.encode(errors="replace")))
        case Thinking(thinking):
            return Size(len(thinking.encode(errors="replace")))
        case ToolUse():
            return Size(len(msgspec.json.encode(block.input)) + len(block.name) + len(block.unparsed))
        case ToolResult(_, str(content)):
            return Size(len(content.encode(errors="replace")))
        case ToolResult(_, tuple(parts)):
            return size_of(parts, model)
        case Image(source):
            return Size(0, image_tokens(source.data, family_of(model)))
        case Document(source):
            return Size(0, document_tokens(source.data, family_of(model)))
        case _:
            return Size(len(msgspec.json.encode(block)))
