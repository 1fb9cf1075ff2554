"""What models say, written in each protocol: bodies for the loopback servers.

The shapes are those of the vendors' documents: Anthropic's streaming page (API version 2026-10-21), OpenAI's Chat
Completions reference, Ollama's docs/api.md, read 2026-11.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance.servers import NDJSON, SSE, Cut, Reply, whole


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Said:
    """A reply in nobody's protocol. `prompt_tokens` includes `cached_tokens`."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    is_cut: bool = False  # by the length limit
    prompt_tokens: int = 1_200
    cached_tokens: int = 1_000
    output_tokens: int = 42


def _parts(text: str, size: int = 7) -> Iterator[str]:
    return (text[at : at + size] for at in range(0, len(text), size))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# Anthropic


def anthropic_events(
    said: Said, *, model: str = "claude-sonnet-5-5", signature: str = "EqoBCkgIARAB"
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [message_start(model, said.prompt_tokens - said.cached_tokens, said.cached_tokens)]
    index = 0
    if said.thinking:
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _parts(said.thinking)]
        deltas.append({"type": "signature_delta", "signature": signature})
        events += block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)
        index += 1
    if said.text:
        deltas = [{"type": "text_delta", "text": part} for part in _parts(said.text)]
        events += block(index, {"type": "text", "text": ""}, deltas)
        events.insert(-len(deltas), {"type": "ping"})
        index += 1
    for call in said.calls:
        start = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        parts = ["", *(_parts(_json(call.input)) if call.input else ())]
        events += block(index, start, [{"type": "input_json_delta", "partial_json": part} for part in parts])
        index += 1
    stop = "max_tokens" if said.is_cut else "tool_use" if said.calls else "end_turn"
    return [*events, *message_end(stop, said.output_tokens)]


def message_start(model: str = "claude-sonnet-5-5", input_tokens: int = 200, cached: int = 1_000) -> dict[str, Any]:
    usage = {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 1,
        "service_tier": "standard",
    }
    message = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return {"type": "message_start", "message": message}


def block(
    index: int, start: dict[str, Any], deltas: Iterable[dict[str, Any]] = (), *, ends: bool = True
) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        *([{"type": "content_block_stop", "index": index}] if ends else []),
    ]


def message_end(stop_reason: str = "end_turn", output_tokens: int = 42, **delta: Any) -> list[dict[str, Any]]:
    usage = {
        "input_tokens": None,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": None,
        "output_tokens": output_tokens,
    }
    changed = {"stop_reason": stop_reason, "stop_sequence": None, **delta}
    return [{"type": "message_delta", "delta": changed, "usage": usage}, {"type": "message_stop"}]


def anthropic_sse(events: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {_json(event)}\n\n" for event in events).encode()


def anthropic_reply(said: Said | str, *, cut: Cut = whole) -> Reply:
    said = Said(said) if isinstance(said, str) else said
    return Reply(
        anthropic_sse(anthropic_events(said)), content_type=SSE, cut=cut, headers={"request-id": "req_018EeWyXxfu5"}
    )


# Chat Completions


def chat_chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk; `more` are top-level fields. Without a delta it has no choices."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]
    return {
        "id": "chatcmpl-BkX2s7aqzsvX",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "test-model",
        "system_fingerprint": "fp_9e15ccd6a4",
        "choices": choices,
        **more,
    }


def call_delta(index: int | None, id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    """One entry of `tool_calls`; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry: dict[str, Any] = {"type": "function", "function": function}
    if index is not None:
        entry["index"] = index
    if id is not None:
        entry["id"] = id
    return entry


def chat_usage(said: Said) -> dict[str, Any]:
    return {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.output_tokens,
        "total_tokens": said.prompt_tokens + said.output_tokens,
        "prompt_tokens_details": {"cached_tokens": said.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def chat_chunks(said: Said, *, reasoning_field: str = "reasoning_content") -> list[dict[str, Any]]:
    chunks = [chat_chunk({"role": "assistant", "content": None if said.calls else "", "refusal": None}, usage=None)]
    chunks += [chat_chunk({reasoning_field: part}, usage=None) for part in _parts(said.thinking)]
    chunks += [chat_chunk({"content": part}, usage=None) for part in _parts(said.text)]
    for index, call in enumerate(said.calls):
        chunks.append(chat_chunk({"tool_calls": [call_delta(index, call.id, call.name, "")]}, usage=None))
        for part in _parts(_json(call.input)):
            chunks.append(chat_chunk({"tool_calls": [call_delta(index, None, None, part)]}, usage=None))
    finish = "length" if said.is_cut else "tool_calls" if said.calls else "stop"
    return [*chunks, chat_chunk({}, finish, usage=None), chat_chunk(usage=chat_usage(said))]


def chat_sse(chunks: Iterable[dict[str, Any]], *, done: bool = True) -> bytes:
    return "".join(
        [*(f"data: {_json(chunk)}\n\n" for chunk in chunks), *(["data: [DONE]\n\n"] if done else [])]
    ).encode()


def chat_reply(said: Said | str, *, cut: Cut = whole, reasoning_field: str = "reasoning_content") -> Reply:
    said = Said(said) if isinstance(said, str) else said
    return Reply(chat_sse(chat_chunks(said, reasoning_field=reasoning_field)), content_type=SSE, cut=cut)


# Responses


def responses_events(said: Said, *, model: str = "test-model") -> list[dict[str, Any]]:
    """Reasoning, text and calls, each an output item with its events."""
    items: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [_response_event("created", model, "in_progress")]

    def item(start: dict[str, Any], deltas: list[dict[str, Any]], end: dict[str, Any]) -> None:
        place = {"output_index": len(items), "item_id": start["id"]}
        events.append({"type": "response.output_item.added", "output_index": len(items), "item": start})
        events.extend(place | delta for delta in deltas)
        items.append(start | end)
        events.append({"type": "response.output_item.done", "output_index": len(items) - 1, "item": items[-1]})

    if said.thinking:
        kind = "response.reasoning_summary_text"
        deltas = [{"type": f"{kind}.delta", "summary_index": 0, "delta": part} for part in _parts(said.thinking)]
        part = {"type": "summary_text", "text": said.thinking}
        whole = {"summary": [part], "encrypted_content": "gAAAAABo"}
        added = {"type": "response.reasoning_summary_part.added", "summary_index": 0, "part": part | {"text": ""}}
        item({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA"}, [added, *deltas], whole)
    if said.text:
        more = {"type": "response.output_text.delta", "content_index": 0, "logprobs": []}
        deltas = [more | {"delta": part} for part in _parts(said.text)]
        part = {"type": "output_text", "text": said.text, "annotations": []}
        added = {"type": "response.content_part.added", "content_index": 0, "part": part | {"text": ""}}
        end = {"type": "response.output_text.done", "content_index": 0, "text": said.text, "logprobs": []}
        start = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
        item(start, [added, *deltas, end], {"status": "incomplete" if said.is_cut else "completed", "content": [part]})
    for number, call in enumerate(said.calls):
        kind = "response.function_call_arguments"
        start = {"type": "function_call", "id": f"fc_{number}", "call_id": call.id, "name": call.name, "arguments": ""}
        deltas = [{"type": f"{kind}.delta", "delta": part} for part in _parts(_json(call.input))]
        end = {"type": f"{kind}.done", "arguments": _json(call.input)}
        item(start | {"status": "in_progress"}, [*deltas, end], {"status": "completed", "arguments": _json(call.input)})
    usage = {
        "input_tokens": said.prompt_tokens,
        "input_tokens_details": {"cached_tokens": said.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": said.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 7 if said.thinking else 0},
        "total_tokens": said.prompt_tokens + said.output_tokens,
    }
    kind, reason = ("incomplete", {"reason": "max_output_tokens"}) if said.is_cut else ("completed", None)
    end = {"output": items, "usage": usage, "incomplete_details": reason}
    return [*events, _response_event(kind, model, kind, **end)]


def _response_event(kind: str, model: str, status: str, **more: Any) -> dict[str, Any]:
    response = {
        "id": "resp_67ccd2bed1ec8190",
        "object": "response",
        "created_at": 1_760_000_000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }
    return {"type": f"response.{kind}", "response": response | more}


def responses_sse(events: Iterable[dict[str, Any]]) -> bytes:
    numbered = (event | {"sequence_number": number} for number, event in enumerate(events))
    return "".join(f"event: {event['type']}\ndata: {_json(event)}\n\n" for event in numbered).encode()


def responses_reply(said: Said | str, *, cut: Cut = whole) -> Reply:
    said = Said(said) if isinstance(said, str) else said
    return Reply(responses_sse(responses_events(said)), content_type=SSE, cut=cut)


# Ollama


def ollama_line(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", **(message or {})}
    return {"model": "qwen3:8b", "created_at": "2026-11-20T10:11:12.000000Z", "message": message, "done": False, **more}


def ollama_lines(said: Said) -> list[dict[str, Any]]:
    lines = [ollama_line({"thinking": part}) for part in _parts(said.thinking)]
    lines += [ollama_line({"content": part}) for part in _parts(said.text)]
    lines += [ollama_line({"tool_calls": [{"function": {"name": c.name, "arguments": c.input}}]}) for c in said.calls]
    return [*lines, ollama_end(said)]


def ollama_end(said: Said, **more: Any) -> dict[str, Any]:
    counts = {
        "total_duration": 4_883_583_458,
        "load_duration": 1_334_875,
        "prompt_eval_count": said.prompt_tokens,
        "prompt_eval_duration": 342_546_000,
        "eval_count": said.output_tokens,
        "eval_duration": 4_535_599_000,
    }
    return ollama_line(done=True, done_reason="length" if said.is_cut else "stop", **counts | more)


def ndjson(lines: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{_json(line)}\n" for line in lines).encode()


def ollama_reply(said: Said | str, *, cut: Cut = whole) -> Reply:
    said = Said(said) if isinstance(said, str) else said
    return Reply(ndjson(ollama_lines(said)), content_type=NDJSON, cut=cut)
