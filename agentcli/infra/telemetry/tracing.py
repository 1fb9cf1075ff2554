"""Makes spans and metrics of a session's events: a span for each turn, request, call and subagent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from agentcli.agent import events
from agentcli.agent.calls.own_command import OWN_CALL
from agentcli.conversation.entries import Assistant, User
from agentcli.infra.telemetry.attributes import Attributes, as_json, clean, messages, of_model, of_usage
from agentcli.infra.telemetry.export import Export, MaskText
from agentcli.infra.telemetry.metrics import Metrics
from agentcli.llm.messages import Block, Text, Usage
from agentcli.version import __version__

_S = 1e9  # nanoseconds


@dataclass
class _Request:
    """A request under way. Times are in nanoseconds since 1970; `tried_at` is when its newest try was sent."""

    model: str
    began_at: int
    tried_at: int
    first_at: int = 0
    retries: list[tuple[int, Attributes]] = field(default_factory=list)
    usage: Usage = Usage()
    usd: float = 0.0
    content: tuple[Block, ...] = ()

    @property
    def was_sent(self) -> bool:
        """False as long as nothing shows that it was: a budget may have held it back."""
        return bool(self.first_at or self.retries or self.usage != Usage())


@dataclass
class _Call:
    span: Span
    began_at: int
    was_asked: bool = False


@dataclass
class _Agent:
    """What an agent is doing: its turn, the request, and its open calls by id. `said` is its prompt."""

    id: str
    name: str = "agentcli"
    model: str = ""
    turn: Span | None = None
    request: _Request | None = None
    calls: dict[str, _Call] = field(default_factory=dict)
    said: list[Block] = field(default_factory=list)


class TracedSession:
    """The spans and metrics of one session."""

    def __init__(
        self, session_id: str, export: Export, tracer: Tracer, metrics: Metrics, parent: Context, mask: MaskText
    ) -> None:
        self._about = {"gen_ai.conversation.id": mask(session_id)}
        self._has_content = export.settings.content
        self._server = export.server
        self._tracer = tracer
        self._metrics = metrics
        self._parent = parent
        self._mask = mask
        self._agents: dict[str, _Agent] = {}
        self._makers: dict[str, Span] = {}  # calls that make subagents, which may outlive them

    def heed(self, at: int, event: events.Event, model: str) -> None:
        """Record an event that came `at` nanoseconds since 1970, when the session's model was `model`."""
        agent = self._agents.setdefault(event.agent_id, _Agent(event.agent_id))
        request = agent.request
        match event:
            case events.TurnStarted():
                self._begin_request(agent, at, model if agent.id == "main" else agent.model)
            case events.ReplyStarted() if request is not None:
                request.first_at = request.first_at or at
            case events.Retry(number, delay_s, error) if request is not None:
                request.retries.append((at, {"retry": number, "delay_s": delay_s, "error": self._content(error)}))
                request.tried_at, request.first_at = at + int(delay_s * _S), 0
            case events.UsageReported(usage, usd) if request is not None:
                request.usage, request.usd = request.usage + usage, request.usd + (usd or 0)
            case events.EntryStored(entry):
                self._note_content(agent, entry.body)
            case events.TurnEnded(stop_reason=reason, model=answered, provider=provider):
                self._end_request(agent, at, reason=reason, model=f"{provider}/{answered}")
            case events.ProviderSwitched(after=after, reason=reason) if request is not None:
                if reason == "fallback":  # the model before did not answer
                    self._end_request(agent, at, error="_OTHER")
                self._begin_request(agent, at, after)
            case events.Compaction():
                self._note_compaction(agent, at, event)
            case events.ToolStarted(id, name, arguments) if not id.startswith(OWN_CALL):
                self._begin_call(agent, at, id, name, self._content(as_json(arguments)))
            case events.ApprovalRequested(call=use, kind=kind) if use.id in agent.calls:
                agent.calls[use.id].was_asked = True
                agent.calls[use.id].span.add_event("agentcli.approval_requested", {"kind": kind}, at)
            case events.ToolFinished(id) if not id.startswith(OWN_CALL):
                self._end_call(agent, at, event)
            case events.SubagentStarted(id, maker, name, task, _, model):
                agent.name, agent.model, agent.said = name, model, [Text(task)]
                agent.turn = self._start(f"invoke_agent {name}", at, self._makers.pop(maker, None))
            case events.SubagentEnded(end=end):
                self._end_turn(agent, at, event, end, error="" if end == "done" else end)
                del self._agents[agent.id]
            case events.Done(reason=reason):
                self._end_turn(agent, at, event, reason)
                self._metrics.turn({"agentcli.turn.reason": reason})
            case events.TurnFailed(error=told, error_type=error):
                self._end_turn(agent, at, event, "failed", error=error or "_OTHER", told=told)
                self._metrics.turn({"agentcli.turn.reason": "failed", "error.type": error or "_OTHER"})
            case _:
                pass

    def close(self) -> None:
        """End what is still open, as something that nobody has seen the end of."""
        for agent in self._agents.values():
            for span in (*(call.span for call in agent.calls.values()), *([agent.turn] if agent.turn else ())):
                self._finish(span, time.time_ns(), {}, error="abandoned")

    # Turns

    def _end_turn(
        self,
        agent: _Agent,
        at: int,
        event: events.Done | events.TurnFailed | events.SubagentEnded,
        reason: str,
        *,
        error: str = "",
        told: str = "",
    ) -> None:
        if agent.request is not None and (error or agent.request.was_sent):
            self._end_request(agent, at, error=error or reason)
        agent.request = None
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.id": agent.id,
            "gen_ai.agent.name": agent.name,
            "gen_ai.agent.version": __version__,
            **of_model(agent.model, self._server),
            **of_usage(event.usage),
            "agentcli.turn.reason": reason,
            "agentcli.rounds": event.turns,
            "agentcli.cost": event.cost_usd,
            "gen_ai.input.messages": self._content(messages("user", agent.said)),
            "gen_ai.output.messages": self._content(
                messages("assistant", [Text(getattr(event, "text", ""))], reason)  # a failed turn has none
            ),
        }
        self._finish(self._turn(agent, at), at, about, error=error, told=told)
        agent.turn, agent.said = None, []

    def _turn(self, agent: _Agent, at: int) -> Span:
        if agent.turn is None:
            agent.turn = self._start(f"invoke_agent {agent.name}", at, None)
        return agent.turn

    # Requests

    def _begin_request(self, agent: _Agent, at: int, model: str) -> None:
        """One that was sent before and is still open has failed: another one takes its place."""
        self._turn(agent, at)
        if agent.request is not None and agent.request.was_sent:
            self._end_request(agent, at, error="_OTHER")
        agent.model, agent.request = model, _Request(model, at, at)

    def _note_compaction(self, agent: _Agent, at: int, event: events.Compaction) -> None:
        if agent.turn is not None:
            about = {"strategy": event.strategy, "trigger": event.trigger}
            tokens = {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after}
            agent.turn.add_event("agentcli.compaction", {**about, **tokens}, at)
        if (request := agent.request) is not None:
            if event.trigger == "overflow":  # the provider refused it for its length; it is made again
                self._end_request(agent, at, error="ContextOverflow")
            self._begin_request(agent, at, request.model)

    def _end_request(self, agent: _Agent, at: int, *, reason: str = "", model: str = "", error: str = "") -> None:
        if (request := agent.request) is None:
            return
        agent.request, agent.model = None, model or request.model
        about = {"gen_ai.operation.name": "chat", **of_model(agent.model, self._server)}
        waited = (request.first_at - request.tried_at) / _S if request.first_at else None
        more = {
            "gen_ai.request.stream": True,
            "gen_ai.response.model": about["gen_ai.request.model"] if reason else None,
            "gen_ai.response.finish_reasons": [reason] if reason else [],
            "gen_ai.response.time_to_first_chunk": waited,
            **(of_usage(request.usage) if request.usage != Usage() else {}),
            "agentcli.cost": request.usd or None,
            "agentcli.retries": len(request.retries) or None,
            "gen_ai.output.messages": self._content(messages("assistant", request.content, reason)),
        }
        span = self._start(f"chat {about['gen_ai.request.model']}", request.began_at, agent.turn, SpanKind.CLIENT)
        for moment, retry in request.retries:
            span.add_event("agentcli.retry", clean(retry, self._mask), moment)
        self._finish(span, at, about | more, error=error)
        self._metrics.request(
            clean({**about, "error.type": error}, self._mask),
            seconds=(at - request.began_at) / _S,
            first_chunk=waited,
            usage=request.usage,
            usd=request.usd,
        )

    # Calls

    def _begin_call(self, agent: _Agent, at: int, id: str, name: str, arguments: str = "") -> _Call:
        span = self._start(f"execute_tool {name}", at, agent.turn)
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id,
            "gen_ai.tool.type": "extension" if name.startswith("mcp__") else "function",
            "gen_ai.tool.call.arguments": arguments,
        }
        span.set_attributes(clean(about, self._mask))
        if name == "create_subagent":
            self._makers[id] = span
        agent.calls[id] = _Call(span, at)
        return agent.calls[id]

    def _end_call(self, agent: _Agent, at: int, event: events.ToolFinished) -> None:
        took = int(event.duration_ms * 1e6)
        call = agent.calls.get(event.id) or self._begin_call(agent, at - took, event.id, event.name)
        del agent.calls[event.id]
        error = event.error_kind or ("_OTHER" if event.result.is_error else "")
        about = {
            "agentcli.tool.retries": event.retry_count or None,
            "agentcli.approval.wait_s": max(0, at - call.began_at - took) / _S if call.was_asked else None,
            "agentcli.approval.answer": self._content(event.answer),
            "gen_ai.tool.call.result": self._content(event.result.text),
        }
        self._finish(call.span, at, about, error=error, told=event.error.message if event.error else "")
        self._metrics.call(clean({"gen_ai.tool.name": event.name, "error.type": error}, self._mask))

    # Spans

    def _start(self, name: str, at: int, parent: Span | None, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        context = self._parent if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(self._mask(name), context, kind, self._about, start_time=at)

    def _finish(self, span: Span, at: int, about: Attributes, *, error: str, told: str = "") -> None:
        if span.is_recording():  # masking takes time
            span.set_attributes(clean({**about, "error.type": error}, self._mask))
            if error:
                span.set_status(Status(StatusCode.ERROR, self._mask(self._content(told))))
        span.end(at)

    def _content(self, text: str) -> str:
        """A text that may quote the person, their files or the model; empty unless that is wanted."""
        return text if self._has_content else ""

    def _note_content(self, agent: _Agent, body: object) -> None:
        """Keep the prompt, or the reply to the request that is open; entries come only where content is wanted."""
        match body:
            case User(content=content, is_reminder=False) if agent.id == "main":
                agent.said += content
            case Assistant(content=content) if agent.request is not None:
                agent.request.content = content
            case _:
                pass
