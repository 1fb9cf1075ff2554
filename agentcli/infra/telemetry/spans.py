"""Records a session's events as spans and metrics, by OpenTelemetry's conventions for generative AI."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from agentcli.agent import events
from agentcli.agent.ops import OWN_CALL
from agentcli.conversation.entries import Assistant, User
from agentcli.infra.telemetry import Export, MaskText
from agentcli.llm.messages import Block, Text, Thinking, ToolUse, Usage
from agentcli.version import __version__

Attributes = dict[str, Any]
_TurnEnd = events.Done | events.TurnFailed | events.SubagentEnded

_NS_PER_S = 1e9
_OTHER = "_OTHER"  # the conventions' type for an error that has no other
_PROVIDERS = {  # those that the conventions name differently
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "foundry": "azure.ai.inference", "gemini": "gcp.gemini",
    "mistral": "mistral_ai", "vertex": "gcp.vertex_ai", "xai": "x_ai",
}  # fmt: skip
_TOKENS = [4.0**power for power in range(14)]  # the buckets that the conventions recommend
_SECONDS = [0.01 * 2**power for power in range(14)]


class _Request(msgspec.Struct, kw_only=True):
    """A request under way. Times are in nanoseconds since 1970."""

    model: str
    began_at: int
    attempt_at: int  # when the newest attempt was sent
    reply_at: int = 0  # when the reply to that attempt began; 0: not yet
    retries: int = 0
    usage: Usage = Usage()
    usd: float = 0.0
    content: tuple[Block, ...] = ()

    @property
    def was_sent(self) -> bool:
        """False until a reply, a retry or usage shows that it was sent: a budget may have stopped it."""
        return bool(self.reply_at or self.retries or self.usage != Usage())


class _Agent(msgspec.Struct, kw_only=True):
    id: str
    name: str = "agentcli"
    model: str = ""  # `provider/model` of the newest request
    turn: Span | None = None
    request: _Request | None = None
    calls: dict[str, tuple[Span, int]] = msgspec.field(default_factory=dict)  # open calls by id, with their start
    prompt: list[Block] = msgspec.field(default_factory=list)  # the turn's prompt; only where content is exported


class Metrics:
    """The metric instruments. The attributes passed to them must not contain secrets."""

    def __init__(self, meter: Meter) -> None:
        def histogram(name: str, unit: str, about: str, buckets: list[float]) -> Histogram:
            return meter.create_histogram(name, unit, about, explicit_bucket_boundaries_advisory=buckets)

        client, tokens = "gen_ai.client.operation", "gen_ai.client.token.usage"
        self.duration = histogram(f"{client}.duration", "s", "Duration of a request, retries included", _SECONDS)
        self.first_chunk = histogram(f"{client}.time_to_first_chunk", "s", "Time until a reply began", _SECONDS)
        self.tokens = histogram(tokens, "{token}", "Tokens of a request", _TOKENS)
        self.cost = meter.create_counter("agentcli.cost", "USD", "Cost of requests")
        self.calls = meter.create_counter("agentcli.tool.calls", "{call}", "Calls of tools")
        self.turns = meter.create_counter("agentcli.turns", "{turn}", "Prompts that were answered, or failed")


class SessionSpans:
    """The spans and metrics of one session. `traces` is the tracer and the context in which traces begin."""

    def __init__(
        self, session_id: str, export: Export, traces: tuple[Tracer, Context], metrics: Metrics, *, mask: MaskText
    ) -> None:
        self._common_attributes = {"gen_ai.conversation.id": mask(session_id)}
        self._export, self._metrics, self._mask = export, metrics, mask
        self._tracer, self._parent = traces
        self._agents: dict[str, _Agent] = {}
        self._subagent_calls: dict[str, Span] = {}  # by call id; a subagent may begin after its call ended

    def record(self, at_ns: int, event: events.Event, model: str) -> None:
        """Record an event that came `at_ns` nanoseconds since 1970, when the session's model was `model`.

        Each turn of an agent becomes a span, with spans of its requests and calls below it.
        """
        agent = self._agents.setdefault(event.agent_id, _Agent(id=event.agent_id))
        request = agent.request
        match event:
            case events.TurnStarted():  # comes before every request of a turn
                self._begin_request(agent, at_ns, model if agent.id == "main" else agent.model)
            case events.ReplyStarted() if request is not None:
                request.reply_at = request.reply_at or at_ns
            case events.Retry(number, delay_s) if request is not None:  # a new attempt begins after the delay
                request.retries = number
                request.attempt_at = at_ns + int(delay_s * _NS_PER_S)
                request.reply_at = 0
            case events.UsageReported(usage, usd) if request is not None:
                request.usage, request.usd = request.usage + usage, request.usd + (usd or 0)
            case events.EntryStored(entry):  # arrives only where content is exported
                if isinstance(entry.body, User) and not entry.body.is_reminder and agent.id == "main":
                    agent.prompt += entry.body.content
                elif isinstance(entry.body, Assistant) and request is not None:
                    request.content = entry.body.content
            case events.TurnEnded(stop_reason=reason, model=answering_model, provider=provider):
                self._end_request(agent, at_ns, reason=reason, model=f"{provider}/{answering_model}")
            case events.ProviderSwitched(after=after, reason=reason) if request is not None:
                if reason == "fallback":  # the previous model failed
                    self._end_request(agent, at_ns, error=_OTHER)
                self._begin_request(agent, at_ns, after)
            case events.Compaction():
                self._record_compaction(agent, at_ns, event)
            case events.ToolStarted(id, name, arguments) if not id.startswith(OWN_CALL):  # not a command of the person
                self._begin_call(agent, at_ns, id, name, arguments=self._content(as_json(arguments)))
            case events.ToolFinished(id) if not id.startswith(OWN_CALL):
                self._end_call(agent, at_ns, event)
            case events.SubagentStarted(_, call_id, name, task, _, model):  # its turn's span is below the call's
                agent.name, agent.model, agent.prompt = name, model, [Text(task)]
                agent.turn = self._start(f"invoke_agent {name}", at_ns, self._subagent_calls.pop(call_id, None))
            case events.SubagentEnded(end=end):
                self._end_turn(agent, at_ns, event, end, error="" if end == "done" else end)
                del self._agents[agent.id]
            case events.Done(reason=reason):
                self._end_turn(agent, at_ns, event, reason)
            case events.TurnFailed(error=message, error_type=error):
                self._end_turn(agent, at_ns, event, "failed", error=error or _OTHER, message=message)

    def close(self) -> None:
        """End all open spans, with the error type `abandoned`."""
        for agent in self._agents.values():
            open_calls = [span for span, _ in agent.calls.values()]
            for span in filter(None, [*open_calls, agent.turn]):
                self._finish(span, time.time_ns(), {}, error="abandoned")

    def _end_turn(
        self, agent: _Agent, at_ns: int, event: _TurnEnd, reason: str, *, error: str = "", message: str = ""
    ) -> None:
        """End a turn's span, with its reason or the type of its error; count the turn, unless it was a subagent's."""
        if agent.request is not None and (error or agent.request.was_sent):  # without a complete reply, it has failed
            self._end_request(agent, at_ns, error=error or reason)
        answer = [Text(getattr(event, "text", ""))]  # a failed turn has no text
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.name,
            "gen_ai.agent.version": __version__,
            **model_attributes(agent.model, self._export.server),
            **usage_attributes(event.usage),
            "agentcli.turn.reason": reason,
            "agentcli.rounds": event.turns,
            "agentcli.cost": event.cost_usd,
            "gen_ai.input.messages": self._content(message_json("user", agent.prompt)),
            "gen_ai.output.messages": self._content(message_json("assistant", answer, reason)),
        }
        self._finish(self._turn_span(agent, at_ns), at_ns, attributes, error=error, message=message)
        agent.request, agent.turn, agent.prompt = None, None, []
        if not isinstance(event, events.SubagentEnded):  # the metric counts only the person's prompts
            self._metrics.turns.add(1, {"agentcli.turn.reason": reason, **({"error.type": error} if error else {})})

    def _turn_span(self, agent: _Agent, at_ns: int) -> Span:
        if agent.turn is None:
            agent.turn = self._start(f"invoke_agent {agent.name}", at_ns, None)
        return agent.turn

    def _begin_request(self, agent: _Agent, at_ns: int, model: str) -> None:
        """Begin a request. An earlier one that was sent and is still open has failed."""
        self._turn_span(agent, at_ns)
        if agent.request is not None and agent.request.was_sent:
            self._end_request(agent, at_ns, error=_OTHER)
        agent.model, agent.request = model, _Request(model=model, began_at=at_ns, attempt_at=at_ns)

    def _record_compaction(self, agent: _Agent, at_ns: int, event: events.Compaction) -> None:
        if agent.turn is not None:
            names = ("strategy", "trigger", "tokens_before", "tokens_after")
            agent.turn.add_event("agentcli.compaction", {name: getattr(event, name) for name in names}, at_ns)
        if (request := agent.request) is not None:
            if event.trigger == "overflow":  # the provider rejected it as too long; the next request replaces it
                self._end_request(agent, at_ns, error="ContextOverflow")
            self._begin_request(agent, at_ns, request.model)  # anew, so that its time excludes that of the compaction

    def _end_request(self, agent: _Agent, at_ns: int, *, reason: str = "", model: str = "", error: str = "") -> None:
        """End the open request, if there is one: send its span, and count its time, tokens and cost.

        After a complete reply, `reason` is why it ended, and `model` wrote it. Otherwise there is an `error`.
        """
        if (request := agent.request) is None:
            return
        agent.request, agent.model = None, model or request.model
        attributes = {"gen_ai.operation.name": "chat", **model_attributes(agent.model, self._export.server)}
        first_chunk_s = (request.reply_at - request.attempt_at) / _NS_PER_S if request.reply_at else None
        reply_attributes = {
            "gen_ai.request.stream": True,
            "gen_ai.response.model": attributes["gen_ai.request.model"] if reason else None,  # None: no complete reply
            "gen_ai.response.finish_reasons": [reason] if reason else [],
            "gen_ai.response.time_to_first_chunk": first_chunk_s,
            **(usage_attributes(request.usage) if request.usage != Usage() else {}),
            "agentcli.cost": request.usd or None,
            "agentcli.retries": request.retries or None,
            "gen_ai.output.messages": self._content(message_json("assistant", request.content, reason)),
        }
        span = self._start(f"chat {attributes['gen_ai.request.model']}", request.began_at, agent.turn, SpanKind.CLIENT)
        self._finish(span, at_ns, attributes | reply_attributes, error=error)
        metrics, metric_attributes = self._metrics, masked_attributes({**attributes, "error.type": error}, self._mask)
        metrics.duration.record((at_ns - request.began_at) / _NS_PER_S, metric_attributes)
        if first_chunk_s is not None:
            metrics.first_chunk.record(first_chunk_s, metric_attributes)
        for kind, tokens in (("input", request.usage.prompt_tokens), ("output", request.usage.output_tokens)):
            if tokens:  # the sum of all attempts
                metrics.tokens.record(tokens, {**metric_attributes, "gen_ai.token.type": kind})
        if request.usd:
            metrics.cost.add(request.usd, metric_attributes)

    def _begin_call(self, agent: _Agent, at_ns: int, id: str, name: str, *, arguments: str = "") -> tuple[Span, int]:
        span = self._start(f"execute_tool {name}", at_ns, agent.turn)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id,
            "gen_ai.tool.type": "extension" if name.startswith("mcp__") else "function",
            "gen_ai.tool.call.arguments": arguments,
        }
        span.set_attributes(masked_attributes(attributes, self._mask))
        if name == "create_subagent":
            self._subagent_calls[id] = span
        agent.calls[id] = span, at_ns
        return agent.calls[id]

    def _end_call(self, agent: _Agent, at_ns: int, event: events.ToolFinished) -> None:
        duration_ns = int(event.duration_ms * 1e6)
        # A call that never started, such as a denied one, gets its span now.
        span, began_at = agent.calls.get(event.id) or self._begin_call(agent, at_ns - duration_ns, event.id, event.name)
        del agent.calls[event.id]
        error = event.error_kind or (_OTHER if event.result.is_error else "")
        waited_ns = max(0, at_ns - began_at - duration_ns)  # the call did not run in this part of its time
        attributes = {
            "agentcli.tool.retries": event.retry_count or None,
            "agentcli.approval.wait_s": waited_ns / _NS_PER_S if event.answer else None,
            "agentcli.approval.answer": self._content(event.answer),
            "gen_ai.tool.call.result": self._content(event.result.text),
        }
        self._finish(span, at_ns, attributes, error=error, message=event.error.message if event.error else "")
        self._metrics.calls.add(1, masked_attributes({"gen_ai.tool.name": event.name, "error.type": error}, self._mask))

    def _start(self, name: str, at_ns: int, parent: Span | None, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        context = self._parent if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(self._mask(name), context, kind, self._common_attributes, start_time=at_ns)

    def _finish(self, span: Span, at_ns: int, attributes: Attributes, *, error: str, message: str = "") -> None:
        if span.is_recording():  # otherwise nobody needs the attributes, and masking takes time
            span.set_attributes(masked_attributes({**attributes, "error.type": error}, self._mask))
            if error:
                span.set_status(Status(StatusCode.ERROR, self._mask(self._content(message))))
        span.end(at_ns)

    def _content(self, text: str) -> str:
        """Return a text that may quote the person, their files or the model; empty unless content is exported."""
        return text if self._export.settings.content else ""


def masked_attributes(attributes: Mapping[str, Any], mask: MaskText) -> Attributes:
    """Return attributes without unknown values, and with secrets masked in every text."""
    known = {name: value for name, value in attributes.items() if value not in (None, "", [])}
    masked_texts = {name: mask(value) for name, value in known.items() if isinstance(value, str)}
    masked_lists = {name: [*map(mask, value)] for name, value in known.items() if isinstance(value, list)}
    return known | masked_texts | masked_lists


def model_attributes(name: str, server: Callable[[str], tuple[str, int]]) -> Attributes:
    """Return the attributes of a `provider/model` and of its server."""
    provider, _, model = name.partition("/")
    if provider in ("local", "scripted"):  # the path of a file, whose folder stays private
        model = model.rpartition("/")[2]
    host, port = server(name)
    return {
        "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
        "gen_ai.request.model": model,
        "server.address": host,
        "server.port": port or None,
    }


def usage_attributes(usage: Usage) -> Attributes:
    """Return token counts; input tokens include those from a cache."""
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_input_tokens or None,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_creation_input_tokens or None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens or None,
    }


def message_json(role: str, content: Iterable[Block], finish_reason: str = "") -> str:
    """Return a message in the JSON of the conventions, without images and documents; "" if it has no other parts."""
    parts: list[Attributes] = []
    for block in content:
        match block:
            case Text(text):
                parts.append({"type": "text", "content": text})
            case Thinking(thinking):
                parts.append({"type": "reasoning", "content": thinking})
            case ToolUse(id, name, arguments):
                parts.append({"type": "tool_call", "id": id, "name": name, "arguments": arguments})
    ended = {"finish_reason": finish_reason} if finish_reason else {}
    return as_json([{"role": role, "parts": parts, **ended}]) if parts else ""


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
