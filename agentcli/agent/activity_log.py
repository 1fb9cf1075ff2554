"""Writes what a session does into the program's log at level info, never the texts of its messages."""

from __future__ import annotations

import logging

from agentcli.agent import events

log = logging.getLogger(__name__)
if log.level == logging.NOTSET:  # the settings choose it; a program that uses the library has to ask for these records
    log.setLevel(logging.WARNING)


def log_activity(event: events.Event, session_id: str, agent_id: str) -> None:
    """Write a record for an event of this agent; a subagent's session writes its own."""
    if not log.isEnabledFor(logging.INFO):
        return
    is_own = event.agent_id == agent_id or isinstance(event, events.SubagentStarted | events.SubagentEnded)
    if is_own and (text := _description(event)):
        agent = "" if agent_id == "main" else f", {agent_id}"
        log.info("session %s%s: %s", session_id, agent, text, extra={"session_id": session_id})


def _description(event: events.Event) -> str:
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
