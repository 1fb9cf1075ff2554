"""Sessions in Postgres, for programs on one or many machines. Who owns one is told by leases."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from agentcli.agent.accounting.usage import UsageCollector
from agentcli.agent.interfaces import Found, SessionInfo
from agentcli.conversation.entries import Entry
from agentcli.errors import NoSession, StorageError
from agentcli.infra.sessions import postgres_changes as changes
from agentcli.infra.sessions.ids import new_id as made_id
from agentcli.infra.sessions.ids import position_of
from agentcli.infra.sessions.postgres_database import UNHURRIED, Connection, Database, storable, value
from agentcli.infra.sessions.postgres_leases import Leases, holder
from agentcli.infra.sessions.postgres_log import (
    ALONE,
    ENTRY,
    IS_STORED,
    NewSession,
    PostgresLog,
    entries_of,
    entry_of,
)
from agentcli.infra.sessions.reading import notice_of_unreadable, the_one
from agentcli.infra.sessions.redaction import Secrets
from agentcli.infra.sessions.words import Words, text_of
from agentcli.settings.paths import folder_text

_CONNECTIONS = 4  # at most, beside the one for leases

_INFO = """
SELECT id, cwd, title, created, updated,
    (SELECT coalesce(max(seq), 0) FROM agentcli.entries WHERE session_id = sessions.id AND trashed = 0),
    name, last_prompt, user_id
FROM agentcli.sessions WHERE trashed = 0
"""
_SCOPE = """
AND (%(cwd)s::text IS NULL OR cwd = %(cwd)s) AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s)
"""
_COLUMNS = f"sessions.id, title, user_id, {', '.join(f'entries.{name}' for name in ENTRY.split(', '))}"
_ROWS = f"""
SELECT {_COLUMNS} FROM agentcli.entries
JOIN agentcli.sessions ON sessions.id = entries.session_id AND sessions.trashed = 0
WHERE own AND entries.trashed = 0
"""  # noqa: S608 - our words
# The index is asked once, whatever the planner thinks of it, and texts are read in the end, of those that are fetched.
_SEARCH = f"""
WITH hits AS MATERIALIZED (
    SELECT n, time, session_id FROM agentcli.entries WHERE own AND trashed = 0 AND words @@ %(query)s::tsquery
)
SELECT {_COLUMNS} FROM (
    SELECT hits.n, sessions.id, title, user_id FROM hits JOIN agentcli.sessions ON id = session_id AND trashed = 0
    {_SCOPE} ORDER BY hits.time DESC, hits.n DESC
) AS sessions CROSS JOIN LATERAL (SELECT * FROM agentcli.entries WHERE n = sessions.n OFFSET 0) AS entries
"""  # noqa: S608 - our words
_CHANGES = f"{_ROWS} AND kind IN ('files_changed', 'files_restored') ORDER BY entries.time, entries.n"
_USED = f"""
{_ROWS} AND updated >= %(since)s AND entries.time >= %(since)s AND (%(session)s = '' OR sessions.id = %(session)s)
AND user_id = coalesce(%(user_id)s, user_id)
AND kind IN ('user', 'assistant', 'tool_result', 'paid', 'compaction') ORDER BY entries.session_id, seq
"""


class PostgresSessions:
    """Implements `SessionStore`. Tables are made at the first use.

    `address` is where others reach the program that has a session open; `on_notice` tells the person.
    """

    is_lasting = True

    def __init__(self, url: str, *, address: str = "", on_notice: Callable[[str], None] = lambda text: None) -> None:
        self._on_notice = on_notice
        self._database = Database(url, most=_CONNECTIONS)
        self._leases = Leases(url, self._database, address)
        self._logs: WeakValueDictionary[str, PostgresLog] = WeakValueDictionary()  # of each session the newest

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> PostgresLog:
        return await self._create(NewSession(session_id or made_id(), folder_text(cwd), name, user_id), [])

    async def _create(self, new: NewSession, entries: list[Entry]) -> PostgresLog:
        lease = await self._leases.take(new.id)
        try:
            async with self._database.transaction() as db:
                if await value(db, IS_STORED, new.id):
                    raise StorageError(f"There is a session {new.id} already: resume it with --resume {new.id}.")
        except BaseException:
            await self._leases.release(lease)
            raise
        self._logs[new.id] = log = PostgresLog(self._database, self._leases, lease, new_session=new, entries=entries)
        return log

    async def open(self, session_id: str, *, take_over: bool = False) -> tuple[PostgresLog, list[Entry]]:
        id = await self._full_id(session_id)
        lease = await (self._leases.take_over(id) if take_over else self._leases.take(id))
        try:
            _, entries = await self.load(id)
        except BaseException:
            await self._leases.release(lease)
            raise
        self._tell_unreadable(id, entries)
        self._logs[id] = log = PostgresLog(self._database, self._leases, lease, entries=entries)
        return log, entries

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = "", at: str | None = None
    ) -> tuple[PostgresLog, list[Entry]]:
        info, entries = await self.load(session_id)
        entries = entries[: position_of(at, [entry.id for entry in entries]) + 1]
        self._tell_unreadable(info.id, entries)
        new = NewSession(new_id or made_id(), folder_text(cwd), name, info.user_id)
        if entries:
            new.source, new.shared, new.last = info.id, len(entries), entries[-1].id
        return await self._create(new, entries), entries

    def _tell_unreadable(self, session_id: str, entries: Sequence[Entry]) -> None:
        if notice := notice_of_unreadable(session_id, entries):
            self._on_notice(notice)

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, list[Entry]]:
        """A session to read only, with its entries but the first `after`."""
        async with self._database.transaction() as db:
            id = await _full_id(db, session_id, user_id)
            row = await (await db.execute(f"{_INFO} AND id = %s", (id,))).fetchone()
            if row is None:
                raise NoSession(session_id)
            return SessionInfo(*row), await entries_of(db, id, after=after)

    async def list(
        self, *, cwd: Path | None = None, limit: int = 50, user_id: str | None = None
    ) -> Sequence[SessionInfo]:
        async with self._database.transaction() as db:
            names = {**_scope(cwd, user_id), "limit": limit}
            rows = await db.execute(f"{_INFO} {_SCOPE} ORDER BY used DESC LIMIT %(limit)s", names)
            return [SessionInfo(*row) for row in await rows.fetchall()]

    async def search(
        self, text: str, *, cwd: Path | None = None, limit: int = 20, user_id: str | None = None
    ) -> Sequence[Found]:
        words = Words(text)
        found: list[Found] = []
        async with aclosing(self._rows(_SEARCH, {**_scope(cwd, user_id), "query": words.for_tsquery})) as rows:
            async for session_id, title, _, entry in rows:
                if len(found) >= limit:
                    break
                if words.are_in(text_of(entry.body)):
                    found.append(words.found_in(session_id, title, entry))
        return found

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        async with aclosing(self._rows(_CHANGES, {})) as rows:
            return [(session_id, entry) async for session_id, _, _, entry in rows]

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector:
        """What was stored since a time, of one session (by its id, its start, or its name) or of all, or of a user."""
        found = UsageCollector()
        id = await self._full_id(session, user_id) if session else ""
        names = {"since": since, "session": id, "user_id": user_id}
        async with aclosing(self._rows(_USED, names)) as rows:
            async for session_id, _, owner, entry in rows:
                found.add(session_id, entry, user_id=owner)
        return found

    async def _rows(self, query: str, names: dict[str, Any]) -> AsyncGenerator[tuple[str, str, str, Entry]]:
        """Entries that are some session's own, each after its session's id, title and user; a hundred at a time."""
        async with self._database.transaction() as db, db.cursor("entries") as cursor:
            await db.execute(UNHURRIED)
            await cursor.execute(query, names)
            async for session_id, title, user_id, *row in cursor:
                yield session_id, title, user_id, entry_of(row)

    async def holder(self, session_id: str) -> str | None:
        """The address that the program which has a session open gave (perhaps empty); None if nobody has it open."""
        with suppress(NoSession):  # it may be open before it is stored
            session_id = await self._full_id(session_id)
        async with self._database.transaction() as db:
            return await holder(db, storable(session_id))

    async def rename(self, session_id: str, name: str) -> None:
        log = self._logs.get(session_id)
        if log is not None:
            await log.drain()
        if log is not None and log.new_session is not None:
            log.new_session.name = name
            return
        async with self._database.transaction() as db:
            id = await _full_id(db, session_id)
            rename = "UPDATE agentcli.sessions SET name = %s WHERE id = %s AND trashed = 0"
            await db.execute(rename, (storable(name), id))

    async def remove(self, session_id: str) -> None:
        async with self._changed(id := await self._full_id(session_id)) as db:
            await changes.remove(db, id)

    async def restore(self, session_id: str) -> str:
        async with self._database.transaction() as db:
            id = await changes.id_in_trash(db, session_id)
        async with self._changed(id) as db:
            await changes.restore(db, id)
        return id

    async def redact(self, session_id: str, secrets: Sequence[str]) -> int:
        struck = Secrets(secrets)
        async with self._changed(id := await self._full_id(session_id)) as db:
            return await changes.redact(db, id, struck)

    @asynccontextmanager
    async def _changed(self, session_id: str) -> AsyncIterator[Connection]:
        """A transaction while nobody else has the session open, nor makes or changes copies of entries."""
        lease = await self._leases.take(session_id)
        try:
            async with self._database.transaction() as db:
                await db.execute(UNHURRIED)
                await lease.hold(db)
                await db.execute(ALONE)
                yield db
        finally:
            await self._leases.release(lease)

    async def _full_id(self, session_id: str, user_id: str | None = None) -> str:
        async with self._database.transaction() as db:
            return await _full_id(db, session_id, user_id)

    async def close(self) -> None:
        for log in list(self._logs.values()):
            await log.drain()
        await self._leases.close()
        await self._database.close()


async def _full_id(db: Connection, session_id: str, user_id: str | None = None) -> str:
    """As `full_id` of the SQLite store. Raises `StorageError`."""
    query = (
        "SELECT id FROM agentcli.sessions WHERE trashed = 0 AND (id ^@ %(id)s OR (name = %(id)s AND name <> '')) "
        "AND (%(user_id)s::text IS NULL OR user_id = %(user_id)s) ORDER BY id <> %(id)s LIMIT 3"
    )
    rows = await (await db.execute(query, {"id": storable(session_id), **_scope(None, user_id)})).fetchall()
    return the_one(session_id, [str(id) for (id,) in rows])


def _scope(cwd: Path | None, user_id: str | None) -> dict[str, str | None]:
    return {"cwd": folder_text(cwd) if cwd else None, "user_id": user_id if user_id is None else storable(user_id)}
