"""A request as the body of Chat Completions, with the habits of the servers that speak it, each seen in a real one.

Sources: the openai SDK's issues, ollama#7881, vllm#18412, lmdeploy#3412, opencode#40061, vendors (2026-11).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from agentcli.llm.json_text import encode_json
from agentcli.llm.media import MediaRules, fitted
from agentcli.llm.messages import Document, Image, Message, Opaque, Text, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, ToolSpec
from agentcli.llm.transcript import in_turn
from agentcli.llm.wire.calls import plain_id, plain_name

EXTRAS = "extra_content"  # of a call, by its id where a reply keeps them


class Quirks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The differences of one server from the reference. Every field can be set for a server in the configuration.

    `echo_reasoning`: earlier reasoning goes back as `reasoning_content` in turns with calls, even when empty.
    `read_text_calls`: calls written as plain text are taken as calls. `fixed_ids`: call ids of nine letters or digits.
    `images`: so many in one request at most. `documents`: PDFs are taken. `extra_content`: what the first call of a
    reply carries where it is not from this server, whose own keep what it gave them. `api`: which of OpenAI's.
    `reasoning_first`: replies begin with reasoning that only `</think>` ends.
    `silent_end`: replies may end without `finish_reason` and `[DONE]`; elsewhere such an end is a broken connection.
    """

    system_role: Literal["system", "developer"] = "system"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True
    no_obfuscation: bool = False
    thinking_format: Literal["none", "reasoning_effort", "thinking", "enable_thinking", "chat_template_kwargs"] = "none"
    efforts: dict[str, str] = {}
    echo_reasoning: bool = False
    tool_result_name: bool = False
    assistant_after_tool_result: bool = False
    strict_tools: bool = False
    null_content: bool = True
    fixed_ids: bool = False
    parallel_tool_calls: bool | None = None
    cache_control: bool = False
    read_text_calls: bool = False
    reasoning_first: bool = False
    silent_end: bool = False
    images: int = 100
    documents: bool = False
    store: bool | None = None
    extra_body: dict[str, Any] = {}
    extra_content: dict[str, Any] = {}
    api: Literal["chat", "responses"] = "chat"


def to_body(request: Request, info: ModelInfo, quirks: Quirks, provider: str) -> dict[str, Any]:
    """The body of `POST /chat/completions`, tools before messages."""
    body: dict[str, Any] = {"model": info.id, "stream": True, quirks.max_tokens_field: request.max_tokens}
    if quirks.stream_usage:
        body["stream_options"] = {"include_usage": True}
        if quirks.no_obfuscation:
            body["stream_options"]["include_obfuscation"] = False
    if quirks.store is not None:
        body["store"] = quirks.store
    body |= _thinking(request, info, quirks) | common_fields(request, info, quirks, _tool)
    if schema := answer_schema(request, info):
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    body["messages"] = list(_messages(request, info, quirks, provider))
    return request.sent(body | quirks.extra_body)


def common_fields(
    request: Request, info: ModelInfo, quirks: Quirks, tool: Callable[[ToolSpec, Quirks], dict[str, Any]]
) -> dict[str, Any]:
    """Return the fields that both of OpenAI's APIs call by the same names."""
    fields: dict[str, Any] = {}
    if request.temperature is not None and info.takes_temperature:
        fields["temperature"] = request.temperature
    if request.tools:
        fields["tools"] = [tool(spec, quirks) for spec in request.tools]
        if quirks.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = quirks.parallel_tool_calls
    return fields


def answer_schema(request: Request, info: ModelInfo) -> dict[str, Any]:
    """Return how both name the schema of the answer; empty if there is none."""
    has_schema = request.answer_schema is not None and info.takes_schema
    return {"name": "answer", "schema": request.answer_schema, "strict": False} if has_schema else {}


def _thinking(request: Request, info: ModelInfo, quirks: Quirks) -> dict[str, Any]:
    if request.effort is None or info.thinking == "none":
        return {}
    effort = quirks.efforts.get(request.effort, request.effort)
    forms: dict[str, dict[str, Any]] = {
        "reasoning_effort": {"reasoning_effort": effort},
        "thinking": {"thinking": {"type": "enabled"}, "reasoning_effort": effort},
        "enable_thinking": {"enable_thinking": True},
        "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": True}},
    }
    return forms.get(quirks.thinking_format, {})


def _tool(tool: ToolSpec, quirks: Quirks) -> dict[str, Any]:
    return {"type": "function", "function": function_of(tool) | ({"strict": True} if quirks.strict_tools else {})}


def function_of(tool: ToolSpec) -> dict[str, Any]:
    # OpenAI refuses an object without properties, such as the stub of a tool that is described when it is called.
    parameters = {**tool.input_schema, "properties": tool.input_schema.get("properties", {})}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def media_rules(info: ModelInfo, quirks: Quirks) -> MediaRules:
    return MediaRules(images=quirks.images if info.takes_images or not info.is_known else 0, documents=quirks.documents)


def _messages(request: Request, info: ModelInfo, quirks: Quirks, provider: str) -> Iterator[dict[str, Any]]:
    if request.system:
        content: Any = request.system
        if quirks.cache_control:
            content = [{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]
        yield {"role": quirks.system_role, "content": content}
    names = {use.id: use.name for message in request.messages for use in message.tool_uses}
    after_result = False
    for message in in_turn(fitted(request.messages, media_rules(info, quirks))):
        if message.role == "assistant":
            after_result = False
            yield _assistant(message, quirks, provider)
            continue
        results = [block for block in message.content if isinstance(block, ToolResult)]
        for result in results:
            yield _result(result, names, quirks)
        pictures = [part for result in results for part in parts_of(result) if not isinstance(part, Text)]
        rest = [block for block in message.content if not isinstance(block, ToolResult)]
        after_result = after_result or bool(results)
        if content := _user_content([*pictures, *rest]):
            if after_result and quirks.assistant_after_tool_result:
                yield {"role": "assistant", "content": "I have the results."}
            after_result = False
            yield {"role": "user", "content": content}


def _assistant(message: Message, quirks: Quirks, provider: str) -> dict[str, Any]:
    text = message.text
    wire: dict[str, Any] = {"role": "assistant", "content": text or (None if quirks.null_content else "")}
    if message.tool_uses:
        wire["tool_calls"] = [
            {
                "id": wire_id(use.id, quirks),
                "type": "function",
                "function": {"name": plain_name(use.name), "arguments": encode_json(use.input).decode()},
            }
            for use in message.tool_uses
        ]
        if quirks.echo_reasoning:
            wire["reasoning_content"] = message.unsigned_thinking
    own: dict[str, Any] = {}
    for block in message.content:
        if isinstance(block, Opaque) and block.provider == provider:
            own |= block.data.get(EXTRAS, {})
            wire |= {name: value for name, value in block.data.items() if name != EXTRAS}
    if quirks.extra_content:
        for number, (call, use) in enumerate(zip(wire.get("tool_calls", ()), message.tool_uses, strict=True)):
            if extra := own.get(use.id) or (quirks.extra_content if number == 0 else None):
                call[EXTRAS] = extra
    return wire


def _result(result: ToolResult, names: dict[str, str], quirks: Quirks) -> dict[str, Any]:
    has_file = any(not isinstance(part, Text) for part in parts_of(result))
    text = result_text(result, empty="(the file follows in the next message)" if has_file else "")
    wire = {"role": "tool", "tool_call_id": wire_id(result.tool_use_id, quirks), "content": text}
    if quirks.tool_result_name:
        wire["name"] = plain_name(names.get(result.tool_use_id, "tool"))
    return wire


def parts_of(result: ToolResult) -> tuple[Text | Image | Document, ...]:
    return (Text(result.content),) if isinstance(result.content, str) else result.content


def result_text(result: ToolResult, *, empty: str = "") -> str:
    text = "\n".join(part.text for part in parts_of(result) if isinstance(part, Text)) or empty
    # The protocols have no mark for a failed result.
    return f"Error: {text}" if result.is_error and not text.startswith("Error") else text


def _user_content(blocks: list[Any]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case Text(text) if text.strip():
                parts.append({"type": "text", "text": text})
            case Image(source):
                parts.append({"type": "image_url", "image_url": {"url": source.data_url}})
            case Document(source):
                parts.append({"type": "file", "file": {"filename": "document.pdf", "file_data": source.data_url}})
            case _:
                pass
    texts = [part["text"] for part in parts if "text" in part]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts


LONGEST_ID = 40
_FIXED_ID = re.compile(r"\A[A-Za-z0-9]{9}\Z")


def wire_id(id: str, quirks: Quirks) -> str:
    """A call id this server takes: as it is where it may be, else a hash of it, the same every time."""
    if quirks.fixed_ids:
        return id if _FIXED_ID.match(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
    return plain_id(id, LONGEST_ID)
