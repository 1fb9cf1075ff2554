"""Anthropic's Messages API, version 2026-10-21: the body of a request, and the reply's stream as our events.

Source: platform.claude.com/docs, read 2026-11.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, cast, get_args

import msgspec

from agentcli.llm import provider as llm
from agentcli.llm.errors import ConnectionFailed, ProviderError, ServerError, error_for_status
from agentcli.llm.json_text import decode_json, encode_json
from agentcli.llm.media import MediaRules, fitted
from agentcli.llm.messages import (
    GO_ON,
    Block,
    Message,
    Opaque,
    RedactedThinking,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    without_empty_text,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, StreamEvent
from agentcli.llm.wire.calls import CallIds, plain_id, plain_name
from agentcli.llm.wire.deltas import count_in, text_in

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


_STOP_REASONS = frozenset(get_args(StopReason)) - {"interrupted"}  # that one is ours
_BREAKS_OFF = ("max_tokens", "model_context_window_exceeded", "refusal")  # perhaps inside a block
_OPENED_BY = {"text_delta": "text", "thinking_delta": "thinking", "compaction_delta": "compaction"}
# The status of an error that arrives inside a stream whose own was 200; the last row has Bedrock's (botocore's model).
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "timeout_error": 504,
    "overloaded_error": 529,
    "validationException": 400, "throttlingException": 429, "modelTimeoutException": 504,
    "serviceUnavailableException": 529,
}  # fmt: skip


class _OpenBlock:
    """A content block that is still arriving."""

    def __init__(self, start: dict[str, Any], id: str = "") -> None:
        self.start, self.id, self.kind = start, id, str(start.get("type", ""))
        self.parts: list[str] = []
        self.signature: str | None = text_in(start.get("signature")) or None
        self.is_closed = False

    def finish(self) -> Block | None:
        """The block, or None where nothing of it can be kept."""
        joined = "".join(self.parts)
        match self.kind:
            case "text":
                return Text(joined) if joined else None
            case "thinking":
                return Thinking(joined, self.signature)
            case "redacted_thinking":
                return RedactedThinking(str(self.start.get("data", "")))
            case "tool_use":
                return _tool_use(self.id, str(self.start.get("name", "")), joined)
            case "":
                return None
            case _ if joined:  # a server tool's input comes in deltas too
                return Opaque("anthropic", self.start | {"input": _tool_use("", "", joined).input})
            case _:
                return Opaque("anthropic", self.start)


def _tool_use(id: str, name: str, arguments: str) -> ToolUse:
    try:
        value = decode_json(arguments) if arguments.strip() else {}
    except ValueError:
        return ToolUse(id, name, {}, unparsed=arguments)
    return ToolUse(id, name, value) if isinstance(value, dict) else ToolUse(id, name, {}, unparsed=arguments)


class AnthropicReader:
    """Builds a reply from the stream's events, in the order the API documents; unknown types are passed over."""

    def __init__(self, model: str, *, ids: CallIds) -> None:
        self.model, self._ids = model, ids
        self.is_closed = self._has_stopped = False
        self._blocks: list[_OpenBlock] = []
        self._by_index: dict[Any, _OpenBlock] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason = self._note = ""

    def feed(self, event: dict[str, Any], out: list[StreamEvent]) -> None:
        """Append what `event` means to `out`. Raises `ProviderError` for an error event."""
        kind = event.get("type")
        if self.is_closed:
            return
        if kind == "content_block_delta":
            self._delta(event, out)
        elif kind == "content_block_start":
            self._start(event, out)
        elif kind == "content_block_stop":
            if block := self._at(event):
                self._close(block, out)
        elif kind == "message_start":
            message = event.get("message") or {}
            self.model = text_in(message.get("model")) or self.model
            self._count(message.get("usage"), out)
        elif kind == "message_delta":
            delta = event.get("delta") or {}
            self._stop_reason = delta.get("stop_reason") or self._stop_reason
            if isinstance(details := delta.get("stop_details"), dict):
                self._note = text_in(details.get("explanation") or details.get("category"))
            self._count(event.get("usage"), out)
        elif kind == "message_stop":
            self.is_closed = self._has_stopped = True
        elif kind == "error":
            raise error_in_stream(event)

    @property
    def is_finished(self) -> bool:
        """True once only `message_stop` may be missing."""
        return bool(self._stop_reason) and all(block.is_closed for block in self._blocks)

    def done(self, out: list[StreamEvent]) -> llm.Done:
        """The whole reply, after the stream's end. Raises `ProviderError` where some of it did not arrive."""
        if not (self._has_stopped or self.is_finished):
            raise ConnectionFailed("The stream ended before the reply did (no message_stop).")
        if self._stop_reason not in _BREAKS_OFF:
            for block in self._blocks:
                self._close(block, out)
        done = self._done()
        if not done.message.content and not self._stop_reason:
            raise ConnectionFailed("The reply ended before anything of it had come.")
        if done.stop_reason == "tool_use" and not any(isinstance(b, ToolUse | Opaque) for b in done.message.content):
            raise ServerError("The reply ended with a tool call, and the call did not arrive.")
        return done

    def _start(self, event: dict[str, Any], out: list[StreamEvent]) -> None:
        start = event.get("content_block") or {}
        is_call = start.get("type") == "tool_use"
        block = _OpenBlock(start, self._ids.take(str(start.get("id") or "")) if is_call else "")
        index = _index(event)
        if (earlier := self._by_index.get(index)) is not None:  # some gateways number every block alike, or none
            self._close(earlier, out)
        self._by_index[index] = block
        self._blocks.append(block)
        if is_call:
            out.append(llm.ToolCallStarted(block.id, str(block.start.get("name", ""))))
            if given := block.start.get("input"):
                block.parts.append(encode_json(given).decode())
        for field, make in (("text", llm.TextDelta), ("thinking", llm.ThinkingDelta)):
            if block.kind == field and (first := text_in(block.start.get(field))):
                block.parts.append(first)
                out.append(make(first))

    def _delta(self, event: dict[str, Any], out: list[StreamEvent]) -> None:
        delta = event.get("delta")
        if not isinstance(delta, dict) or (block := self._block_of(event, delta.get("type"), out)) is None:
            return
        match delta.get("type"):
            case "text_delta" if part := text_in(delta.get("text")):
                block.parts.append(part)
                out.append(llm.TextDelta(part))
            case "input_json_delta" if part := text_in(delta.get("partial_json")):
                block.parts.append(part)
                if block.kind == "tool_use":
                    out.append(llm.ToolCallDelta(block.id, part))
            case "thinking_delta" if part := text_in(delta.get("thinking")):
                block.parts.append(part)
                out.append(llm.ThinkingDelta(part))
            case "signature_delta":
                block.signature = text_in(delta.get("signature"))
            case "compaction_delta":
                block.start |= {key: value for key, value in delta.items() if key != "type"}
            case _:
                pass

    def _block_of(self, event: dict[str, Any], delta: Any, out: list[StreamEvent]) -> _OpenBlock | None:
        """The block a delta belongs to, opened where nobody did. Raises `ServerError` for a call that has no name."""
        block = self._at(event)
        if (kind := _OPENED_BY.get(delta)) and (block is None or block.kind != kind):
            self._start({"index": event.get("index"), "content_block": {"type": kind}}, out)
            return self._blocks[-1]
        if delta == "input_json_delta" and (block is None or block.kind in ("text", "thinking", "redacted_thinking")):
            raise ServerError("The server sent the arguments of a call that it had not begun.")
        return block

    def _at(self, event: dict[str, Any]) -> _OpenBlock | None:
        """The block that an event's index names; the newest where it has none, or the blocks have none."""
        index = _index(event)
        if index not in self._by_index and (index is None or None in self._by_index):
            return self._blocks[-1] if self._blocks else None
        return self._by_index.get(index)

    def _close(self, block: _OpenBlock, out: list[StreamEvent]) -> None:
        if not block.is_closed and block.kind == "tool_use":
            out.append(llm.ToolCallEnded(block.id))
        block.is_closed = True

    def _count(self, usage: Any, out: list[StreamEvent]) -> None:
        """Counts are cumulative: a later one overwrites, a null says nothing."""
        if isinstance(usage, dict):
            self._usage |= {key: value for key, value in usage.items() if value is not None}
            out.append(llm.UsageUpdate(usage_from_wire(self._usage)))

    def _done(self) -> llm.Done:
        stop_reason, note = cast("StopReason", self._stop_reason), self._note
        if stop_reason not in _STOP_REASONS:
            stop_reason, note = "end_turn", f"unknown stop reason {self._stop_reason!r}"
        # A cut reply's last call may hold half its arguments, or lack the end that would make them other ones.
        cut = stop_reason in ("max_tokens", "model_context_window_exceeded")
        open_call = any(b.kind == "tool_use" and not b.is_closed for b in self._blocks)
        message = self._message()
        match message.content:
            case (*earlier, ToolUse() as last) if cut and (last.unparsed or not last.input):
                open_call, message = True, Message("assistant", tuple(earlier))
        return llm.Done(
            message, stop_reason, usage_from_wire(self._usage), self.model, lost_tool_call=open_call, note=note
        )

    def partial(self) -> Message:
        """Return what arrived before a stream broke: text, signed thinking, and calls that had ended."""
        kept = (b for b in self._message().content if not (isinstance(b, Thinking) and not b.signature))
        return Message("assistant", tuple(kept))

    def _message(self) -> Message:
        """The blocks in order; of those that have not ended only text and thinking."""
        ended = (block for block in self._blocks if block.is_closed or block.kind in ("text", "thinking"))
        return Message("assistant", tuple(block for one in ended if (block := one.finish()) is not None))


def _index(event: dict[str, Any]) -> int | str | None:
    index = event.get("index")
    return index if isinstance(index, int | str) else None


def usage_from_wire(usage: dict[str, Any]) -> Usage:
    creation, details = (
        value if isinstance(value := usage.get(name), dict) else {}
        for name in ("cache_creation", "output_tokens_details")
    )
    return Usage(
        input_tokens=count_in(usage.get("input_tokens")),
        output_tokens=count_in(usage.get("output_tokens")),
        cache_creation_input_tokens=count_in(usage.get("cache_creation_input_tokens")),
        cache_read_input_tokens=count_in(usage.get("cache_read_input_tokens")),
        cache_creation_1h_input_tokens=count_in(creation.get("ephemeral_1h_input_tokens")),
        reasoning_tokens=count_in(details.get("thinking_tokens")),
    )


def error_in_stream(event: dict[str, Any]) -> ProviderError:
    error = event.get("error")
    if not isinstance(error, dict):
        return ServerError(f"The server reported an error: {error}")
    kind = str(error.get("type", ""))
    return error_for_status(_STATUS.get(kind, 500), str(error.get("message") or kind), code=kind)
