"""Sessions that live as long as the program (`--no-session`, tests, library use)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from agentcli.agent.interfaces import NEWEST, Appended, SessionInfo, SessionLog, Stored
from agentcli.conversation.entries import Body, Entry, entry_now
from agentcli.conversation.file_changes import FilesChanged, FilesRestored
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.ids import entry_id, new_id
from agentcli.paths import folder_text


class MemoryLog:
    """Implements `SessionLog`."""

    def __init__(self, session_id: str, cwd: Path, *, name: str = "", user_id: str = "") -> None:
        self.session_id = session_id
        self.cwd = cwd
        self.name = name
        self.created = time.time()
        self.used = time.monotonic_ns()
        self.user_id = user_id
        self.entries: list[Entry] = []
        self.is_open = True

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        first_seq = len(self.entries) + 1
        if parent_id == NEWEST:
            parent_id = self.entries[-1].id if self.entries else None
        for body in bodies:
            self.entries.append(entry_now(entry_id(body), parent_id, body))
            parent_id = self.entries[-1].id
        self.used = time.monotonic_ns()
        added = tuple(self.entries[first_seq - 1 :])
        committed = asyncio.get_running_loop().create_future()
        committed.set_result(Stored(added, first_seq))
        return Appended(added, committed)

    async def close(self) -> None:
        self.is_open = False


class MemorySessions:
    """Implements `SessionStore`."""

    is_lasting = False

    def __init__(self) -> None:
        self._logs: dict[str, MemoryLog] = {}

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        id = session_id or new_id()
        if id in self._logs:
            raise StorageError(f"There is a session {id} already: resume it with --resume {id}.")
        self._logs[id] = MemoryLog(id, cwd, name=name, user_id=user_id)
        return self._logs[id]

    async def open(self, session_id: str) -> tuple[SessionLog, list[Entry]]:
        log = self._find(session_id)
        if log.is_open:
            raise StorageError(f"Session {log.session_id} is open already: continue a copy with --fork-session.")
        log.is_open = True
        return log, list(log.entries)

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = ""
    ) -> tuple[SessionLog, list[Entry]]:
        source = self._find(session_id)
        entries = list(source.entries)
        log = await self.create(cwd=cwd, session_id=new_id, name=name, user_id=source.user_id)
        self._logs[log.session_id].entries = list(entries)
        return log, entries

    async def load(self, session_id: str) -> tuple[SessionInfo, list[Entry]]:
        log = self._find(session_id)
        return _info(log), list(log.entries)

    async def list(self, *, cwd: Path | None = None, limit: int = 50) -> Sequence[SessionInfo]:
        logs = [log for log in self._logs.values() if log.entries and cwd in (None, log.cwd)]
        return [_info(log) for log in sorted(logs, key=lambda log: log.used, reverse=True)[:limit]]

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        found = {
            entry.id: (log.session_id, entry)  # a copy of a session has the entries of the one it was made of
            for log in reversed(self._logs.values())
            for entry in log.entries
            if isinstance(entry.body, FilesChanged | FilesRestored)
        }
        return sorted(found.values(), key=lambda one: one[1].time)

    async def rename(self, session_id: str, name: str) -> None:
        log = self._logs.get(session_id) or self._find(session_id)
        log.name = name

    async def close(self) -> None:
        pass

    def _find(self, session_id: str) -> MemoryLog:
        """The one whose id begins so, or the session of that name; nothing is stored before the first entry."""
        stored = [log for log in self._logs.values() if log.entries]
        found = [log for log in stored if log.session_id.startswith(session_id) or session_id == log.name]
        exact = [log for log in found if log.session_id == session_id]
        if len(exact or found) != 1:
            raise StorageError(f"{len(found) or 'No'} sessions match {session_id!r}.")
        return (exact or found)[0]


def _info(log: MemoryLog) -> SessionInfo:
    updated = log.entries[-1].time if log.entries else log.created
    return SessionInfo(
        log.session_id,
        folder_text(log.cwd),
        title_of(log.entries),
        log.created,
        updated,
        len(log.entries),
        log.name,
        last_prompt_of(log.entries),
        log.user_id,
    )
