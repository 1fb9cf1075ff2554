"""The log of one open session in SQLite, and the row that is stored with its first entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import filelock

from agentcli.agent.interfaces import NEWEST, Appended, Stored
from agentcli.conversation.entries import Body, Entry, entry_now, to_record
from agentcli.conversation.titles import title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.files import wanted_file
from agentcli.infra.sessions.ids import entry_id
from agentcli.infra.sessions.reading import last_seq
from agentcli.infra.sqlite_writer import Writer

INSERT_ENTRY = """
INSERT INTO entries (session_id, seq, id, parent_id, time, kind, schema_version, body, checksum)
VALUES (:session_id, :seq, :id, :parent_id, :time, :kind, :schema_version, :body, :checksum)
"""


class SessionRow:
    """A session that is stored together with its first entries."""

    def __init__(self, id: str, cwd: str, name: str, user_id: str) -> None:
        self.id = id
        self.cwd = cwd
        self.name = name
        self.user_id = user_id
        self.forked_from: str | None = None
        self.forked_at: int | None = None
        self.inherits_until = ""  # the id of the entry at `forked_at`

    def store(self, db: apsw.Connection) -> None:
        """Nothing is done when it is stored. Raises `StorageError` when what it was forked from was removed before."""
        if db.execute("SELECT 1 FROM sessions WHERE id = ?", (self.id,)).get:
            return
        if self.forked_from is not None:
            at = "SELECT id FROM entries WHERE session_id = ? AND seq = ?"
            if db.execute(at, (self.forked_from, self.forked_at)).get != self.inherits_until:
                raise StorageError(
                    f"Session {self.forked_from}, which this one goes on from, was removed: agentcli sessions restore "
                    f"{self.forked_from} brings it back."
                )
        now = time.time()
        db.execute(
            "INSERT INTO sessions (id, cwd, name, user_id, title, created, updated, forked_from, forked_at, used) "
            "VALUES (?,?,?,?,?,?,?,?,?, (SELECT coalesce(max(used), 0) + 1 FROM sessions))",
            (self.id, self.cwd, self.name, self.user_id, "", now, now, self.forked_from, self.forked_at),
        )


class SqliteLog:
    """Implements `SessionLog`."""

    def __init__(
        self,
        writer: Writer,
        session_id: str,
        lock: filelock.BaseFileLock,
        path: Path,
        *,
        new_session: SessionRow | None = None,
        last: str | None = None,
        last_seq: int = 0,
    ) -> None:
        self.session_id = session_id
        self._writer = writer
        self._lock = lock
        self._path = path
        self._new_session = new_session
        self._last = last
        self._last_seq = last_seq
        self._title = ""
        self._unstored: list[Stored] = []  # tried again with the next entries: a full disk may have room by then

    def continue_from(self, source: str, seq: int, entries: Sequence[Entry]) -> None:
        """Begin after an entry of another session; its entries up to that one are read through it."""
        row = self._new_session
        assert row is not None
        self._last = row.inherits_until = entries[-1].id
        row.forked_from, row.forked_at = source, seq
        self._title = title_of(entries)

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        entries = []
        if parent_id == NEWEST:
            parent_id = self._last
        for body in bodies:
            entries.append(entry_now(entry_id(body), parent_id, body))
            self._last = parent_id = entries[-1].id
        first_seq = self._last_seq + 1
        self._last_seq += len(entries)
        self._title = title = self._title or title_of(entries)
        stored = Stored(tuple(entries), first_seq)
        self._unstored.append(stored)
        row, unstored = self._new_session, tuple(self._unstored)

        def work(db: apsw.Connection) -> Stored:
            if row is not None:
                row.store(db)
            stored_seq = last_seq(db, self.session_id)
            for missing in unstored:
                if missing.first_seq > stored_seq:
                    insert(db, self.session_id, missing)
            _touch(db, self.session_id, title)
            return stored

        committed = self._writer.submit(work, writes=True)
        committed.add_done_callback(self._forget_stored)
        return Appended(stored.entries, committed)

    def _forget_stored(self, committed: asyncio.Future[Any]) -> None:
        if not committed.cancelled() and committed.exception() is None:
            self._new_session = None
            newest: Stored = committed.result()
            self._unstored = [one for one in self._unstored if one.first_seq > newest.first_seq]

    def is_wanted(self) -> bool:
        return wanted_file(self._path, self.session_id).exists()

    async def close(self) -> None:
        await self._writer.drain()
        self._lock.release()


def insert(db: apsw.Connection, session_id: str, stored: Stored) -> None:
    for seq, entry in enumerate(stored.entries, stored.first_seq):
        record = to_record(entry)
        checksum = crc32(record["body"].encode())
        db.execute(INSERT_ENTRY, {"session_id": session_id, "seq": seq, "checksum": checksum, **record})


def _touch(db: apsw.Connection, session_id: str, title: str) -> None:
    """Note the time, that none was used later, and the title unless there is one."""
    db.execute(
        "UPDATE sessions SET updated = ?, title = CASE WHEN title = '' THEN ? ELSE title END, "
        "used = (SELECT max(used) + (max(used) <> sessions.used) FROM sessions AS other) WHERE id = ?",
        (time.time(), title, session_id),
    )
