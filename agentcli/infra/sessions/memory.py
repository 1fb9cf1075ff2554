"""Sessions that live as long as the program (`--no-session`, tests, library use)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentcli.agent.interfaces import NEWEST, Appended, Found, SessionInfo, SessionLog, Stored
from agentcli.conversation.entries import Body, Entry, entry_now
from agentcli.conversation.file_changes import FilesChanged, FilesRestored
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import AmbiguousSession, NoSession, SessionInUse, StorageError
from agentcli.infra.sessions.ids import entry_id, new_id, position_of
from agentcli.settings.paths import folder_text


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
        self.source: MemoryLog | None = None  # the session it was forked from,
        self.shared = 0  # and how many of its entries are that one's
        self.is_stored = False
        self.is_open = True

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        first_seq = len(self.entries) + 1
        if parent_id == NEWEST:
            parent_id = self.entries[-1].id if self.entries else None
        for body in bodies:
            self.entries.append(entry_now(entry_id(body), parent_id, body))
            parent_id = self.entries[-1].id
        self.used = time.monotonic_ns()
        self.is_stored = True
        added = tuple(self.entries[first_seq - 1 :])
        committed = asyncio.get_running_loop().create_future()
        committed.set_result(Stored(added, first_seq))
        return Appended(added, committed)

    def is_wanted(self) -> bool:
        return False

    async def close(self) -> None:
        self.is_open = False


class MemorySessions:
    """Implements `SessionStore`."""

    is_lasting = False

    def __init__(self) -> None:
        self._logs: dict[str, MemoryLog] = {}
        self._trash: dict[str, MemoryLog] = {}

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        id = session_id or new_id()
        if id in self._logs:
            raise StorageError(f"There is a session {id} already: resume it with --resume {id}.")
        self._logs[id] = MemoryLog(id, cwd, name=name, user_id=user_id)
        return self._logs[id]

    def hold(self, session_id: str, entries: Sequence[Entry], *, cwd: Path, user_id: str = "") -> None:
        """Have a session with these entries, as it was kept elsewhere."""
        log = self._logs[session_id] = MemoryLog(session_id, cwd, user_id=user_id)
        log.entries, log.is_stored, log.is_open = list(entries), True, False

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[SessionLog, list[Entry]]:
        log = self._find(session_id)
        if log.is_open:
            raise SessionInUse(log.session_id)
        log.is_open = True
        return log, list(log.entries)

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[SessionLog, list[Entry]]:
        source: MemoryLog | None = self._find(session_id)
        assert source is not None
        entries = source.entries[: position_of(at, [entry.id for entry in source.entries]) + 1]
        log = await self.create(cwd=cwd, session_id=new_id, name=name, user_id=source.user_id)
        fork = self._logs[log.session_id]
        fork.entries, fork.shared = list(entries), len(entries)
        while source is not None and source.shared >= fork.shared:
            source = source.source
        fork.source = source
        return log, entries

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        log = self._find(session_id, user_id)
        return _info(log), log.entries[after:]

    async def holder(self, session_id: str) -> str | None:
        return "" if (self._logs.get(session_id) or self._find(session_id)).is_open else None

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        logs = sorted(self._stored(cwd, user_id), key=lambda log: log.used, reverse=True)
        return [_info(log) for log in logs[:limit]]

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[Found]:
        from agentcli.infra.sessions import words as module

        words = module.Words(text)
        found: list[Found] = [
            words.found_in(log.session_id, title_of(log.entries), entry)
            for log in self._stored(cwd, user_id)
            for entry in reversed(log.entries[log.shared :])
            if words.are_in(module.text_of(entry.body))
        ]
        return sorted(found, key=lambda one: one.time, reverse=True)[:limit]

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

    async def remove(self, session_id: str) -> None:
        log = self._closed(session_id)
        del self._logs[log.session_id]
        self._hand_over(log)
        self._trash[log.session_id] = log

    async def restore(self, session_id: str) -> str:
        found = [id for id in self._trash if id.startswith(session_id)]
        if len(found) != 1:
            raise StorageError(f"{len(found) or 'No'} sessions match {session_id!r} in the trash.")
        id = found[0]
        if id in self._logs and (self._logs[id].entries or self._logs[id].is_open):
            raise StorageError(f"Session {id} is in use: remove it to make room for what is in the trash.")
        self._logs[id] = log = self._trash.pop(id)
        if log.source not in self._logs.values():
            log.source, log.shared = None, 0
        return id

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        from agentcli.infra.sessions import redaction

        struck = redaction.Secrets(secrets)
        log = self._closed(session_id)
        done = [(entry, *redaction.struck_entry(entry, struck)) for entry in log.entries]
        total: int = sum(places for _, _, places in done)
        if total:
            log.name = struck.struck(log.name)[0]
            changed = {id(entry): after for entry, after, _ in done}
            for other in self._logs.values():
                other.entries = [changed.get(id(entry), entry) for entry in other.entries]
            log.append(redaction.note_of(total))
        return total

    async def close(self) -> None:
        pass

    def _hand_over(self, log: MemoryLog) -> None:
        """Of the forks the one that shares most has for its own what it shared; the others share that with it."""
        forks = sorted((fork for fork in self._logs.values() if fork.source is log), key=lambda fork: fork.shared)
        if not forks:
            return
        heir = forks.pop()
        for fork in forks:
            fork.source = heir
        log.source, log.shared, heir.source, heir.shared = heir, heir.shared, log.source, log.shared

    def _closed(self, session_id: str) -> MemoryLog:
        log = self._find(session_id)
        if log.is_open:
            raise StorageError(f"Session {log.session_id} is open: close it first.")
        return log

    def _stored(self, cwd: Path | None, user_id: str | None) -> Iterator[MemoryLog]:
        """Nothing is stored before the first entry."""
        for log in self._logs.values():
            if log.is_stored and cwd in (None, log.cwd) and user_id in (None, log.user_id):
                yield log

    def _find(self, session_id: str, user_id: str | None = None) -> MemoryLog:
        """The one whose id begins so, or the session of that name."""
        found = [
            log
            for log in self._stored(None, user_id)
            if log.session_id.startswith(session_id) or session_id == log.name
        ]
        exact = [log for log in found if log.session_id == session_id]
        if not found:
            raise NoSession(session_id)
        if len(exact or found) != 1:
            raise AmbiguousSession(f"{len(found)} sessions match {session_id!r}.")
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
