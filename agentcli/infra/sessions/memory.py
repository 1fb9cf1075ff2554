"""Sessions that live as long as the program (`--no-session`, tests, library use): in SQLite, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentcli.agent.interfaces import Stored
from agentcli.conversation.entries import Entry
from agentcli.errors import SessionInUse
from agentcli.infra.sessions.database import connect_to_memory
from agentcli.infra.sessions.sqlite import SqliteQueue, T, in_sqlite
from agentcli.infra.sessions.store import Ownership, TableSessions, WorkQueue
from agentcli.infra.sessions.tables import UnstoredSession, Work, store_entries
from agentcli.infra.sqlite_writer import MemoryWriter
from agentcli.settings.paths import folder_text


class MemorySessions(TableSessions):
    """Implements `SessionStore`."""

    is_lasting = False

    def __init__(self) -> None:
        super().__init__()
        self._writer = MemoryWriter(connect_to_memory)
        self._owned: set[str] = set()

    def hold(self, session_id: str, entries: Sequence[Entry], *, cwd: Path, user_id: str = "") -> None:
        """Have a session with these entries, as it was kept elsewhere."""
        new = UnstoredSession(id=session_id, cwd=folder_text(cwd), name="", user_id=user_id)
        self._writer.run(in_sqlite(lambda db: store_entries(db, new, Stored(tuple(entries), 1))))

    async def _run(self, work: Work[T]) -> T:
        return self._writer.run(in_sqlite(work))

    def _queue(self) -> WorkQueue:
        return SqliteQueue(self._writer)

    async def _own(self, session_id: str, *, take_over: bool = False) -> Ownership:
        if session_id in self._owned:
            raise SessionInUse(session_id)
        self._owned.add(session_id)
        return Ownership(partial(self._owned.discard, session_id))

    async def _holder(self, session_id: str) -> str | None:
        return "" if session_id in self._owned else None

    async def close(self) -> None:
        pass
