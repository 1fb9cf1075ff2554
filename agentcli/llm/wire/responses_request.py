"""A request as the body of OpenAI's Responses API, which keeps nothing of it: reasoning goes back encrypted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentcli.llm.json_text import encode_json
from agentcli.llm.media import fitted
from agentcli.llm.messages import Document, Image, Message, Opaque, Text, ToolResult, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, ToolSpec
from agentcli.llm.transcript import in_turn
from agentcli.llm.wire.calls import plain_id, plain_name
from agentcli.llm.wire.openai_request import (
    Quirks,
    answer_schema,
    common_fields,
    function_of,
    media_rules,
    parts_of,
    result_text,
)

Items = list[dict[str, Any]]


def opaque_name(provider: str) -> str:
    """Whose a reply's opaque blocks are: the other API of the same provider does not know them."""
    return f"{provider}/responses"


def to_body(request: Request, info: ModelInfo, quirks: Quirks, provider: str) -> dict[str, Any]:
    """The body of `POST /responses`, tools before the conversation."""
    body: dict[str, Any] = {"model": info.id, "stream": True, "store": False, "max_output_tokens": request.max_tokens}
    if quirks.no_obfuscation:
        body["stream_options"] = {"include_obfuscation": False}
    if info.thinking != "none" or not info.is_known:
        body["include"] = ["reasoning.encrypted_content"]
    if info.thinking != "none":
        body["reasoning"] = {"summary": "auto"}
        if request.effort is not None:
            body["reasoning"]["effort"] = quirks.efforts.get(request.effort, request.effort)
    body |= common_fields(request, info, quirks, _tool)
    if schema := answer_schema(request, info):
        body["text"] = {"format": {"type": "json_schema", **schema}}
    if request.system:
        body["instructions"] = request.system
    body["input"] = list(_input(request, info, quirks, opaque_name(provider)))
    return request.sent(body | quirks.extra_body)


def _tool(tool: ToolSpec, quirks: Quirks) -> dict[str, Any]:
    return {"type": "function", **function_of(tool), "strict": quirks.strict_tools}


def _input(request: Request, info: ModelInfo, quirks: Quirks, own: str) -> Iterator[dict[str, Any]]:
    for message in in_turn(fitted(request.messages, media_rules(info, quirks))):
        if message.role == "assistant":
            yield from _reply(message, own)
            continue
        parts: Items = []
        for block in message.content:
            if isinstance(block, ToolResult):
                yield _result(block)
            elif isinstance(block, Text | Image | Document):
                parts += _parts(block)
        if parts:
            yield {"type": "message", "role": "user", "content": parts}


def _reply(message: Message, own: str) -> Items:
    """A reply's items in the order in which they came; reasoning that nothing followed is refused, and left out."""
    items: Items = []
    reasoning: Items = []
    phase: dict[str, Any] = {}
    for block in message.content:
        match block:
            case Opaque(of, data) if of == own:
                if data.get("type") == "reasoning":
                    reasoning.append(data)
                else:
                    phase = data
            case Text(text) if text.strip():
                items += [*reasoning, {"type": "message", "role": "assistant", "content": text, **phase}]
                reasoning, phase = [], {}
            case ToolUse(id, name, input):
                call = {"type": "function_call", "call_id": plain_id(id), "name": plain_name(name)}
                items += [*reasoning, call | {"arguments": encode_json(input).decode()}]
                reasoning = []
            case _:
                pass
    return items


def _result(result: ToolResult) -> dict[str, Any]:
    text = result_text(result)
    pictures = [part for block in parts_of(result) if not isinstance(block, Text) for part in _parts(block)]
    output = [*_parts(Text(text)), *pictures] if pictures else text
    return {"type": "function_call_output", "call_id": plain_id(result.tool_use_id), "output": output}


def _parts(block: Text | Image | Document) -> Items:
    match block:
        case Text(text):
            return [{"type": "input_text", "text": text}] if text.strip() else []
        case Image(source):
            return [{"type": "input_image", "detail": "auto", "image_url": source.data_url}]
        case Document(source):
            return [{"type": "input_file", "filename": "document.pdf", "file_data": source.data_url}]
