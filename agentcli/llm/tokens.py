"""Counts tokens without asking anybody: an estimate with a safety margin, scaled by the model's own factor."""

from __future__ import annotations

import msgspec

from agentcli.llm.messages import Block, Document, Image, Text, Thinking, ToolResult, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, TokenCount

BYTES_PER_TOKEN = 3.0  # TOML and JSON have that few in the o200k encoding; source code and English about 4
TOKENS_PER_MESSAGE = 4
TOKENS_PER_IMAGE = 1_600  # what an image of the largest useful size costs
SAFETY = 1.1


def estimate(request: Request, model: ModelInfo) -> TokenCount:
    """Prompt tokens of a request, rather too many than too few."""
    size = len(request.system.encode(errors="replace")) + sum(len(msgspec.json.encode(tool)) for tool in request.tools)
    images = 0
    for message in request.messages:
        for block in message.content:
            text, pictures = _size(block)
            size += text
            images += pictures
    tokens = size / BYTES_PER_TOKEN * model.token_factor * SAFETY
    return TokenCount(int(tokens) + TOKENS_PER_MESSAGE * len(request.messages) + TOKENS_PER_IMAGE * images, exact=False)


def estimate_text(text: str, model: ModelInfo | None = None) -> int:
    """Tokens of a text, with the same margin."""
    factor = model.token_factor if model else 1.0
    return int(len(text.encode(errors="replace")) / BYTES_PER_TOKEN * factor * SAFETY) + 1


def _size(block: Block) -> tuple[int, int]:
    """Bytes of text and number of images in a block."""
    match block:
        case Text(text):
            return len(text.encode(errors="replace")), 0
        case Thinking(thinking):
            return len(thinking.encode(errors="replace")), 0
        case ToolUse():
            return len(msgspec.json.encode(block.input)) + len(block.name) + len(block.unparsed), 0
        case ToolResult(_, str(content)):
            return len(content.encode(errors="replace")), 0
        case ToolResult(_, tuple(parts)):
            sizes = [_size(part) for part in parts]
            return sum(size for size, _ in sizes), sum(images for _, images in sizes)
        case Image():
            return 0, 1
        case Document():
            return len(block.source.data) // 4, 0
        case _:
            return len(msgspec.json.encode(block)), 0
