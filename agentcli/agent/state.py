"""What a turn reads and changes. It knows no store: it is rebuilt from the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentcli.agent.accounting.budgets import Budgets, MemoryAccount
from agentcli.agent.accounting.usage import UsageCollector, amounts_of, spent
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Entry, ProviderSwitched, SwitchReason, User
from agentcli.llm.provider import Effort


@dataclass
class AgentState:
    """A session's conversation and the choices for it.

    `model` is the chosen one (`provider/model`), `last_used` the one that replied last. `effort` overrides that of the
    settings. `notes` are told to the model with its next request. `window_share` is how full the newest request made
    the model's window, `refused` what each model did not take (keys of `requests/repairs.py`). `switch_reason` says why
    the next request goes to another model; a resolver may set it. `told` is what the person need not be told again. It
    `awaits_reset` while a turn waits for a usage limit.
    """

    model: str
    mode: Mode = "default"
    conversation: Conversation = field(default_factory=Conversation)
    rules: Rules = field(default_factory=Rules)
    meter: UsageCollector = field(default_factory=UsageCollector)
    budgets: Budgets = field(default_factory=lambda: Budgets((MemoryAccount("session"),)))
    notes: deque[User] = field(default_factory=deque)
    effort: Effort | None = None
    mode_before_plan: Mode = "default"
    last_used: str = ""
    window_share: float = 0.0
    refused: dict[str, frozenset[str]] = field(default_factory=dict)
    switch_reason: SwitchReason = "chosen"
    told: set[str] = field(default_factory=set)
    awaits_reset: bool = False


def chosen_model(conversation: Conversation) -> str:
    """The model that a stored conversation was held with, apart from one that only stood in for it; empty for none."""
    chosen = stand_in = ""
    for entry in conversation.path:
        match entry.body:
            case ProviderSwitched(before, now, reason):
                chosen, stand_in = (now, "") if reason == "chosen" else (chosen or before, now)
            case Assistant(_, provider, model) if f"{provider}/{model}" != stand_in:
                chosen, stand_in = f"{provider}/{model}", ""
            case _:
                pass
    return chosen


def rebuilt(state: AgentState, entries: Iterable[Entry]) -> AgentState:
    """`state` with the conversation of a log, what it cost, and the model that answered last."""
    conversation = state.conversation = Conversation(entries)
    if (reply := conversation.last_reply) is not None and isinstance(reply.body, Assistant):
        state.last_used = f"{reply.body.provider}/{reply.body.model}"
    for entry in conversation.entries:  # also those that were taken back: they were paid for all the same
        if cost := spent(entry.body):
            state.meter.add_request(*cost)
        state.budgets.recall(amounts_of(entry.body))
    return state
