"""Stores sessions in Postgres, for programs on one or many machines.

The owner of a session has a lease for some seconds, measured by the database's clock, and renews it every second.
"""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from agentcli.agent.interfaces import SearchHit, StoredEntries
from agentcli.background import start_in_background
from agentcli.conversation.entries import Entry
from agentcli.errors import SessionInUse, StorageError
from agentcli.infra.sessions import store, tables

try:
    from psycopg import AsyncConnection, Error
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    raise StorageError(
        "Sessions in Postgres need the extra postgres: ./install.sh --extras postgres, or pip install "
        f"'agentcli[postgres]' ({missing})."
    ) from missing

log = logging.getLogger(__name__)
Connection = AsyncConnection[tuple[Any, ...]]

_MAX_CONNECTIONS = 4  # not counting the one for leases
_MAX_WORDS_BYTES = 500_000  # indexed for one entry; Postgres accepts twice as much
_RENEW_EVERY_S = 1.0
VERSION = 1  # the version of the tables in postgres_tables.sql
# A stopped program must not lock its rows for ever. The server forgets the idle limit in pipelines, so none are used.
_SETTINGS = "SET synchronous_commit = on; SET idle_in_transaction_session_timeout = '4s'; SET lock_timeout = '20s'"
# The idle limit for a transaction that reads or changes many entries.
_LONG_TRANSACTION = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
# Used where the URL sets no other values. With these, a cut connection is noticed after ten seconds.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
    "tcp_user_timeout": 10_000, "fallback_application_name": "agentcli", "client_encoding": "utf8",
}  # fmt: skip

_SQL = tables.read_statements("postgres_statements.sql")


class _ConnectionLost(StorageError):
    """The connection was lost within a transaction, which may have been committed."""


class Database:
    """Connections to the database of a URL, at most `max_connections` at once, each made when it is needed."""

    def __init__(self, url: str, *, max_connections: int) -> None:
        self._url = url
        self._unused_connections = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []
        self._has_tables = False  # True after the first connection checked or made them

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Run the body in a transaction. Raises `StorageError` if Postgres fails."""
        address, server = _parse_address(self._url)
        async with self._unused_connections:
            connection: Connection | None = None
            try:
                connection = await self._connect(address, server)
                async with connection.transaction():
                    yield connection
            except (Error, UnicodeEncodeError) as error:
                kind = _ConnectionLost if connection is not None and connection.closed else StorageError
                raise kind(
                    f"Sessions could not be read or written in Postgres at {server} "
                    f"({' '.join(str(error).split())}). Check that it runs, can be reached and lets this user in."
                ) from None
            finally:
                # After a lost connection or an interrupted statement the state is unknown: such a connection is closed.
                if connection is not None and connection.info.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(connection)
                elif connection is not None:
                    await connection.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _connect(self, address: dict[str, Any], server: str) -> Connection:
        """Return an idle connection that still works, or else a new one; the first one also makes the tables."""
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.execute("SELECT 1")
                return connection
            except Error:  # the server was restarted, or the connection was cut
                await connection.close()
            except BaseException:  # such as a cancellation: the state of the connection is unknown
                await connection.close()
                raise
        # Statements are not prepared, because a connection pooler in between may not support that.
        connection = await AsyncConnection.connect(**_DEFAULTS | address, autocommit=True, prepare_threshold=None)
        try:
            await connection.execute(_SETTINGS)
            if not self._has_tables:
                await _make_tables(connection, server)
                self._has_tables = True
        except BaseException:
            await connection.close()
            raise
        return connection


async def _make_tables(db: Connection, server: str) -> None:
    """Make the tables if there are none. Raises `StorageError` for tables of a newer agentcli."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtext('agentcli tables'))")  # waits for another program
        # `to_regclass` would not do: within a transaction it may return an outdated result.
        if not await _value(db, "SELECT 1 FROM pg_tables WHERE schemaname = 'agentcli' AND tablename = 'version'"):
            await db.execute(Path(__file__).with_name("postgres_tables.sql").read_bytes())
        version = int(await _value(db, "SELECT version FROM agentcli.version"))
    if version > VERSION:
        raise StorageError(
            f"The sessions in Postgres at {server} were written by a newer agentcli (version {version}, this one knows "
            f"{VERSION}): update agentcli."
        )


async def _value(db: Connection, query: str, *parameters: Any) -> Any:
    row = await (await db.execute(query, parameters)).fetchone()
    return row[0] if row else None


def _storable(text: str) -> str:
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _parse_address(url: str) -> tuple[dict[str, Any], str]:
    """Return the parts of a URL, and host and port for messages.

    Raises `StorageError` if messages of Postgres could show a part of the password: after an @ or a / in it that is
    not escaped, the rest is parsed as host, database or port.
    """
    try:
        parts = conninfo_to_dict(url)
    except Error:
        parts = {"port": "not a number"}  # so that it is rejected below
    ports = str(parts.get("port") or "0").split(",")  # one for each host
    has_valid_ports = all(port.isdigit() for port in ports if port)
    if "@" in f"{parts.get('host')}{parts.get('dbname')}" or not has_valid_ports:
        raise StorageError(
            "The address of the sessions in Postgres cannot be read. Write it as postgresql://USER:PASSWORD@HOST:PORT/"
            "DATABASE, with %40 for @, %2F for / and so on in the password."
        ) from None
    host = parts.get("host") or parts.get("hostaddr") or "this machine"
    return dict(parts), f"{host}:{parts['port']}" if parts.get("port") else str(host)


class Lease(store.Ownership):
    """The ownership of a session. Even an expired lease stays valid until another program takes the session."""

    def __init__(self, leases: "Leases", session_id: str, epoch: int) -> None:
        super().__init__(release=lambda: None, is_wanted=lambda: self.is_lost_or_wanted)  # `release` is overridden
        self.session_id = session_id
        self.epoch = epoch  # grows each time that the session is taken
        self.is_lost_or_wanted = False
        self._leases = leases

    async def hold(self, db: tables.Tables) -> None:
        query = "SELECT 1 FROM agentcli.leases WHERE session_id = :id AND owner = :owner AND epoch = :epoch FOR SHARE"
        if not await db.value(query, id=self.session_id, owner=self._leases.owner, epoch=self.epoch):
            self.is_lost_or_wanted = True
            raise StorageError(
                f"Another program has taken over session {self.session_id}, so this one can no longer write to it. To "
                f"open it again: --resume {self.session_id}"
            )

    async def release(self) -> None:
        await self._leases.release(self)


class Leases:
    """The leases of one store. `address` is where other programs reach this one, or ""."""

    def __init__(self, url: str, database: Database, address: str) -> None:
        self.owner = tables.new_id()  # the name of this store in the table of leases
        self._database = database
        self._renewal_database = Database(url, max_connections=1)  # separate, so that renewing never has to wait
        self._address = _storable(address)
        self._held: set[Lease] = set()
        self._renewal_task: asyncio.Task[None] | None = None  # runs from the first lease on

    async def take(self, session_id: str, *, take_over: bool) -> Lease:
        """Take a lease; with `take_over` ask the program that has it, and wait. Raises `SessionInUse`.

        While this program waits, the lease's row is marked as wanted; the mark is removed if this program gives up.
        """
        deadline = time.monotonic() + store.TAKE_OVER_TIMEOUT_S
        while True:
            async with self._database.transaction() as db:
                # `epoch` is None if somebody has a lease that has not expired.
                epoch = await _value(db, _SQL["take_lease"], session_id, self.owner, self._address)
                waits = epoch is None and take_over and time.monotonic() <= deadline
                if epoch is None and take_over:
                    await db.execute(_SQL["want_lease"], {"wanted": waits, "id": session_id})
            if epoch is not None:
                break
            if not waits:
                raise SessionInUse(session_id, refuses_take_over=take_over)
            await asyncio.sleep(0.1)
        lease = Lease(self, session_id, epoch)
        self._held.add(lease)
        if self._renewal_task is None:
            self._renewal_task = asyncio.create_task(self._renew())
        return lease

    async def release(self, lease: Lease) -> None:
        self._held.discard(lease)
        with suppress(StorageError):  # if it fails, the lease expires
            async with self._database.transaction() as db:
                await db.execute(_SQL["release_lease"], (lease.session_id, self.owner, lease.epoch))

    async def close(self) -> None:
        task, self._renewal_task = self._renewal_task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        for lease in tuple(self._held):
            await self.release(lease)
        await self._renewal_database.close()

    async def _renew(self) -> None:
        """Renew all leases every second, and note which sessions other programs have taken or ask for."""
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            if not (leases := tuple(self._held)):
                continue
            with suppress(StorageError):  # the next round tries again; `Lease.hold` prevents wrong writes
                async with self._renewal_database.transaction() as db:
                    ids = [lease.session_id for lease in leases]
                    rows = await (await db.execute(_SQL["renew_leases"], {"owner": self.owner, "ids": ids})).fetchall()
                wanted_by_lease = {(session_id, epoch): is_wanted for session_id, epoch, is_wanted in rows}
                for lease in leases:  # without a row it is lost: another program has taken the session
                    lease.is_lost_or_wanted |= wanted_by_lease.get((lease.session_id, lease.epoch), True)


class PostgresTables(tables.Tables):
    new_number = "nextval('agentcli.entry_numbers') AS n"
    copy_number = "nextval('agentcli.entry_numbers')"
    next_use = "nextval('agentcli.uses')"
    words = ", words"
    words_value = ", array_to_tsvector(:words::text[])"
    lock_copies = "SELECT pg_advisory_xact_lock(hashtext('agentcli copies'))"
    wait_for_copy_changes = "SELECT pg_advisory_xact_lock_shared(hashtext('agentcli copies'))"

    def __init__(self, db: Connection) -> None:
        self.db = db

    async def stream(self, sql: str, **values: Any) -> AsyncIterator[tuple[Any, ...]]:
        await self.db.execute(_LONG_TRANSACTION)
        async with self.db.cursor("entries") as cursor:
            await cursor.execute(*_statement(sql, values))
            async for row in cursor:
                yield row

    async def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = await self.db.execute(*_statement(sql, values))
        return await cursor.fetchall() if cursor.description else []

    def words_of(self, entry: Entry) -> dict[str, Any]:
        """Return an entry's words for the search index; if there are too many, the first ones."""
        words = tables.words_in(tables.text_of(entry.body))
        sizes = accumulate(len(word.encode()) for word in words)
        return {"words": [word for word, size in zip(words, sizes, strict=True) if size <= _MAX_WORDS_BYTES]}

    async def compute(self, function: Callable[[], tables.T]) -> tables.T:
        return await asyncio.to_thread(function)

    async def search(self, words: tables.Words, *, cwd: str | None, user_id: str | None, limit: int) -> list[SearchHit]:
        results: list[SearchHit] = []
        hits = self.stream(_SQL["search"], query=words.for_tsquery, cwd=cwd, user_id=user_id)
        async with aclosing(hits) as rows:  # type: ignore[type-var]
            async for session_id, title, *row in rows:
                if len(results) >= limit:
                    break
                entry = tables.read_entry(row)
                if words.are_in(tables.text_of(entry.body)):  # the index does not know which words follow each other
                    results.append(words.make_hit(session_id, title, entry))
        return results


def _statement(sql: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    texts = {name: _storable(value) for name, value in values.items() if isinstance(value, str)}
    return _in_postgres(sql), values | texts


@lru_cache
def _in_postgres(sql: str) -> str:
    """Return a statement of `Tables` in the form of psycopg: `%(id)s` for `:id`, and the schema before the tables."""
    sql = re.sub(r"\b(FROM|JOIN|INTO|UPDATE) (sessions|entries)\b", r"\1 agentcli.\2", sql)
    sql = sql.replace("CAST(body AS BLOB)", "body").replace("%", "%%")
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", sql)  # `::` is a cast, not a parameter


class _OrderedWork:
    """Does the work of a log in order. Work goes on even if the task that waits for it is cancelled."""

    def __init__(self, run: Callable[[tables.Work[StoredEntries]], Awaitable[StoredEntries]]) -> None:
        self._run = run
        self._work_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[StoredEntries]] = set()

    def submit(self, work: tables.Work[StoredEntries]) -> asyncio.Future[StoredEntries]:
        return asyncio.shield(start_in_background(self._do(work), self._tasks))

    async def _do(self, work: tables.Work[StoredEntries]) -> StoredEntries:
        async with self._work_lock:
            try:
                # A connection is lost if the server restarts or this program was stopped for some seconds. Repeating
                # the work is safe, because it leaves out entries that are stored already.
                with suppress(_ConnectionLost):
                    return await self._run(work)
                return await self._run(work)
            except StorageError:
                raise
            except Exception as bug:
                log.exception("storing entries in Postgres failed")
                raise StorageError(f"An entry could not be stored in Postgres ({bug!r}).") from bug

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)  # the tasks go on if this is cancelled


class PostgresSessions(store.TableSessions):
    """Implements `SessionStore`. Its arguments are those of `SqliteSessions`; tables are created on first use."""

    def __init__(self, url: str, *, address: str = "", on_notice: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(on_notice)
        self._database = Database(url, max_connections=_MAX_CONNECTIONS)
        self._leases = Leases(url, self._database, address)

    async def _run(self, work: tables.Work[tables.T]) -> tables.T:
        async with self._database.transaction() as db:
            return await work(PostgresTables(db))

    def _queue(self) -> store.WorkQueue:
        queue = _OrderedWork(self._run)
        return queue.submit, queue.drain

    async def _take_ownership(self, session_id: str, *, take_over: bool = False) -> store.Ownership:
        return await self._leases.take(_storable(session_id), take_over=take_over)

    async def _holder(self, session_id: str) -> str | None:
        query = "SELECT address FROM agentcli.leases WHERE session_id = :id AND expires > clock_timestamp()"
        return cast("str | None", await self._run(lambda db: db.value(query, id=session_id)))

    async def close(self) -> None:
        for session_log in list(self._logs.values()):
            await session_log.drain()
        await self._leases.close()
        await self._database.close()
