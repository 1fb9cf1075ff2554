"""Counts texts, messages and conversations for a model: by its row's exact counter, else by its encoder and margin."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import msgspec

from agentcli.llm.messages import Message
from agentcli.llm.provider import ToolSpec
from agentcli.llm.tokens.exact import exact_count
from agentcli.llm.tokens.families import Family, family_of
from agentcli.llm.tokens.media import TOKENS_PER_IMAGE, TOKENS_PER_PAGE, audio_tokens, document_tokens, image_tokens
from agentcli.llm.tokens.registry import Encoders

AnyMessage = Message | Mapping[str, Any]
AnyTool = ToolSpec | Mapping[str, Any]
TOKENS_PER_MESSAGE = 4  # role and separators ("How to count tokens with tiktoken", OpenAI cookbook)
TOKENS_TO_REPLY = 3  # what every reply is primed with (same)
# Fields that no model is shown.
_UNSEEN = frozenset(("type", "id", "role", "signature", "cache_control", "tool_use_id", "tool_call_id"))


def text_tokens(texts: Sequence[str], model: str, encoders: Encoders) -> int:
    """Tokens of texts, together; an exact counter is asked once for all of them."""
    row = encoders.row(model)
    texts = [text for text in texts if text]
    if not texts:
        return 0
    if row.mode == "exact" and (counted := exact_count(row.counter, model, "\n".join(texts))) is not None:
        return counted
    encoder = encoders.encoder(row)
    return ceil(sum(map(encoder.count, texts)) * row.margin)


def message_tokens(
    messages: Iterable[AnyMessage], model: str, encoders: Encoders, *, system: str = "", tools: Iterable[AnyTool] = ()
) -> int:
    """Tokens of messages, system text and tools: ours, or dicts as the Messages API and Chat Completions write them."""
    family = family_of(model)
    texts = [system, *(_json(msgspec.to_builtins(tool)) for tool in tools)]
    fixed = 0
    for message in messages:
        fixed += TOKENS_PER_MESSAGE
        for part in _parts(msgspec.to_builtins(message), family):
            if isinstance(part, str):
                texts.append(part)
            else:
                fixed += part
    return text_tokens(texts, model, encoders) + fixed


def _parts(value: Any, family: Family) -> Iterator[str | int]:
    """The texts of a message or a block, and the tokens of its images and documents."""
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:
                yield from _parts(item, family)
        case {"type": "image" | "document" as kind, "source": {"data": str(data)} as source}:
            if source.get("type") == "text":
                yield data
            else:
                yield image_tokens(data, family) if kind == "image" else document_tokens(data, family)
        case {"type": "image" | "image_url" | "input_image"}:
            url = value.get("image_url", "")
            url = url.get("url", "") if isinstance(url, dict) else url
            start, _, data = str(url).partition(";base64,")
            yield image_tokens(data, family) if start.startswith("data:image/") else TOKENS_PER_IMAGE
        case {"type": "file" | "input_file"} | {"type": "document", "source": {"type": "url" | "file"}}:
            file = value.get("file", value)
            yield from _file(str(file.get("file_data") or "") if isinstance(file, dict) else "", family)
        case {"type": "input_audio", "input_audio": {"data": str(data)} as audio}:
            yield audio_tokens(data, str(audio.get("format")), family)
        case {"type": "tool_use", "name": name, "input": given}:
            yield from (str(name), _json(given), str(value.get("unparsed", "")))
        case {"type": "function", "function": dict(call)}:
            yield from (text if isinstance(text, str) else _json(text) for text in call.values())
        case {"type": "opaque", "data": data}:
            yield _json(data)
        case dict():
            for key, item in value.items():
                if key not in _UNSEEN:
                    yield from _parts(item, family)
        case _:
            pass


def _file(data: str, family: Family) -> Iterator[str | int]:
    """What a file is read as, a page where its server alone has it; `data` is base64, or an address that holds it."""
    start, _, base64 = data.rpartition(";base64,")
    if start.startswith("data:text/"):
        yield b64decode(base64 + "==").decode(errors="replace")
    else:
        yield document_tokens(base64, family) if base64 else TOKENS_PER_PAGE


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
