"""Sessions in SQLite: append-only, synced to disk before anybody is told, one writer thread.

Settings measured against a simulated power cut: WAL with synchronous=FULL lost none of 10,090 acknowledged rows, NORMAL
lost 520.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import filelock

from agentcli.agent.interfaces import NEWEST, Appended, SessionInfo, SessionLog, Stored
from agentcli.conversation.entries import Body, Entry, Unreadable, as_readable, entry_now, to_record
from agentcli.conversation.titles import said_in_short, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.ids import entry_id, new_id
from agentcli.infra.sessions.writer import NotWritable, Writer, on_a_copy
from agentcli.paths import folder_text

if TYPE_CHECKING:
    from agentcli.agent.accounting.metrics import UsageCollector

MOST_LOOKED_AT = 20  # entries, for the newest prompt

T = TypeVar("T")


class SqliteSessions:
    """Implements `SessionStore` on one database file, which is made at the first use. `on_notice` tells the person."""

    is_lasting = True

    def __init__(self, path: Path, *, on_notice: Callable[[str], None] = lambda text: None) -> None:
        self.path = path
        self._on_notice = on_notice
        self._writer = Writer(path, on_notice)
        self._new: dict[str, _SessionRow] = {}  # made here; each is stored with its first entries

    async def create(
        self, *, cwd: Path, session_id: str | None = None, name: str = "", user_id: str = ""
    ) -> SessionLog:
        id = session_id or new_id()
        lock = self._own(id)
        if session_id is not None:
            await self._refuse_taken(session_id, lock)
        self._new[id] = row = _SessionRow(id, folder_text(cwd), name, user_id)
        return SqliteLog(self._writer, id, lock, new_session=row)

    async def _refuse_taken(self, session_id: str, lock: filelock.BaseFileLock) -> None:
        taken = await self._read(lambda db: db.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).get)
        if taken:
            lock.release()
            raise StorageError(f"There is a session {session_id} already: resume it with --resume {session_id}.")

    async def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Do what changes nothing, also where the file can only be read."""
        try:
            return await self._writer.call(work)
        except NotWritable as refused:
            return await asyncio.to_thread(on_a_copy, self.path, work, refused)

    async def open(self, session_id: str) -> tuple[SessionLog, list[Entry]]:
        id = await self._read(lambda db: _full_id(db, session_id))
        lock = self._own(id)
        try:
            entries, last_seq = await self._read(lambda db: (_entries(db, id), _last_seq(db, id)))
        except StorageError:
            lock.release()
            raise
        self._tell_unreadable(id, entries)
        return SqliteLog(self._writer, id, lock, last=entries[-1].id if entries else None, last_seq=last_seq), entries

    async def fork(
        self, session_id: str, *, cwd: Path, new_id: str | None = None, name: str = ""
    ) -> tuple[SessionLog, list[Entry]]:
        source = await self._read(lambda db: _full_id(db, session_id))
        info, entries, at = await self._read(
            lambda db: (_info(db, source), _entries(db, source), _last_seq(db, source))
        )
        self._tell_unreadable(source, entries)
        log = await self.create(cwd=cwd, session_id=new_id, name=name, user_id=info.user_id)
        assert isinstance(log, SqliteLog)
        log.continue_from(source, at, entries)
        return log, entries

    def _tell_unreadable(self, session_id: str, entries: Sequence[Entry]) -> None:
        if unreadable := [entry.body.error for entry in entries if isinstance(entry.body, Unreadable)]:
            self._on_notice(
                f"{len(unreadable)} of the {len(entries)} entries of session {session_id} are left out: "
                f"{unreadable[0]}. agentcli sessions show {session_id} shows where they stood."
            )

    async def load(self, session_id: str) -> tuple[SessionInfo, list[Entry]]:
        def work(db: apsw.Connection) -> tuple[SessionInfo, list[Entry]]:
            id = _full_id(db, session_id)
            return _info(db, id), _entries(db, id)

        return await self._read(work)

    async def list(self, *, cwd: Path | None = None, limit: int = 50) -> Sequence[SessionInfo]:
        where, values = ("WHERE cwd = ?", (folder_text(cwd),)) if cwd else ("", ())
        tail = f"{where} ORDER BY used DESC LIMIT {int(limit)}"
        return await self._read(lambda db: _infos(db, tail, values))

    async def file_changes(self) -> Sequence[tuple[str, Entry]]:
        rows = await self._read(
            lambda db: db.execute(
                "SELECT id, parent_id, time, schema_version, CAST(body AS BLOB), session_id FROM entries "
                "WHERE kind IN ('files_changed', 'files_restored') ORDER BY time"
            ).fetchall()
        )
        return [(str(row[-1]), _entry(row[:-1])) for row in rows]

    async def rename(self, session_id: str, name: str) -> None:
        new = self._new.get(session_id)
        if new is not None:
            new.name = name

        def work(db: apsw.Connection) -> None:
            id = session_id if new is not None else _full_id(db, session_id)
            db.execute("UPDATE sessions SET name = ? WHERE id = ?", (name, id))

        await self._writer.call(work)

    async def usage(self, *, since: float = 0.0, session: str = "") -> UsageCollector:
        """What was stored since a time, of one session (by its id, its start, or its name) or of all."""
        read = import_module("agentcli.infra.sessions.usage").read_usage
        found: UsageCollector = await self._read(
            lambda db: read(db, since=since, session_id=_full_id(db, session) if session else "")
        )
        return found

    async def close(self) -> None:
        await self._writer.close()

    def _own(self, session_id: str) -> filelock.BaseFileLock:
        """Hold the session's lock, which a killed program gives up by dying. Raises `StorageError` when it is held."""
        folder = self.path.parent / "locks"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # `parents` are made open to all
            folder.mkdir(exist_ok=True, mode=0o700)
            lock = filelock.FileLock(folder / f"{session_id}.lock", timeout=0)
            lock.acquire()
        except filelock.Timeout as error:
            raise StorageError(
                f"Session {session_id} is open in another agentcli: close it there, or continue a copy with "
                f"--fork-session (reading it works meanwhile: agentcli sessions show {session_id})."
            ) from error
        except OSError as error:
            raise StorageError(
                f"Could not write to {folder}: {error.strerror}. Make it writable, or use --no-session."
            ) from error
        return lock


def is_stored(path: Path, session_id: str) -> bool:
    """True if a session can be opened again, or where that cannot be told."""
    if not path.exists():
        return False
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return bool(connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session_id,)).get)
        finally:
            connection.close()
    except apsw.Error:
        return True


class _SessionRow:
    """A session that is stored together with its first entries."""

    def __init__(self, id: str, cwd: str, name: str, user_id: str) -> None:
        self.id = id
        self.cwd = cwd
        self.name = name
        self.user_id = user_id
        self.forked_from: str | None = None
        self.forked_at: int | None = None

    def store(self, db: apsw.Connection) -> None:
        now = time.time()
        db.execute(
            "INSERT INTO sessions (id, cwd, name, user_id, title, created, updated, forked_from, forked_at, used) "
            "VALUES (?,?,?,?,?,?,?,?,?, (SELECT coalesce(max(used), 0) + 1 FROM sessions)) ON CONFLICT DO NOTHING",
            (self.id, self.cwd, self.name, self.user_id, "", now, now, self.forked_from, self.forked_at),
        )


class SqliteLog:
    """Implements `SessionLog`."""

    def __init__(
        self,
        writer: Writer,
        session_id: str,
        lock: filelock.BaseFileLock,
        *,
        new_session: _SessionRow | None = None,
        last: str | None = None,
        last_seq: int = 0,
    ) -> None:
        self.session_id = session_id
        self._writer = writer
        self._lock = lock
        self._new_session = new_session
        self._last = last
        self._last_seq = last_seq
        self._title = ""
        self._unstored: list[Stored] = []  # tried again with the next entries: a full disk may have room by then

    def continue_from(self, source: str, seq: int, entries: Sequence[Entry]) -> None:
        """Begin where another session stands; its entries are read through it."""
        assert self._new_session is not None
        self._new_session.forked_from, self._new_session.forked_at = source, seq
        self._last = entries[-1].id if entries else None
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
            stored_seq = _last_seq(db, self.session_id)
            for missing in unstored:
                if missing.first_seq > stored_seq:
                    _insert(db, self.session_id, missing)
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

    async def close(self) -> None:
        await self._writer.drain()
        self._lock.release()


def _insert(db: apsw.Connection, session_id: str, stored: Stored) -> None:
    for seq, entry in enumerate(stored.entries, stored.first_seq):
        db.execute(
            "INSERT INTO entries (session_id, seq, id, parent_id, time, kind, schema_version, body) "
            "VALUES (:session_id, :seq, :id, :parent_id, :time, :kind, :schema_version, :body)",
            {"session_id": session_id, "seq": seq, **to_record(entry)},
        )


def _touch(db: apsw.Connection, session_id: str, title: str) -> None:
    """Note the time, that none was used later, and the title unless there is one."""
    db.execute(
        "UPDATE sessions SET updated = ?, title = CASE WHEN title = '' THEN ? ELSE title END, "
        "used = (SELECT max(used) + (max(used) <> sessions.used) FROM sessions AS other) WHERE id = ?",
        (time.time(), title, session_id),
    )


def _full_id(db: apsw.Connection, session_id: str) -> str:
    """The one id that begins so, or the session of that name."""
    session_id = session_id.encode(errors="replace").decode()  # an argument may be no text
    pattern = session_id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    rows = db.execute(
        "SELECT id FROM sessions WHERE id LIKE ? ESCAPE '\\' OR (name = ? AND name <> '') LIMIT 3",
        (pattern, session_id),
    ).fetchall()
    if not rows:
        raise StorageError(f"No session {session_id!r}: agentcli sessions list shows them.")
    if len(rows) > 1 and session_id not in {row[0] for row in rows}:
        if not any(str(row[0]).startswith(session_id) for row in rows):
            raise StorageError(
                f"Several sessions are named {session_id!r}: give the id of one (agentcli sessions list)."
            )
        raise StorageError(f"Several sessions begin with {session_id!r}: give more of the id.")
    return session_id if len(rows) > 1 else str(rows[0][0])


def _entries(db: apsw.Connection, session_id: str, until: int | None = None) -> list[Entry]:
    """The session's entries, those of the session it was forked from first."""
    source = db.execute("SELECT forked_from, forked_at FROM sessions WHERE id = ?", (session_id,)).fetchone()
    inherited = _entries(db, source[0], source[1]) if source and source[0] else []
    rows = db.execute(
        "SELECT id, parent_id, time, schema_version, CAST(body AS BLOB) FROM entries "  # text may be damaged
        "WHERE session_id = ? AND seq <= ? ORDER BY seq",
        (session_id, sys.maxsize if until is None else until),
    )
    return inherited + [_entry(row) for row in rows]


def _entry(row: Sequence[Any]) -> Entry:
    return as_readable(dict(zip(("id", "parent_id", "time", "schema_version", "body"), row, strict=True)))


def _last_seq(db: apsw.Connection, session_id: str) -> int:
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = ?", (session_id,)).get)


def _info(db: apsw.Connection, id: str) -> SessionInfo:
    return _infos(db, "WHERE id = ?", (id,))[0]


def _infos(db: apsw.Connection, tail: str, values: tuple[Any, ...]) -> list[SessionInfo]:
    rows = db.execute(
        "SELECT id, cwd, title, created, updated, name, user_id, "  # noqa: S608 - the tail is one of this module's own
        "(SELECT count(*) FROM entries WHERE session_id = sessions.id) FROM sessions " + tail,
        values,
    )
    return [
        SessionInfo(id, cwd, title, created, updated, entries, name, _last_prompt(db, id), user_id)
        for id, cwd, title, created, updated, name, user_id, entries in list(rows)
    ]


def _last_prompt(db: apsw.Connection, session_id: str) -> str:
    """In a line; what agentcli told the model stands among what the person said."""
    rows = db.execute(
        "SELECT id, parent_id, time, schema_version, CAST(body AS BLOB) FROM entries "
        "WHERE session_id = ? AND kind = 'user' ORDER BY seq DESC LIMIT ?",
        (session_id, MOST_LOOKED_AT),
    )
    return next(filter(None, (said_in_short(_entry(row).body) for row in rows)), "")
