"""What a turn reads and changes. It knows no store: it is rebuilt from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentcli.agent.permissions import Mode
from agentcli.agent.queue import stored_queue
from agentcli.agent.rules import Rules
from agentcli.agent.usage import Meter, spent
from agentcli.conversation.entries import Assistant, Entry, User, kept
from agentcli.llm.messages import Block
from agentcli.llm.provider import Effort


@dataclass
class AgentState:
    """One conversation. `model` is the choice (`provider/model`); `last_used` what the newest reply came from.

    `effort` overrides that of the settings. `notes` are told to the model with its next request. `steering` and
    `follow_ups` are the queue, which the log keeps. `sent_messages` is how many messages the newest request held,
    `window_share` how full it made the model's window.
    """

    model: str
    mode: Mode = "default"
    entries: list[Entry] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    meter: Meter = field(default_factory=Meter)
    notes: deque[User] = field(default_factory=deque)
    steering: deque[tuple[Block, ...]] = field(default_factory=deque)
    follow_ups: deque[tuple[Block, ...]] = field(default_factory=deque)
    effort: Effort | None = None
    mode_before_plan: Mode = "default"
    last_used: str = ""
    sent_messages: int = 0
    window_share: float = 0.0


def rebuilt(state: AgentState, entries: Iterable[Entry]) -> AgentState:
    """`state` with the conversation of a log: entries, what they cost, what waited, and which model answered last."""
    state.entries = list(entries)
    for entry in kept(state.entries):
        if isinstance(entry.body, Assistant):
            state.last_used = f"{entry.body.provider}/{entry.body.model}"
    for entry in state.entries:  # what was taken back was paid for all the same
        if cost := spent(entry.body):
            state.meter.add(*cost)
    state.follow_ups.extend(stored_queue(state.entries))
    return state
