"""Chat Completions: the body of a request, and the reply's stream as our events.

`Quirks` are the habits of the servers that speak it, each seen in a real one. Sources: the openai SDK's issues,
ollama#7881, vllm#18412, lmdeploy#3412, opencode#40061, vendors (2026-11).
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from agentcli.llm import messages as ours
from agentcli.llm.errors import ConnectionFailed, Overloaded, embedded_error
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Request, StreamEvent, ToolSpec, UsageUpdate
from agentcli.llm.wire import reply_parts

EXTRAS = "extra_content"  # a field of a call (Gemini's signatures); an Opaque block keeps those of a reply, by call id
_FIXED_ID = re.compile(r"\A[A-Za-z0-9]{9}\Z")
_CUT: dict[str, ours.StopReason] = {
    "length": "max_tokens", "model_context_window_exceeded": "model_context_window_exceeded"
}  # fmt: skip
_STREAMED_FIELDS = ("text", "summary", "data")  # the fields of a reasoning detail that arrive in pieces


class Quirks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The differences of one server from the reference. Every field can be set for a server in the configuration."""

    system_role: Literal["system", "developer"] = "system"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool = True
    no_obfuscation: bool = False  # asks the server not to pad the stream
    # The fields of a request that ask for reasoning.
    thinking_format: Literal["none", "reasoning_effort", "thinking", "enable_thinking", "chat_template_kwargs"] = "none"
    efforts: dict[str, str] = {}  # the server's own names of our efforts
    echo_reasoning: bool = False  # turns with calls send earlier reasoning back as `reasoning_content`, even empty
    null_content: bool = True  # replies without text are sent back with null for it
    fixed_ids: bool = False  # call ids have nine letters or digits
    parallel_tool_calls: bool | None = None
    cache_control: bool = False
    read_text_calls: bool = False  # runs the calls that the model wrote as plain text
    reasoning_first: bool = False  # replies begin with reasoning that only `</think>` ends
    silent_end: bool = False  # complete replies may end without `finish_reason` and `[DONE]`
    images: int = 100  # at most, in one request
    documents: bool = False  # accepts PDFs
    store: bool | None = None
    extra_body: dict[str, Any] = {}
    extra_content: dict[str, Any] = {}  # sent for the first call of another server's reply; its own calls keep theirs
    api: Literal["chat", "responses"] = "chat"  # the one of OpenAI's APIs that the server speaks


def to_body(request: Request, info: ModelInfo, quirks: Quirks, provider: str) -> dict[str, Any]:
    """Return the body of `POST /chat/completions`, tools before messages, so that bodies begin with the same bytes."""
    body: dict[str, Any] = {"model": info.id, "stream": True, quirks.max_tokens_field: request.max_tokens}
    if quirks.stream_usage:
        no_padding = {"include_obfuscation": False} if quirks.no_obfuscation else {}
        body["stream_options"] = {"include_usage": True, **no_padding}
    if quirks.store is not None:
        body["store"] = quirks.store
    body |= _thinking(request, info, quirks) | common_fields(request, info, quirks)
    if request.tools:
        body["tools"] = [{"type": "function", "function": function_of(tool)} for tool in request.tools]
    if schema := answer_schema(request, info):
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    body["messages"] = list(_messages(request, info, quirks, provider))
    return request.remove_unsent(body | quirks.extra_body)


def common_fields(request: Request, info: ModelInfo, quirks: Quirks) -> dict[str, Any]:
    """Return the fields that both of OpenAI's APIs have in the same form."""
    fields: dict[str, Any] = {}
    if request.temperature is not None and info.takes_temperature:
        fields["temperature"] = request.temperature
    if request.tools and quirks.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = quirks.parallel_tool_calls
    return fields


def answer_schema(request: Request, info: ModelInfo) -> dict[str, Any]:
    """Return the schema of the answer as both of OpenAI's APIs name it; empty if there is none."""
    has_schema = request.answer_schema is not None and info.takes_schema
    return {"name": "answer", "schema": request.answer_schema, "strict": False} if has_schema else {}


def _thinking(request: Request, info: ModelInfo, quirks: Quirks) -> dict[str, Any]:
    if request.effort is None or info.thinking == "none":
        return {}
    effort = quirks.efforts.get(request.effort, request.effort)
    forms: dict[str, dict[str, Any]] = {
        "none": {},
        "reasoning_effort": {"reasoning_effort": effort},
        "thinking": {"thinking": {"type": "enabled"}, "reasoning_effort": effort},
        "enable_thinking": {"enable_thinking": True},
        "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": True}},
    }
    return forms[quirks.thinking_format]


def function_of(tool: ToolSpec) -> dict[str, Any]:
    # OpenAI rejects an object without properties, such as the stub of a tool that is described when it is called.
    parameters = {**tool.input_schema, "properties": tool.input_schema.get("properties", {})}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def media_rules(info: ModelInfo, quirks: Quirks) -> MediaRules:
    return MediaRules(images=quirks.images if info.takes_images or not info.is_known else 0, documents=quirks.documents)


def _messages(request: Request, info: ModelInfo, quirks: Quirks, provider: str) -> Iterator[Any]:
    if request.system:
        cached = [{"type": "text", "text": request.system, "cache_control": {"type": "ephemeral"}}]
        yield {"role": quirks.system_role, "content": cached if quirks.cache_control else request.system}
    yield from request.prepared.wire_messages(
        request.messages,
        media_rules(info, quirks),
        wire_format=("chat", provider, quirks),
        build=lambda messages: to_wire(ours.with_alternating_roles(messages), quirks=quirks, provider=provider),
    )


def to_wire(messages: Sequence[ours.Message], *, quirks: Quirks, provider: str) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message.role == "assistant":
            yield _assistant_message(message, quirks, provider)
            continue
        results = [block for block in message.content if isinstance(block, ours.ToolResult)]
        yield from (_result_message(result, quirks) for result in results)
        # A message of a tool may contain only text, so images and documents follow in one of the user.
        media = [part for result in results for part in result.parts if not isinstance(part, ours.Text)]
        other = [block for block in message.content if not isinstance(block, ours.ToolResult)]
        if content := _user_content([*media, *other]):
            yield {"role": "user", "content": content}


def _assistant_message(message: ours.Message, quirks: Quirks, provider: str) -> dict[str, Any]:
    """Return a reply as this server takes it back, perhaps with its reasoning and the extra content of its calls."""
    wire: dict[str, Any] = {"role": "assistant", "content": message.text or (None if quirks.null_content else "")}
    if message.tool_uses:
        wire["tool_calls"] = [
            {
                "id": wire_id(use.id, quirks),
                "type": "function",
                "function": {
                    "name": reply_parts.plain_name(use.name),
                    "arguments": ours.encode_json(use.input).decode(),
                },
            }
            for use in message.tool_uses
        ]
        if quirks.echo_reasoning:
            wire["reasoning_content"] = message.unsigned_thinking
    extras: dict[str, Any] = {}  # the extra content that this server gave to calls, by their ids
    for block in message.content:
        if isinstance(block, ours.Opaque) and block.provider == provider:  # `ChatReader.finish` made it
            extras |= block.data.get(EXTRAS, {})
            # The other data are fields of the message, such as `reasoning_details`.
            wire |= {name: value for name, value in block.data.items() if name != EXTRAS}
    if quirks.extra_content:  # this server rejects a reply whose first call has none; other servers give none
        for number, (call, use) in enumerate(zip(wire.get("tool_calls", ()), message.tool_uses, strict=True)):
            if extra := extras.get(use.id) or (quirks.extra_content if number == 0 else None):
                call[EXTRAS] = extra
    return wire


def _result_message(result: ours.ToolResult, quirks: Quirks) -> dict[str, Any]:
    has_file = any(not isinstance(part, ours.Text) for part in result.parts)
    text = result_text(result, empty="(the file follows in the next message)" if has_file else "")
    return {"role": "tool", "tool_call_id": wire_id(result.tool_use_id, quirks), "content": text}


def result_text(result: ours.ToolResult, *, empty: str = "") -> str:
    text = "\n".join(part.text for part in result.parts if isinstance(part, ours.Text)) or empty
    # The protocols have no mark for a failed result.
    return f"Error: {text}" if result.is_error and not text.startswith("Error") else text


def _user_content(blocks: list[Any]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case ours.Text(text) if text.strip():
                parts.append({"type": "text", "text": text})
            case ours.Image(source):
                parts.append({"type": "image_url", "image_url": {"url": source.data_url}})
            case ours.Document(source):
                parts.append({"type": "file", "file": {"filename": "document.pdf", "file_data": source.data_url}})
    texts = [part["text"] for part in parts if "text" in part]
    return "\n\n".join(texts) if len(texts) == len(parts) else parts  # text alone is sent as a string


def wire_id(id: str, quirks: Quirks) -> str:
    """Return a call id that this server accepts: the id itself if possible, else its hash, the same every time."""
    if quirks.fixed_ids:
        return id if _FIXED_ID.match(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
    return reply_parts.plain_id(id, 40)  # OpenAI's limit


class ChatReader:
    """Builds a reply from the chunks of a stream, or from one whole JSON object."""

    def __init__(
        self, model: str, provider: str, *, quirks: Quirks, tool_names: frozenset[str], ids: reply_parts.CallIds
    ) -> None:
        self.model, self._provider, self._quirks = model, provider, quirks
        self._tool_names, self._ids = tool_names, ids
        self.has_ended = self.has_all_content = False  # `has_all_content`: a finish reason came
        self._has_begun = False  # a part of the reply came
        self._prose = reply_parts.Prose(begins_inside=quirks.reasoning_first)
        self._details: list[dict[str, Any]] = []  # `reasoning_details`, to be sent back
        self._calls = reply_parts.ArrivingCalls(ids)
        self._extras: dict[str, Any] = {}  # `extra_content` of calls, by their ids
        self._finish_reason = ""  # as the server names it
        self._refused = False  # True if the model sent a refusal
        self._usage = ours.Usage()

    def feed(self, chunk: dict[str, Any], out: list[StreamEvent]) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            raise embedded_error(chunk)
        self.model = reply_parts.text_in(chunk.get("model")) or self.model
        self._count(chunk, out)
        for position, choice in enumerate(chunk.get("choices") or ()):
            index = choice.get("index")
            if (position if index is None else index) != 0:
                continue  # a second answer to the same request is not read
            self._has_begun = True
            delta = choice.get("delta") or choice.get("message") or {}  # servers that do not stream send a message
            for detail in delta.get("reasoning_details") or ():
                _add_detail(self._details, detail)
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if thought and isinstance(thought, str):
                self._prose.add_thinking(thought, out)
            for text in filter(None, (delta.get("content"), delta.get("refusal"))):
                if isinstance(text, list):  # Mistral's parts
                    text = "".join(part.get("text") or "" for part in text if isinstance(part, dict))
                self._prose.add(reply_parts.text_in(text), out)
            self._refused |= bool(delta.get("refusal"))
            for call in delta.get("tool_calls") or ():
                id = self._calls.feed(call, out)
                if self._quirks.extra_content and (extra := call.get(EXTRAS)):
                    self._extras[id] = extra
            if reason := choice.get("finish_reason"):
                self._finish_reason = reply_parts.text_in(reason)
                if reason == "error":
                    raise embedded_error(choice if choice.get("error") else {"error": "the model's server failed"})
                if reason == "insufficient_system_resource":
                    raise Overloaded("The service stopped the reply because it is overloaded.")
                self.has_all_content = True

    def _count(self, chunk: dict[str, Any], out: list[StreamEvent]) -> None:
        if progress := chunk.get("prompt_progress"):  # llama.cpp
            processed, total = (reply_parts.count_in(progress.get(name)) for name in ("processed", "total"))
            out.append(UsageUpdate(ours.Usage(processed), total))
        places = (chunk, (chunk.get("choices") or [{}])[0], chunk.get("x_groq") or {})  # most servers, Moonshot, Groq
        usage = next((place["usage"] for place in places if place.get("usage")), None)
        if isinstance(usage, dict):
            self._usage = usage_from_wire(usage, chunk.get("timings") or {})
            out.append(UsageUpdate(self._usage))

    def finish(self, out: list[StreamEvent]) -> Done:
        was_cut = self._finish_reason in _CUT
        self._prose.close(out)
        is_complete = self.has_all_content or (self._has_begun and self.has_ended)
        # If it is not complete, the connection has probably broken, unless this server ends every reply like that.
        if not is_complete and not (self._quirks.silent_end and self._looks_complete()):
            problem = (
                "The server closed the stream before the reply was complete (neither finish_reason nor [DONE] came)."
            )
            remedy = f" If this server ends every reply so, set providers.{self._provider}.quirks.silent_end = true."
            raise ConnectionFailed(problem + remedy if self._looks_complete() else problem)
        if not was_cut:
            self._prose.use_reasoning_as_text(out)
        uses, lost = self._calls.end(out, was_cut=was_cut, has_finish_reason=self.has_all_content)
        has_known_reason = self._finish_reason in (*_CUT, "", "stop", "tool_calls", "content_filter")
        note = "" if has_known_reason else f"unknown finish reason {self._finish_reason!r}"
        # Some servers do not find the calls that a model writes into its text. Unless a quirk lets them run, such calls
        # are only reported, which is not worth a long search.
        text, may_run = "".join(self._prose.text), self._quirks.read_text_calls
        is_searched = not uses and not was_cut and (may_run or len(text) <= 100_000)
        written = reply_parts.calls_in_text(text, self._tool_names) if is_searched else []
        if written and may_run:
            uses = [ours.ToolUse(self._ids.take(), name, arguments) for name, arguments in written]
            out += (event for use in uses for event in reply_parts.call_events(use))
        elif written:
            note = note or (
                f"The model wrote a call of {written[0][0]} as text, so it did not run. If this server's models "
                f"always do, set providers.{self._provider}.quirks.read_text_calls = true."
            )
        to_send_back = {"reasoning_details": self._details, EXTRAS: self._extras}
        opaque = (ours.Opaque(self._provider, {name: value}) for name, value in to_send_back.items() if value)
        message = ours.Message("assistant", (*self._prose.blocks(*opaque), *uses))
        return Done(message, self._stop_reason(bool(uses)), self._usage, self.model, lost_tool_call=lost, note=note)

    def _looks_complete(self) -> bool:
        """Return True if a reply whose end was not announced may be complete: it does not end inside a call."""
        newest_call = self._calls.newest
        return newest_call.is_complete if newest_call else any(part.strip() for part in self._prose.text)

    def _stop_reason(self, has_calls: bool) -> ours.StopReason:
        if cut := _CUT.get(self._finish_reason):
            return cut
        if has_calls:  # several servers report "stop" for calls too
            return "tool_use"
        return "refusal" if self._refused or self._finish_reason == "content_filter" else "end_turn"

    def partial(self) -> ours.Message:
        """Return the text that arrived before a stream broke, without calls, which may be incomplete."""
        self._prose.close([])
        return ours.Message("assistant", tuple(block for block in self._prose.blocks() if isinstance(block, ours.Text)))


def _add_detail(details: list[dict[str, Any]], detail: Any) -> None:
    """Add a piece of reasoning; neighbouring pieces of one index and type are one detail."""
    if not isinstance(detail, dict):
        return
    if not details or any(details[-1].get(key) != detail.get(key) for key in ("type", "index")):
        details.append({})
    last = details[-1]
    for key, value in detail.items():
        if value is None:  # replaces no earlier value, but is sent back if there is none
            last.setdefault(key, None)
        else:
            last[key] = ((last.get(key) or "") + value) if key in _STREAMED_FIELDS else value


def usage_from_wire(usage: dict[str, Any], timings: dict[str, Any] | None = None) -> ours.Usage:
    """Return token counts in any spelling. `input_tokens` exclude cached ones, which llama.cpp has in `timings`."""
    details = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    spellings = (details.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    cached = reply_parts.count_in(next(filter(None, spellings), (timings or {}).get("cache_n")))
    written = reply_parts.count_in(details.get("cache_write_tokens"))
    cost = usage.get("cost")
    return ours.Usage(
        input_tokens=max(0, reply_parts.count_in(usage.get("prompt_tokens")) - cached - written),
        output_tokens=reply_parts.count_in(usage.get("completion_tokens")),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=cached,
        reasoning_tokens=reply_parts.count_in(completion.get("reasoning_tokens")),
        cost_usd=max(0.0, float(cost)) if isinstance(cost, int | float) else None,
    )
