"""Names what is exported by OpenTelemetry's conventions for generative AI, and takes secrets out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agentcli.infra.telemetry.export import MaskText
from agentcli.llm.messages import Block, Text, Thinking, ToolUse, Usage

# Names of ours that the conventions spell otherwise.
_PROVIDERS = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "foundry": "azure.ai.inference", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "vertex": "gcp.vertex_ai", "xai": "x_ai",
}  # fmt: skip

Attributes = dict[str, Any]


def clean(attributes: Mapping[str, Any], mask: MaskText) -> Attributes:
    """Without what is unknown, and every text without its secrets."""
    masked: Attributes = {}
    for name, value in attributes.items():
        match value:
            case None | "" | () | []:
                continue
            case str():
                masked[name] = mask(value)
            case tuple() | list():
                masked[name] = [mask(one) for one in value]
            case _:
                masked[name] = value
    return masked


def of_model(name: str, server: Callable[[str], tuple[str, int]]) -> Attributes:
    """The attributes of a `provider/model`, and of where it is reached."""
    provider, _, model = name.partition("/")
    if provider in ("local", "scripted"):  # a file, of which the folder is nobody's business
        model = model.rpartition("/")[2]
    host, port = server(provider)
    return {
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "server.address": host,
        "server.port": port or None,
    }


def of_usage(usage: Usage) -> Attributes:
    """Token counts; input tokens include those that a cache held."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_input_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_input_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
    }


def messages(role: str, content: Iterable[Block], finish_reason: str = "") -> str:
    """One message as the conventions' JSON; images and documents are left out."""
    parts = [part for block in content if (part := _part(block))]
    message: dict[str, Any] = {"role": role, "parts": parts}
    if finish_reason:
        message["finish_reason"] = finish_reason
    return as_json([message]) if parts else ""


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _part(block: Block) -> dict[str, Any]:
    match block:
        case Text(text):
            return {"type": "text", "content": text}
        case Thinking(thinking):
            return {"type": "reasoning", "content": thinking}
        case ToolUse(id, name, input):
            return {"type": "tool_call", "id": id, "name": name, "arguments": input}
        case _:
            return {}
