"""Finds the blocks that a provider's refusal is about, and tells them in another way, or not at all."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec.structs import replace

from agentcli.llm.errors import BadRequest, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.json_text import encode_json
from agentcli.llm.media import media_in, with_media
from agentcli.llm.messages import (
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)

TOO_LARGE = 413

_ABOUT_MEDIA = re.compile(r"image|media|vision|visual|multi-?modal|mmproj|pdf|document|base64|\bfile", re.IGNORECASE)
_ABOUT_THINKING = re.compile(r"thinking|signature|reasoning", re.IGNORECASE)
_ABOUT_FORM = re.compile(r"message|content|block|\broles?\b|tool_|template|jinja", re.IGNORECASE)


def blamed(messages: tuple[Message, ...], error: ProviderError) -> tuple[str, frozenset[str]]:
    """What a refusal may be about: how to go on, in words, and keys for `without`; none where it is about other things.

    Reasoning goes before images and documents, unless these are what the refusal names, and calls come last.
    """
    is_too_large = error.status == TOO_LARGE
    if not isinstance(error, BadRequest) or isinstance(error, ModelNotFound):
        return "", frozenset()
    if isinstance(error, ContextOverflow) and not is_too_large:
        return "", frozenset()
    said = f"{error.code} {error}"
    blocks = [block for message in messages for block in message.content]
    names_media, names_thinking = is_too_large or _ABOUT_MEDIA.search(said), _ABOUT_THINKING.search(said)
    names_form = _ABOUT_FORM.search(said)
    media = {_key(block) for block in media_in(messages)} if names_media or names_form else set()
    thoughts = {_key(block) for block in blocks if _is_thought(block)} if names_thinking or names_form else set()
    calls = {block.id for block in blocks if isinstance(block, ToolUse)} if names_form else set()
    ways = [("without earlier reasoning", thoughts), ("without images and documents", media)]
    if names_media and not names_thinking:
        ways.reverse()
    return next(
        ((how, frozenset(keys)) for how, keys in [*ways, ("with earlier calls told as text", calls)] if keys),
        ("", frozenset()),
    )


def without(messages: tuple[Message, ...], keys: Collection[str]) -> tuple[Message, ...]:
    """The messages without the blocks of these keys; a text stands for an image, a document, a call and its result."""
    if not keys:
        return messages

    def named(block: Image | Document) -> Text | Image | Document:
        refused = Text(f"[{type(block).__name__} left out: the provider refused it]")
        return refused if _key(block) in keys else block

    return tuple(
        replace(
            message,
            content=tuple(_told(b, keys) for b in message.content if not (_is_thought(b) and _key(b) in keys)),
        )
        for message in with_media(messages, named)
    )


def _told(block: Block, keys: Collection[str]) -> Block:
    match block:
        case ToolUse(id, name, given) if id in keys:
            return Text(f"\n[called {name} with {encode_json(given).decode()}]")
        case ToolResult(id) if id in keys:
            return Text(f"[result{' (an error)' if block.is_error else ''}]\n{block.text}")
        case _:
            return block


def _is_thought(block: Block) -> bool:
    return isinstance(block, Thinking | RedactedThinking) or (
        isinstance(block, Opaque) and "reasoning_details" in block.data
    )


def _key(block: Block) -> str:
    match block:
        case Thinking(text, signature):
            return f"{signature} {text}"
        case RedactedThinking(data):
            return data
        case Image(source) | Document(source):
            return source.data
        case _:
            return repr(block)
