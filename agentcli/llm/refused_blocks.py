"""Finds the blocks that a provider's refusal is about, and leaves them out of later requests."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec.structs import replace

from agentcli.llm.errors import BadRequest, ContextOverflow, ModelNotFound, ProviderError
from agentcli.llm.media import media_in, with_media
from agentcli.llm.messages import Block, Document, Image, Message, Opaque, RedactedThinking, Text, Thinking

TOO_LARGE = 413

_ABOUT_MEDIA = re.compile(r"image|media|vision|visual|multi-?modal|mmproj|pdf|document|base64|\bfile", re.IGNORECASE)
_ABOUT_THINKING = re.compile(r"thinking|signature|reasoning", re.IGNORECASE)
_ABOUT_FORM = re.compile(r"message|content|block|\broles?\b|tool_(use|result|call)|template", re.IGNORECASE)


def blamed(messages: tuple[Message, ...], error: ProviderError) -> tuple[str, frozenset[str]]:
    """What to leave out after a refusal: in words, and as keys for `without`; none where it is about other things.

    Reasoning goes before images and documents, unless these are what the refusal names.
    """
    is_too_large = error.status == TOO_LARGE
    if not isinstance(error, BadRequest) or isinstance(error, ModelNotFound):
        return "", frozenset()
    if isinstance(error, ContextOverflow) and not is_too_large:
        return "", frozenset()
    said = f"{error.code} {error}"
    names_media = is_too_large or _ABOUT_MEDIA.search(said)
    names_form = _ABOUT_FORM.search(said)
    if _ABOUT_THINKING.search(said) or (names_form and not names_media):
        thoughts = {_key(block) for message in messages for block in message.content if _is_thought(block)}
        if thoughts:
            return "earlier reasoning", frozenset(thoughts)
    media = media_in(messages) if names_media or names_form else ()
    return "images and documents", frozenset(map(_key, media))


def without(messages: tuple[Message, ...], keys: Collection[str]) -> tuple[Message, ...]:
    """The messages without the blocks of these keys; a text stands for an image or a document."""
    if not keys:
        return messages

    def named(block: Image | Document) -> Text | Image | Document:
        refused = Text(f"[{type(block).__name__} left out: the provider refused it]")
        return refused if _key(block) in keys else block

    return tuple(
        replace(message, content=tuple(b for b in message.content if not (_is_thought(b) and _key(b) in keys)))
        if message.role == "assistant"
        else message
        for message in with_media(messages, named)
    )


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
