"""Sessions in Postgres, for programs on one or many machines.

The owner of a session has a lease of some seconds by the clock of the database, and renews it every second.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar, cast

from agentcli.agent.interfaces import Found
from agentcli.conversation.entries import Entry
from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions.postgres_database import UNHURRIED, Broken, Connection, Database, storable, value
from agentcli.infra.sessions.search import Words, text_of, words_in
from agentcli.infra.sessions.store import Ownership, TableSessions, WorkQueue
from agentcli.infra.sessions.tables import ENTRY, OF_USER, Tables, Work, new_id, read_entry

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_CONNECTIONS = 4  # beside the one for leases
_MAX_WORDS_BYTES = 500_000  # of an entry; Postgres accepts twice as much

# Whatever the planner prefers, the index is used once, and only the texts of fetched rows are read, at the end.
_SEARCH = f"""
WITH hits AS MATERIALIZED (
    SELECT n, time, session_id FROM entries WHERE own AND trashed = 0 AND words @@ :query::tsquery
)
SELECT sessions.id, title, {ENTRY} FROM (
    SELECT hits.n, sessions.id, title FROM hits JOIN sessions ON id = session_id AND trashed = 0
    WHERE cwd = coalesce(:cwd, cwd) AND {OF_USER} ORDER BY hits.time DESC, hits.n DESC
) AS sessions CROSS JOIN LATERAL (SELECT * FROM entries WHERE n = sessions.n OFFSET 0) AS entries
"""  # noqa: S608 - our words
PATIENCE_S = 20.0  # with a program that is asked to give up a session
_RENEW_EVERY_S = 1.0

_UNTIL = "clock_timestamp() + interval '4 seconds'"
_TAKE = f"""
INSERT INTO agentcli.leases AS lease (session_id, owner, epoch, address, expires, wanted)
VALUES (%s, %s, 1, %s, {_UNTIL}, false)
ON CONFLICT (session_id) DO UPDATE SET
    owner = excluded.owner, epoch = lease.epoch + 1, address = excluded.address, expires = {_UNTIL}, wanted = false
WHERE lease.expires < clock_timestamp()
RETURNING epoch
"""  # noqa: S608 - our words
# A locked row is used by a transaction of its owner, so no other program can take it now.
_RENEW = f"""
WITH mine AS (
    SELECT session_id FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE agentcli.leases SET expires = {_UNTIL} WHERE session_id IN (SELECT session_id FROM mine)
)
SELECT session_id, epoch, wanted FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)
"""  # noqa: S608 - our words
_WANT = "UPDATE agentcli.leases SET wanted = %s WHERE session_id = %s AND wanted IS DISTINCT FROM %s"
# The row stays, so that no epoch is used twice.
_RELEASE = """
UPDATE agentcli.leases SET owner = '', address = '', expires = '-infinity', wanted = false
WHERE session_id = %s AND owner = %s AND epoch = %s
"""


class Lease(Ownership):
    """The ownership of a session. Even after it has expired, it is valid until another program takes the session."""

    def __init__(self, leases: Leases, session_id: str, epoch: int) -> None:
        super().__init__(lambda: None, lambda: self.is_lost_or_wanted)
        self.session_id = session_id
        self.epoch = epoch
        self.is_lost_or_wanted = False
        self._leases = leases

    async def hold(self, db: Tables) -> None:
        held = "SELECT 1 FROM agentcli.leases WHERE session_id = :id AND owner = :owner AND epoch = :epoch FOR SHARE"
        if not await db.value(held, id=self.session_id, owner=self._leases.owner, epoch=self.epoch):
            self.is_lost_or_wanted = True
            raise StorageError(
                f"Another program goes on with session {self.session_id} and this one may not write to it any more: "
                f"open it again with --resume {self.session_id}."
            )

    async def release(self) -> None:
        await self._leases.release(self)


class Leases:
    """The leases of one store. `address` is where others reach this program, or ""."""

    def __init__(self, url: str, database: Database, address: str) -> None:
        self.owner = new_id()
        self._database = database
        self._renewing = Database(url, max_connections=1)  # of its own, so that renewing never has to wait
        self._address = storable(address)
        self._held: set[Lease] = set()
        self._task: asyncio.Task[None] | None = None

    async def take(self, session_id: str, *, take_over: bool) -> Lease:
        """Take a lease; with `take_over` ask the program that has it, and wait. Raises `SessionInUse`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            async with self._database.transaction() as db:
                epoch = await value(db, _TAKE, session_id, self.owner, self._address)
                if epoch is None and take_over:
                    is_late = time.monotonic() > deadline
                    await db.execute(_WANT, (not is_late, session_id, not is_late))
            if epoch is not None:
                break
            if not take_over or is_late:
                raise SessionInUse(session_id, was_asked=take_over)
            await asyncio.sleep(0.1)
        lease = Lease(self, session_id, epoch)
        self._held.add(lease)
        if self._task is None:
            self._task = asyncio.create_task(self._renew())
        return lease

    async def release(self, lease: Lease) -> None:
        self._held.discard(lease)
        with suppress(StorageError):  # if it fails, the lease expires
            async with self._database.transaction() as db:
                await db.execute(_RELEASE, (lease.session_id, self.owner, lease.epoch))

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        for lease in tuple(self._held):
            await self.release(lease)
        await self._renewing.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            held = tuple(self._held)
            if not held:
                continue
            with suppress(StorageError):  # it is tried again; a session that another program takes is not written to
                async with self._renewing.transaction() as db:
                    names = {"owner": self.owner, "ids": [lease.session_id for lease in held]}
                    rows = await (await db.execute(_RENEW, names)).fetchall()
                wanted = {(session_id, epoch): is_wanted for session_id, epoch, is_wanted in rows}
                for lease in held:
                    lease.is_lost_or_wanted |= wanted.get((lease.session_id, lease.epoch), True)


class PostgresTables(Tables):
    new_number = "nextval('agentcli.entry_numbers') AS n"
    copy_number = "nextval('agentcli.entry_numbers')"
    next_use = "nextval('agentcli.uses')"
    words = ", words"
    words_value = ", array_to_tsvector(:words::text[])"
    lock_copies = "SELECT pg_advisory_xact_lock(hashtext('agentcli copies'))"
    share_copies = "SELECT pg_advisory_xact_lock_shared(hashtext('agentcli copies'))"

    def __init__(self, db: Connection) -> None:
        self.db = db

    async def stream(self, sql: str, **values: Any) -> AsyncIterator[tuple[Any, ...]]:
        """Fetch a hundred rows at a time."""
        await self.db.execute(UNHURRIED)
        async with self.db.cursor("entries") as cursor:
            await cursor.execute(_in_postgres(sql), _storable(values))
            async for row in cursor:
                yield row

    async def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = await self.db.execute(_in_postgres(sql), _storable(values))
        return await cursor.fetchall() if cursor.description else []

    def words_of(self, entry: Entry) -> dict[str, Any]:
        """Return the words that a search looks up; of a text with too many words the first ones."""
        words = words_in(text_of(entry.body))
        sizes = accumulate(len(word.encode()) for word in words)
        return {"words": [word for word, size in zip(words, sizes, strict=True) if size <= _MAX_WORDS_BYTES]}

    async def compute(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

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


@lru_cache
def _in_postgres(sql: str) -> str:
    """Return a statement that is written for all stores in the form of psycopg, with the schema before the tables."""
    sql = re.sub(r"\b(FROM|JOIN|INTO|UPDATE) (sessions|entries)\b", r"\1 agentcli.\2", sql)
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", sql.replace("CAST(body AS BLOB)", "body").replace("%", "%%"))


def _storable(values: dict[str, Any]) -> dict[str, Any]:
    return {name: storable(value) if isinstance(value, str) else value for name, value in values.items()}


class _Queue:
    """Does the work of a log in order. Work goes on even if the task that waits for it is cancelled."""

    def __init__(self, run: Callable[[Work[Any]], Any]) -> None:
        self._run = run
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def submit(self, work: Work[T]) -> asyncio.Future[T]:
        task = asyncio.create_task(self._do(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return asyncio.shield(task)

    async def _do(self, work: Work[T]) -> T:
        async with self._turn:
            try:
                with suppress(Broken):  # the server was restarted, or this program was stopped for some seconds
                    return cast("T", await self._run(work))
                return cast("T", await self._run(work))
            except StorageError:
                raise
            except Exception as bug:
                log.exception("storing entries in Postgres failed")
                raise StorageError(f"An entry could not be stored in Postgres ({bug!r}).") from bug

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)  # the tasks go on if this is cancelled


class PostgresSessions(TableSessions):
    """Implements `SessionStore`. Tables are made at the first use.

    `address` is where others reach the program that has a session open; `on_notice` informs the person.
    """

    def __init__(self, url: str, *, address: str = "", on_notice: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(on_notice)
        self._database = Database(url, max_connections=_MAX_CONNECTIONS)
        self._leases = Leases(url, self._database, address)

    async def _run(self, work: Work[T]) -> T:
        async with self._database.transaction() as db:
            return await work(PostgresTables(db))

    def _queue(self) -> WorkQueue:
        queue = _Queue(self._run)
        return WorkQueue(queue.submit, queue.drain)

    async def _own(self, session_id: str, *, take_over: bool = False) -> Ownership:
        return await self._leases.take(storable(session_id), take_over=take_over)

    async def _holder(self, session_id: str) -> str | None:
        query = "SELECT address FROM agentcli.leases WHERE session_id = :id AND expires > clock_timestamp()"
        address: str | None = await self._run(lambda db: db.value(query, id=session_id))
        return address

    async def close(self) -> None:
        for one in list(self._logs.values()):
            await one.drain()
        await self._leases.close()
        await self._database.close()
