"""Shows what subagents do, each in a row beside the call that made it."""

from __future__ import annotations

import time
from typing import Protocol

from agentcli.agent.events import Event, HookRan, Notice, SubagentEnded, SubagentStarted, ToolStarted, UsageReported
from agentcli.frontends.terminal.output.live import Live, RunningCall


class Line(Protocol):
    def __call__(self, text: str, roles: str = "") -> None: ...


class Title(Protocol):
    def __call__(self, title: str) -> str: ...


def show_subagent(event: Event, live: Live, *, line: Line, title: Title) -> None:
    """Keep the row of a subagent up to date; one in the background has a row of its own, and a line when it ends."""
    id = event.agent_id
    match event:
        case SubagentStarted(_, call_id, _, task):
            live.agents[id] = call_id if call_id in live.calls else id
            made_by = live.calls.get(call_id)
            since = made_by.started if made_by else time.monotonic()
            named = title(f"{id}: {' '.join(task.split())}")
            live.calls[live.agents[id]] = RunningCall("create_subagent", named, since)
        case ToolStarted(title=doing):
            if call := live.calls.get(live.agents.get(id, "")):
                call.tail = title(doing)
        case UsageReported(usage, cost_usd):
            if call := live.calls.get(live.agents.get(id, "")):
                call.count(usage.context_tokens, cost_usd)
        case SubagentEnded(end=end, turns=turns):
            if live.agents.pop(id, "") == id:  # it ran in the background
                live.calls.pop(id, None)
                line(f"{id} {end} after {turns} rounds: /agents show {id}", "muted")
        case Notice(text):
            line(f"{id}: {text}", "warning")
        case HookRan(decision="deny", reason=reason):
            line(f"{id}: a hook refused: {reason}", "muted")
        case _:
            pass
