"""OpenAI's Responses API: the body of a request, and the reply's stream as our events.

The server stores nothing (`store` is false), so encrypted reasoning goes back with each request. The types are those
of the openai SDK 3.54.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from agentcli.llm import messages as ours
from agentcli.llm import provider as llm
from agentcli.llm.errors import ConnectionFailed, ProviderError, embedded_error, error_for_status
from agentcli.llm.models import ModelInfo
from agentcli.llm.wire import chat_completions as chat
from agentcli.llm.wire.reply_parts import ArrivingBlock, CallIds, parse_call, plain_id, plain_name, text_in

Items = list[dict[str, Any]]
OPAQUE_SUFFIX = "/responses"  # added to the provider's name in opaque blocks that its other API does not understand


def to_body(request: llm.Request, info: ModelInfo, quirks: chat.Quirks, provider: str) -> dict[str, Any]:
    """Return the body of `POST /responses`, tools before the conversation, so that bodies begin with the same bytes."""
    body: dict[str, Any] = {"model": info.id, "stream": True, "store": False, "max_output_tokens": request.max_tokens}
    if quirks.no_obfuscation:
        body["stream_options"] = {"include_obfuscation": False}
    if info.thinking != "none" or not info.is_known:  # an unknown model may reason, too
        body["include"] = ["reasoning.encrypted_content"]
    if info.thinking != "none":
        body["reasoning"] = {"summary": "auto"}
        if request.effort is not None:
            body["reasoning"]["effort"] = quirks.efforts.get(request.effort, request.effort)
    body |= chat.common_fields(request, info, quirks)
    if request.tools:
        body["tools"] = [{"type": "function", **chat.function_of(tool), "strict": False} for tool in request.tools]
    if schema := chat.answer_schema(request, info):
        body["text"] = {"format": {"type": "json_schema", **schema}}
    if request.system:
        body["instructions"] = request.system
    opaque_provider = provider + OPAQUE_SUFFIX
    body["input"] = request.prepared.wire_messages(
        request.messages,
        chat.media_rules(info, quirks),
        wire_format=opaque_provider,
        build=partial(_to_wire, opaque_provider=opaque_provider),
    )
    return request.remove_unsent(body | quirks.extra_body)


def _to_wire(messages: tuple[ours.Message, ...], *, opaque_provider: str) -> Iterator[dict[str, Any]]:
    for message in ours.with_alternating_roles(messages):
        if message.role == "assistant":
            yield from _reply_items(message, opaque_provider=opaque_provider)
            continue
        yield from (_result(block) for block in message.content if isinstance(block, ours.ToolResult))
        if parts := _parts(*message.content):
            yield {"type": "message", "role": "user", "content": parts}


def _reply_items(message: ours.Message, *, opaque_provider: str) -> Items:
    """Return a reply's items in their order. Reasoning at the end is left out, because the API rejects it."""
    items: Items = []
    reasoning: Items = []
    phase: dict[str, Any] = {}  # marks the next message as a comment or the final answer
    for block in message.content:
        match block:
            case ours.Opaque(of, data) if of == opaque_provider:
                if data.get("type") == "reasoning":
                    reasoning.append(data)
                else:
                    phase = data
            case ours.Text(text) if text.strip():
                items += [*reasoning, {"type": "message", "role": "assistant", "content": text, **phase}]
                reasoning, phase = [], {}
            case ours.ToolUse(id, name, input):
                call = {"type": "function_call", "call_id": plain_id(id), "name": plain_name(name)}
                items += [*reasoning, call | {"arguments": ours.encode_json(input).decode()}]
                reasoning = []
    return items


def _result(result: ours.ToolResult) -> dict[str, Any]:
    text = chat.result_text(result)
    media = [part for part in result.parts if not isinstance(part, ours.Text)]
    output = _parts(ours.Text(text), *media) if media else text
    return {"type": "function_call_output", "call_id": plain_id(result.tool_use_id), "output": output}


def _parts(*blocks: ours.Block) -> Items:
    parts: Items = []
    for block in blocks:
        match block:
            case ours.Text(text) if text.strip():
                parts.append({"type": "input_text", "text": text})
            case ours.Image(source):
                parts.append({"type": "input_image", "detail": "auto", "image_url": source.data_url})
            case ours.Document(source):
                parts.append({"type": "input_file", "filename": "document.pdf", "file_data": source.data_url})
    return parts


# The HTTP status for the code of an error inside a stream; 400 for codes that begin as in `_BAD_REQUEST`.
_STATUS = {"rate_limit_exceeded": 429, "insufficient_quota": 429, "vector_store_timeout": 504, "server_error": 500}
_BAD_REQUEST = ("context_length", "invalid_", "image_", "unsupported_", "empty_", "failed_to_download")
_REASONS: dict[str, ours.StopReason] = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}
# The names of counts in Chat Completions, and in this API.
_COUNTS = {
    "prompt_tokens": "input_tokens", "prompt_tokens_details": "input_tokens_details",
    "completion_tokens": "output_tokens", "completion_tokens_details": "output_tokens_details",
}  # fmt: skip
_SENT_BACK = ("type", "id", "summary", "content", "encrypted_content")  # fields of a reasoning item


class ResponsesReader:
    """Builds a reply from the stream's events; unknown ones are ignored."""

    def __init__(self, model: str, provider: str, *, ids: CallIds) -> None:
        self.model, self._opaque_provider, self._ids = model, provider + OPAQUE_SUFFIX, ids
        self.has_all_content = self.has_ended = self._refused = False  # `_refused`: the model sent a refusal
        self._items: dict[Any, ArrivingBlock] = {}  # by output index
        self._reason, self._usage = "", ours.Usage()  # `_reason`: the server's, if the reply is incomplete

    def feed(self, event: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        if event.get("object") == "response":  # a server that does not stream
            event = {"type": f"response.{event.get('status') or 'completed'}", "response": event}
        match text_in(event.get("type")):
            case "response.output_text.delta" | "response.refusal.delta" as kind:
                self._refused |= kind == "response.refusal.delta"
                self._add_delta(event, "message", out)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_delta(event, "reasoning", out)
            case "response.reasoning_summary_part.added":
                item = self._item(event, "reasoning", out)
                item.add("\n\n" if item.parts else "", out)
            case "response.function_call_arguments.delta":
                self._add_delta(event, "function_call", out)
            case "response.output_item.added":
                self._begin_item(event.get("output_index"), event.get("item") or {}, out)
            case "response.output_item.done":
                self._end_item(event.get("output_index"), event.get("item") or {}, out)
            case "response.created" | "response.in_progress":
                self.model = text_in((event.get("response") or {}).get("model")) or self.model
            case "response.completed" | "response.incomplete":
                self._finish_reply(event.get("response") or {}, out)
            case "response.failed" | "response.cancelled":
                raise _stream_error((event.get("response") or {}).get("error"))
            case "error":
                raise _stream_error(event.get("error") or event)
            case "" if event.get("error"):  # from a gateway that has no event types
                raise embedded_error(event)

    def _add_delta(self, event: dict[str, Any], kind: str, out: list[llm.StreamEvent]) -> None:
        """Add a delta to its item. An empty delta begins no item, because all of them may come at the end."""
        if delta := text_in(event.get("delta")):
            self._item(event, kind, out).add(delta, out)

    def _begin_item(self, index: Any, start: dict[str, Any], out: list[llm.StreamEvent]) -> ArrivingBlock:
        is_call = start.get("type") == "function_call"
        id = self._ids.take(text_in(start.get("call_id"))) if is_call else ""
        item = self._items[index] = ArrivingBlock(start, id)
        if is_call:
            out.append(llm.ToolCallStarted(item.id, text_in(start.get("name"))))
            item.add(text_in(start.get("arguments")), out)
        return item

    def _item(self, event: dict[str, Any], kind: str, out: list[llm.StreamEvent]) -> ArrivingBlock:
        """Return the item that an event belongs to; begin one of this kind if the server did not announce it."""
        index = event.get("output_index")
        return self._items.get(index) or self._begin_item(index, {"type": kind}, out)

    def _end_item(self, index: Any, whole: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        """End an item, and append the events of its parts that did not come in deltas."""
        # Without the arguments, which are added below.
        item = self._items.get(index) or self._begin_item(index, whole | {"arguments": ""}, out)
        item.start |= whole
        item.is_whole = whole.get("status") != "incomplete"
        if item.kind == "function_call":
            if not item.parts:
                item.add(text_in(whole.get("arguments")), out)
            out.append(llm.ToolCallEnded(item.id))
        elif item.kind and not item.parts:
            for part in whole.get("summary") or whole.get("content") or ():
                self._refused |= part.get("type") == "refusal"
                item.add(text_in(part.get("text") or part.get("refusal")), out)

    def _finish_reply(self, response: dict[str, Any], out: list[llm.StreamEvent]) -> None:
        self.model = text_in(response.get("model")) or self.model
        self._reason = text_in((response.get("incomplete_details") or {}).get("reason"))
        if not self._items:  # a server that does not stream sends all items here
            for index, whole in enumerate(response.get("output") or ()):
                self._end_item(index, whole, out)
        if isinstance(usage := response.get("usage"), dict):
            self._usage = chat.usage_from_wire({name: usage.get(here) for name, here in _COUNTS.items()})
            out.append(llm.UsageUpdate(self._usage))
        self.has_all_content = self.has_ended = True

    def finish(self, out: list[llm.StreamEvent]) -> llm.Done:
        if not self.has_all_content:
            raise ConnectionFailed("The server closed the stream before the reply was complete.")
        message = self._message()
        lost = sum(item.kind == "function_call" for item in self._items.values()) > len(message.tool_uses)
        note = "" if self._reason in ("", *_REASONS) else f"unknown reason {self._reason!r}"
        return llm.Done(message, self._stop_reason(message), self._usage, self.model, lost_tool_call=lost, note=note)

    def _stop_reason(self, message: ours.Message) -> ours.StopReason:
        if reason := _REASONS.get(self._reason):
            return reason
        return "tool_use" if message.tool_uses else "refusal" if self._refused else "end_turn"

    def _message(self) -> ours.Message:
        return ours.Message("assistant", tuple(block for item in self._items.values() for block in self._blocks(item)))

    def _blocks(self, item: ArrivingBlock) -> list[ours.Block]:
        match item.kind:
            case "reasoning":
                thought: list[ours.Block] = [ours.Thinking(item.text)] if item.parts else []
                fields = {name: item.start[name] for name in _SENT_BACK if item.start.get(name) is not None}
                is_encrypted = item.is_whole and item.start.get("encrypted_content")
                return [*thought, ours.Opaque(self._opaque_provider, fields)] if is_encrypted else thought
            case "message" if item.parts:
                text, phase = ours.Text(item.text), item.start.get("phase")
                return [ours.Opaque(self._opaque_provider, {"phase": phase}), text] if phase else [text]
            case "function_call" if item.is_whole:
                use = parse_call(item.id, text_in(item.start.get("name")), item.text, was_cut=bool(self._reason))
                return [] if use.unparsed and self._reason else [use]  # the reply was cut inside the arguments
            case _:
                return []

    def partial(self) -> ours.Message:
        """Return what arrived before a stream broke: the text, and calls that had ended."""
        blocks = (block for block in self._message().content if isinstance(block, ours.Text | ours.ToolUse))
        return ours.Message("assistant", tuple(blocks))


def _stream_error(error: Any) -> ProviderError:
    error = error if isinstance(error, dict) else {}
    code, message = text_in(error.get("code") or error.get("type")), text_in(error.get("message"))
    status = _STATUS.get(code) or (400 if code.startswith(_BAD_REQUEST) else 500)
    return error_for_status(status, message, code=code, default_message="the server failed")
