"""Checks a session database, and makes a sound one of what can be read of it."""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal
from zlib import crc32

import apsw
import filelock
import msgspec

from agentcli.agent.interfaces import Stored
from agentcli.conversation.entries import Assistant, ContextNote, Entry, Result, Unreadable, as_readable
from agentcli.conversation.schema import SCHEMA_VERSION
from agentcli.conversation.titles import title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.database import connect
from agentcli.infra.sessions.files import free_name, session_lock, sync_folder
from agentcli.infra.sessions.log import INSERT_ENTRY, insert
from agentcli.infra.sessions.salvage import EntryRow, Salvage, SessionRow, open_raw
from agentcli.infra.sessions.schema import checked_version
from agentcli.llm.messages import ToolUse

_HEADER = b"SQLite format 3\0"
_MOST_TOLD = 100  # lines of SQLite about one file
FaultKind = Literal["file", "checksum", "unreadable", "order", "parent", "source", "empty", "owner", "call"]


class Fault(msgspec.Struct, frozen=True):
    """What is wrong, and with which session and entry; a call without a result is only worth telling."""

    kind: FaultKind
    text: str
    session_id: str = ""
    entry_id: str = ""


class Report(msgspec.Struct, frozen=True):
    """What was found; after a repair also what is left, and where the file of before is kept."""

    path: str
    found: list[Fault]
    left: list[Fault]
    kept_as: str = ""

    @property
    def is_healthy(self) -> bool:
        return not any(map(_is_wrong, self.left))


def check(path: Path) -> Report:
    """Raises `StorageError` for a file that is not ours, or that cannot be opened."""
    found = _Scan.of(path).faults() if path.exists() else []
    return Report(str(path), found, found)


def first_damage(path: Path, *, within_s: float) -> str:
    """What SQLite finds wrong with the file first; empty if it finds nothing in that time, or cannot open it."""
    until = time.monotonic() + within_s
    try:
        with closing(open_raw(path)) as db:
            db.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            said = [str(line) for (line,) in db.execute("PRAGMA quick_check(1)")]
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        return str(error)
    except apsw.Error:
        return ""
    return "" if said == ["ok"] else said[0]


def repair(path: Path, *, even_if_open: bool = False) -> Report:
    """Put a sound file in the place of one with faults, if it has fewer of them; the other one is kept beside it.

    Raises `StorageError` while a session is open, unless it may be, and for what `check` does.
    """
    before = check(path)
    if before.is_healthy:
        return before
    if not even_if_open:
        _refuse_open_sessions(path)
    with _told_errors(path), _no_writers(path), tempfile.TemporaryDirectory(prefix="repair-", dir=path.parent) as room:
        copy, new = Path(room, path.name), Path(room, "new.db")
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copy2(path.with_name(path.name + suffix), copy.with_name(copy.name + suffix))
        readable = _with_header(copy, Path(room, "readable.db"))
        scan = _Scan.of(readable)
        kept = free_name(path, f".damaged-{int(time.time())}")
        with closing(open_raw(readable)) as old, closing(connect(new, lambda text: None)) as db, db:
            _Rebuild(scan, Salvage(old), db, kept.name).run()
        left = _Scan.of(new).faults()
        if scan.gave_nothing or sum(map(_is_wrong, left)) >= sum(map(_is_wrong, before.found)):
            return before
        if not even_if_open:
            _refuse_open_sessions(path)  # one that was opened meanwhile counts on what the old file holds
        _swap(path, copy, new, kept)
    return Report(str(path), before.found, left, str(kept))


def _with_header(copy: Path, target: Path) -> Path:
    """The copy, or one with the first bytes of a database where just these are gone (SQLite file format, 1.3)."""
    with copy.open("rb") as file:
        if file.read(len(_HEADER)) == _HEADER:
            return copy
    shutil.copyfile(copy, target)
    with target.open("r+b") as file:
        file.write(_HEADER)
    return target


def _is_wrong(fault: Fault) -> bool:
    return fault.kind != "call"


class _Line(msgspec.Struct, frozen=True):
    """An entry without its content; `error` says why it cannot be read, `calls` are those it asks for."""

    seq: int
    id: str
    parent_id: str | None
    error: str
    is_intact: bool
    calls: tuple[str, ...]
    answers: str


class _Scan:
    """All sessions and the lines of their entries."""

    def __init__(self, db: apsw.Connection) -> None:
        self._file = _file_faults(db)
        db.execute("BEGIN")  # one state, while others write; the check above would break it where it finds damage
        salvage = Salvage(db)
        self._file += [
            Fault("file", f"The file is damaged: columns of {table} are misnamed.") for table in salvage.renamed
        ]
        self.sessions = salvage.sessions()
        owners = sorted(self.sessions.keys() | salvage.owners())
        self.entries = {id: lines for id in owners if (lines := [_line(row) for row in salvage.entries(id)])}

    @classmethod
    def of(cls, path: Path) -> _Scan:
        try:
            with closing(open_raw(path)) as db:
                with suppress(apsw.CorruptError, apsw.NotADBError):
                    checked_version(db)
                return cls(db)
        except (apsw.Error, OSError) as error:
            raise StorageError(
                f"{path} cannot be opened ({error}): check that it is a file you may read and write."
            ) from error

    @property
    def gave_nothing(self) -> bool:
        """True if no entry can be read of sessions that had some."""
        return not self.entries and (bool(self._file) or any(row.title for row in self.sessions.values()))

    def faults(self) -> list[Fault]:
        return [
            *self._file,
            *(fault for id in sorted(self.sessions.keys() | self.entries) for fault in self._faults_of(id)),
        ]

    def inherited(self, session_id: str) -> list[_Line]:
        """The lines that a session shares with those it was forked from."""
        found: list[_Line] = []
        seen = {session_id}
        row = self.sessions.get(session_id)
        while row is not None and row.forked_from and row.forked_from not in seen:
            seen.add(row.forked_from)
            lines = self.entries.get(row.forked_from, [])
            found = [line for line in lines if line.seq <= (row.forked_at or 0)] + found
            row = self.sessions.get(row.forked_from)
        return found

    def has_source(self, row: SessionRow) -> bool:
        return any(line.seq == row.forked_at for line in self.entries.get(row.forked_from or "", ()))

    def _faults_of(self, id: str) -> Iterator[Fault]:
        row, lines = self.sessions.get(id), self.entries.get(id, [])
        if row is None:
            yield Fault("owner", f"Session {id} has {len(lines)} entries, but is not in the list of sessions.", id)
        elif not lines and row.title:
            yield Fault("empty", f"Session {id} ({row.title}) has no entries any more.", id)
        elif row.forked_from and not self.has_source(row):
            yield Fault("source", f"Session {id} goes on from an entry of {row.forked_from} that is not there.", id)
        shared = self.inherited(id)
        known = {line.id for line in (*shared, *lines)}
        for before, line in zip([None, *lines], lines, strict=False):
            if before is not None and line.seq != before.seq + 1:
                what = "are missing" if line.seq > before.seq else "are there twice"
                yield Fault("order", f"Session {id}: entries between {before.seq} and {line.seq} {what}.", id, line.id)
            if not line.is_intact:
                text = f"Session {id}, entry {line.seq}: its checksum is not that of its text."
                yield Fault("checksum", text, id, line.id)
            elif line.error:
                yield Fault("unreadable", f"Session {id}, entry {line.seq}: {line.error}.", id, line.id)
            if line.parent_id is not None and line.parent_id not in known:
                text = f"Session {id}, entry {line.seq}: the entry it follows is not there."
                yield Fault("parent", text, id, line.id)
        yield from _open_calls(id, [*shared, *lines])


def _open_calls(session_id: str, lines: list[_Line]) -> Iterator[Fault]:
    """Calls on the way to the newest entry that another reply follows; those at its end were simply cut off."""
    parents = {line.id: line for line in lines}
    way: dict[str, _Line] = {}
    line = lines[-1] if lines else None
    while line is not None and line.id not in way:
        way[line.id] = line
        line = parents.get(line.parent_id or "")
    waiting: set[str] = set()
    for line in reversed(way.values()):
        if line.calls:
            for call in sorted(waiting):
                text = f"Session {session_id}: call {call} has no result. Requests say so in its place."
                yield Fault("call", text, session_id, call)
            waiting = set(line.calls)
        waiting.discard(line.answers)


def _line(row: EntryRow) -> _Line:
    body = _readable(row).body
    is_intact = row.checksum in (None, crc32(row.body))
    calls = (
        tuple(block.id for block in body.content if isinstance(block, ToolUse)) if isinstance(body, Assistant) else ()
    )
    answers = body.result.tool_use_id if isinstance(body, Result) else ""
    error = body.error if isinstance(body, Unreadable) else ""
    return _Line(row.seq, row.id, row.parent_id, error, is_intact, calls, answers)


def _readable(row: EntryRow) -> Entry:
    return as_readable(
        {"id": row.id, "parent_id": row.parent_id, "time": row.time or 0.0, "schema_version": row.schema_version,
         "body": row.body}
    )  # fmt: skip


def _file_faults(db: apsw.Connection) -> list[Fault]:
    lines: list[str] = []
    try:
        lines.extend(str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_MOST_TOLD})"))
    except (apsw.Error, UnicodeDecodeError) as error:
        lines.append(str(error))
    return [Fault("file", f"The file is damaged: {line}.") for line in lines if line != "ok"]


class _Rebuild:
    """Fills a new database with what can be read of another one, in order and without gaps."""

    def __init__(self, scan: _Scan, old: Salvage, db: apsw.Connection, kept_as: str) -> None:
        self._scan = scan
        self._old = old
        self._db = db
        self._kept_as = kept_as
        self._sequence: dict[str, list[int]] = {}  # of each session the numbers that are there, in order

    def run(self) -> None:
        scan = self._scan
        self._sequence = {id: sorted({line.seq for line in lines}) for id, lines in scan.entries.items()}
        for id in scan.sessions.keys() | scan.entries:
            row, has_entries = scan.sessions.get(id), id in scan.entries
            if has_entries or (row is not None and not row.title):  # one without a title was emptied on purpose
                self._add_session(id, row)
        for id in scan.entries:
            self._add_entries(id)

    def _add_session(self, id: str, row: SessionRow | None) -> None:
        if row is None:
            rows = self._old.entries(id)
            first, last = rows[0].time or 0.0, rows[-1].time or 0.0
            row = SessionRow(id, "", "", title_of(map(_readable, rows)), first, last, None, None, 0, "")
        at = None if row.forked_from is None else self._new_seq(row.forked_from, row.forked_at or 0)
        row = row._replace(forked_from=row.forked_from if at is not None else None, forked_at=at)
        defaults = (id, "", "", "", 0.0, 0.0, None, None, 0, "")
        values = [given if given is not None else default for given, default in zip(row, defaults, strict=True)]
        query = f"INSERT INTO sessions ({', '.join(SessionRow._fields)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - our names
        self._db.execute(query, values)

    def _new_seq(self, session_id: str, seq: int) -> int | None:
        """The new number of an entry, or of the one before it that is there."""
        sequence = self._sequence.get(session_id, [])
        place = bisect_right(sequence, seq) - 1
        return sequence[0] + place if place >= 0 else None

    def _add_entries(self, id: str) -> None:
        shared = self._scan.inherited(id)
        known = {line.id for line in (*shared, *self._scan.entries[id])}
        before = shared[-1].id if shared else None
        first = self._sequence[id][0]
        rows = {row.seq: row for row in self._old.entries(id)}
        for n, seq in enumerate(sorted(rows)):
            row = rows[seq]
            parent = row.parent_id if row.parent_id is None or row.parent_id in known else before
            self._add(id, first + n, row._replace(parent_id=parent))
            before = row.id

    def _add(self, session_id: str, seq: int, row: EntryRow) -> None:
        """What cannot be read gives way to a note, unless a newer agentcli can read it."""
        entry = _readable(row)
        if isinstance(entry.body, Unreadable) and row.schema_version <= SCHEMA_VERSION:
            note = ContextNote(f"An entry that was damaged stood here: {self._kept_as} holds what is left of it.")
            insert(self._db, session_id, Stored((Entry(row.id, row.parent_id, row.time or 0.0, note),), seq))
            return
        body = row.body.decode(errors="replace")
        sound = row._replace(seq=seq, time=row.time or 0.0, kind=row.kind or "", checksum=crc32(body.encode()))
        self._db.execute(INSERT_ENTRY, {"session_id": session_id, **sound._asdict(), "body": body})


def _refuse_open_sessions(path: Path) -> None:
    for file in sorted((path.parent / "locks").glob("*.lock")):
        try:
            session_lock(path, file.stem).release()
        except filelock.Timeout as error:
            raise StorageError(
                f"Session {file.stem} is open: close every agentcli session, then repair. Nothing was changed."
            ) from error


@contextmanager
def _told_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise StorageError(
            f"{path} could not be repaired ({error}): make room for two copies of it in its folder, then try again. "
            "Nothing was changed."
        ) from error


@contextmanager
def _no_writers(path: Path) -> Iterator[None]:
    """Keep others from writing until another file is in the place of this one, which they then notice."""
    with closing(open_raw(path)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise StorageError(f"{path} is written by another program: try again when it has ended.") from error
        except apsw.Error:
            pass  # nobody else can write to it either
        yield


def _swap(path: Path, copy: Path, new: Path, kept: Path) -> None:
    """The copy is what is kept: at no moment is there no file, or a new file beside an old log."""
    log = copy.with_name(f"{copy.name}-wal")
    if log.exists() and log.stat().st_size:
        log.replace(kept.with_name(f"{kept.name}-wal"))
    copy.replace(kept)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new.replace(path)
    sync_folder(path.parent)
