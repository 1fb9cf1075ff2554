"""Delivers a session's events to its subscribers, through one queue for each, and to the program's log."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from agentcli.agent import events

_DELTAS = (events.TextDelta, events.ThinkingDelta, events.OutputDelta, events.InputDelta)


class EventQueue:
    """An unbounded queue of one subscriber's events. Unread neighbouring deltas are joined; nothing is dropped."""

    def __init__(self, *, has_deltas: bool = True) -> None:
        self._has_deltas = has_deltas
        self._events: list[events.Event] = []
        self._arrived = asyncio.Event()
        self._has_ended = False

    def end(self) -> None:
        self._has_ended = True
        self._arrived.set()

    def put(self, event: events.Event) -> None:
        if not self._has_deltas and isinstance(event, _DELTAS):  # the subscriber waits only for the whole answer
            return
        last = self._events[-1] if self._events else None
        if last is not None and type(last) is type(event) and (joined := _joined(last, event)) is not None:
            self._events[-1] = joined
        else:
            self._events.append(event)
        self._arrived.set()

    async def get_all(self) -> list[events.Event]:
        """Wait for events and return all that have arrived; an empty list after the end."""
        while not (self._events or self._has_ended):
            self._arrived.clear()
            await self._arrived.wait()
        arrived, self._events = self._events, []
        return arrived


class Subscribers:
    """The subscribers of a session, with one queue for each."""

    def __init__(self) -> None:
        self._queues: list[EventQueue] = []

    def put(self, event: events.Event) -> None:
        for queue in self._queues:
            queue.put(event)

    def end(self) -> None:
        for queue in self._queues:
            queue.end()

    def batches(self, *, has_deltas: bool = True) -> AsyncGenerator[list[events.Event], None]:
        queue = EventQueue(has_deltas=has_deltas)
        self._queues.append(queue)
        return self._read(queue)

    async def _read(self, queue: EventQueue) -> AsyncGenerator[list[events.Event], None]:
        try:
            while arrived := await queue.get_all():
                yield arrived
        finally:
            self._queues.remove(queue)


async def one_by_one(batches: AsyncGenerator[list[events.Event], None]) -> AsyncGenerator[events.Event, None]:
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                yield event


def _joined(last: events.Event, event: events.Event) -> events.Event | None:
    """Return two events of one type (checked by `put`) as one; None unless they are deltas of one agent and call."""
    if not isinstance(event, _DELTAS):
        return None
    field = "partial_json" if isinstance(event, events.InputDelta) else "text"
    if (last.agent_id, getattr(last, "id", "")) != (event.agent_id, getattr(event, "id", "")):
        return None
    return replace(event, **{field: getattr(last, field) + getattr(event, field)})


log = logging.getLogger("agentcli.agent.activity_log")  # a fixed name, because people's logging settings contain it
if log.level == logging.NOTSET:  # programs that use the library get these records only if they set a level
    log.setLevel(logging.WARNING)


def log_activity(event: events.Event, session_id: str, agent_id: str) -> None:
    """Write a log record for an event of this agent. The start and end of a subagent are logged by its parent."""
    if not log.isEnabledFor(logging.INFO):
        return
    is_own = event.agent_id == agent_id or isinstance(event, events.SubagentStarted | events.SubagentEnded)
    if is_own and (text := _description(event)):
        agent = "" if agent_id == "main" else f", {agent_id}"
        log.info("session %s%s: %s", session_id, agent, text, extra={"session_id": session_id})


def _description(event: events.Event) -> str:
    """Return what happened, for the log; empty for events that are not logged."""
    match event:
        case events.TurnStarted(1):
            return "a turn begins"
        case events.UsageReported(usage, cost_usd, _, model, provider):
            cost = "unknown cost" if cost_usd is None else f"${cost_usd:.4f}"
            return f"{provider}/{model} answered: {usage.prompt_tokens} tokens in, {usage.output_tokens} out, {cost}"
        case events.Retry(number, delay_s, error):
            return f"request failed, retry {number} in {delay_s:.1f} s: {error}"
        case events.ToolFinished():
            ended = f"failed ({event.error_kind or 'error'})" if event.result.is_error else "done"
            return f"call {event.id}, {event.name}: {ended} in {event.duration_ms:.0f} ms"
        case events.QuestionEvent():
            return f"call {event.call.id}, {event.call.name or event.kind}: waits for an answer"
        case events.ModeChanged(mode):
            return f"permission mode {mode}"
        case events.ProviderSwitched(before, after, reason):
            return f"model {before} → {after} ({reason or 'chosen'})"
        case events.Compaction(before, after, strategy, trigger):
            return f"compacted ({strategy}, {trigger}): {before} → {after} tokens"
        case events.HookRan():
            ended = event.problem or event.decision or "no decision"
            return f"hook for {event.event} ran in {event.duration_ms} ms: {ended}"
        case events.SubagentStarted():
            return f"subagent {event.id} ({event.agent}, {event.model}) begins"
        case events.SubagentEnded():
            return f"subagent {event.id} ended: {event.end}, {event.turns} requests"
        case events.Done():
            return f"the turn ended: {event.reason}, {event.turns} requests"
        case events.TurnFailed():
            return f"the turn failed: {event.error_type or 'error'}, {event.turns} requests"
        case _:
            return ""
