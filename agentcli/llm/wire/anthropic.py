"""Anthropic's Messages API 2026-10-21 (platform.claude.com/docs, read 2026-11): bodies, and replies as our events."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, cast, get_args

import msgspec

from agentcli.llm import messages as ours
from agentcli.llm import provider as llm
from agentcli.llm.errors import ConnectionFailed, ServerError, error_for_status
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo
from agentcli.llm.wire import reply_parts

CACHE = {"type": "ephemeral"}
HOUR = "1h"
MAX_BREAKPOINTS = 4  # the API's limit
# platform.claude.com/docs, "Vision"
MEDIA = MediaRules(
    images=600, documents=True, image_bytes=5 * 1024 * 1024, max_side=8_000, max_large_images=20, max_side_of_many=2_000
)
_THINKING = ("thinking", "redacted_thinking")  # blocks of reasoning, which take no breakpoint
_STOP_REASONS = frozenset(get_args(ours.StopReason)) - {"interrupted"}  # agentcli's own
_CUT_REASONS = ("max_tokens", "model_context_window_exceeded")
_TEXT_FIELDS = {"text_delta": "text", "input_json_delta": "partial_json", "thinking_delta": "thinking"}  # of deltas
# The status of an error that arrives inside a stream whose own was 200; the last row has Bedrock's (botocore's model).
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "timeout_error": 504,
    "overloaded_error": 529,
    "validationException": 400, "throttlingException": 429, "modelTimeoutException": 504,
    "serviceUnavailableException": 529,
}  # fmt: skip


def to_body(request: llm.Request, model: ModelInfo) -> dict[str, Any]:
    """Return the body of `POST /v1/messages`. Parts that do not change come first, because the API caches prefixes."""
    body: dict[str, Any] = {"model": model.id, "max_tokens": request.max_tokens, "stream": True}
    messages = _messages(request, model)
    # The other messages are `Raw`: already encoded, and without breakpoints.
    newer = [message for message in messages if isinstance(message, dict)]
    body |= _thinking_and_output(request, model, newer)
    if request.temperature is not None and model.takes_temperature and "thinking" not in body:
        body["temperature"] = request.temperature
    if request.tools:
        body["tools"] = [msgspec.to_builtins(tool) for tool in request.tools]
    if request.system:
        body["system"] = [{"type": "text", "text": request.system}]
    prefix = [*body.get("tools", ()), *body.get("system", ())]  # in the order in which the API reads and caches them
    if prefix:  # one breakpoint at its end is enough, because all requests of a conversation have the same prefix
        prefix[-1]["cache_control"] = CACHE
    _limit_breakpoints(prefix, newer)
    body["messages"] = messages
    return request.remove_unsent(body)


def _thinking_and_output(request: llm.Request, model: ModelInfo, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields for the model's thinking, its effort and the form of its answer, as far as it takes them."""
    fields: dict[str, Any] = {}
    fits_budget = request.max_tokens > 2048  # because the API wants a budget of 1,024 at least
    wants_budget = model.thinking == "budget" and request.effort is not None
    if model.thinking == "adaptive":  # with the default display, thinking between tool calls has no text
        fields["thinking"] = {"type": "adaptive", "display": "summarized"}
    elif wants_budget and fits_budget and not _continues_without_thinking(messages):
        fields["thinking"] = {"type": "enabled", "budget_tokens": min(16_000, request.max_tokens // 2)}
    output: dict[str, Any] = {}
    if request.effort is not None and model.takes_effort:
        output["effort"] = request.effort
    if request.answer_schema is not None and model.takes_schema:
        output["format"] = {"type": "json_schema", "schema": request.answer_schema}
    return fields | ({"output_config": output} if output else {})


def _continues_without_thinking(messages: list[dict[str, Any]]) -> bool:
    """Return True if the newest calls come from a reply without thinking: the API then rejects thinking."""
    by_role = [list(group) for _, group in groupby(messages, key=lambda message: message["role"])]
    if len(by_role) < 2 or not any(block["type"] == "tool_result" for m in by_role[-1] for block in m["content"]):
        return False
    first_block_of_reply = by_role[-2][0]["content"][0]  # roles alternate, so the reply comes before the results
    return first_block_of_reply["type"] not in _THINKING


def media_rules(model: ModelInfo) -> MediaRules:
    if model.is_known and not model.takes_images:
        return msgspec.structs.replace(MEDIA, images=0)
    return MEDIA if model.window > 200_000 else msgspec.structs.replace(MEDIA, images=100)


def _messages(request: llm.Request, model: ModelInfo) -> list[Any]:
    """Return the messages, with cache breakpoints at their end and where the previous request ended."""
    messages = request.prepared.wire_messages(
        request.messages, media_rules(model), wire_format="anthropic", build=_to_wire
    )
    # Counted on the wire, because a message without blocks is not sent.
    new_count = len([*_to_wire(request.messages[request.earlier_messages :])])
    previous_request = messages[: len(messages) - new_count]
    # Only messages before the second newest reply can be `Raw` JSON, which cannot be marked. Both messages marked here
    # come later, because the previous request ended just before the newest reply.
    for message in (*previous_request[-1:], *messages[-1:]):
        markable = (block for block in reversed(message["content"]) if block["type"] not in _THINKING)
        if (block := next(markable, None)) is not None:
            block.setdefault("cache_control", CACHE)
    # A reply that ended while the API ran tools of its own (`Opaque`) continues if it is the last message sent.
    is_paused = messages and any(isinstance(b, ours.Opaque) for b in sendable_blocks(request.messages[-1]))
    if messages and messages[-1]["role"] == "assistant" and not is_paused:
        messages.append({"role": "user", "content": [block_to_wire(ours.GO_ON)]})
    return messages


def _to_wire(messages: Iterable[ours.Message]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if content := [block_to_wire(block) for block in sendable_blocks(message)]:
            yield {"role": message.role, "content": content}


def _limit_breakpoints(prefix: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    """Apply the API's rules if a caller set breakpoints of its own: not too many, and those for an hour first.

    `prefix` holds the tools and the system text. Our breakpoints are removed first, beginning with the earliest. The
    last one always stays, because it caches the whole conversation.
    """
    blocks = [*prefix]
    for block in (block for message in messages for block in message["content"]):
        parts = block.get("content")  # of a tool's result
        # The parts need not be objects, because a block that is sent back as it came may contain anything.
        blocks += [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        blocks.append(block)
    marked = [block for block in blocks if "cache_control" in block]
    ours_first = sorted(marked[:-1], key=lambda block: block["cache_control"] is not CACHE)  # ours are this object
    for block in ours_first[: max(0, len(marked) - MAX_BREAKPOINTS)]:
        del block["cache_control"]
    marked = [block for block in marked if "cache_control" in block]
    # A breakpoint before one for an hour must last an hour, too.
    for_an_hour = [n for n, block in enumerate(marked) if block["cache_control"].get("ttl") == HOUR]
    for block in marked[: max(for_an_hour, default=0)]:
        block["cache_control"] = {**CACHE, "ttl": HOUR}


def sendable_blocks(message: ours.Message) -> tuple[ours.Block, ...]:
    """Return the blocks that this API takes, results first: it requires that order in answers to calls.

    A failed result may have only text, so its images follow the results.
    """
    results: list[ours.Block] = []
    media: list[ours.Block] = []
    others: list[ours.Block] = []
    for block in ours.without_empty_text(message.content):
        match block:
            case ours.ToolResult(id, content, is_error):
                if is_error:
                    media += [part for part in block.parts if not isinstance(part, ours.Text)]
                    content = block.text.strip() or "Error"
                results.append(ours.ToolResult(reply_parts.plain_id(id), content, is_error))
            case ours.ToolUse(id, name, input):
                others.append(ours.ToolUse(reply_parts.plain_id(id), reply_parts.plain_name(name), input))
            case ours.Thinking(signature=None | ""):  # the API rejects thinking without a signature
                pass
            case ours.Opaque(of) if of != "anthropic":
                pass
            case _:
                others.append(block)
    return (*results, *media, *others)


def block_to_wire(block: ours.Block) -> dict[str, Any]:
    """Return a block with the fields that the API knows. It rejects empty texts, so a result goes without them."""
    match block:
        case ours.Opaque():
            return dict(block.data)
        case ours.ToolUse():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
        case ours.ToolResult(id, tuple(parts), is_error):
            block = ours.ToolResult(id, ours.without_empty_text(parts), is_error)  # type: ignore[arg-type]  # the same blocks
    return dict(msgspec.to_builtins(block))


class _ContentBlock(reply_parts.ArrivingBlock):
    @property
    def name(self) -> str:
        return str(self.start.get("name", ""))

    def to_block(self) -> ours.Block | None:
        """Return the block as far as it has arrived; None for an empty text and a block without a kind."""
        match self.kind:
            case "text":
                return ours.Text(self.text) if self.parts else None
            case "thinking":
                return ours.Thinking(self.text, reply_parts.text_in(self.start.get("signature")) or None)
            case "redacted_thinking":
                return ours.RedactedThinking(str(self.start.get("data", "")))
            case "tool_use":  # `was_cut`: do not repair, because this API sends only complete or cut arguments
                return reply_parts.parse_call(self.id, self.name, self.text, was_cut=True)
            case "":
                return None
            case _:  # the input of a server's own tool comes in deltas too
                if self.parts:
                    self.start["input"] = reply_parts.parse_arguments(self.text, was_cut=True) or {}
                return ours.Opaque("anthropic", self.start)


class AnthropicReader:
    """Builds a reply from the stream's events, in the order the API documents; unknown types are ignored."""

    def __init__(self, model: str, *, ids: reply_parts.CallIds) -> None:
        self.model, self._ids = model, ids
        self.has_ended = self._has_stopped = False  # `_has_stopped`: by `message_stop`; a gateway's [DONE] proves less
        self._blocks: list[_ContentBlock] = []  # in the order they began
        self._by_index: dict[Any, _ContentBlock] = {}  # the newest block of each index
        self._usage: dict[str, Any] = {}
        self._stop_reason = self._note = ""  # as the server names it, and its explanation

    def feed(self, event: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        match event.get("type"):
            case "content_block_delta":
                self._add_delta(event, out)
            case "content_block_start":
                self._start_block(event, out)
            case "content_block_stop" if block := self._by_index.get(event.get("index")):
                self._close_block(block, out)
            case "message_start":
                message = event.get("message") or {}
                self.model = reply_parts.text_in(message.get("model")) or self.model
                self._count(message.get("usage"), out)
            case "message_delta":
                delta = event.get("delta") or {}
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
                if isinstance(details := delta.get("stop_details"), dict):
                    self._note = reply_parts.text_in(details.get("explanation") or details.get("category"))
                self._count(event.get("usage"), out)
            case "message_stop":
                self.has_ended = self._has_stopped = True
            case "error":
                error = event.get("error")
                if not isinstance(error, dict):
                    raise ServerError(f"The server reported an error: {error}")
                kind = str(error.get("type", ""))
                raise error_for_status(_STATUS.get(kind, 500), str(error.get("message") or kind), code=kind)

    @property
    def has_all_content(self) -> bool:
        """True once only `message_stop` may be missing."""
        return bool(self._stop_reason) and all(block.is_whole for block in self._blocks)

    def finish(self, out: list[llm.StreamEvent]) -> llm.Done:
        if not (self._has_stopped or self.has_all_content):
            raise ConnectionFailed("The server closed the stream before the reply was complete.")
        # Only a limit or a refusal can end a reply inside a block. For any other stop reason, blocks are whole even if
        # the server sent no events for their ends.
        may_end_in_a_block = self._stop_reason in (*_CUT_REASONS, "refusal")
        if not may_end_in_a_block:
            for block in self._blocks:
                self._close_block(block, out)
        stop_reason, note = cast("ours.StopReason", self._stop_reason), self._note
        if stop_reason not in _STOP_REASONS:
            stop_reason, note = "end_turn", f"unknown stop reason {self._stop_reason!r}"
        # `_message` leaves out a call that was cut.
        lost = any(b.kind == "tool_use" and not b.is_whole for b in self._blocks)
        message = self._message()
        match message.content:
            # The last call of a cut reply may lack a part of its arguments, or all of them.
            case (*earlier, ours.ToolUse() as use) if stop_reason in _CUT_REASONS and (use.unparsed or not use.input):
                lost, message = True, ours.Message("assistant", tuple(earlier))
        if not message.content and not self._stop_reason:
            raise ConnectionFailed("The reply ended without any content.")
        # An `Opaque` block may be a call of one of the API's own tools.
        has_call = any(isinstance(block, ours.ToolUse | ours.Opaque) for block in message.content)
        if stop_reason == "tool_use" and not has_call:
            raise ServerError("The reply ended with a tool call, and the call did not arrive.")
        return llm.Done(message, stop_reason, usage_from_wire(self._usage), self.model, lost_tool_call=lost, note=note)

    def _start_block(self, event: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        """Begin a block, which some servers announce with its first text or all arguments."""
        start = event.get("content_block") or {}
        is_call = start.get("type") == "tool_use"
        block = _ContentBlock(start, self._ids.take(str(start.get("id") or "")) if is_call else "")
        self._by_index[event.get("index")] = block
        self._blocks.append(block)
        if is_call:
            out.append(llm.ToolCallStarted(block.id, block.name))
            if arguments := start.get("input"):
                block.parts.append(ours.encode_json(arguments).decode())
        elif block.kind in ("text", "thinking"):
            block.add(reply_parts.text_in(start.get(block.kind)), out)

    def _add_delta(self, event: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        """Add a delta to its block. Deltas of unknown types are ignored. Raises `ServerError` for one of no block."""
        delta, block = event.get("delta") or {}, self._by_index.get(event.get("index"))
        if block is None:
            raise ServerError("The server sent a part of a block that it had not begun.")
        match delta.get("type"):
            case "text_delta" | "thinking_delta" | "input_json_delta" as kind:
                brings_prose, takes_prose = kind != "input_json_delta", block.kind in ("text", "thinking")
                if brings_prose != takes_prose:
                    raise ServerError(f"The server sent a {kind} for a block of the kind {block.kind!r}.")
                block.add(reply_parts.text_in(delta.get(_TEXT_FIELDS[kind])), out)
            case "signature_delta":
                block.start["signature"] = reply_parts.text_in(delta.get("signature"))
            case "compaction_delta":
                block.start |= {key: value for key, value in delta.items() if key != "type"}

    def _close_block(self, block: _ContentBlock, out: list[llm.StreamEvent]) -> None:
        if not block.is_whole and block.kind == "tool_use":
            out.append(llm.ToolCallEnded(block.id))
        block.is_whole = True

    def _count(self, usage: Any, out: list[llm.StreamEvent]) -> None:
        if isinstance(usage, dict):  # a later count includes the earlier ones; null means no count
            self._usage |= {key: value for key, value in usage.items() if value is not None}
            out.append(llm.UsageUpdate(usage_from_wire(self._usage)))

    def partial(self) -> ours.Message:
        """Return what arrived before a stream broke: text, signed thinking, and calls that had ended."""
        blocks = (b for b in self._message().content if not (isinstance(b, ours.Thinking) and not b.signature))
        return ours.Message("assistant", tuple(blocks))

    def _message(self) -> ours.Message:
        """Return the message so far. Blocks that have not ended are left out, except text and thinking."""
        blocks = (block.to_block() for block in self._blocks if block.is_whole or block.kind in ("text", "thinking"))
        return ours.Message("assistant", tuple(block for block in blocks if block is not None))


def usage_from_wire(usage: dict[str, Any]) -> ours.Usage:
    objects = (usage.get(name) for name in ("cache_creation", "output_tokens_details"))
    creation, details = (value if isinstance(value, dict) else {} for value in objects)
    return ours.Usage(
        input_tokens=reply_parts.count_in(usage.get("input_tokens")),
        output_tokens=reply_parts.count_in(usage.get("output_tokens")),
        cache_creation_input_tokens=reply_parts.count_in(usage.get("cache_creation_input_tokens")),
        cache_read_input_tokens=reply_parts.count_in(usage.get("cache_read_input_tokens")),
        cache_creation_1h_input_tokens=reply_parts.count_in(creation.get("ephemeral_1h_input_tokens")),
        reasoning_tokens=reply_parts.count_in(details.get("thinking_tokens")),
    )
