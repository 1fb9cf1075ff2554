"""Stored entries: the tables of a store, the log of one open session, and how sessions are read.

Work on the tables is written once, as coroutines. In SQLite nothing waits, so they run to their end in one go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from zlib import crc32

import msgspec

from agentcli.agent.interfaces import NEWEST, Appended, Found, SessionInfo, Stored
from agentcli.conversation.entries import Body, Entry, Unreadable, as_readable, entry_now
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import AmbiguousSession, NoSession, StorageError
from agentcli.infra.sessions.ids import entry_id

if TYPE_CHECKING:
    from agentcli.infra.sessions.search import Words

T = TypeVar("T")

ENTRY = "entries.id, parent_id, entries.time, schema_version, checksum, CAST(body AS BLOB)"  # for `read_entry`
_TOUCH = """
UPDATE sessions SET updated = :now, used = {next_use}, last_prompt = coalesce(nullif(:last_prompt, ''), last_prompt),
    title = CASE WHEN title = '' THEN :title ELSE title END
WHERE id = :id AND trashed = 0
"""
_COPY = """
INSERT INTO entries (n, origin, own, session_id, {columns})
SELECT {next_n}, origin, false, :id, {columns} FROM entries
WHERE session_id = :source AND trashed = 0 AND seq <= :shared ORDER BY seq
"""
_INFO = """
SELECT id, cwd, title, created, updated,
    (SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = sessions.id AND entries.trashed = 0),
    name, last_prompt, user_id
FROM sessions WHERE trashed = 0
"""
_USED = f"""
SELECT session_id, user_id, {ENTRY} FROM entries
JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0
WHERE own AND entries.trashed = 0 AND updated >= :since AND entries.time >= :since
    AND session_id = coalesce(nullif(:session, ''), session_id) AND user_id = coalesce(:user_id, user_id)
    AND kind IN ('user', 'assistant', 'tool_result', 'paid', 'compaction') ORDER BY session_id, seq
"""  # noqa: S608 - our words
_CHANGES = f"""
SELECT session_id, {ENTRY} FROM entries
WHERE kind IN ('files_changed', 'files_restored') AND own AND trashed = 0 ORDER BY time, n
"""  # noqa: S608 - our words


class Tables(Protocol):
    """The tables of a store within one transaction. A statement takes values by name, as `:name`."""

    columns: str  # what copies of an entry have in common
    next_n: str  # in SQL: the number of a new entry,
    next_use: str  # and a number that is greater than every `used`

    def stream(self, sql: str, **values: Any) -> AsyncIterator[tuple[Any, ...]]: ...

    async def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]: ...

    async def insert(self, session_id: str, stored: Stored) -> None: ...

    async def replace_bodies(self, changes: Iterable[tuple[int, Sequence[Any]]]) -> None:
        """Replace bodies and checksums of entries, which are given by their `n`, as rows of `ENTRY`."""
        ...

    async def search(self, words: Words, *, cwd: str | None, user_id: str | None, limit: int) -> list[Found]: ...

    async def lock_copies(self, *, alone: bool) -> None:
        """Wait until nobody changes entries together with their copies, with `alone` nor makes copies."""
        ...


Work = Callable[[Tables], Coroutine[Any, Any, T]]


class WorkQueue(Protocol):
    """Does the work of a log in order, each in one transaction."""

    def submit(self, work: Work[T]) -> asyncio.Future[T]: ...

    async def drain(self) -> None:
        """Wait until everything submitted so far is done or has failed."""
        ...


class Ownership(Protocol):
    """The right to write to a session, which one program has at a time."""

    def is_wanted(self) -> bool:
        """True once another program asks for the session."""
        ...

    async def hold(self, db: Tables) -> None:
        """Let nobody take the session before the transaction's end. Raises `StorageError` when somebody has."""
        ...

    async def release(self) -> None: ...


class UnstoredSession(msgspec.Struct, kw_only=True):
    """A session that is stored together with its first entries, after the first `shared` ones of its `source`."""

    id: str
    cwd: str
    name: str
    user_id: str
    source: str = ""
    shared: int = 0
    last: str | None = None  # the id of the entry at `shared`


class TableLog:
    """Implements `SessionLog`. It goes on after the entry `last`, whose number is `last_seq`."""

    def __init__(self, session_id: str, queue: WorkQueue, owner: Ownership, *, last: str | None, last_seq: int) -> None:
        self.session_id = session_id
        self.new: UnstoredSession | None = None  # until it is stored
        self._queue = queue
        self._owner = owner
        self._last = last
        self._last_seq = last_seq
        self._unstored: list[Stored] = []  # tried again with the next entries: a full disk may have room by then

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        entries: list[Entry] = []
        if parent_id == NEWEST:
            parent_id = self._last
        for body in bodies:
            entries.append(entry_now(entry_id(body), parent_id, body))
            self._last = parent_id = entries[-1].id
        stored = Stored(tuple(entries), self._last_seq + 1)
        self._last_seq += len(entries)
        self._unstored.append(stored)
        new, unstored = self.new, tuple(self._unstored)

        async def work(db: Tables) -> Stored:
            await self._owner.hold(db)
            await store_entries(db, new or self.session_id, *unstored)
            return stored

        committed = self._queue.submit(work)
        committed.add_done_callback(self._forget_stored)
        return Appended(stored.entries, committed)

    def _forget_stored(self, committed: asyncio.Future[Stored]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            self.new = None
            newest = committed.result()
            self._unstored = [one for one in self._unstored if one.first_seq > newest.first_seq]

    def is_wanted(self) -> bool:
        return self._owner.is_wanted()

    async def drain(self) -> None:
        await self._queue.drain()

    async def close(self) -> None:
        await self.drain()
        await self._owner.release()


async def store_entries(db: Tables, session: UnstoredSession | str, *parts: Stored) -> None:
    """Store those that are not there yet, after the session itself where it is new.

    Raises `StorageError` when what that was forked from was removed before.
    """
    if isinstance(session, UnstoredSession):
        if not await is_stored(db, session.id):
            await _store_session(db, session)
        session = session.id
    last = await last_seq(db, session)
    for part in parts:
        if part.first_seq > last:
            await db.insert(session, part)
    await _touch(db, session, [entry for part in parts for entry in part.entries])


async def _store_session(db: Tables, new: UnstoredSession) -> None:
    if new.source:  # first of all: work that fails has changed nothing
        await db.lock_copies(alone=False)
        at = "SELECT id FROM entries WHERE session_id = :source AND trashed = 0 AND seq = :shared"
        if await value(db, at, source=new.source, shared=new.shared) != new.last:
            raise StorageError(
                f"Session {new.source}, which this one goes on from, was removed: agentcli sessions restore "
                f"{new.source} brings it back."
            )
    await db.rows(
        "INSERT INTO sessions (id, cwd, name, user_id, created, updated, used) "  # noqa: S608 - our words
        f"VALUES (:id, :cwd, :name, :user_id, :now, :now, coalesce({db.next_use}, 1))",
        id=new.id, cwd=new.cwd, name=new.name, user_id=new.user_id, now=time.time(),
    )  # fmt: skip
    if new.source:
        copy = _COPY.format(columns=db.columns, next_n=db.next_n)
        await db.rows(copy, id=new.id, source=new.source, shared=new.shared)
        await _touch(db, new.id, await entries_of(db, new.id))  # they may have been redacted meanwhile


async def _touch(db: Tables, session_id: str, entries: Sequence[Entry]) -> None:
    """Note the time, that none was used later, and the newest prompt; the title unless there is one."""
    texts = {"title": title_of(entries), "last_prompt": last_prompt_of(entries)}
    await db.rows(_TOUCH.format(next_use=db.next_use), now=time.time(), id=session_id, **texts)


# Reading.


async def value(db: Tables, sql: str, **values: Any) -> Any:
    """The first column of the first row; None if there is no row."""
    rows = await db.rows(sql, **values)
    return rows[0][0] if rows else None


async def is_stored(db: Tables, session_id: str) -> bool:
    return bool(await value(db, "SELECT 1 FROM sessions WHERE id = :id AND trashed = 0", id=session_id))


async def full_id(db: Tables, session_id: str, user_id: str | None = None) -> str:
    """The one id that begins so, or the session of that name; with a `user_id` among those of that user alone.

    Raises `StorageError`.
    """
    session_id = session_id.encode(errors="replace").decode()  # an argument may be no text
    rows = await db.rows(
        "SELECT id FROM sessions WHERE trashed = 0 AND user_id = coalesce(:user_id, user_id) AND "
        "(id >= :id AND id < :end OR name = :id AND name <> '') ORDER BY id <> :id LIMIT 3",
        id=session_id, end=f"{session_id}\U0010ffff", user_id=user_id,
    )  # fmt: skip
    found = [str(id) for (id,) in rows]
    if not found:
        raise NoSession(session_id)
    if len(found) > 1 and session_id not in found:
        if not any(id.startswith(session_id) for id in found):
            raise AmbiguousSession(
                f"Several sessions are named {session_id!r}: give the id of one (agentcli sessions list)."
            )
        raise AmbiguousSession(f"Several sessions begin with {session_id!r}: give more of the id.")
    return session_id if len(found) > 1 else found[0]


async def info_of(db: Tables, session_id: str) -> SessionInfo:
    return SessionInfo(*(await db.rows(f"{_INFO} AND id = :id", id=session_id))[0])


async def infos(db: Tables, *, cwd: str | None, user_id: str | None, limit: int) -> list[SessionInfo]:
    scope = "AND cwd = coalesce(:cwd, cwd) AND user_id = coalesce(:user_id, user_id) ORDER BY used DESC LIMIT :limit"
    return [SessionInfo(*row) for row in await db.rows(_INFO + scope, cwd=cwd, user_id=user_id, limit=limit)]


async def entries_of(db: Tables, session_id: str, *, after: int = 0, trashed: float = 0) -> list[Entry]:
    """The session's entries behind the number `after`."""
    which = "session_id = :id AND trashed = :trashed AND seq > :after"
    query = f"SELECT {ENTRY} FROM entries WHERE {which} ORDER BY seq"  # noqa: S608 - our words
    return [read_entry(row) for row in await db.rows(query, id=session_id, trashed=trashed, after=after)]


def read_entry(row: Sequence[Any]) -> Entry:
    """An entry from a row of `ENTRY`; one that is damaged says so and keeps its text."""
    id, parent_id, time, version, checksum, body = row
    body = body.encode() if isinstance(body, str) else body
    if checksum is not None and crc32(body) != checksum:
        damaged = Unreadable(
            f"entry {id} is damaged: its checksum is not that of its text", body.decode(errors="replace")
        )
        return Entry(id, parent_id, time, damaged)
    return as_readable({"id": id, "parent_id": parent_id, "time": time, "schema_version": version, "body": body})


async def last_seq(db: Tables, session_id: str) -> int:
    last = "SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = :id AND trashed = 0"
    return int(await value(db, last, id=session_id))


def file_changes(db: Tables) -> AsyncIterator[tuple[Any, ...]]:
    return db.stream(_CHANGES)


def used_entries(db: Tables, *, since: float, session: str, user_id: str | None) -> AsyncIterator[tuple[Any, ...]]:
    """Session, user and entry of what was stored since a time. Of a fork only what is its own."""
    return db.stream(_USED, since=since, session=session, user_id=user_id)
