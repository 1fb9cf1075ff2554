"""Keeps what the sessions of a day spend, those of all processes together, in a small database of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from agentcli.agent.accounting.budgets import Account, Amounts, Kind, added
from agentcli.errors import StorageError
from agentcli.settings.files import make_private_folder

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5_000
_KINDS: tuple[Kind, ...] = ("usd", "tokens", "seconds", "calls")

T = TypeVar("T")

# A row is one charge, or what is held until it is known. The program that held it may be killed: its request may have
# been billed all the same, so that a row stays until its day is over.
_TABLE = """
CREATE TABLE IF NOT EXISTS charges (
    id INTEGER PRIMARY KEY, day TEXT NOT NULL,
    usd REAL NOT NULL, tokens REAL NOT NULL, seconds REAL NOT NULL, calls REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS charges_by_day ON charges (day);
"""


class DayAccount(Account):
    """The account of a calendar day of this machine. Its methods raise `StorageError`.

    Without limits it only notes what is charged, for those sessions of the day that have some; no session ends because
    that cannot be written.
    """

    def __init__(self, path: Path, limits: Amounts) -> None:
        super().__init__("day", limits)
        self._path = path
        self._connection: apsw.Connection | None = None
        self._unwritten: Amounts = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        if not self.limits:
            yield
            return

        self._on_disk(lambda db: db.execute("BEGIN IMMEDIATE"))
        try:
            yield
        except BaseException:
            self._on_disk(lambda db: db.execute("ROLLBACK"))
            raise
        self._on_disk(lambda db: db.execute("COMMIT"))

    def spent(self) -> Amounts:
        """Nothing without limits: nobody needs to know."""
        if not self.limits:
            return {}
        sums = ", ".join(f"coalesce(sum({kind}), 0.0)" for kind in _KINDS)
        row = self._on_disk(lambda db: db.execute(f"SELECT {sums} FROM charges WHERE day = ?", (_today(),)).fetchone())  # noqa: S608  # _KINDS alone
        return dict(zip(_KINDS, row or (0.0,) * len(_KINDS), strict=True))

    def hold(self, amounts: Amounts) -> int:
        return self._insert(amounts) if self.limits else 0

    def settle(self, number: int, amounts: Amounts) -> None:
        if number:
            values = (*(float(amounts.get(kind, 0.0)) for kind in _KINDS), number)
            sql = "UPDATE charges SET usd = ?, tokens = ?, seconds = ?, calls = ? WHERE id = ?"
            self._on_disk(lambda db: db.execute(sql, values))
            return
        self._unwritten = added(self._unwritten, amounts)
        if amounts.get("tokens"):  # calls are written with the request that follows them
            try:
                self._insert(self._unwritten)
            except StorageError as error:
                log.warning("%s", error)
            self._unwritten = {}

    def _insert(self, amounts: Amounts) -> int:
        def work(db: apsw.Connection) -> int:
            values = (_today(), *(float(amounts.get(kind, 0.0)) for kind in _KINDS))
            db.execute("INSERT INTO charges (day, usd, tokens, seconds, calls) VALUES (?,?,?,?,?)", values)
            return db.last_insert_rowid()

        return self._on_disk(work)

    def _on_disk(self, work: Callable[[apsw.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._opened()
            return work(self._connection)
        except (apsw.Error, OSError) as error:
            raise StorageError(
                f"{self._path}: {error}. It holds what the day has cost; without it no budget of the day can be held."
            ) from error

    def _opened(self) -> apsw.Connection:
        make_private_folder(self._path.parent)
        self._path.touch(mode=0o600)
        db = apsw.Connection(str(self._path))
        db.set_busy_timeout(BUSY_TIMEOUT_MS)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "normal")
        db.transaction_mode = "IMMEDIATE"
        with db:
            db.execute(_TABLE)
            db.execute("DELETE FROM charges WHERE day < ?", (_today(),))
        return db


def _today() -> str:
    return time.strftime("%Y-%m-%d")
