"""Stores sessions in the tables of any database, and writes the logs of open sessions."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

from agentcli.agent import interfaces
from agentcli.agent.accounting import UsageCollector
from agentcli.conversation.entries import Body, Entry, Result, Unreadable, entry_now
from agentcli.errors import NoSession, StorageError
from agentcli.infra.sessions import tables
from agentcli.settings.files import folder_text

TAKE_OVER_TIMEOUT_S = 20.0  # the longest wait for a program that is asked to give up a session
Submit = Callable[[tables.Work[interfaces.StoredEntries]], asyncio.Future[interfaces.StoredEntries]]
# Does the work of a log in order, each piece in a transaction; and waits until all work so far is done or has failed.
WorkQueue = tuple[Submit, Callable[[], Awaitable[None]]]


class Ownership:
    """The right to write to a session, which one program has at a time. `is_wanted` is true if another asks for it."""

    def __init__(self, release: Callable[[], object], is_wanted: Callable[[], bool] = lambda: False) -> None:
        self._release = release
        self.is_wanted = is_wanted

    async def hold(self, db: tables.Tables) -> None:
        """Keep the session until the end of the transaction. Raises `StorageError` if another program has it now."""

    async def release(self) -> None:
        self._release()


class TableLog:
    """Implements `SessionLog`. New entries follow the entry with the id `last_id` and the number `last_seq`."""

    def __init__(
        self, session_id: str, queue: WorkQueue, ownership: Ownership, *, last_id: str | None, last_seq: int
    ) -> None:
        self.session_id = session_id
        self.unstored_session: tables.UnstoredSession | None = None  # a new session, until it is stored
        self.is_wanted = ownership.is_wanted  # returns True once another program asks for the session
        self._submit, self.drain = queue
        self._ownership = ownership
        self._last_id = last_id
        self._last_seq = last_seq
        # Entries that are not stored yet. After a failure, such as a full disk, they are stored with the next ones.
        self._uncommitted: list[interfaces.StoredEntries] = []

    def append(self, *bodies: Body, parent_id: str | None = interfaces.NEWEST) -> interfaces.AppendedEntries:
        entries: list[Entry] = []
        parent_id = self._last_id if parent_id == interfaces.NEWEST else parent_id
        for body in bodies:
            id = body.result.tool_use_id if isinstance(body, Result) else tables.new_id()  # a result has its call's id
            entries.append(entry_now(id, parent_id, body))
            self._last_id = parent_id = id
        stored = interfaces.StoredEntries(tuple(entries), self._last_seq + 1)
        self._last_seq += len(entries)
        self._uncommitted.append(stored)
        # Entries of earlier calls that are not stored yet go along, so that the log never has a gap.
        session, uncommitted = self.unstored_session or self.session_id, tuple(self._uncommitted)

        async def work(db: tables.Tables) -> interfaces.StoredEntries:
            await self._ownership.hold(db)
            await tables.store_entries(db, session, *uncommitted)
            return stored

        def forget_stored(committed: asyncio.Future[interfaces.StoredEntries]) -> None:
            if not committed.cancelled() and committed.exception() is None:
                self.unstored_session = None
                self._uncommitted = [later for later in self._uncommitted if later.first_seq > stored.first_seq]

        committed = self._submit(work)
        committed.add_done_callback(forget_stored)
        return interfaces.AppendedEntries(stored.entries, committed)

    async def close(self) -> None:
        await self.drain()
        await self._ownership.release()


class TableSessions(ABC):
    """Implements `SessionStore`; subclasses do the work and manage ownership. `on_notice` informs the person."""

    is_lasting = True

    def __init__(self, on_notice: Callable[[str], None] = lambda text: None) -> None:
        self._on_notice = on_notice
        self._logs: WeakValueDictionary[str, TableLog] = WeakValueDictionary()  # the newest log of each session

    @abstractmethod
    async def _run(self, work: tables.Work[tables.T]) -> tables.T:
        """Do work in a transaction. Raises `StorageError`."""

    async def _read(self, work: tables.Work[tables.T]) -> tables.T:
        """Do work that changes nothing."""
        return await self._run(work)

    @abstractmethod
    def _queue(self) -> WorkQueue:
        """Return a queue for the work of one log."""

    @abstractmethod
    async def _take_ownership(self, session_id: str, *, take_over: bool = False) -> Ownership:
        """Take a session. With `take_over` ask the program that has it, and wait. Raises `SessionInUse`."""

    @abstractmethod
    async def _holder(self, session_id: str) -> str | None:
        """Return the address of the program that has a session open ("" without one), None if there is none."""

    @abstractmethod
    async def close(self) -> None: ...

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> interfaces.SessionLog:
        new = tables.UnstoredSession(id=session_id or tables.new_id(), cwd=folder_text(cwd), name=name, user_id=user_id)
        return await self._create(new, has_given_id=session_id is not None)

    async def _create(self, new: tables.UnstoredSession, *, has_given_id: bool) -> interfaces.SessionLog:
        ownership = await self._take_ownership(new.id)
        try:
            # A generated id is always free.
            if has_given_id and await self._read(lambda db: tables.is_stored(db, new.id)):
                raise StorageError(f"There is a session {new.id} already: resume it with --resume {new.id}.")
        except BaseException:
            await ownership.release()
            raise
        last_id, last_seq = new.last_shared_id, new.shared_count
        self._logs[new.id] = log = TableLog(new.id, self._queue(), ownership, last_id=last_id, last_seq=last_seq)
        log.unstored_session = new
        return log

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[interfaces.SessionLog, list[Entry]]:
        id = await self._full_id(session_id)
        ownership = await self._take_ownership(id, take_over=take_over)
        try:
            info, entries = await self.load(id)
        except BaseException:
            await ownership.release()
            raise
        self._report_unreadable(id, entries)
        last_id = entries[-1].id if entries else None
        self._logs[id] = log = TableLog(id, self._queue(), ownership, last_id=last_id, last_seq=info.entries)
        return log, entries

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[interfaces.SessionLog, list[Entry]]:
        info, entries = await self.load(session_id)
        entries = entries[: _position_of(at, [entry.id for entry in entries]) + 1]
        self._report_unreadable(info.id, entries)
        # The owner of a subagent's session or of a one-shot keeps it out of lists. A fork has none, so it is listed.
        is_unlisted = info.user_id.startswith((interfaces.subagents_owner(""), interfaces.ONE_SHOTS))
        user_id = "" if is_unlisted else info.user_id
        new = tables.UnstoredSession(id=new_id or tables.new_id(), cwd=folder_text(cwd), name=name, user_id=user_id)
        if entries:
            new.source_id, new.shared_count, new.last_shared_id = info.id, len(entries), entries[-1].id
        return await self._create(new, has_given_id=new_id is not None), entries

    def _report_unreadable(self, session_id: str, entries: Sequence[Entry]) -> None:
        unreadable = [entry.body.error for entry in entries if isinstance(entry.body, Unreadable)]
        if unreadable:
            self._on_notice(
                f"{len(unreadable)} of the {len(entries)} entries of session {session_id} are left out because they "
                f"cannot be read: {unreadable[0]}. To see where they were: agentcli sessions show {session_id}"
            )

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[interfaces.SessionInfo, list[Entry]]:
        async def work(db: tables.Tables) -> tuple[interfaces.SessionInfo, list[Entry]]:
            id = await tables.full_id(db, session_id, user_id)
            (info,) = await tables.session_infos(db, "id = :id", id=id)
            return info, await tables.entries_of(db, id, after=after)  # without the first `after` ones

        return await self._read(work)

    async def holder(self, session_id: str) -> str | None:
        with suppress(NoSession):  # a session may be open before it is stored
            session_id = await self._full_id(session_id)
        return await self._holder(session_id)

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[interfaces.SessionInfo]:
        which = f"cwd = coalesce(:cwd, cwd) AND {tables.OF_USER} ORDER BY used DESC LIMIT :limit"
        folder = folder_text(cwd) if cwd else None
        return await self._read(lambda db: tables.session_infos(db, which, cwd=folder, user_id=user_id, limit=limit))

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[interfaces.SearchHit]:
        words, folder = tables.Words(text), folder_text(cwd) if cwd else None
        return await self._read(lambda db: db.search(words, cwd=folder, user_id=user_id, limit=limit))

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        async def work(db: tables.Tables) -> Sequence[tuple[str, Entry]]:
            return [(str(id), tables.read_entry(row)) async for id, *row in db.stream(tables.SQL["file_changes"])]

        return await self._read(work)

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector:
        """Add up usage since a time, of one session, of a user or of all. A fork's usage is that of its own entries."""

        async def work(db: tables.Tables) -> UsageCollector:
            collector = UsageCollector()
            id = await tables.full_id(db, session, user_id) if session else ""
            rows = db.stream(tables.SQL["used"], since=since, session=id, user_id=user_id)
            async for session_id, session_user_id, *row in rows:
                collector.add(session_id, tables.read_entry(row), user_id=session_user_id)
            return collector

        return await self._read(work)

    async def rename(self, session_id: str, name: str) -> None:
        await self._set_column(session_id, "name", name)

    async def mark_one_shot(self, session_id: str, *, is_one_shot: bool) -> None:
        """Mark an open or stored session of no user as the run of a script, or as a conversation again."""
        await self._set_column(session_id, "user_id", interfaces.ONE_SHOTS if is_one_shot else "")

    async def _set_column(self, session_id: str, column: Literal["name", "user_id"], value: str) -> None:
        if (log := self._logs.get(session_id)) is not None and log.unstored_session is not None:
            await log.drain()  # its first entries may be waiting to be stored
            if log.unstored_session is not None:  # still not stored: it gets this value when it is
                setattr(log.unstored_session, column, value)
                return

        async def work(db: tables.Tables) -> None:
            statement = f"UPDATE sessions SET {column} = :value WHERE id = :id AND trashed = 0"  # noqa: S608 - constant text
            await db.rows(statement, value=value, id=await tables.full_id(db, session_id))

        await self._run(work)

    async def remove(self, session_id: str) -> None:
        from agentcli.infra.sessions import maintenance

        id = await self._full_id(session_id)
        await self._run_alone(id, lambda db: maintenance.remove(db, id))

    async def restore(self, session_id: str) -> str:
        from agentcli.infra.sessions import maintenance

        id = await self._read(lambda db: maintenance.id_in_trash(db, session_id))
        await self._run_alone(id, lambda db: maintenance.restore(db, id))
        return id

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        from agentcli.infra.sessions import maintenance

        texts, id = maintenance.Secrets(secrets), await self._full_id(session_id)
        return await self._run_alone(id, lambda db: maintenance.redact(db, id, texts))

    async def _run_alone(self, session_id: str, work: tables.Work[tables.T]) -> tables.T:
        """Run `work` while no other program has the session open. Raises `SessionInUse`."""
        ownership = await self._take_ownership(session_id)

        async def alone(db: tables.Tables) -> tables.T:
            await ownership.hold(db)
            await db.rows(db.lock_copies)  # otherwise a fork made meanwhile would keep what `work` removes
            return await work(db)

        try:
            return await self._run(alone)
        finally:
            await ownership.release()

    async def _full_id(self, session_id: str) -> str:
        return await self._read(lambda db: tables.full_id(db, session_id))


def _position_of(beginning: str | None, ids: Sequence[str]) -> int:
    """Return the newest position of the only id that begins so, or the last position if `beginning` is None.

    An id may occur twice, because a model may reuse the id of a call. Raises `StorageError` for no or several ids.
    """
    if beginning is None:
        return len(ids) - 1
    matches = {beginning} if beginning in ids else {id for id in ids if id.startswith(beginning)}
    if len(matches) != 1:
        count = "Several entries begin" if matches else "No entry begins"
        raise StorageError(f"{count} with {beginning!r}. To list the ids: agentcli sessions show ID --json")
    return max(position for position, id in enumerate(ids) if id in matches)
