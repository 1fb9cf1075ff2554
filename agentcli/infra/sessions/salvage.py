"""Reads what can be read of a session database that may be damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

_BLIND = 512  # numbers that are tried beyond the rows that were found, where an end of a table cannot be read
_FAR = 1 << 62
_OF_OLDER_VERSIONS = {"used": "0", "user_id": "''", "checksum": "NULL"}  # in place of columns they do not have


class SessionRow(NamedTuple):
    """A row of `sessions`."""

    id: str
    cwd: str
    name: str
    title: str
    created: float
    updated: float
    forked_from: str | None
    forked_at: int | None
    used: int
    user_id: str


class EntryRow(NamedTuple):
    """A row of `entries`; `body` is as it is on disk."""

    seq: int
    id: str
    parent_id: str | None
    time: float
    kind: str
    schema_version: int
    checksum: int | None
    body: bytes


_LAYOUT = {
    "sessions": ("place", *SessionRow._fields),
    "entries": ("session_id", "seq", "id", "parent_id", "time", "kind", "schema_version", "body", "checksum"),
}
_NUMBERS = ("place", "seq", "forked_at", "used", "schema_version", "checksum")
_TIMES = ("created", "updated", "time")


def open_raw(path: Path) -> apsw.Connection:
    """A connection that changes neither the file nor its log by itself, not even when it is closed."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(1_000)
    return connection


class Salvage:
    """The rows of a database, in whatever state it is. `renamed` are tables whose columns have names they never had."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.renamed: list[str] = []
        db.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)  # else nothing is read of a file that was cut off
        self._columns = {table: self._seen(table) for table in _LAYOUT}

    def _seen(self, table: str) -> frozenset[str]:
        """The columns of a view that names those of the table by position: their own names may be damaged, too."""
        key = "rowid, " * (table == "sessions")
        there = [name for (name,) in self._read("SELECT name FROM pragma_table_info(?)", (table,))[0]]
        names = _LAYOUT[table][: len(there) + bool(key)]
        if there != list(names[bool(key) :]):
            self.renamed.append(table)
        self._read(f"CREATE TEMP VIEW seen_{table} ({', '.join(names)}) AS SELECT {key}* FROM main.{table}", ())  # noqa: S608 - our names
        return frozenset(names)

    def sessions(self) -> dict[str, SessionRow]:
        """By id."""
        rows = [SessionRow(*map(_text, row[1:])) for row in self._rows("sessions", SessionRow._fields, "place")]
        return {row.id: row for row in rows if isinstance(row.id, str)}

    def owners(self) -> set[str]:
        """The ids of the sessions that have entries, each found by a step from the one before."""
        found: set[str] = set()
        for sign, order, last in ((">", "", ""), ("<", "DESC", b"")):  # bytes come after all text
            query = f"SELECT session_id FROM seen_entries WHERE session_id {sign} ? ORDER BY session_id {order} LIMIT 1"  # noqa: S608 - our names
            while (rows := self._read(query, (last,))[0]) and rows[0][0] not in found:
                last = rows[0][0]
                found.add(str(last))
        return found

    def entries(self, session_id: str) -> list[EntryRow]:
        """As they lie in the table."""
        rows = self._rows("entries", EntryRow._fields, "seq", session_id)
        found = [EntryRow._make([*map(_text, row[1:-1]), row[-1] or b""]) for row in rows]
        return [row for row in found if isinstance(row.id, str) and isinstance(row.schema_version, int)]

    def _rows(self, table: str, names: tuple[str, ...], key: str, *owner: str) -> list[tuple[Any, ...]]:
        """Each with its key before it. Where the table cannot be read through: from both ends, then what is between."""
        columns = ", ".join((key, *(self._column(table, name) for name in names)))
        where = "session_id = ? AND " * len(owner)
        query = f"SELECT {columns} FROM seen_{table} WHERE {where}{key} BETWEEN ? AND ? ORDER BY {key}"  # noqa: S608 - our names
        rows, is_whole = self._read(query, (*owner, -_FAR, _FAR))
        if is_whole:
            return rows
        after, _ = self._read(f"{query} DESC", (*owner, -_FAR, _FAR))
        if after:
            first = rows[-1][0] + 1 if rows else min(1, after[-1][0] - _BLIND)
            return [*rows, *self._between(query, owner, first, after[-1][0] - 1), *after[::-1]]
        first, more = rows[-1][0] + 1 if rows else 1, rows
        while more or first == 1:
            more = self._between(query, owner, first, first + _BLIND - 1)
            rows, first = [*rows, *more], first + _BLIND
        return rows

    def _between(self, query: str, owner: tuple[str, ...], first: int, last: int) -> list[tuple[Any, ...]]:
        rows, is_whole = self._read(query, (*owner, first, last))
        if is_whole or first >= last:
            return rows
        first = rows[-1][0] + 1 if rows else first
        middle = (first + last) // 2
        return [*rows, *self._between(query, owner, first, middle), *self._between(query, owner, middle + 1, last)]

    def _read(self, query: str, values: Sequence[Any]) -> tuple[list[tuple[Any, ...]], bool]:
        """The rows up to the first that cannot be read, and True if there is no such row."""
        rows: list[tuple[Any, ...]] = []
        try:
            for row in self._db.execute(query, tuple(values)):
                rows.append(row)  # noqa: PERF402 - the rows before the one that fails count
        except (apsw.Error, UnicodeDecodeError):
            return rows, False
        return rows, True

    def _column(self, table: str, name: str) -> str:
        """Text as bytes, since it may be damaged; times as numbers."""
        if name not in self._columns[table]:
            return _OF_OLDER_VERSIONS.get(name, "NULL")
        if name in _NUMBERS:
            return name
        return f"CAST({name} AS {'REAL' if name in _TIMES else 'BLOB'})"


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
