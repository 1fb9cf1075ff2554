"""Connects to the Postgres database of the sessions and makes its tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentcli.errors import StorageError

try:
    from psycopg import AsyncConnection, Error
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    raise StorageError(
        "Sessions in Postgres need the extra postgres: ./install.sh --extras postgres, or pip install "
        f"'agentcli[postgres]' ({missing})."
    ) from missing

VERSION = 1  # of the tables in postgres_tables.sql
# A program that is stopped within a transaction must not keep its rows from others for ever. The server forgets that
# limit where pipelines are used, so they are not.
_SETTINGS = """
SET synchronous_commit = on;
SET idle_in_transaction_session_timeout = '4s';
SET lock_timeout = '20s'
"""
# The limit of a transaction that reads or changes many entries.
UNHURRIED = "SET LOCAL idle_in_transaction_session_timeout = '60s'"
# The URL may set other values. A connection that is cut is noticed after ten seconds.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "fallback_application_name": "agentcli",
    "client_encoding": "utf8",
}

Connection = AsyncConnection[tuple[Any, ...]]


class Broken(StorageError):
    """The connection was lost within a transaction, which may have been committed."""


class Database:
    """Connections to the database of a URL, at most `max_connections` at once, made when they are first needed."""

    def __init__(self, url: str, *, max_connections: int) -> None:
        self._url = url
        self._free = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []
        self._has_tables = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Run the body in a transaction. Raises `StorageError` if Postgres fails."""
        address = _address(self._url)
        async with self._free:
            connection: Connection | None = None
            try:
                connection = await self._connected(address)
                async with connection.transaction():
                    yield connection
            except (Error, UnicodeEncodeError) as error:
                raise (Broken if connection is not None and connection.closed else StorageError)(
                    f"Sessions could not be read or written in Postgres at {_place(address)} "
                    f"({' '.join(str(error).split())}): see that it runs, can be reached and lets this user in."
                ) from None
            finally:
                if connection is not None and connection.info.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(connection)
                elif connection is not None:
                    await connection.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()

    async def _connected(self, address: dict[str, Any]) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.execute("SELECT 1")
                return connection
            except BaseException as error:
                await connection.close()
                if not isinstance(error, Error):  # the error of a server that was restarted, or of a cut connection
                    raise
        # Statements are not prepared, so that a pooler may be in between.
        connection = await AsyncConnection.connect(**_DEFAULTS | address, autocommit=True, prepare_threshold=None)
        try:
            await connection.execute(_SETTINGS)
            if not self._has_tables:
                await _make_tables(connection, _place(address))
                self._has_tables = True
        except BaseException:
            await connection.close()
            raise
        return connection


async def _make_tables(db: Connection, place: str) -> None:
    """Make the tables if there are none. Raises `StorageError` for tables of a newer agentcli."""
    async with db.transaction():
        await db.execute("SELECT pg_advisory_xact_lock(hashtext('agentcli tables'))")  # another program may make them
        # `to_regclass` is no use here: within a transaction it may return what it found before.
        if not await value(db, "SELECT 1 FROM pg_tables WHERE schemaname = 'agentcli' AND tablename = 'version'"):
            await db.execute(Path(__file__).with_name("postgres_tables.sql").read_bytes())
        version = int(await value(db, "SELECT version FROM agentcli.version"))
    if version > VERSION:
        raise StorageError(
            f"The sessions in Postgres at {place} were written by a newer agentcli (version {version}, this one knows "
            f"{VERSION}): update agentcli."
        )


async def value(db: Connection, query: str, *parameters: Any) -> Any:
    """Return the first column of the first row, None if there is no row."""
    row = await (await db.execute(query, parameters)).fetchone()
    return row and row[0]


def storable(text: str) -> str:
    """Return a text without characters that Postgres or UTF-8 do not know."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _address(url: str) -> dict[str, Any]:
    """Return the parts of a URL. Raises `StorageError` if messages of Postgres could show a part of the password."""
    try:
        parts = conninfo_to_dict(url)
    except Error:
        parts = {"port": "unreadable"}
    ports = str(parts.get("port") or "0").split(",")
    if "@" in f"{parts.get('host')}{parts.get('dbname')}" or not all(port.isdigit() for port in ports if port):
        raise StorageError(
            "The address of the sessions in Postgres cannot be read: write it as postgresql://USER:PASSWORD@HOST:PORT/"
            "DATABASE, with %40 for @, %2F for / and so on in the password."
        ) from None
    return dict(parts)


def _place(address: dict[str, Any]) -> str:
    host = address.get("host") or address.get("hostaddr") or "this machine"
    return f"{host}:{address['port']}" if address.get("port") else str(host)
