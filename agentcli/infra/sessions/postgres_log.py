"""The log of one open session in Postgres, and how entries become rows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from zlib import crc32

from agentcli.agent.interfaces import NEWEST, Appended, Stored
from agentcli.conversation.entries import Body, Entry, entry_now, to_record
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.ids import entry_id
from agentcli.infra.sessions.postgres_database import Broken, Connection, Database, storable, value
from agentcli.infra.sessions.postgres_leases import Lease, Leases
from agentcli.infra.sessions.reading import read_entry
from agentcli.infra.sessions.words import text_of, words_in

log = logging.getLogger(__name__)

_MOST_WORDS = 500_000  # bytes of them for an entry; Postgres takes twice that

IS_STORED = "SELECT 1 FROM agentcli.sessions WHERE id = %s AND trashed = 0"
LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM agentcli.entries WHERE session_id = %s AND trashed = 0"
ENTRY = "id, parent_id, time, schema_version, checksum, body"  # for `entry_of`
INSERT = """
INSERT INTO agentcli.entries (
    n, origin, own, session_id, seq, id, parent_id, time, kind, schema_version, body, checksum, words
)
SELECT n, n, true, %(session_id)s, %(seq)s, %(id)s, %(parent_id)s, %(time)s, %(kind)s, %(schema_version)s, %(body)s,
    %(checksum)s, array_to_tsvector(%(words)s::text[])
FROM nextval('agentcli.entry_numbers') AS n
"""
_COLUMNS = "seq, id, parent_id, time, kind, schema_version, body, checksum, words"
_COPY = f"""
INSERT INTO agentcli.entries (n, origin, own, session_id, {_COLUMNS})
SELECT nextval('agentcli.entry_numbers'), origin, false, %(id)s, {_COLUMNS} FROM agentcli.entries
WHERE session_id = %(source)s AND trashed = 0 AND seq <= %(shared)s AND EXISTS (
    SELECT 1 FROM agentcli.entries WHERE session_id = %(source)s AND trashed = 0 AND seq = %(shared)s AND id = %(last)s
)
"""  # noqa: S608 - our words
_TOUCH = """
UPDATE agentcli.sessions SET updated = %s, used = nextval('agentcli.uses'),
    title = CASE WHEN title = '' THEN %s ELSE title END, last_prompt = coalesce(nullif(%s, ''), last_prompt)
WHERE id = %s AND trashed = 0
"""
# Copies of entries are made by many at once, and by nobody while another moves or changes entries with their copies.
_COPYING = "SELECT pg_advisory_xact_lock_shared(hashtext('agentcli copies'))"
ALONE = "SELECT pg_advisory_xact_lock(hashtext('agentcli copies'))"


@dataclass
class NewSession:
    """A session that is stored together with its first entries, after the first `shared` ones of its `source`."""

    id: str
    cwd: str
    name: str
    user_id: str
    source: str = ""
    shared: int = 0
    last: str = ""  # the id of the entry at `shared`

    async def store(self, db: Connection) -> None:
        """Raises `StorageError` when what it was forked from was removed before."""
        await db.execute(
            "INSERT INTO agentcli.sessions (id, cwd, name, user_id, created, updated) VALUES (%s, %s, %s, %s, %s, %s)",
            (self.id, *map(storable, (self.cwd, self.name, self.user_id)), time.time(), time.time()),
        )
        if self.source:
            await db.execute(_COPYING)
            copied = await db.execute(_COPY, vars(self))
            if copied.rowcount != self.shared:
                raise StorageError(
                    f"Session {self.source}, which this one goes on from, was removed: agentcli sessions restore "
                    f"{self.source} brings it back."
                )
            await _touch(db, self.id, await entries_of(db, self.id))


class PostgresLog:
    """Implements `SessionLog`."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        lease: Lease,
        *,
        new_session: NewSession | None = None,
        entries: Sequence[Entry] = (),
    ) -> None:
        self.session_id = lease.session_id
        self.new_session = new_session
        self._database = database
        self._leases = leases
        self._lease = lease
        self._last = entries[-1].id if entries else None
        self._last_seq = len(entries)
        self._unstored: list[tuple[Stored, asyncio.Future[Stored]]] = []  # tried again with the next entries
        self._is_behind = False
        self._storing: asyncio.Task[None] | None = None

    def append(self, *bodies: Body, parent_id: str | None = NEWEST) -> Appended:
        entries = []
        if parent_id == NEWEST:
            parent_id = self._last
        for body in bodies:
            entries.append(entry_now(entry_id(body), parent_id, body))
            self._last = parent_id = entries[-1].id
        stored = Stored(tuple(entries), self._last_seq + 1)
        self._last_seq += len(entries)
        committed: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
        committed.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be that nobody waits
        self._unstored.append((stored, committed))
        self._is_behind = True
        if self._storing is None or self._storing.done():
            self._storing = asyncio.create_task(self._store_all())
        return Appended(stored.entries, committed)

    def is_wanted(self) -> bool:
        return self._lease.is_wanted

    async def drain(self) -> None:
        """Wait until everything that was appended is stored or has failed."""
        if self._storing is not None:
            await asyncio.wait((self._storing,))  # which goes on where this is cancelled

    async def close(self) -> None:
        await self.drain()
        await self._leases.release(self._lease)

    async def _store_all(self) -> None:
        while self._is_behind:
            self._is_behind = False
            calls = list(self._unstored)
            failure: StorageError | None = None
            for stored, committed in calls:
                failure = failure or await self._store(stored)
                if failure is None:
                    self._unstored.pop(0)
                if committed.done():
                    continue
                if failure is None:
                    committed.set_result(stored)
                else:
                    committed.set_exception(failure)

    async def _store(self, stored: Stored) -> StorageError | None:
        try:
            rows = await asyncio.to_thread(rows_of, self.session_id, stored)
            try:
                await self._write(stored, rows)
            except Broken:  # the server was started again, or this program was stopped for some seconds
                await self._write(stored, rows)
        except StorageError as error:
            return error
        except Exception as bug:  # nobody would be told anything any more if this task ended
            log.exception("storing entries in Postgres failed")
            return StorageError(f"Session {self.session_id}: an entry could not be stored ({bug!r}).")
        self.new_session = None
        return None

    async def _write(self, stored: Stored, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing is done when they are there: a connection may have broken after they were stored."""
        new = self.new_session
        async with self._database.transaction() as db:
            await self._lease.hold(db)
            if new is not None and not await value(db, IS_STORED, self.session_id):
                await new.store(db)
            if await value(db, LAST_SEQ, self.session_id) < stored.first_seq:
                for row in rows:
                    await db.execute(INSERT, row)
                await _touch(db, self.session_id, stored.entries)


async def _touch(db: Connection, session_id: str, entries: Sequence[Entry]) -> None:
    """Note the time, that none was used later, and what was said in new entries."""
    texts = map(storable, (title_of(entries), last_prompt_of(entries)))
    await db.execute(_TOUCH, (time.time(), *texts, session_id))


def rows_of(session_id: str, stored: Stored) -> list[dict[str, Any]]:
    rows = []
    for seq, entry in enumerate(stored.entries, stored.first_seq):
        record = to_record(entry)
        ids = {"id": storable(entry.id), "parent_id": entry.parent_id and storable(entry.parent_id)}
        checksum = crc32(record["body"].encode())
        rows.append(
            {**record, **ids, "session_id": session_id, "seq": seq, "checksum": checksum, "words": words_of(entry)}
        )
    return rows


def words_of(entry: Entry) -> list[str]:
    """The words that a search looks up; of a text with very many of them the first ones."""
    words = words_in(text_of(entry.body))
    sizes = accumulate(len(word.encode()) for word in words)
    return [word for word, size in zip(words, sizes, strict=True) if size <= _MOST_WORDS]


def entry_of(row: Sequence[Any]) -> Entry:
    return read_entry((*row[:-1], row[-1].encode()))


async def entries_of(db: Connection, session_id: str, *, after: int = 0) -> list[Entry]:
    query = f"SELECT {ENTRY} FROM agentcli.entries WHERE session_id = %s AND trashed = 0 AND seq > %s ORDER BY seq"  # noqa: S608
    return [entry_of(row) for row in await (await db.execute(query, (session_id, after))).fetchall()]
