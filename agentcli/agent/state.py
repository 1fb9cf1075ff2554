"""Holds what a turn reads and changes, rebuilt from the log, and what a front end shows of a session."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.agent.accounting.budgets import Account, Budgets
from agentcli.agent.accounting.usage import UsageCollector, amounts_of, spent
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Compaction,
    Entry,
    ProviderSwitch,
    ResetAwaited,
    Result,
    SwitchReason,
    User,
)
from agentcli.llm.messages import Usage
from agentcli.llm.provider import Effort
from agentcli.tools.builtin.toolset import TodoItem
from agentcli.tools.workspace import Workspace


@dataclass
class AgentState:
    """A session's conversation and the choices for it.

    `model` is the chosen one (`provider/model`), `last_used` the one that replied last. `notes` are told to the model
    with its next request; `told` is what the person need not be told again. `window_share` is how full the newest
    request made the model's window, `refused` what each model did not take (keys of `requests/repairs.py`).
    `switch_reason` says why the next request goes to another model; a resolver may set it.
    """

    model: str
    mode: Mode = "default"
    conversation: Conversation = field(default_factory=Conversation)
    rules: Rules = field(default_factory=Rules)
    meter: UsageCollector = field(default_factory=UsageCollector)
    budgets: Budgets = field(default_factory=lambda: Budgets((Account("session"),)))
    notes: deque[User] = field(default_factory=deque)
    effort: Effort | None = None
    mode_before_plan: Mode = "default"
    last_used: str = ""
    window_share: float = 0.0
    refused: dict[str, frozenset[str]] = field(default_factory=dict)
    switch_reason: SwitchReason = "chosen"
    is_small: bool = False
    told: set[str] = field(default_factory=set)
    awaits_reset: bool = False


def chosen_model(conversation: Conversation) -> str:
    """The model that a stored conversation was held with, apart from one that only stood in for it; empty for none."""
    chosen = stand_in = ""
    for entry in conversation.path:
        match entry.body:
            case ProviderSwitch(before, now, reason):
                chosen, stand_in = (now, "") if reason == "chosen" else (chosen or before, now)
            case Assistant(_, provider, model) if f"{provider}/{model}" != stand_in:
                chosen, stand_in = f"{provider}/{model}", ""
            case _:
                pass
    return chosen


def awaited_reset(conversation: Conversation) -> float:
    """Return the time that the end of a conversation waits for; 0 if it waits for none."""
    for entry in reversed(conversation.path):
        match entry.body:
            case ResetAwaited(until):
                return until
            case Assistant() | Result() | User(is_reminder=False):
                return 0.0
            case _:
                pass
    return 0.0


def rebuilt(state: AgentState, entries: Iterable[Entry]) -> AgentState:
    """Give `state` the conversation of a log, what it cost, and the model that answered last."""
    conversation = state.conversation = Conversation(entries)
    if (reply := conversation.last_reply) is not None and isinstance(reply.body, Assistant):
        state.last_used = f"{reply.body.provider}/{reply.body.model}"
    for entry in conversation.entries:  # also those that were taken back: they were paid for all the same
        if cost := spent(entry.body):
            state.meter.add_request(*cost)
        state.budgets.recall(amounts_of(entry.body))
    return state


def todo_items(path: Sequence[Entry]) -> tuple[TodoItem, ...]:
    """Return the items of the model's newest list of what is to be done, as its calls left it."""
    for entry in reversed(path):
        body = entry.body
        if isinstance(body, Result) and body.name == "todo" and not body.result.is_error and body.structured:
            try:
                return msgspec.convert(body.structured["items"], tuple[TodoItem, ...])
            except (msgspec.ValidationError, TypeError, KeyError):
                return ()  # an older or a newer version's
    return ()


class SessionSnapshot(Struct, frozen=True, kw_only=True):
    """A session as a front end reads it; operations change it. `conversation` is only read.

    `usage` and `cost_usd` (None: a price is unknown) are of the session so far, `by_model` both by `provider/model`.
    """

    id: str
    model: str
    mode: Mode
    mode_before_plan: Mode
    effort: Effort | None
    workspace: Workspace
    tools: tuple[str, ...]
    conversation: Conversation
    usage: Usage
    cost_usd: float | None
    by_model: dict[str, tuple[Usage, float | None]]
    max_budget_usd: float | None
    max_turns: int
    is_busy: bool
    mcp_servers: list[dict[str, Any]] = []

    @property
    def running_jobs(self) -> int:
        """The number of its background jobs that run now."""
        return len(self.workspace.running_jobs())

    @property
    def context_tokens(self) -> int:
        """Tokens of the next request; before this run's first one, of the newest reply or what a compaction left."""
        if tokens := self.conversation.size.now():
            return tokens
        for entry in reversed(self.conversation.path):
            match entry.body:
                case Assistant(usage=usage):
                    return usage.context_tokens
                case Compaction(tokens_after=tokens):
                    return tokens
                case _:
                    pass
        return 0
