"""Shares state between the processes on a machine: named locks, and the day's spending of all sessions."""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import apsw

from agentcli.agent.accounting import Account, Amounts, Kind, total_amounts
from agentcli.errors import StorageError, ToolError
from agentcli.infra.sessions.database import BUSY_TIMEOUT_MS, transaction
from agentcli.settings.files import FileLock, make_private_folder

log = logging.getLogger(__name__)

LOCK_FILES = 1_024  # names are mapped to these files, because a file for each name could never be removed
_LOCK_POLL_S = 0.01  # between attempts to take a lock that another process has
_KINDS: tuple[Kind, ...] = ("usd", "tokens", "seconds", "calls")

# A row is one charge, or a reservation until the charge is known. If agentcli is killed, its request may still have
# been billed, so a reservation stays until its day is over.
_TABLE = """
CREATE TABLE IF NOT EXISTS charges (
    id INTEGER PRIMARY KEY, day TEXT NOT NULL,
    usd REAL NOT NULL, tokens REAL NOT NULL, seconds REAL NOT NULL, calls REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS charges_by_day ON charges (day);
"""
_SPENT = "SELECT total(usd), total(tokens), total(seconds), total(calls) FROM charges WHERE day = ?"
_INSERT = "INSERT INTO charges (usd, tokens, seconds, calls, day) VALUES (?, ?, ?, ?, ?) RETURNING id"
_UPDATE = "UPDATE charges SET usd = ?, tokens = ?, seconds = ?, calls = ? WHERE id = ?"


class FileLocks:
    """Implements `Locks`: with fair locks within this process, then with file locks between processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_process: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # locks in use, by number

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        # All callers lock in the order of the numbers, so that no two wait for each other.
        numbers = sorted({zlib.crc32(key.encode(errors="surrogateescape")) % LOCK_FILES for key in keys})
        async with AsyncExitStack() as locks:
            try:
                async with asyncio.timeout(timeout_s):
                    for number in numbers:
                        await locks.enter_async_context(self._in_process.setdefault(number, asyncio.Lock()))
                    for number in numbers:
                        make_private_folder(self._folder)
                        lock = FileLock(self._folder / f"{number}.lock")
                        while not lock.try_acquire():
                            await asyncio.sleep(_LOCK_POLL_S)
                        locks.callback(lock.release)
            except TimeoutError as error:
                raise ToolError(
                    f"{Path(keys[0]).name} was not changed: another call has been changing it for more than "
                    f"{timeout_s:g} s. Try again later.",
                    kind="resource_error",
                ) from error
            except OSError as error:
                raise ToolError(
                    f"{Path(keys[0]).name} could not be locked, so it was not changed: nothing can be written in "
                    f"{self._folder} ({error.strerror}). Ask the user to make that folder writable, or to set "
                    "AGENTCLI_HOME to one that is.",
                    kind="resource_error",
                ) from error
            yield


class DayAccount(Account):
    """Counts the day's spending on this machine; without limits, only to record it. Raises `StorageError`."""

    def __init__(self, path: Path, limits: Amounts) -> None:
        super().__init__("day", limits)
        self._path = path
        self._connection: apsw.Connection | None = None
        self._unwritten: Amounts = {}  # charges that are not in the file yet, which only happens without limits

    def locked(self) -> AbstractContextManager[object]:
        """Keep other processes from spending, so that what is left is still left when it is reserved."""
        return self._transaction() if self.limits else nullcontext()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._execute("COMMIT")

    def spent(self, *, with_held: bool = True) -> Amounts:
        """Return the day's spending; nothing without limits, because nothing is compared with it.

        The file includes the reservations of all processes. Without `with_held`, those of this process are subtracted.
        """
        if not self.limits:
            return {}
        held = {} if with_held else total_amounts(*self._held.values())
        (totals,) = self._execute(_SPENT, _today())
        # A reservation made before midnight is held, but is not a row of today: the difference may be below 0.
        return {kind: max(0.0, total - held.get(kind, 0.0)) for kind, total in zip(_KINDS, totals, strict=True)}

    def hold(self, amounts: Amounts) -> int:
        if not self.limits:
            return 0
        number = self._insert(amounts)
        self._held[number] = amounts
        return number

    def settle(self, number: int, amounts: Amounts) -> None:
        self._held.pop(number, None)
        if number:  # the row of the reservation gets the actual amounts; without limits there is none (0)
            self._execute(_UPDATE, *_values(amounts), number)
            return
        self._unwritten = total_amounts(self._unwritten, amounts)
        if amounts.get("tokens"):  # a request; tool calls have no tokens, and are written with the next request
            try:
                self._insert(self._unwritten)
            except StorageError as error:
                log.warning("%s", error)
            self._unwritten = {}

    def _insert(self, amounts: Amounts) -> int:
        ((number,),) = self._execute(_INSERT, *_values(amounts), _today())
        return int(number)

    def _execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(sql, values).fetchall()
        except (apsw.Error, OSError) as error:
            raise StorageError(
                f"{self._path} could not be used ({error}). It holds what the day has cost, which a budget of the day "
                "needs."
            ) from error

    def _connect(self) -> apsw.Connection:
        make_private_folder(self._path.parent)
        self._path.touch(mode=0o600)  # a file that SQLite makes could be read by other users
        db = apsw.Connection(str(self._path))
        db.set_busy_timeout(BUSY_TIMEOUT_MS)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "normal")
        with transaction(db):
            db.execute(_TABLE)
            db.execute("DELETE FROM charges WHERE day < ?", (_today(),))
        return db


def _values(amounts: Amounts) -> tuple[float, ...]:
    return tuple(float(amounts.get(kind, 0.0)) for kind in _KINDS)


def _today() -> str:
    return time.strftime("%Y-%m-%d")
