"""Makes spans and metrics of a session's events: a span for each turn, request, call and subagent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from agentcli.agent.calls.own_command import OWN_CALL
from agentcli.agent.events import (
    ApprovalRequested,
    Compaction,
    Done,
    EntryStored,
    Event,
    ProviderSwitched,
    ReplyStarted,
    Retry,
    SubagentEnded,
    SubagentStarted,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnFailed,
    TurnStarted,
    UsageReported,
)
from agentcli.conversation.entries import Assistant, User
from agentcli.infra.telemetry.attributes import Attributes, as_json, clean, messages, of_model, of_usage
from agentcli.infra.telemetry.export import MaskText
from agentcli.infra.telemetry.metrics import Metrics
from agentcli.llm.messages import Block, Text, Usage
from agentcli.version import __version__

_S = 1e9  # nanoseconds


@dataclass
class _Request:
    """A request under way. Times are in nanoseconds since 1970; `tried_at` is when its newest try was sent."""

    round: int
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
    """What an agent is doing: its turn, the request, and its open calls by id."""

    name: str = "agentcli"
    model: str = ""
    turn: Span | None = None
    request: _Request | None = None
    calls: dict[str, _Call] = field(default_factory=dict)
    said: list[Block] = field(default_factory=list)


class TracedSession:
    """One session. With `has_content` spans hold what was said and done, too."""

    def __init__(
        self,
        session_id: str,
        tracer: Tracer,
        metrics: Metrics,
        mask: MaskText,
        parent: Context,
        *,
        has_content: bool,
        server: Callable[[str], tuple[str, int]],
    ) -> None:
        self._id = session_id
        self._tracer = tracer
        self._metrics = metrics
        self._mask = mask
        self._parent = parent
        self._has_content = has_content
        self._server = server
        self._agents: dict[str, _Agent] = {}
        self._makers: dict[str, Span] = {}  # the calls that make subagents, which may outlive them

    def heed(self, at: int, event: Event, model: str) -> None:
        """Record an event that came `at` nanoseconds since 1970, when the session's model was `model`."""
        agent = self._agents.setdefault(event.agent_id, _Agent())
        match event:
            case TurnStarted(round):
                self._begin_request(agent, at, round, model)
            case ReplyStarted() if agent.request is not None:
                agent.request.first_at = agent.request.first_at or at
            case Retry(number, delay_s, error) if (request := agent.request) is not None:
                request.retries.append((at, {"retry": number, "delay_s": delay_s, "error": self._content(error)}))
                request.tried_at, request.first_at = at + int(delay_s * _S), 0
            case UsageReported(usage, usd) if (request := agent.request) is not None:
                request.usage, request.usd = request.usage + usage, request.usd + (usd or 0)
            case EntryStored(entry):
                self._note_content(agent, entry.body)
            case TurnEnded(stop_reason=reason, model=answered, provider=provider):
                self._end_request(agent, at, reason=reason, model=f"{provider}/{answered}")
            case ProviderSwitched(after=after):
                self._switch(agent, at, after)
            case Compaction():
                self._note_compaction(agent, at, event)
            case ToolStarted(id, name, arguments) if not id.startswith(OWN_CALL):
                self._begin_call(agent, at, id, name, self._content(as_json(arguments)))
            case ApprovalRequested(call=use, kind=kind) if use.id in agent.calls:
                agent.calls[use.id].was_asked = True
                agent.calls[use.id].span.add_event("agentcli.approval_requested", {"kind": kind}, at)
            case ToolFinished(id) if not id.startswith(OWN_CALL):
                self._end_call(agent, at, event)
            case SubagentStarted():
                self._begin_subagent(agent, at, event)
            case SubagentEnded():
                self._end_subagent(agent, at, event)
            case Done() | TurnFailed():
                self._end_turn(agent, at, event)
            case _:
                pass

    def close(self) -> None:
        """End what is still open, as something that nobody has seen the end of."""
        for agent in self._agents.values():
            for span in (*(call.span for call in agent.calls.values()), *([agent.turn] if agent.turn else ())):
                self._finish(span, time.time_ns(), {}, error="abandoned")
        self._agents.clear()

    # Turns

    def _begin_turn(self, agent: _Agent, at: int) -> Span:
        if agent.turn is None:
            agent.turn = self._start(f"invoke_agent {agent.name}", at, self._parent)
        return agent.turn

    def _end_turn(self, agent: _Agent, at: int, end: Done | TurnFailed) -> None:
        failed = end if isinstance(end, TurnFailed) else None
        reason = "failed" if failed else getattr(end, "reason", "")
        error = (failed.error_type or "_OTHER") if failed else ""
        if failed or (agent.request is not None and agent.request.was_sent):
            self._end_request(agent, at, error=error or reason)
        agent.request = None
        about = {
            "gen_ai.agent.id": "main",
            "agentcli.turn.reason": reason,
            "agentcli.cost": end.cost_usd,
            "agentcli.rounds": end.turns,
            "gen_ai.input.messages": messages("user", agent.said),
            "gen_ai.output.messages": self._content(messages("assistant", [Text(getattr(end, "text", ""))], reason)),
        }
        self._end_agent(agent, at, about | of_usage(end.usage), error=error, told=failed.error if failed else "")
        self._metrics.turn(self._clean({"agentcli.turn.reason": reason, "error.type": error}))

    def _end_agent(self, agent: _Agent, at: int, about: Attributes, *, error: str, told: str = "") -> None:
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent.name,
            "gen_ai.agent.version": __version__,
            **of_model(agent.model, self._server),
            **about,
        }
        self._finish(self._begin_turn(agent, at), at, about, error=error, told=told)
        agent.turn, agent.said = None, []

    def _note_compaction(self, agent: _Agent, at: int, event: Compaction) -> None:
        if agent.turn is not None:
            about = {"strategy": event.strategy, "trigger": event.trigger}
            tokens = {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after}
            agent.turn.add_event("agentcli.compaction", {**about, **tokens}, at)
        if (request := agent.request) is not None:
            if event.trigger == "overflow":  # the provider refused it for its length; it is made again
                self._end_request(agent, at, error="ContextOverflow")
            self._begin_request(agent, at, request.round, request.model)

    # Requests

    def _begin_request(self, agent: _Agent, at: int, round: int, model: str) -> None:
        self._begin_turn(agent, at)
        if agent.request is not None and agent.request.was_sent:
            self._end_request(agent, at, error="broke_off")
        agent.model = model if agent.name == "agentcli" else agent.model
        agent.request = _Request(round, agent.model, at, at)

    def _switch(self, agent: _Agent, at: int, model: str) -> None:
        """Another model answers; where one had been asked before, it failed."""
        agent.model = model
        if (request := agent.request) is not None:
            if request.was_sent:
                self._end_request(agent, at, error="_OTHER")
            agent.request = _Request(request.round, model, at, at)

    def _end_request(self, agent: _Agent, at: int, *, reason: str = "", model: str = "", error: str = "") -> None:
        if (request := agent.request) is None:
            return
        agent.request = None
        agent.model = model or request.model
        about = {"gen_ai.operation.name": "chat", **of_model(agent.model, self._server)}
        waited = (request.first_at - request.tried_at) / _S if request.first_at else None
        span = self._start(f"chat {about['gen_ai.request.model']}", request.began_at, agent.turn, SpanKind.CLIENT)
        for moment, said in request.retries:
            span.add_event("agentcli.retry", self._clean(said), moment)
        more = {
            "gen_ai.request.stream": True,
            "gen_ai.response.model": agent.model.partition("/")[2] if reason else "",
            "gen_ai.response.finish_reasons": [reason] if reason else (),
            "gen_ai.response.time_to_first_chunk": waited,
            "gen_ai.output.messages": messages("assistant", request.content, reason),
            "agentcli.cost": request.usd or None,
            "agentcli.retries": len(request.retries) or None,
        }
        used = of_usage(request.usage) if request.usage != Usage() else {}
        self._finish(span, at, about | more | used, error=error)
        self._metrics.request(
            self._clean({**about, "error.type": error}),
            seconds=(at - request.began_at) / _S,
            first_chunk=waited,
            usage=request.usage,
            usd=request.usd,
        )

    # Calls and subagents

    def _begin_call(self, agent: _Agent, at: int, id: str, name: str, arguments: str = "") -> _Call:
        about = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": id,
            "gen_ai.tool.type": "extension" if name.startswith("mcp__") else "function",
            "gen_ai.tool.call.arguments": arguments,
        }
        span = self._start(f"execute_tool {name}", at, agent.turn or self._parent)
        span.set_attributes(self._clean(about))
        agent.calls[id] = call = _Call(span, at)
        if name == "create_subagent":
            self._makers[id] = span
        return call

    def _end_call(self, agent: _Agent, at: int, event: ToolFinished) -> None:
        took = int(event.duration_ms * 1e6)
        call = agent.calls.pop(event.id, None) or self._begin_call(agent, at - took, event.id, event.name)
        agent.calls.pop(event.id, None)
        error = event.error_kind or ("_OTHER" if event.result.is_error else "")
        about = {
            "gen_ai.tool.call.result": self._content(event.result.text),
            "agentcli.tool.retries": event.retry_count or None,
            "agentcli.approval.wait_s": max(0, at - call.began_at - took) / _S if call.was_asked else None,
            "agentcli.approval.answer": self._content(event.answer),
        }
        self._finish(call.span, at, about, error=error, told=event.error.message if event.error else "")
        self._metrics.call(self._clean({"gen_ai.tool.name": event.name, "error.type": error}))

    def _begin_subagent(self, agent: _Agent, at: int, event: SubagentStarted) -> None:
        agent.name, agent.model = event.agent, event.model
        maker = self._makers.pop(event.call_id, None)
        agent.turn = self._start(f"invoke_agent {event.agent}", at, maker or self._parent)
        agent.turn.set_attributes({"gen_ai.agent.id": event.id, "agentcli.subagent.session_id": event.session_id})
        agent.said = [Text(event.task)] if self._has_content else []

    def _end_subagent(self, agent: _Agent, at: int, event: SubagentEnded) -> None:
        error = "" if event.end == "done" else event.end
        self._end_request(agent, at, error=error or "_OTHER")  # one that is open has not been answered
        about = {
            "agentcli.turn.reason": event.end,
            "agentcli.cost": event.cost_usd,
            "agentcli.rounds": event.turns,
            "gen_ai.input.messages": messages("user", agent.said),
            "gen_ai.output.messages": self._content(messages("assistant", [Text(event.text)], event.end)),
        }
        self._end_agent(agent, at, about | of_usage(event.usage), error=error)
        self._agents.pop(event.id, None)

    # Spans

    def _start(self, name: str, at: int, parent: Span | Context | None, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        context = set_span_in_context(parent, Context()) if isinstance(parent, Span) else parent or self._parent
        return self._tracer.start_span(
            self._mask(name), context, kind, {"gen_ai.conversation.id": self._id}, start_time=at
        )

    def _finish(self, span: Span, at: int, about: Attributes, *, error: str, told: str = "") -> None:
        if span.is_recording():  # masking takes time
            span.set_attributes(self._clean({**about, "error.type": error}))
            if error:
                span.set_status(Status(StatusCode.ERROR, self._mask(self._content(told)) or None))
        span.end(at)

    def _clean(self, attributes: Attributes) -> Attributes:
        return clean(attributes, self._mask)

    def _content(self, text: str) -> str:
        """A text that may quote the person, their files or the model; empty unless that is wanted."""
        return text if self._has_content else ""

    def _note_content(self, agent: _Agent, body: object) -> None:
        """The prompt, and the reply to the request that is open; entries come where content is wanted."""
        match body:
            case User(content=content, is_reminder=False) if agent.name == "agentcli":
                agent.said += content
            case Assistant(content=content) if agent.request is not None:
                agent.request.content = content
            case _:
                pass
