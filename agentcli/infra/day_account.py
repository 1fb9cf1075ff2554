"""Keeps what the sessions of a day spend, those of all processes together, in a small database of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import apsw

from agentcli.agent.accounting.budgets import Amounts, Kind
from agentcli.errors import StorageError

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
# What sessions spent on the day before anybody kept this ledger.
_SPENT_BEFORE = """
SELECT
    coalesce(sum(body ->> '$.cost_usd'), 0.0),
    coalesce(sum(
        coalesce(body ->> '$.usage.input_tokens', 0) + coalesce(body ->> '$.usage.output_tokens', 0)
        + coalesce(body ->> '$.usage.cache_creation_input_tokens', 0)
        + coalesce(body ->> '$.usage.cache_read_input_tokens', 0)
    ), 0),
    coalesce(sum(body ->> '$.duration_ms') / 1000.0, 0.0),
    coalesce(sum(kind = 'tool_result'), 0)
FROM entries WHERE time >= ? AND kind IN ('assistant', 'paid', 'tool_result')
"""


class DayAccount:
    """Implements `Account` for a calendar day of this machine. Its methods raise `StorageError`."""

    scope = "day"

    def __init__(self, path: Path, limits: Amounts, sessions: Path) -> None:
        self.steps: Amounts = dict(limits)
        self.limits = dict(limits)
        self.told: set[Kind] = set()
        self._path = path
        self._sessions = sessions
        self._connection: apsw.Connection | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        def begin(db: apsw.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")

        self._on_disk(begin)
        try:
            yield
        except BaseException:
            self._on_disk(lambda db: db.execute("ROLLBACK"))
            raise
        self._on_disk(lambda db: db.execute("COMMIT"))

    def spent(self) -> Amounts:
        sums = ", ".join(f"coalesce(sum({kind}), 0.0)" for kind in _KINDS)
        row = self._on_disk(lambda db: db.execute(f"SELECT {sums} FROM charges WHERE day = ?", (_today(),)).fetchone())  # noqa: S608
        return dict(zip(_KINDS, row or (0.0,) * len(_KINDS), strict=True))

    def hold(self, amounts: Amounts) -> int:
        def work(db: apsw.Connection) -> int:
            values = (_today(), *(float(amounts.get(kind, 0.0)) for kind in _KINDS))
            db.execute("INSERT INTO charges (day, usd, tokens, seconds, calls) VALUES (?,?,?,?,?)", values)
            return db.last_insert_rowid()

        return self._on_disk(work)

    def settle(self, number: int, amounts: Amounts) -> None:
        values = (*(float(amounts.get(kind, 0.0)) for kind in _KINDS), number)
        sql = "UPDATE charges SET usd = ?, tokens = ?, seconds = ?, calls = ? WHERE id = ?"
        self._on_disk(lambda db: db.execute(sql, values))

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
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.touch(mode=0o600)
        db = apsw.Connection(str(self._path))
        db.set_busy_timeout(BUSY_TIMEOUT_MS)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "normal")
        db.transaction_mode = "IMMEDIATE"
        with db:
            db.execute(_TABLE)
            if not db.execute("SELECT 1 FROM charges WHERE day = ? LIMIT 1", (_today(),)).get:
                db.execute("DELETE FROM charges WHERE day < ?", (_today(),))
                db.execute(
                    "INSERT INTO charges (day, usd, tokens, seconds, calls) VALUES (?,?,?,?,?)",
                    (_today(), *self._spent_before()),
                )
        return db

    def _spent_before(self) -> tuple[float, ...]:
        midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        with suppress(apsw.Error):  # there are no sessions yet, or none that can be read
            sessions = apsw.Connection(str(self._sessions), flags=apsw.SQLITE_OPEN_READONLY)
            try:
                return tuple(map(float, sessions.execute(_SPENT_BEFORE, (midnight,)).fetchone() or (0.0,) * 4))
            finally:
                sessions.close()
        return (0.0,) * 4


def _today() -> str:
    return time.strftime("%Y-%m-%d")
