"""What a turn reads and changes. It knows no store: it is rebuilt from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentcli.agent.permissions import Mode, Rules
from agentcli.agent.usage import Meter
from agentcli.conversation.entries import Assistant, Entry, User, retracted_ids
from agentcli.llm.messages import Block


@dataclass
class AgentState:
    """One conversation. `model` is the choice (`provider/model`); `last_used` what the newest reply came from.

    `notes` are told to the model with its next request. `sent_messages` is how many messages the newest request held.
    """

    model: str
    mode: Mode = "default"
    entries: list[Entry] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    meter: Meter = field(default_factory=Meter)
    notes: deque[User] = field(default_factory=deque)
    steering: deque[tuple[Block, ...]] = field(default_factory=deque)
    follow_ups: deque[tuple[Block, ...]] = field(default_factory=deque)
    last_used: str = ""
    sent_messages: int = 0


def rebuilt(state: AgentState, entries: Iterable[Entry]) -> AgentState:
    """`state` with the conversation of a log: entries, what they cost, and which model answered last."""
    state.entries = list(entries)
    gone = retracted_ids(state.entries)
    for entry in state.entries:
        reply = entry.body
        if isinstance(reply, Assistant) and entry.id not in gone:
            state.last_used = f"{reply.provider}/{reply.model}"
            state.meter.add(state.last_used, reply.usage, reply.cost_usd)
    return state
