"""Sessions in Postgres, for programs on one or many machines. Who owns one is told by leases."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar
from zlib import crc32

from agentcli.agent.interfaces import Found, Stored
from agentcli.conversation.entries import Entry, to_record
from agentcli.errors import StorageError
from agentcli.infra.sessions.log import ENTRY, Ownership, Tables, Work, WorkQueue, read_entry
from agentcli.infra.sessions.postgres_database import UNHURRIED, Broken, Connection, Database, storable
from agentcli.infra.sessions.postgres_leases import Lease, Leases, holder
from agentcli.infra.sessions.search import Words, text_of, words_in
from agentcli.infra.sessions.store import TableSessions

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECTIONS = 4  # at most, beside the one for leases
_MAX_WORDS_BYTES = 500_000  # of an entry; Postgres takes twice that

_INSERT = """
INSERT INTO entries (n, origin, own, session_id, seq, id, parent_id, time, kind, schema_version, checksum, body, words)
SELECT n, n, true, :session_id, :seq, :id, :parent_id, :time, :kind, :schema_version, :checksum, :body,
    array_to_tsvector(:words::text[])
FROM nextval('agentcli.entry_numbers') AS n
"""
_REPLACE = (
    "UPDATE entries SET body = :body, checksum = :checksum, words = array_to_tsvector(:words::text[]) WHERE n = :n"
)
# The index is asked once, whatever the planner thinks of it, and texts are read in the end, of those that are fetched.
_SEARCH = f"""
WITH hits AS MATERIALIZED (
    SELECT n, time, session_id FROM entries WHERE own AND trashed = 0 AND words @@ :query::tsquery
)
SELECT sessions.id, title, {ENTRY} FROM (
    SELECT hits.n, sessions.id, title FROM hits JOIN sessions ON id = session_id AND trashed = 0
    WHERE cwd = coalesce(:cwd, cwd) AND user_id = coalesce(:user_id, user_id) ORDER BY hits.time DESC, hits.n DESC
) AS sessions CROSS JOIN LATERAL (SELECT * FROM entries WHERE n = sessions.n OFFSET 0) AS entries
"""  # noqa: S608 - our words


class PostgresTables:
    """Implements `Tables`."""

    columns = "seq, id, parent_id, time, kind, schema_version, checksum, body, words"
    next_n = "nextval('agentcli.entry_numbers')"
    next_use = "nextval('agentcli.uses')"

    def __init__(self, db: Connection) -> None:
        self.db = db

    async def stream(self, sql: str, **values: Any) -> AsyncIterator[tuple[Any, ...]]:
        """A hundred rows at a time."""
        await self.db.execute(UNHURRIED)
        async with self.db.cursor("entries") as cursor:
            await cursor.execute(_in_postgres(sql), _storable(values))
            async for row in cursor:
                yield row

    async def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = await self.db.execute(_in_postgres(sql), _storable(values))
        return await cursor.fetchall() if cursor.description else []

    async def insert(self, session_id: str, stored: Stored) -> None:
        for row in await asyncio.to_thread(_rows_of, stored):
            await self.rows(_INSERT, session_id=session_id, **row)

    async def replace_bodies(self, changes: Iterable[tuple[int, Sequence[Any]]]) -> None:
        for n, row in changes:
            words = await asyncio.to_thread(_words_of, read_entry(row))
            await self.rows(_REPLACE, n=n, checksum=row[-2], body=row[-1], words=words)

    async def search(self, words: Words, *, cwd: str | None, user_id: str | None, limit: int) -> list[Found]:
        found: list[Found] = []
        names = {"query": words.for_tsquery, "cwd": cwd, "user_id": user_id}
        async with aclosing(self.stream(_SEARCH, **names)) as rows:  # type: ignore[type-var]
            async for session_id, title, *row in rows:
                if len(found) >= limit:
                    break
                entry = read_entry(row)
                if words.are_in(text_of(entry.body)):
                    found.append(words.found_in(session_id, title, entry))
        return found

    async def lock_copies(self, *, alone: bool) -> None:
        shared = "" if alone else "_shared"
        await self.db.execute(f"SELECT pg_advisory_xact_lock{shared}(hashtext('agentcli copies'))")


@lru_cache
def _in_postgres(sql: str) -> str:
    """A statement for all stores in the form of psycopg, with the schema before the tables."""
    sql = re.sub(r"\b(FROM|JOIN|INTO|UPDATE) (sessions|entries)\b", r"\1 agentcli.\2", sql)
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", sql.replace("CAST(body AS BLOB)", "body"))


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    return {name: storable(value) if isinstance(value, str) else value for name, value in values.items()}


def _rows_of(stored: Stored) -> list[dict[str, Any]]:
    rows = []
    for seq, entry in enumerate(stored.entries, stored.first_seq):
        record = to_record(entry)
        rows.append({**record, "seq": seq, "checksum": crc32(record["body"].encode()), "words": _words_of(entry)})
    return rows


def _words_of(entry: Entry) -> list[str]:
    """The words that a search looks up; of a text with very many of them the first ones."""
    words = words_in(text_of(entry.body))
    sizes = accumulate(len(word.encode()) for word in words)
    return [word for word, size in zip(words, sizes, strict=True) if size <= _MAX_WORDS_BYTES]


class _Queue:
    """Implements `WorkQueue`."""

    def __init__(self, run: Callable[[Work[Any]], Any]) -> None:
        self._run = run
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be that nobody waits
        task = asyncio.create_task(self._do(work, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return done

    async def _do(self, work: Work[T], done: asyncio.Future[T]) -> None:
        failure: StorageError | None = None
        async with self._turn:
            try:
                try:
                    result = await self._run(work)
                except Broken:  # the server was started again, or this program was stopped for some seconds
                    result = await self._run(work)
            except StorageError as error:
                failure = error
            except Exception as bug:  # nobody would be told anything any more if this task ended
                log.exception("storing entries in Postgres failed")
                failure = StorageError(f"An entry could not be stored in Postgres ({bug!r}).")
        if done.done():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)  # which go on where this is cancelled


class _LeasedSession:
    """Implements `Ownership`."""

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self._leases = leases
        self._lease = lease

    def is_wanted(self) -> bool:
        return self._lease.is_wanted

    async def hold(self, db: Tables) -> None:
        assert isinstance(db, PostgresTables)
        await self._lease.hold(db.db)

    async def release(self) -> None:
        await self._leases.release(self._lease)


class PostgresSessions(TableSessions):
    """Implements `SessionStore`. Tables are made at the first use.

    `address` is where others reach the program that has a session open; `on_notice` tells the person.
    """

    def __init__(self, url: str, *, address: str = "", on_notice: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(on_notice)
        self._database = Database(url, most=_CONNECTIONS)
        self._leases = Leases(url, self._database, address)

    async def _run(self, work: Work[T]) -> T:
        async with self._database.transaction() as db:
            return await work(PostgresTables(db))

    def _queue(self) -> WorkQueue:
        return _Queue(self._run)

    async def _own(self, session_id: str, *, take_over: bool = False) -> Ownership:
        take = self._leases.take_over if take_over else self._leases.take
        return _LeasedSession(self._leases, await take(storable(session_id)))

    async def _holder(self, session_id: str) -> str | None:
        async with self._database.transaction() as db:
            return await holder(db, storable(session_id))

    async def close(self) -> None:
        for one in list(self._logs.values()):
            await one.drain()
        await self._leases.close()
        await self._database.close()
