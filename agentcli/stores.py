"""Stores of conversations and of events, and the protocols for stores of your own."""

from agentcli.agent.interfaces import *
from agentcli.conversation.schema import readable_from
from agentcli.infra.event_log import MemoryEvents, RedisEvents, SqliteEvents
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentcli.infra.sessions.postgres import PostgresSessions

__all__ = [
    "ConversationStore", "EventStore", "MemoryEvents", "MemorySessions", "PostgresSessions", "RedisEvents",
    "SearchHit", "SessionInfo", "SessionLog", "SessionStore", "SqliteEvents", "SqliteSessions", "StreamEvent",
    "StreamState", "readable_from",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name == "PostgresSessions":
        from agentcli.infra.sessions.postgres import PostgresSessions  # needs an extra

        return PostgresSessions
    raise AttributeError(f"module 'agentcli.stores' has no attribute {name!r}")
