"""Sessions in SQLite: append-only, synced to disk before anybody is told, one writer thread.

Settings measured against a simulated power cut: WAL with synchronous=FULL lost none of 10,090 acknowledged rows, NORMAL
lost 520.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import apsw
import filelock

from agentcli.agent.interfaces import Found, SessionInfo, SessionLog
from agentcli.conversation.entries import Entry
from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.database import NotWritable, SessionDatabase, on_a_copy
from agentcli.infra.sessions.files import holder_of, session_lock, wanted_file
from agentcli.infra.sessions.ids import new_id, position_of
from agentcli.infra.sessions.log import SessionRow, SqliteLog
from agentcli.infra.sessions.reading import (
    entries_of,
    file_changes,
    full_id,
    info_of,
    infos,
    last_seq,
    notice_of_unreadable,
    places_of,
)
from agentcli.infra.sqlite_writer import Writer
from agentcli.settings.paths import folder_text

if TYPE_CHECKING:
    from agentcli.agent.accounting.usage import UsageCollector

PATIENCE_S = 20.0  # with a program that is to give up a session

T = TypeVar("T")


class SqliteSessions:
    """Implements `SessionStore` on one database file, which is made at the first use. `on_notice` tells the person.

    `address` is where others reach the program that has sessions open here.
    """

    is_lasting = True

    def __init__(self, path: Path, *, address: str = "", on_notice: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._address = address
        self._on_notice = on_notice
        self._writer = Writer(path, SessionDatabase(path, on_notice, _rebuild), name="agentcli-sessions")
        self._new: dict[str, SessionRow] = {}  # made here; each is stored with its first entries

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        id = session_id or new_id()
        lock = self._own(id)
        if session_id is not None:
            await self._refuse_taken(session_id, lock)
        self._new[id] = row = SessionRow(id, folder_text(cwd), name, user_id)
        return SqliteLog(self._writer, id, lock, self.path, new_session=row)

    async def _refuse_taken(self, session_id: str, lock: filelock.BaseFileLock) -> None:
        taken = await self._read(lambda db: db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).get)
        if taken:
            lock.release()
            raise StorageError(f"There is a session {session_id} already: resume it with --resume {session_id}.")

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do what changes nothing, also where the file can only be read."""
        try:
            return await self._writer.call(work)
        except NotWritable as refused:
            return await asyncio.to_thread(on_a_copy, self.path, work, refused)

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[SessionLog, list[Entry]]:
        id = await self._read(lambda db: full_id(db, session_id))
        lock = await self._taken_over(id) if take_over else self._own(id)
        try:
            entries, seq = await self._read(lambda db: (entries_of(db, id), last_seq(db, id)))
        except StorageError:
            lock.release()
            raise
        self._tell_unreadable(id, entries)
        last = entries[-1].id if entries else None
        return SqliteLog(self._writer, id, lock, self.path, last=last, last_seq=seq), entries

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[SessionLog, list[Entry]]:
        source = await self._read(lambda db: full_id(db, session_id))
        info, entries, places = await self._read(
            lambda db: (info_of(db, source), entries_of(db, source), places_of(db, source))
        )
        end = position_of(at, [id for _, _, id in places])
        entries = entries[: end + 1]
        self._tell_unreadable(source, entries)
        log = await self.create(cwd=cwd, session_id=new_id, name=name, user_id=info.user_id)
        assert isinstance(log, SqliteLog)
        if entries:
            log.continue_from(*places[end][:2], entries)
        return log, entries

    def _tell_unreadable(self, session_id: str, entries: Sequence[Entry]) -> None:
        if notice := notice_of_unreadable(session_id, entries):
            self._on_notice(notice)

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        def work(db: apsw.Connection) -> tuple[SessionInfo, list[Entry]]:
            id = full_id(db, session_id, user_id)
            return info_of(db, id), entries_of(db, id, after=after)

        return await self._read(work)

    async def holder(self, session_id: str) -> str | None:
        id = session_id if session_id in self._new else await self._read(lambda db: full_id(db, session_id))
        return holder_of(self.path, id)

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        tail = "WHERE cwd = coalesce(?, cwd) AND user_id = coalesce(?, user_id) ORDER BY used DESC LIMIT ?"
        values = (folder_text(cwd) if cwd else None, user_id, limit)
        return await self._read(lambda db: infos(db, tail, values))

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[Found]:
        from agentcli.infra.sessions.words import Words

        words = Words(text)
        from agentcli.infra.sessions import index

        scope = index.Scope(folder_text(cwd) if cwd else None, user_id, limit)

        def work(db: apsw.Connection) -> Sequence[Found]:
            while index.add_some(db):
                pass
            found: Sequence[Found] = index.search(db, words, scope)
            return found

        with suppress(NotWritable):
            while await self._writer.call(index.add_some):
                pass  # each in a transaction of its own: others may write between them
        return await self._read(work)

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        return await self._read(file_changes)

    async def rename(self, session_id: str, name: str) -> None:
        new = self._new.get(session_id)
        if new is not None:
            new.name = name

        def work(db: apsw.Connection) -> None:
            id = session_id if new is not None else full_id(db, session_id)
            db.execute("UPDATE sessions SET name = ? WHERE id = ?", (name, id))

        await self._writer.call(work)

    async def remove(self, session_id: str) -> None:
        from agentcli.infra.sessions import trash

        async with self._owned(session_id) as id:
            await self._writer.call(lambda db: trash.remove(db, id, self.path.parent / "trash"))
            await self._forget_streams([id])

    async def restore(self, session_id: str) -> str:
        from agentcli.infra.sessions import trash

        id, file = trash.find(self.path.parent / "trash", session_id)
        with self._held(id):
            await self._writer.call(lambda db: trash.restore(db, file))
            file.unlink()
        return str(id)

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        from agentcli.infra.sessions import redaction

        struck = redaction.Secrets(secrets)
        async with self._owned(session_id) as id:
            places: int = await self._writer.call(lambda db: redaction.redact(db, id, struck))
            await asyncio.to_thread(redaction.wipe, self.path)  # also where an earlier one could not
            await self._forget_streams(await self._writer.call(lambda db: redaction.relatives(db, id)))
        return places

    async def _forget_streams(self, session_ids: Sequence[str]) -> None:
        """Remove what a server has kept of them for its readers: the log tells it again, as it is now."""
        events = self.path.with_name("events.db")
        if events.exists():
            from agentcli.infra.event_log.sqlite import forget_streams as forget

            await asyncio.to_thread(forget, events, session_ids)

    @asynccontextmanager
    async def _owned(self, session_id: str) -> AsyncIterator[str]:
        """Its whole id, while nobody else has the session open."""
        id = await self._writer.call(lambda db: full_id(db, session_id))
        with self._held(id):
            yield id

    @contextmanager
    def _held(self, session_id: str) -> Iterator[None]:
        lock = self._own(session_id)
        try:
            yield
        finally:
            lock.release()

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector:
        """What was stored since a time, of one session (by its id, its start, or its name) or of all, or of a user."""
        from agentcli.infra.sessions.usage import read_usage as read

        def work(db: apsw.Connection) -> UsageCollector:
            id = full_id(db, session, user_id) if session else ""
            found: UsageCollector = read(db, since=since, session_id=id, user_id=user_id)
            return found

        return await self._read(work)

    async def close(self) -> None:
        await self._writer.close()

    async def _taken_over(self, session_id: str) -> filelock.BaseFileLock:
        """Ask whoever has a session open for it, and wait. Raises `SessionInUse`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._own(session_id)
            except SessionInUse as error:
                wanted = wanted_file(self.path, session_id)
                if time.monotonic() > deadline:
                    wanted.unlink(missing_ok=True)
                    raise SessionInUse(session_id, was_asked=True) from error
                wanted.touch(mode=0o600)
            await asyncio.sleep(0.1)

    def _own(self, session_id: str) -> filelock.BaseFileLock:
        """Hold the session's lock, which a killed program gives up by dying. Raises `StorageError` when it is held."""
        try:
            return session_lock(self.path, session_id, address=self._address)
        except filelock.Timeout as error:
            raise SessionInUse(session_id) from error
        except OSError as error:
            raise StorageError(
                f"Could not write to {self.path.parent / 'locks'}: {error.strerror}. Make it writable, or use "
                "--no-session."
            ) from error


def is_stored(path: Path, session_id: str) -> bool:
    """True if a session can be opened again, or where that cannot be told."""
    if not path.exists():
        return False
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return bool(connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).get)
        finally:
            connection.close()
    except apsw.Error:
        return True


def _rebuild(path: Path) -> str:
    """Return where the damaged file is kept, once another is in its place; "" if nothing of it could be read."""
    from agentcli.infra.sessions.fsck import repair

    with suppress(StorageError):
        return repair(path, even_if_open=True).kept_as
    return ""
