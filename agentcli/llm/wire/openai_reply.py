"""A reply of Chat Completions as our events, with the habits of real servers (see `openai_request`)."""

from __future__ import annotations

from typing import Any

from agentcli.llm.errors import ConnectionFailed, Overloaded, embedded_error
from agentcli.llm.messages import Message, Opaque, StopReason, Text, ToolUse, Usage
from agentcli.llm.provider import Done, StreamEvent, UsageUpdate
from agentcli.llm.wire.calls import ArrivingCalls, CallIds, call_events, calls_in_text
from agentcli.llm.wire.deltas import Prose, count_in, text_in
from agentcli.llm.wire.openai_request import EXTRAS, Quirks

_CUT: dict[str, StopReason] = {
    "length": "max_tokens", "model_context_window_exceeded": "model_context_window_exceeded"
}  # fmt: skip
MAX_TEXT_OF_CALLS = 100_000  # characters that are searched for calls, where only a message comes of them


class ChatReader:
    """Builds a reply from chunks. Raises `ProviderError` for an error inside the stream."""

    def __init__(self, model: str, provider: str, *, quirks: Quirks, tool_names: frozenset[str], ids: CallIds) -> None:
        self.model, self._provider, self._quirks = model, provider, quirks
        self._tool_names, self._ids = tool_names, ids
        self.is_finished = self._has_begun = False
        self.is_closed = False  # the server said that nothing follows
        self._is_unstreamed = False  # the reply came as one JSON object
        self._prose = Prose(begins_inside=quirks.reasoning_first)
        self._details: list[dict[str, Any]] = []
        self._calls = ArrivingCalls(ids)
        self._extras: dict[str, Any] = {}
        self._finish_reason = ""
        self._refused = False
        self._usage = Usage()

    def feed(self, chunk: dict[str, Any], out: list[StreamEvent]) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            raise embedded_error(chunk)
        self.model = text_in(chunk.get("model")) or self.model
        self._count(chunk, out)
        for position, choice in enumerate(chunk.get("choices") or ()):
            if (position if (index := choice.get("index")) is None else index) != 0:
                continue  # another answer to the same question: one is enough
            self._has_begun = True
            self._is_unstreamed = self._is_unstreamed or bool(choice.get("message"))
            delta = choice.get("delta") or choice.get("message") or {}
            for detail in delta.get("reasoning_details") or ():
                _add_detail(self._details, detail)
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if thought and isinstance(thought, str):
                self._prose.add_thinking(thought, out)
            if text := delta.get("content"):
                self._content(text, out)
            if refusal := delta.get("refusal"):
                self._refused = True
                self._content(refusal, out)
            for call in delta.get("tool_calls") or ():
                id = self._calls.feed(call, out)
                if self._quirks.extra_content and (extra := call.get(EXTRAS)):
                    self._extras[id] = extra
            if (legacy := delta.get("function_call")) and not delta.get("tool_calls"):
                self._calls.feed({"function": legacy}, out)
            if reason := choice.get("finish_reason"):
                self._finish_reason = text_in(reason)
                if reason == "error":
                    raise embedded_error(choice if choice.get("error") else {"error": "the model's server failed"})
                if reason == "insufficient_system_resource":
                    raise Overloaded("The service broke the reply off: it has no room at the moment.")
                self.is_finished = True

    def _content(self, text: Any, out: list[StreamEvent]) -> None:
        if isinstance(text, list):  # Mistral's parts
            text = "".join(part.get("text") or "" for part in text if isinstance(part, dict))
        self._prose.add(text_in(text), out)

    def _count(self, chunk: dict[str, Any], out: list[StreamEvent]) -> None:
        choices = chunk.get("choices") or [{}]
        groq = chunk.get("x_groq")
        usage = chunk.get("usage") or choices[0].get("usage") or (groq.get("usage") if isinstance(groq, dict) else None)
        timings = chunk.get("timings")
        if isinstance(usage, dict):
            self._usage = usage_from_wire(usage, timings if isinstance(timings, dict) else {})
            out.append(UsageUpdate(self._usage))

    def done(self, out: list[StreamEvent]) -> Done:
        """The whole reply, after the stream's end. Raises `ConnectionFailed` when it ended before the reply did."""
        was_cut = self._finish_reason in _CUT
        self._prose.close(out)
        is_told = self.is_closed or self._is_unstreamed
        if not (self.is_finished or (is_told and self._has_begun) or (self._quirks.silent_end and self._looks_whole())):
            text = "The stream ended before the reply did (neither finish_reason nor [DONE] came)."
            if self._looks_whole() and not self._quirks.silent_end:
                text += f" If this server ends every reply so, set providers.{self._provider}.quirks.silent_end = true."
            raise ConnectionFailed(text)
        if not was_cut:
            self._prose.require_text(out)
        uses, lost = self._calls.end(out, was_cut=was_cut, is_finished=self.is_finished)
        is_known = self._finish_reason in (*_CUT, "", "stop", "tool_calls", "function_call", "content_filter")
        note = "" if is_known else f"unknown finish reason {self._finish_reason!r}"
        text, reads = "".join(self._prose.text), self._quirks.read_text_calls
        is_searched = reads or len(text) <= MAX_TEXT_OF_CALLS
        if not uses and not was_cut and is_searched and (written := calls_in_text(text, self._tool_names)):
            if reads:
                uses = [ToolUse(self._ids.take(), name, arguments) for name, arguments in written]
                out += (event for use in uses for event in call_events(use))
            else:
                note = note or (
                    f"The model wrote a call of {written[0][0]} as text, so it did not run. If this server's models "
                    f"always do, set providers.{self._provider}.quirks.read_text_calls = true."
                )
        details = [{k: "".join(v) if k in _JOINED and v else v for k, v in one.items()} for one in self._details]
        own = {"reasoning_details": details, EXTRAS: self._extras}
        opaque = (Opaque(self._provider, {name: value}) for name, value in own.items() if value)
        message = Message("assistant", (*self._prose.blocks(*opaque), *uses))
        return Done(message, self._stop_reason(bool(uses)), self._usage, self.model, lost_tool_call=lost, note=note)

    def _looks_whole(self) -> bool:
        """Return whether a reply whose end was not announced may be complete: not one that ends inside a call."""
        return self._calls.is_whole() if self._calls else any(part.strip() for part in self._prose.text)

    def _stop_reason(self, has_calls: bool) -> StopReason:
        if cut := _CUT.get(self._finish_reason):
            return cut
        if has_calls:  # several servers say "stop" all the same
            return "tool_use"
        return "refusal" if self._refused or self._finish_reason == "content_filter" else "end_turn"

    def partial(self) -> Message:
        """Return what arrived before a stream broke: the text, and no call (none is known to be whole)."""
        self._prose.close([])
        return Message("assistant", tuple(block for block in self._prose.blocks() if isinstance(block, Text)))


_JOINED = ("text", "summary", "data")  # of a detail, while it arrives a list of its pieces


def _add_detail(details: list[dict[str, Any]], detail: Any) -> None:
    """Reasoning details arrive in pieces; those of one index and type are one."""
    if not isinstance(detail, dict):
        return
    last = details[-1] if details else None
    if last is None or any(last.get(key) != detail.get(key) for key in ("type", "index")):
        last = {}
        details.append(last)
    for key, value in detail.items():
        if key in _JOINED and isinstance(value, str):
            last[key] = last.get(key) or []
            last[key].append(value)
        elif value is None or key not in _JOINED:
            last[key] = last.get(key) if value is None else value


def usage_from_wire(usage: dict[str, Any], timings: dict[str, Any] | None = None) -> Usage:
    """Usage in any of the servers' spellings; cached tokens are part of the prompt here, and apart in ours."""
    details = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    cached = count_in(
        details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens")
    )
    if not cached and timings:
        cached = count_in(timings.get("cache_n"))
    written = count_in(details.get("cache_write_tokens"))
    prompt = count_in(usage.get("prompt_tokens"))
    cost = usage.get("cost")
    return Usage(
        input_tokens=max(0, prompt - cached - written),
        output_tokens=count_in(usage.get("completion_tokens")),
        cache_creation_input_tokens=written,
        cache_read_input_tokens=cached,
        reasoning_tokens=count_in(completion.get("reasoning_tokens")),
        cost_usd=max(0.0, float(cost)) if isinstance(cost, int | float) else None,
    )
