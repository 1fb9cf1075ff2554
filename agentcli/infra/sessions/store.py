"""Stores sessions in tables, in whatever database these are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from agentcli.agent.interfaces import Found, SessionInfo, SessionLog
from agentcli.conversation.entries import Entry, Unreadable
from agentcli.errors import NoSession, StorageError
from agentcli.infra.sessions import log as tables
from agentcli.infra.sessions.ids import new_id as made_id
from agentcli.infra.sessions.ids import position_of
from agentcli.infra.sessions.log import Ownership, TableLog, Tables, UnstoredSession, Work, WorkQueue
from agentcli.settings.paths import folder_text

if TYPE_CHECKING:
    from agentcli.agent.accounting.usage import UsageCollector

T = TypeVar("T")


class TableSessions(ABC):
    """Implements `SessionStore`, but for how work is done and who owns a session. `on_notice` tells the person."""

    is_lasting = True

    def __init__(self, on_notice: Callable[[str], None]) -> None:
        self._on_notice = on_notice
        self._logs: WeakValueDictionary[str, TableLog] = WeakValueDictionary()  # of each session the newest

    @abstractmethod
    async def _run(self, work: Work[T]) -> T:
        """Do work in a transaction. Raises `StorageError`."""

    async def _read(self, work: Work[T]) -> T:
        """Do work that changes nothing."""
        return await self._run(work)

    @abstractmethod
    def _queue(self) -> WorkQueue:
        """Return a queue for the work of one log."""

    @abstractmethod
    async def _own(self, session_id: str, *, take_over: bool = False) -> Ownership:
        """Own a session. With `take_over` whoever has it is asked, and waited for. Raises `SessionInUse`."""

    @abstractmethod
    async def _holder(self, session_id: str) -> str | None: ...

    async def _forget_streams(self, session_ids: Sequence[str]) -> None:  # noqa: B027 - most stores have no streams
        """Remove the event streams of these sessions: a server writes them anew from the log as it is now."""

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        new = UnstoredSession(id=session_id or made_id(), cwd=folder_text(cwd), name=name, user_id=user_id)
        return await self._create(new, has_given_id=session_id is not None)

    async def _create(self, new: UnstoredSession, *, has_given_id: bool) -> SessionLog:
        owner = await self._own(new.id)
        try:
            if has_given_id and await self._read(lambda db: tables.is_stored(db, new.id)):
                raise StorageError(f"There is a session {new.id} already: resume it with --resume {new.id}.")
        except BaseException:
            await owner.release()
            raise
        log = TableLog(new.id, self._queue(), owner, last=new.last, last_seq=new.shared)
        log.new, self._logs[new.id] = new, log
        return log

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[SessionLog, list[Entry]]:
        id = await self._full_id(session_id)
        owner = await self._own(id, take_over=take_over)

        async def work(db: Tables) -> tuple[list[Entry], int]:
            return await tables.entries_of(db, id), await tables.last_seq(db, id)

        try:
            entries, seq = await self._read(work)
        except BaseException:
            await owner.release()
            raise
        self._report_unreadable(id, entries)
        last = entries[-1].id if entries else None
        self._logs[id] = log = TableLog(id, self._queue(), owner, last=last, last_seq=seq)
        return log, entries

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[SessionLog, list[Entry]]:
        info, entries = await self.load(session_id)
        entries = entries[: position_of(at, [entry.id for entry in entries]) + 1]
        self._report_unreadable(info.id, entries)
        new = UnstoredSession(id=new_id or made_id(), cwd=folder_text(cwd), name=name, user_id=info.user_id)
        if entries:
            new.source, new.shared, new.last = info.id, len(entries), entries[-1].id
        return await self._create(new, has_given_id=new_id is not None), entries

    def _report_unreadable(self, session_id: str, entries: Sequence[Entry]) -> None:
        unreadable = [entry.body.error for entry in entries if isinstance(entry.body, Unreadable)]
        if unreadable:
            self._on_notice(
                f"{len(unreadable)} of the {len(entries)} entries of session {session_id} are left out: "
                f"{unreadable[0]}. agentcli sessions show {session_id} shows where they stood."
            )

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        async def work(db: Tables) -> tuple[SessionInfo, list[Entry]]:
            id = await tables.full_id(db, session_id, user_id)
            return await tables.info_of(db, id), await tables.entries_of(db, id, after=after)

        return await self._read(work)

    async def holder(self, session_id: str) -> str | None:
        with suppress(NoSession):  # it may be open before it is stored
            session_id = await self._full_id(session_id)
        return await self._holder(session_id)

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        folder = folder_text(cwd) if cwd else None
        return await self._read(lambda db: tables.infos(db, cwd=folder, user_id=user_id, limit=limit))

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[Found]:
        from agentcli.infra.sessions.search import Words

        words, folder = Words(text), folder_text(cwd) if cwd else None
        return await self._read(lambda db: db.search(words, cwd=folder, user_id=user_id, limit=limit))

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        async def work(db: Tables) -> Sequence[tuple[str, Entry]]:
            return [(str(id), tables.read_entry(row)) async for id, *row in tables.file_changes(db)]

        return await self._read(work)

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector:
        """Add up usage since a time: of one session (by its id, its start, or its name), of a user, or of all."""
        from agentcli.agent.accounting.usage import UsageCollector

        async def work(db: Tables) -> UsageCollector:
            found = UsageCollector()
            id = await tables.full_id(db, session, user_id) if session else ""
            async for owner, user, *row in tables.used_entries(db, since=since, session=id, user_id=user_id):
                found.add(owner, tables.read_entry(row), user_id=user)
            return found

        return await self._read(work)

    async def rename(self, session_id: str, name: str) -> None:
        log = self._logs.get(session_id)
        if log is not None and log.new is not None:
            await log.drain()
        if log is not None and log.new is not None:
            log.new.name = name
            return

        async def work(db: Tables) -> None:
            id = await tables.full_id(db, session_id)
            await db.rows("UPDATE sessions SET name = :name WHERE id = :id AND trashed = 0", name=name, id=id)

        await self._run(work)

    async def remove(self, session_id: str) -> None:
        from agentcli.infra.sessions import changes

        id = await self._full_id(session_id)
        await self._change(id, lambda db: changes.remove(db, id))
        await self._forget_streams([id])

    async def restore(self, session_id: str) -> str:
        from agentcli.infra.sessions import changes

        id = await self._read(lambda db: changes.id_in_trash(db, session_id))
        await self._change(id, lambda db: changes.restore(db, id))
        return id

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        from agentcli.infra.sessions import changes

        texts, id = changes.Secrets(secrets), await self._full_id(session_id)
        places, changed = await self._change(id, lambda db: changes.redact(db, id, texts))
        await self._forget_streams([id, *changed])
        return places

    async def _change(self, session_id: str, work: Work[T]) -> T:
        """Do work while nobody else has the session open, nor makes or changes copies of entries."""
        owner = await self._own(session_id)

        async def alone(db: Tables) -> T:
            await owner.hold(db)
            await db.lock_copies(alone=True)
            return await work(db)

        try:
            return await self._run(alone)
        finally:
            await owner.release()

    async def _full_id(self, session_id: str) -> str:
        return await self._read(lambda db: tables.full_id(db, session_id))

    @abstractmethod
    async def close(self) -> None: ...
