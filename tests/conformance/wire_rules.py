"""Refuses request bodies as the real servers do: one strict validator for each wire format.

    assert refusals_of_anthropic(body) == []

Each gives the reasons for which its server would answer 400, in the server's own words where they are known. Sources:
Anthropic's Messages API reference, "Vision", "PDF support" and "Extended thinking"; OpenAI's Chat Completions
reference; Ollama's docs/api.md and api/types.go; llama.cpp's tools/server (read 2026-11), and what users of other
programs reported: "content cannot be empty if `is_error` is true" (jlevy/markform#153), "all content must be type
'text' if 'is_error' is true" (vellum-assistant#18387), "Expected `thinking` or `redacted_thinking`" (opencode#3077).
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from PIL import Image
from pypdf import PdfReader, PdfWriter
from pypdf.errors import PyPdfError

Body = dict[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
CHAT_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
IMAGE_BYTES = 5 * 1024 * 1024  # of base64
REQUEST_BYTES = 32 * 1024 * 1024
LONGEST_EDGE, CROWDED_EDGE, CROWD = 8_000, 2_000, 20
SMALL_WINDOW_IMAGES = 100
PDF_PAGES = 100  # of a request


def as_received(body: Body) -> Body:
    """The body as a server reads it. Raises `ValueError` for what is no JSON."""
    received: Body = json.loads(json.dumps(body, allow_nan=False))
    return received


@lru_cache(maxsize=4_096)
def image_facts(data: str) -> tuple[str, int, int] | None:
    """The media type and size of an image that can be decoded; None for what is none."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as image:
            image.load()
            return str(Image.MIME.get(image.format or "", "")), *image.size
    except (binascii.Error, ValueError, OSError, SyntaxError):
        return None


@lru_cache
def picture(width: int = 4, height: int = 4, kind: str = "PNG") -> str:
    """An image in base64, each size of another colour."""
    made = io.BytesIO()
    Image.new("RGB", (width, height), (width % 256, height % 256, 90)).save(made, kind)
    return base64.b64encode(made.getvalue()).decode()


@lru_cache
def pdf(pages: int) -> str:
    """A PDF in base64."""
    writer, made = PdfWriter(), io.BytesIO()
    for _ in range(pages):
        writer.add_blank_page(9, 9)
    writer.write(made)
    return base64.b64encode(made.getvalue()).decode()


@lru_cache(maxsize=4_096)
def pages_of(data: str) -> int:
    """The pages of a PDF in base64; 0 for one that cannot be read."""
    try:
        return len(PdfReader(io.BytesIO(base64.b64decode(data))).pages)
    except (PyPdfError, ValueError, OSError):
        return 0


# Anthropic's Messages API

_ASSISTANT_BLOCKS = {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "compaction"}
_USER_BLOCKS = {"text", "image", "document", "tool_result"}


def refusals_of_anthropic(body: Body, *, version: str = "2026-10-21", window: int = 1_000_000) -> list[str]:
    return list(_anthropic(body, version, window))


def _anthropic(body: Body, version: str, window: int) -> Iterator[str]:
    if len(json.dumps(body)) > REQUEST_BYTES:
        yield "request_too_large"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "model: Field required"
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        yield "max_tokens: must be at least 1"
    thinking = body.get("thinking", {})
    if {"temperature", "top_p", "top_k"} & body.keys() and (version >= "2026-10-21" or thinking):
        yield "temperature is not supported"
    if thinking.get("type") == "enabled" and not 1_024 <= thinking["budget_tokens"] < body["max_tokens"]:
        yield "thinking.budget_tokens: must be at least 1024 and less than max_tokens"
    system = body.get("system", "x")
    for block in system if isinstance(system, list) else [{"type": "text", "text": system}]:
        if block.get("type") != "text" or not block["text"].strip():
            yield "system: text content blocks must be non-empty"
    yield from _anthropic_tools(body.get("tools", []))
    marks = str(body).count("'cache_control':")
    if marks > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "messages: at least one message is required"
        return
    yield from _anthropic_messages(messages, thinking)
    yield from _anthropic_media(messages, window)


def _anthropic_tools(tools: list[Body]) -> Iterator[str]:
    names = [tool.get("name", "") for tool in tools]
    for name in names:
        if not NAME.fullmatch(name):
            yield f"tools: {name!r}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
    if len(set(names)) < len(names):
        yield "tools: Tool names must be unique."
    for tool in tools:
        if tool.get("input_schema", {}).get("type") != "object":
            yield "tools: input_schema.type: must be 'object'"


def _merged(messages: list[Body]) -> list[tuple[str, list[Body]]]:
    """Neighbours of one role are one message to the API."""
    merged: list[tuple[str, list[Body]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], list(blocks)))
    return merged


def _anthropic_messages(messages: list[Body], thinking: Body) -> Iterator[str]:
    for number, message in enumerate(messages):
        if set(message) != {"role", "content"} or message["role"] not in ("user", "assistant"):
            yield f"messages.{number}: {sorted(message)}: Extra inputs are not permitted"
            return
        if not message["content"]:
            yield f"messages.{number}: all messages must have non-empty content"
            return
    merged = _merged(messages)
    if merged[0][0] != "user":
        yield "messages: first message must use the user role"
    ids: set[str] = set()
    open_calls: list[str] = []
    for number, (role, blocks) in enumerate(merged):
        where = f"messages.{number}"
        yield from _anthropic_blocks(where, role, blocks)
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block["type"] for block in blocks[: len(results)]]
        if set(leading) - {"tool_result"}:
            yield f"{where}: tool_result blocks must come first"
        if missing := set(open_calls) - set(results):
            yield f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}"
        if orphans := set(results) - set(open_calls):
            yield f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {orphans}"
        if len(set(results)) < len(results):
            yield f"{where}: each tool_use must have a single result"
        open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(open_calls)) < len(open_calls) or ids & set(open_calls):
            yield f"{where}: `tool_use` ids must be unique"
        ids |= set(open_calls)
    role, last = merged[-1]
    if open_calls:
        yield "messages: `tool_use` ids were found without `tool_result` blocks"
    is_paused = any("server_tool" in block["type"] or block["type"].endswith("_tool_result") for block in last)
    if role == "assistant" and not is_paused:
        yield "Prefilling assistant messages is not supported for this model."
    if thinking.get("type") == "enabled" and any(block["type"] == "tool_result" for block in last):
        first = merged[-2][1][0]["type"]
        if first not in ("thinking", "redacted_thinking"):
            yield f"messages.{len(merged) - 2}: Expected `thinking` or `redacted_thinking`, but found `{first}`"


def _anthropic_blocks(where: str, role: str, blocks: list[Body]) -> Iterator[str]:
    for block in blocks:
        kind = block["type"]
        allowed = _USER_BLOCKS if role == "user" else _ASSISTANT_BLOCKS
        if kind not in allowed and not kind.endswith("_tool_result"):
            yield f"{where}: {kind} blocks are not permitted for the role {role}"
        if kind == "text" and not block["text"].strip():
            yield "messages: text content blocks must be non-empty"
        if kind in ("thinking", "redacted_thinking") and "cache_control" in block:
            yield f"{where}: thinking blocks take no cache_control"
        if kind == "thinking" and not (isinstance(block.get("signature"), str) and block["signature"]):
            yield f"{where}: thinking.signature: Field required"
        if kind == "thinking" and set(block) != {"type", "thinking", "signature"}:
            yield f"{where}: thinking: Extra inputs are not permitted"
        if kind == "redacted_thinking" and not block.get("data"):
            yield f"{where}: redacted_thinking.data: Field required"
        if kind == "tool_use":
            if not ANTHROPIC_ID.fullmatch(block["id"]):
                yield f"{where}: tool_use.id: {block['id']!r}: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if not NAME.fullmatch(block["name"]):
                yield f"{where}: tool_use.name: {block['name']!r}: String should match pattern"
            if not isinstance(block["input"], dict):
                yield f"{where}: tool_use.input: Input should be a valid dictionary"
            if set(block) - {"type", "id", "name", "input", "cache_control"}:
                yield f"{where}: tool_use: Extra inputs are not permitted"
        if kind == "tool_result":
            yield from _anthropic_result(where, block)


def _anthropic_result(where: str, block: Body) -> Iterator[str]:
    content = block.get("content", "")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    for part in parts:
        if part["type"] not in ("text", "image", "document"):
            yield f"{where}: tool_result: {part['type']} is not permitted"
        if part["type"] == "text" and not part["text"].strip() and not isinstance(content, str):
            yield f"{where}: tool_result: text content blocks must be non-empty"
    if block.get("is_error"):
        if not parts:
            yield f"{where}: tool_result: content cannot be empty if `is_error` is true"
        if any(part["type"] != "text" for part in parts):
            yield f'{where}: tool_result: all content must be type "text" if "is_error" is true'


def _media_in(value: Any) -> Iterator[Body]:
    """Every image and document block, also those inside results."""
    if isinstance(value, list):
        for item in value:
            yield from _media_in(item)
    elif isinstance(value, dict):
        if value.get("type") in ("image", "document"):
            yield value
        elif "content" in value:
            yield from _media_in(value["content"])


def _anthropic_media(messages: list[Body], window: int) -> Iterator[str]:
    media = list(_media_in(messages))
    images = [block["source"] for block in media if block["type"] == "image"]
    most = SMALL_WINDOW_IMAGES if window <= 200_000 else 600
    if len(images) > most:
        yield f"messages: too many images: {len(images)} > {most}"
    for source in images:
        facts = image_facts(source["data"])
        if facts is None:
            yield "image: Could not process image"
            continue
        real, width, height = facts
        if source["media_type"] not in IMAGE_TYPES or real not in IMAGE_TYPES:
            yield f"image: media_type: Input should be one of {IMAGE_TYPES}"
        elif source["media_type"] != real:
            yield f"image: specified as {source['media_type']}, but the image appears to be a {real} image"
        if len(source["data"]) > IMAGE_BYTES:
            yield f"image exceeds 5 MB maximum: {len(source['data'])} bytes > {IMAGE_BYTES} bytes"
        if max(width, height) > (CROWDED_EDGE if len(images) > CROWD else LONGEST_EDGE):
            yield f"image: At least one of the image dimensions exceed max allowed size: {width} x {height}"
    for block in media:
        if block["type"] == "document" and (
            block["source"]["media_type"] != "application/pdf" or not _is_pdf(block["source"]["data"])
        ):
            yield "document: The PDF specified was not valid."
    if sum(pages_of(block["source"]["data"]) for block in media if block["type"] == "document") > PDF_PAGES:
        yield f"A maximum of {PDF_PAGES} PDF pages may be provided."


def _is_pdf(data: str) -> bool:
    try:
        return base64.b64decode(data, validate=True).startswith(b"%PDF-")
    except (binascii.Error, ValueError):
        return False


# OpenAI's Chat Completions

_MESSAGE_FIELDS = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal"},
    "tool": {"role", "content", "tool_call_id"},
}


def refusals_of_chat(
    body: Body, *, vision: bool = True, files: bool = True, fields: frozenset[str] = frozenset()
) -> list[str]:
    """`fields` are further ones of messages, which other servers know."""
    return list(_chat(body, vision, files, fields))


def _chat(body: Body, vision: bool, files: bool, fields: frozenset[str]) -> Iterator[str]:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "you must provide a model parameter"
    if {"max_tokens", "max_completion_tokens"} <= body.keys():
        yield "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    if any(body.get(field, 1) < 1 for field in ("max_tokens", "max_completion_tokens")):
        yield "Invalid 'max_completion_tokens': integer below minimum value."
    yield from _chat_tools(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        yield "Invalid 'messages': empty array."
        return
    if sum(map(pages_of, re.findall(r"application/pdf;base64,([^'\"]+)", str(messages)))) > PDF_PAGES:
        yield f"A maximum of {PDF_PAGES} PDF pages may be provided."
    open_calls: list[str] = []
    ids: set[str] = set()
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        if role not in _MESSAGE_FIELDS:
            yield f"Invalid value: {role!r}. Supported values are {', '.join(_MESSAGE_FIELDS)}."
            continue
        if extra := message.keys() - _MESSAGE_FIELDS[role] - fields:
            yield f"{where}: Additional properties are not allowed ({extra})"
        if role == "tool":
            if message.get("tool_call_id") not in open_calls:
                yield f"{where}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
            else:
                open_calls.remove(message["tool_call_id"])
            if not isinstance(message.get("content"), str):
                yield f"{where}.content: tool messages take text"
            continue
        if open_calls:
            yield f"{where}: tool_call_ids did not have response messages: {open_calls}"
        open_calls = []
        if role == "assistant":
            calls = message.get("tool_calls")
            yield from _chat_assistant(where, message, calls)
            open_calls = [call["id"] for call in calls or ()]
            if ids & set(open_calls) or len(set(open_calls)) < len(open_calls):
                yield f"{where}: Duplicate value for 'tool_call_id'"
            ids |= set(open_calls)
        else:
            yield from _chat_content(where, message.get("content"), vision, files)
    if open_calls:
        yield f"An assistant message with 'tool_calls' must be followed by tool messages: {open_calls}"
    if messages[-1].get("role") not in ("user", "tool"):
        yield "Expected last role User or Tool for serving but got assistant"


def _chat_tools(body: Body) -> Iterator[str]:
    if "tools" not in body:
        return
    names = [tool["function"]["name"] for tool in body["tools"]]
    if not 1 <= len(names) <= 128:
        yield "Invalid 'tools': array too short or too long"
    if len(set(names)) < len(names) or not all(map(NAME.fullmatch, names)):
        yield f"Invalid 'tools[].function.name': {names}"
    if any(tool["function"]["parameters"].get("type") != "object" for tool in body["tools"]):
        yield "Invalid schema for function: schema must be of type 'object'"


def _chat_assistant(where: str, message: Body, calls: Any) -> Iterator[str]:
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        yield f"{where}.content: expected a string"
    if not content and not calls:
        yield f"{where}: content: expected a string, got null"
    if calls is not None and (not isinstance(calls, list) or not calls):
        yield f"{where}.tool_calls: empty array"
        return
    for call in calls or ():
        if set(call) - {"extra_content"} != {"id", "type", "function"} or call["type"] != "function":
            yield f"{where}.tool_calls: {sorted(call)}"
        if not CHAT_ID.fullmatch(call["id"]):
            yield f"{where}.tool_calls.id: {call['id']!r}: string too long. Expected a maximum length of 40"
        if not NAME.fullmatch(call["function"]["name"]):
            yield f"{where}.tool_calls.function.name: {call['function']['name']!r}: does not match pattern"
        try:
            is_object = isinstance(json.loads(call["function"]["arguments"]), dict)
        except (TypeError, ValueError):
            is_object = False
        if not is_object:
            yield f"{where}.tool_calls.function.arguments: no JSON object"


def _chat_content(where: str, content: Any, vision: bool, files: bool) -> Iterator[str]:
    if isinstance(content, str):
        if not content.strip():
            yield f"{where}.content: empty string"
        return
    if not isinstance(content, list) or not content:
        yield f"{where}.content: expected a string or a list of parts"
        return
    for part in content:
        match part:
            case {"type": "text", "text": str(text)} if text.strip():
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                head, _, data = url.partition(";base64,")
                facts = image_facts(data)
                if not vision:
                    yield f"{where}: image input is not supported"
                elif facts is None or head.removeprefix("data:") != facts[0] or facts[0] not in IMAGE_TYPES:
                    yield f"{where}: You uploaded an unsupported image"
            case {"type": "file", "file": {"filename": str(), "file_data": str(url)}}:
                if not files:
                    yield f"{where}: unsupported content[].type"
                elif not url.startswith("data:application/pdf;base64,") or not _is_pdf(url.partition(",")[2]):
                    yield f"{where}: The file could not be read"
            case _:
                yield f"{where}.content: {part}"


# OpenAI's Responses

_ITEM_FIELDS = {
    "message": {"type", "role", "content", "phase"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
}


def refusals_of_responses(body: Body) -> list[str]:
    return list(_responses(body))


def _responses(body: Body) -> Iterator[str]:
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "Missing required parameter: 'model'."
    if body.get("store") is not False or "reasoning.encrypted_content" not in body.get("include", ()):
        yield "the conversation would be kept, or its reasoning lost"
    if body.get("max_output_tokens", 16) < 16:
        yield "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."
    if unknown := body.keys() & {"messages", "max_tokens", "max_completion_tokens", "reasoning_effort"}:
        yield f"Unknown parameter: {unknown}"
    yield from _responses_tools(body.get("tools", []))
    items = body.get("input")
    if not isinstance(items, list) or not items:
        yield "Invalid 'input': empty array."
        return
    open_calls: list[str] = []
    ids: set[str] = set()
    for number, item in enumerate(items):
        where, kind = f"input[{number}]", item.get("type")
        if kind not in _ITEM_FIELDS:
            yield f"Invalid value: {kind!r}. Supported values are {', '.join(_ITEM_FIELDS)}."
            continue
        if extra := item.keys() - _ITEM_FIELDS[kind]:
            yield f"Unknown parameter: '{where}.{extra}'."
        match kind:
            case "message":
                yield from _responses_message(where, item)
            case "reasoning":
                following = items[number + 1] if number + 1 < len(items) else {"type": "nothing"}
                own = following["type"] in ("reasoning", "function_call") or following.get("role") == "assistant"
                if not own:
                    yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
                if not item.get("encrypted_content") or "summary" not in item:
                    yield f"{where}: Item '{item['id']}' not found. Items are not persisted when `store` is false."
            case "function_call":
                if item["call_id"] in ids or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["call_id"]):
                    yield f"Invalid '{where}.call_id': {item['call_id']!r}"
                if not NAME.fullmatch(item["name"]) or not isinstance(json.loads(item["arguments"]), dict):
                    yield f"Invalid '{where}.name': {item['name']!r}"
                ids.add(item["call_id"])
                open_calls.append(item["call_id"])
            case _:
                if item["call_id"] not in open_calls:
                    yield f"No tool call found for function call output with call_id {item['call_id']}."
                else:
                    open_calls.remove(item["call_id"])
                output = item["output"]
                yield from () if isinstance(output, str) else _responses_parts(f"{where}.output", output)
    if open_calls:
        yield f"No tool output found for function call {open_calls}."


def _responses_tools(tools: list[Body]) -> Iterator[str]:
    for tool in tools:
        if set(tool) != {"type", "name", "description", "parameters", "strict"} or tool["type"] != "function":
            yield f"Missing required parameter: 'tools[0].name': {sorted(tool)}"
        elif not NAME.fullmatch(tool["name"]) or tool["parameters"].get("type") != "object":
            yield f"Invalid schema for function {tool['name']!r}"


def _responses_message(where: str, item: Body) -> Iterator[str]:
    content = item["content"]
    if item["role"] == "assistant":
        if not isinstance(content, str) or not content.strip():
            yield f"{where}.content: a reply is text"
    elif item["role"] != "user" or not isinstance(content, list) or not content:
        yield f"Invalid '{where}': {item['role']}"
    else:
        yield from _responses_parts(f"{where}.content", content)


def _responses_parts(where: str, parts: list[Body]) -> Iterator[str]:
    for part in parts:
        match part:
            case {"type": "input_text", "text": str(text)} if text.strip():
                pass
            case {"type": "input_image", "detail": "auto", "image_url": str(url)}:
                head, _, data = url.partition(";base64,")
                facts = image_facts(data)
                if facts is None or head.removeprefix("data:") != facts[0] or facts[0] not in IMAGE_TYPES:
                    yield f"{where}: The image data you provided does not represent a valid image."
            case {"type": "input_file", "filename": str(), "file_data": str(url)}:
                if not url.startswith("data:application/pdf;base64,") or not _is_pdf(url.partition(",")[2]):
                    yield f"{where}: The file could not be read"
            case _:
                yield f"Invalid value: {where}: {part}"


# llama.cpp's server with a model that sees nothing: the embedded model, and most of those people run at home


def refusals_of_local(body: Body) -> list[str]:
    return list(_local(body))


def _local(body: Body) -> Iterator[str]:
    yield from _chat(body, False, False, frozenset({"reasoning_content"}))
    for number, message in enumerate(body["messages"]):
        if message["role"] == "developer" or (message["role"] == "system" and number):
            yield f"messages[{number}]: the template knows no {message['role']} here"
        if not isinstance(message.get("content"), str):
            yield f"messages[{number}]: the template takes text alone"
    roles = [message["role"] for message in body["messages"] if message["role"] != "system"]
    if roles[:1] != ["user"]:
        yield "Conversation roles must begin with user"
    if any(first == second != "tool" for first, second in pairwise(roles)):
        yield "Conversation roles must alternate user/assistant/user/assistant/..."


# Ollama's native chat


def refusals_of_ollama(body: Body, *, vision: bool = False, thinks: bool = True, tools: bool = True) -> list[str]:
    return list(_ollama(body, vision, thinks, tools))


def _ollama(body: Body, vision: bool, thinks: bool, tools: bool) -> Iterator[str]:
    if not body.get("model"):
        yield "model is required"
    if (body.get("options") or {}).get("num_ctx", 1) < 1:
        yield "options.num_ctx: no window"
    if body.get("think") and not thinks:
        yield f'"{body["model"]}" does not support thinking'
    if body.get("tools") and not tools:
        yield f'"{body["model"]}" does not support tools'
    open_calls: list[str] = []
    for number, message in enumerate(body.get("messages") or [{}]):
        where, role = f"messages[{number}]", message.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            yield f"invalid role: {role!r}"
        if not isinstance(message.get("content"), str):
            yield f"{where}: json: cannot unmarshal into Go struct field ChatRequest.messages.content of type string"
            continue
        for data in message.get("images", ()):
            facts = image_facts(data)
            if facts is None:
                yield f"{where}: illegal base64 data, or no image"
            elif facts[0] not in ("image/png", "image/jpeg", "image/webp"):
                yield f"{where}: image: unknown format"
            if not vision:
                yield "this model is missing data required for image input"
        if extra := message.keys() - {"role", "content", "thinking", "images", "tool_calls", "tool_name"}:
            yield f"{where}: {extra}"
        if role == "tool":
            if message.get("tool_name") not in open_calls:
                yield f"{where}: a result of {message.get('tool_name')!r}, which was not called"
            else:
                open_calls.remove(message["tool_name"])
            continue
        if open_calls:
            yield f"{where}: no results of {open_calls}"
        open_calls = []
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if not isinstance(function["arguments"], dict):
                yield f"{where}: json: cannot unmarshal string into Go struct field ToolCallFunction.arguments"
            if not NAME.fullmatch(function["name"]):
                yield f"{where}: {function['name']!r}: no name of a function"
            open_calls.append(function["name"])
        has_something = message["content"].strip() or message.get("tool_calls") or message.get("images")
        if not has_something:
            yield f"{where}: says nothing"
    if open_calls:
        yield f"no results of {open_calls}"
    if body["messages"][-1]["role"] not in ("user", "tool"):
        yield "the model would go on with its own message"


VALIDATORS: dict[str, Callable[..., list[str]]] = {
    "anthropic": refusals_of_anthropic,
    "openai": refusals_of_chat,
    "ollama": refusals_of_ollama,
    "local": refusals_of_local,
    "responses": refusals_of_responses,
}
