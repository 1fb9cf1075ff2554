"""The messages that wait: how the log keeps them, so that a crash neither loses nor doubles one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.agent.events import QueueChanged
from agentcli.conversation.entries import Entry, SystemEvent
from agentcli.llm.messages import Block

if TYPE_CHECKING:
    from agentcli.agent.state import AgentState

Message = tuple[Block, ...]


def queue_event(state: AgentState) -> SystemEvent:
    """The whole queue as an entry. Where a message leaves the queue, its `User` entry is stored together with this."""
    return SystemEvent("queue", {"steering": _plain(state.steering), "follow_ups": _plain(state.follow_ups)})


def _plain(messages: Iterable[Message]) -> list[Any]:
    return [msgspec.to_builtins(list(message)) for message in messages]


def queue_changed(state: AgentState) -> QueueChanged:
    return QueueChanged(tuple(state.steering), tuple(state.follow_ups))


def stored_queue(entries: Sequence[Entry]) -> list[Message]:
    """What waited when the log ended, in the order it was to be said."""
    for entry in reversed(entries):
        if isinstance(entry.body, SystemEvent) and entry.body.event == "queue":
            data = entry.body.data
            return msgspec.convert([*data.get("steering", ()), *data.get("follow_ups", ())], list[Message])
    return []


def take_back(state: AgentState, position: int | None = None) -> bool:
    """Remove the message at a position, steering counted first, or the newest; whether there was one."""
    if position is None:
        position = len(state.steering) + len(state.follow_ups) - 1
    if not 0 <= position < len(state.steering) + len(state.follow_ups):
        return False
    if position < len(state.steering):
        del state.steering[position]
    else:
        del state.follow_ups[position - len(state.steering)]
    return True
