"""Estimates tokens by bytes, scaled by a factor that is learned for each model from its provider's counts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import add, sub
from typing import NamedTuple

import msgspec

from agentcli.llm.media import document_tokens, image_tokens
from agentcli.llm.messages import Block, Document, Image, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, TokenCount, ToolSpec

BYTES_PER_TOKEN = 3.0  # TOML and JSON have that few in the o200k encoding; source code and English about 4
TOKENS_PER_MESSAGE = 4
SAFETY = 1.1

MIN_LEARNED = 20  # estimated tokens; in a smaller request the fixed parts outweigh the texts
HALF_LIFE = 1_000  # estimated tokens after which earlier counts have half their weight
FACTOR_BOUNDS = 0.2, 4.0  # beyond these, the provider counted something else
_FOREIGN = bytes(range(128, 256))

# The first family with a word in the name wins: a distilled model ("deepseek-r1-distill-qwen") has its base's tokens.
_FAMILIES: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "anthropic"),
    "gemini": ("gemini", "gemma"),
    "glm": ("glm", "zhipu", "z-ai"),
    "qwen": ("qwen", "qwq", "qvq"),
    "llama": ("llama",),
    "mistral": ("mistral", "mixtral", "ministral", "codestral", "devstral", "magistral", "pixtral"),
    "deepseek": ("deepseek",),
    "gpt": ("gpt", "openai", "codex", "davinci"),
}


def family_of(model: str) -> str:
    """Return the family of a model, whose members have similar tokens; "custom" for an unknown model."""
    for name in reversed(model.lower().split("/")):
        name = name.replace("ollama", "")  # it runs models of every family
        if name[:1] == "o" and name[1:2].isdigit():  # o3, o4-mini
            return "gpt"
        for family, words in _FAMILIES.items():
            if any(word in name for word in words):
                return family
    return "custom"


class Size(NamedTuple):
    """Bytes of text, as ASCII and `foreign` (all other characters), and the tokens of images and documents."""

    ascii: int = 0
    foreign: int = 0
    media: int = 0

    @property
    def bytes(self) -> int:
        return self.ascii + self.foreign

    def plus(self, other: Size) -> Size:
        return Size(*map(add, self, other))

    def minus(self, other: Size) -> Size:
        return Size(*map(sub, self, other))


MESSAGE = Size(int(TOKENS_PER_MESSAGE * BYTES_PER_TOKEN))  # what a message takes beside its blocks


class Calibration:
    """The tokens per byte of each model, learned from providers' counts. Recent and large texts count most."""

    def __init__(self) -> None:
        self._learned: dict[str, tuple[float, float]] = {}  # estimated and counted tokens of each model

    def learn(self, model: str, size: Size, counted: int) -> None:
        """Learn from texts of this size that the provider counted as `counted` tokens."""
        estimated = size.bytes / BYTES_PER_TOKEN
        if estimated >= MIN_LEARNED and FACTOR_BOUNDS[0] <= counted / estimated <= FACTOR_BOUNDS[1]:
            share = 0.5 ** (estimated / HALF_LIFE)
            before = self._learned.get(model, (0.0, 0.0))
            self._learned[model] = before[0] * share + estimated, before[1] * share + counted

    def tokens(self, model: str, size: Size, default: float = 1.0) -> int:
        """Return the estimate for texts and media of this size; `default` is the factor until a count is known."""
        estimated, counted = self._learned.get(model, (1.0, default))
        return round(size.bytes / BYTES_PER_TOKEN * counted / estimated) + size.media


def estimate(request: Request, model: ModelInfo) -> TokenCount:
    """Estimate the prompt tokens of a request, rather too many than too few."""
    size = request_size(request, model)
    tokens = size.bytes / BYTES_PER_TOKEN * model.token_factor * SAFETY
    return TokenCount(int(tokens) + TOKENS_PER_MESSAGE * len(request.messages) + size.media, exact=False)


def estimate_text(text: str, model: ModelInfo | None = None) -> int:
    """Estimate the tokens of a text, with the margin of `estimate`."""
    factor = model.token_factor if model else 1.0
    return int(text_size(text).bytes / BYTES_PER_TOKEN * factor * SAFETY) + 1


def request_size(request: Request, model: ModelInfo) -> Size:
    blocks = (block for message in request.messages for block in sent_back(message.content, model))
    return size_of(blocks, model.id).plus(prefix_size(request.system, request.tools))


def sent_back(content: tuple[Block, ...], model: ModelInfo) -> tuple[Block, ...]:
    """Return the blocks of a message that later requests send to a model: all but unsigned thinking it does not get."""
    has_calls = any(isinstance(block, ToolUse) for block in content)
    if model.sends_back == "all" or (model.sends_back == "calls" and has_calls):
        return content
    return tuple(block for block in content if not isinstance(block, Thinking) or block.signature)


def prefix_size(system: str, tools: Iterable[ToolSpec]) -> Size:
    return reduce(Size.plus, (text_size(msgspec.json.encode(tool)) for tool in tools), text_size(system))


def size_of(content: Iterable[Block], model: str) -> Size:
    """Return the size of the blocks of a message; images and documents count as in the model's family."""
    return reduce(Size.plus, (_block_size(block, model) for block in content), Size())


def _block_size(block: Block, model: str) -> Size:
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


def text_size(text: str | bytes) -> Size:
    data = text.encode(errors="replace") if isinstance(text, str) else text
    ascii = len(data.translate(None, _FOREIGN))
    return Size(ascii, len(data) - ascii)
