"""A request as the body of Anthropic's Messages API, version 2026-10-21 (platform.claude.com/docs, read 2026-11)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import msgspec

from agentcli.llm.media import MediaRules, fitted
from agentcli.llm.messages import GO_ON, Block, Message, Opaque, Text, Thinking, ToolResult, ToolUse, without_empty_text
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request
from agentcli.llm.wire.calls import plain_id, plain_name

CACHE = {"type": "ephemeral"}
HOUR = "1h"
MOST_BREAKPOINTS = 4  # the API's limit
SMALL_WINDOW = 200_000  # tokens; models with a larger one take more images
MEDIA = MediaRules(
    images=600, documents=True, image_bytes=5 * 1024 * 1024, edge=8_000, crowd=20, crowded_edge=2_000
)  # platform.claude.com/docs, "Vision"


def to_body(request: Request, model: ModelInfo) -> dict[str, Any]:
    """The body of `POST /v1/messages`, tools and system first: an earlier request's bytes begin a later one."""
    body: dict[str, Any] = {"model": model.id, "max_tokens": request.max_tokens, "stream": True}
    messages = _messages(request, model)
    body |= _thinking(request, model, messages)
    if request.temperature is not None and model.takes_temperature and "thinking" not in body:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [msgspec.to_builtins(tool) for tool in request.tools]
        body["tools"][-1]["cache_control"] = CACHE
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, "cache_control": CACHE}]
    body["messages"] = messages
    _keep_to_limits(body)
    return request.sent(body)


def _thinking(request: Request, model: ModelInfo, messages: list[dict[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    match model.thinking:
        case "adaptive":  # the default display leaves the text between tool calls empty
            fields["thinking"] = {"type": "adaptive", "display": "summarized"}
        case "budget" if request.effort is not None and request.max_tokens > 2048 and not _acts_unthinking(messages):
            fields["thinking"] = {"type": "enabled", "budget_tokens": min(16_000, request.max_tokens // 2)}
        case _:
            pass
    output: dict[str, Any] = {}
    if request.effort is not None and model.takes_effort:
        output["effort"] = request.effort
    if request.answer_schema is not None and model.takes_schema:
        output["format"] = {"type": "json_schema", "schema": request.answer_schema}
    return fields | ({"output_config": output} if output else {})


def _acts_unthinking(messages: list[dict[str, Any]]) -> bool:
    """Return True if the newest calls come from a reply without thinking, after which the API refuses to think."""
    turns = [list(group) for _, group in groupby(messages, key=lambda message: message["role"])]
    if len(turns) < 2 or not any(block["type"] == "tool_result" for m in turns[-1] for block in m["content"]):
        return False
    return turns[-2][0]["content"][0]["type"] not in ("thinking", "redacted_thinking")


def media_rules(model: ModelInfo) -> MediaRules:
    images = MEDIA.images if model.window > SMALL_WINDOW else 100
    return msgspec.structs.replace(MEDIA, images=images if model.takes_images or not model.is_known else 0)


def _messages(request: Request, model: ModelInfo) -> list[dict[str, Any]]:
    """Messages with breakpoints where the request before this one ended and at the end, and none without content."""
    messages: list[dict[str, Any]] = []
    for number, message in enumerate(fitted(request.messages, media_rules(model)), 1):
        if content := [block_to_wire(block) for block in sendable(message, "anthropic")]:
            messages.append({"role": message.role, "content": content})
        if messages and number in (request.earlier_messages, len(request.messages)):
            _mark(messages[-1]["content"])
    # A reply that waits for the API's own tools continues when it is sent back as it came.
    last = sendable(request.messages[-1], "anthropic") if messages else ()
    if messages and messages[-1]["role"] == "assistant" and not any(isinstance(block, Opaque) for block in last):
        messages.append({"role": "user", "content": [block_to_wire(GO_ON)]})
    return messages


def _mark(content: list[dict[str, Any]]) -> None:
    for block in reversed(content):  # thinking blocks take no breakpoint
        if block["type"] not in ("thinking", "redacted_thinking"):
            block.setdefault("cache_control", CACHE)
            return


def _keep_to_limits(body: dict[str, Any]) -> None:
    """Make room for a caller's breakpoints: ours go first, from the beginning; those for an hour come before others."""
    blocks = [*body.get("tools", ()), *body.get("system", ())]
    for block in (block for message in body["messages"] for block in message["content"]):
        parts = block.get("content")  # of a tool's result
        own = (part for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
        blocks += (*own, block)  # a block that goes back as it came may hold anything
    marked = [block for block in blocks if "cache_control" in block]
    for block in sorted(marked[:-1], key=lambda block: block["cache_control"] is not CACHE):
        if len(marked) <= MOST_BREAKPOINTS:
            break
        del block["cache_control"]
        marked = [other for other in marked if other is not block]
    lasting = [n for n, block in enumerate(marked) if block["cache_control"].get("ttl") == HOUR]
    for block in marked[: lasting[-1] if lasting else 0]:
        block["cache_control"] = {**CACHE, "ttl": HOUR}


def sendable(message: Message, provider: str) -> tuple[Block, ...]:
    """Return the blocks this API takes; a failed result is text alone, and its images follow behind the results."""
    results: list[Block] = []
    apart: list[Block] = []
    rest: list[Block] = []
    for block in without_empty_text(message.content):
        match block:
            case ToolResult(id, content, is_error):
                if is_error and not isinstance(content, str):
                    apart += [part for part in content if not isinstance(part, Text)]
                content = (block.text.strip() or "Error") if is_error else content
                results.append(ToolResult(plain_id(id), content, is_error))
            case ToolUse(id, name, input):
                rest.append(ToolUse(plain_id(id), plain_name(name), input))
            case Opaque(of) if of != provider:
                pass
            case Thinking(signature=None | ""):
                pass
            case _:
                rest.append(block)
    return (*results, *apart, *rest)


def block_to_wire(block: Block) -> dict[str, Any]:
    wire: dict[str, Any]
    match block:
        case Opaque():
            return dict(block.data)
        case ToolUse():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
        case ToolResult(id, tuple(parts), is_error):
            kept = without_empty_text(parts)  # some of the same blocks, which its signature does not say
            wire = msgspec.to_builtins(ToolResult(id, kept, is_error))  # type: ignore[arg-type]
            return wire
        case _:
            wire = msgspec.to_builtins(block)
            return wire
