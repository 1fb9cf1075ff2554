"""Counts tokens without asking anybody: an estimate by bytes, scaled by the model's own factor."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add, sub
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


_WORDS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ "
_FOREIGN = bytes(range(128, 256))


class Size(NamedTuple):
    """Bytes of text, of which tokens hold differently many, and the tokens of what is no text.

    `words` are bytes of letters and spaces, `symbols` of the rest of ASCII, `foreign` of all other characters.
    """

    words: int = 0
    symbols: int = 0
    foreign: int = 0
    media: int = 0

    @property
    def bytes(self) -> int:
        return self.words + self.symbols + self.foreign

    def plus(self, other: Size) -> Size:
        return Size(*map(add, self, other))

    def minus(self, other: Size) -> Size:
        return Size(*map(sub, self, other))


def text_size(text: str | bytes) -> Size:
    data = text.encode(errors="replace") if isinstance(text, str) else text
    ascii = len(data.translate(None, _FOREIGN))
    symbols = len(data.translate(None, _FOREIGN + _WORDS))
    return Size(ascii - symbols, symbols, len(data) - ascii)


def estimate(request: Request, model: ModelInfo) -> TokenCount:
    """Prompt tokens of a request, rather too many than too few."""
    size = request_size(request, model)
    tokens = size.bytes / BYTES_PER_TOKEN * model.token_factor * SAFETY
    return TokenCount(int(tokens) + TOKENS_PER_MESSAGE * len(request.messages) + size.media, exact=False)


def request_size(request: Request, model: ModelInfo) -> Size:
    blocks = (block for message in request.messages for block in sent_back(message.content, model))
    return size_of(blocks, model.id).plus(prefix_size(request.system, request.tools))


def sent_back(content: tuple[Block, ...], model: ModelInfo) -> tuple[Block, ...]:
    """What of a message goes to a model again: all but unsigned thinking that its API is not sent."""
    has_calls = any(isinstance(block, ToolUse) for block in content)
    if model.sends_back == "all" or (model.sends_back == "calls" and has_calls):
        return content
    return tuple(block for block in content if not isinstance(block, Thinking) or block.signature)


def estimate_text(text: str, model: ModelInfo | None = None) -> int:
    """Tokens of a text, with the same margin."""
    factor = model.token_factor if model else 1.0
    return int(len(text.encode(errors="replace")) / BYTES_PER_TOKEN * factor * SAFETY) + 1


def prefix_size(system: str, tools: Iterable[ToolSpec]) -> Size:
    return reduce(Size.plus, (text_size(msgspec.json.encode(tool)) for tool in tools), text_size(system))


def size_of(content: Iterable[Block], model: str) -> Size:
    """What the blocks of a message hold; images and documents cost what the model's family takes for them."""
    return reduce(Size.plus, (_size(block, model) for block in content), Size())


def _size(block: Block, model: str) -> Size:
    match block:
        case Text(text) | Thinking(text) | ToolResult(_, str(text)):
            return text_size(text)
        case ToolUse():
            return text_size(msgspec.json.encode(block.input)).plus(text_size(block.name + block.unparsed))
        case ToolResult(_, tuple(parts)):
            return size_of(parts, model)
        case Image(source):
            return Size(media=image_tokens(source.data, family_of(model)))
        case Document(source):
            return Size(media=document_tokens(source.data, family_of(model)))
        case _:
            return text_size(msgspec.json.encode(block))
