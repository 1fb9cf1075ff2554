"""Opens the session database: its tables and older versions of them, the locks of sessions, the texts of failures."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import apsw
import filelock

from agentcli.conversation.entries import as_readable
from agentcli.conversation.titles import said_in_short
from agentcli.errors import StorageError
from agentcli.settings.files import make_private_folder

VERSION = 5
BUSY_TIMEOUT_MS = 5_000
_LOCK_TIMEOUT_S = 0.02  # somebody may only look whether a session is open

T = TypeVar("T")

# The entries of a session form a tree through parent_id; the newest one is the head. A fork has copies of the entries
# it begins with: `origin` is the `n` of the entry that was copied first, and of all copies outside the trash one is
# `own`, which counts where an entry counts once. `trashed` is 0, or how many times a session of that id has been moved
# to the trash. A result's id is its call's id, which a model may use again. `used` grows with each use of any session:
# unlike `updated` it holds when the clock was wrong. `checksum` is the CRC-32 of the body's bytes, NULL in old rows.
# `changes_of_files` is for blame. `words` is the search index, which keeps no text: its rowid is the entry's `n`.
# `streams` and `events` are what servers send to their readers; a stream that is removed leaves its last id.
_SESSIONS = """
CREATE TABLE sessions (
    id TEXT NOT NULL,
    trashed INTEGER NOT NULL DEFAULT 0,
    cwd TEXT NOT NULL,
    name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    title TEXT NOT NULL DEFAULT '',
    last_prompt TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    updated REAL NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (id, trashed)
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
CREATE TABLE entries (
    n INTEGER PRIMARY KEY,
    origin INTEGER NOT NULL,
    own INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    trashed INTEGER NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    parent_id TEXT,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    checksum INTEGER,
    body TEXT NOT NULL,
    UNIQUE (session_id, trashed, seq),
    FOREIGN KEY (session_id, trashed) REFERENCES sessions (id, trashed) ON UPDATE CASCADE
) STRICT;
CREATE INDEX entries_by_origin ON entries (origin);
CREATE INDEX changes_of_files ON entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
);
"""
_STREAMS = """
CREATE TABLE streams (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    last_id INTEGER NOT NULL,
    note TEXT NOT NULL,
    touched REAL NOT NULL,
    is_there INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
    stream INTEGER NOT NULL REFERENCES streams (number),
    id INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (stream, id)
) STRICT, WITHOUT ROWID;
"""
_BY_TIME = "CREATE INDEX streams_by_time ON streams (touched) WHERE is_there;"

# In version 4 a fork shared the entries of `forked_from` up to the number `forked_at`, and had none of its own before.
_FROM_4 = f"""
ALTER TABLE sessions RENAME TO old_sessions;
ALTER TABLE entries RENAME TO old_entries;
DROP INDEX sessions_by_use;
DROP INDEX changes_of_files;
DROP TABLE words;
DROP TABLE indexed;
{_SESSIONS}{_STREAMS}{_BY_TIME}
INSERT INTO sessions (id, cwd, name, user_id, title, created, updated, used)
SELECT id, cwd, name, user_id, title, created, updated, used FROM old_sessions;
CREATE TEMP TABLE numbers AS SELECT session_id, seq, row_number() OVER (ORDER BY time, seq) AS n FROM old_entries;
CREATE UNIQUE INDEX temp.places ON numbers (session_id, seq);
CREATE TEMP TABLE parts AS WITH RECURSIVE parts (session_id, source, until, depth) AS (
    SELECT id, id, {sys.maxsize}, 0 FROM old_sessions UNION ALL
    SELECT session_id, forked_from, forked_at, depth + 1 FROM parts JOIN old_sessions ON id = source
    WHERE forked_from IS NOT NULL AND depth < 1000
) SELECT * FROM parts;
INSERT INTO entries (n, origin, own, session_id, seq, id, parent_id, time, kind, schema_version, checksum, body)
SELECT CASE depth WHEN 0 THEN n END, n, depth = 0, parts.session_id,
    row_number() OVER (PARTITION BY parts.session_id ORDER BY depth DESC, old.seq),
    old.id, parent_id, time, kind, schema_version, checksum, body
FROM parts JOIN old_entries AS old ON old.session_id = source AND old.seq <= until
JOIN numbers ON numbers.session_id = old.session_id AND numbers.seq = old.seq ORDER BY depth > 0, n;
DROP TABLE parts;
DROP TABLE numbers;
DROP TABLE old_entries;
DROP TABLE old_sessions;
UPDATE sessions SET last_prompt = coalesce((
    SELECT prompt FROM (SELECT seq, in_short(schema_version, body) AS prompt FROM entries
    WHERE session_id = sessions.id AND kind = 'user') WHERE prompt <> '' ORDER BY seq DESC LIMIT 1
), '');
"""  # noqa: S608 - constants of this module
# From each released version to this one. Version 1 is that of a file with streams alone.
_STEPS = {0: _SESSIONS + _STREAMS + _BY_TIME, 1: _SESSIONS + _BY_TIME, 4: _FROM_4}


class NotWritable(StorageError):
    """The file cannot be written, nor opened as for writing; it may be possible to read it."""


def open_sessions(
    path: Path,
    on_notice: Callable[[str], None],
    restore: Callable[[Path], str],
    may_replace: bool,
    *,
    synchronous: str = "full",
) -> apsw.Connection:
    """Connect to the file of the sessions.

    With `may_replace` a damaged one is replaced by what `restore` can restore of it, which returns what to say about
    that, if anything; without it the damage is an error.
    """
    make_private_folder(path.parent)
    try:
        return connect(path, on_notice, synchronous=synchronous)
    except (apsw.NotADBError, apsw.CorruptError):
        if not may_replace:
            raise
    if notice := restore(path):
        on_notice(notice)
    return connect(path, on_notice, synchronous=synchronous)


def connect(
    path: Path, on_notice: Callable[[str], None] = lambda text: None, *, synchronous: str = "full"
) -> apsw.Connection:
    """A connection for writing to today's tables, which are made where there are none.

    A file that is not ours is refused before anything of it is changed.
    """
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("synchronous", synchronous)
        connection.transaction_mode = "IMMEDIATE"
        _add_functions(connection)
        if connection.pragma("user_version") != VERSION:
            with connection:  # from here on nobody else makes them
                _bring_up(connection, on_notice)
        connection.pragma("journal_mode", "wal")
        connection.pragma("foreign_keys", "on")
        if sys.platform == "darwin":  # there a plain fsync does not reach the disk
            connection.pragma("fullfsync", "on")
            connection.pragma("checkpoint_fullfsync", "on")
        path.chmod(0o600)
    except Exception:
        connection.close()
        raise
    return connection


def connect_to_memory() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(_STEPS[0])
    connection.pragma("foreign_keys", "on")
    return connection


def open_raw(path: Path) -> apsw.Connection:
    """A connection that changes neither the file nor its log by itself, not even when it is closed."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(1_000)
    _add_functions(connection)
    return connection


def read_copy(path: Path, work: Callable[[apsw.Connection], T], refused: NotWritable) -> T:
    """Read where SQLite cannot make the files it needs beside the database. Raises `StorageError`."""
    try:
        with tempfile.TemporaryDirectory(prefix="agentcli-") as folder:
            copy = Path(folder, path.name)
            copy_files(path, copy)
            copy.chmod(0o600)  # an older file is brought up
            with closing(connect(copy)) as connection:
                return work(connection)
    except (apsw.NotADBError, apsw.CorruptError) as damaged:
        raise failure(path, damaged) from damaged
    except (apsw.Error, OSError) as error:
        raise refused from error


def copy_files(source: Path, target: Path) -> None:
    """Copy a database with the write-ahead log beside it."""
    for suffix in ("", "-wal"):
        with suppress(FileNotFoundError):
            shutil.copy2(f"{source}{suffix}", f"{target}{suffix}")


def checked_version(connection: apsw.Connection) -> int:
    """The version of its tables, 0 if it has none.

    Raises `StorageError` for a file of a newer agentcli, or of another program.
    """
    version = int(connection.pragma("user_version"))
    if version > VERSION:
        raise StorageError(
            f"{connection.filename} was written by a newer agentcli (version {version}, this one knows {VERSION}): "
            "update agentcli."
        )
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if version not in (*_STEPS, VERSION) or (version == 0 and tables) or (version == 1 and "streams" not in tables):
        raise StorageError(f"{connection.filename} belongs to another program: move it away.")
    return version


def _bring_up(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    """Make the tables, or those of an older file into today's; such a file is copied first."""
    version = checked_version(connection)
    if version == VERSION:  # another program was faster
        return
    if version:
        kept = free_name(path := Path(connection.filename), f".v{version}")
        with vacuum_into(path, kept):  # by another connection, since this one writes
            pass
        on_notice(f"The session database is brought up to this version of agentcli: {kept} is the one of before.")
    connection.execute(_STEPS[version])
    connection.pragma("user_version", VERSION)


def _add_functions(connection: apsw.Connection) -> None:
    def in_short(*values: Any) -> str:
        version, body = values
        record = {"id": "", "parent_id": None, "time": 0.0, "schema_version": version, "body": body}
        return said_in_short(as_readable(record).body)

    connection.create_scalar_function("crc32", lambda *values: crc32(values[0]), 1, deterministic=True)
    connection.create_scalar_function("in_short", in_short, 2, deterministic=True)


@contextmanager
def vacuum_into(path: Path, target: Path) -> Iterator[Path]:
    """Write a copy of a database, with what is in its write-ahead log, that only its owner can read.

    It takes its place, with the time when this began, after the block, which is given it to look at.
    """
    began, part = time.time(), target.with_name(f"{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with closing(open_raw(path)) as db:
            db.execute("VACUUM INTO ?", (str(part),))
        yield part
        os.utime(part, (began, began))
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def free_name(path: Path, suffix: str) -> Path:
    """The path with the suffix, numbered from 2 on where one is taken: what is kept is never overwritten."""
    names = itertools.chain((suffix,), (f"{suffix}-{number}" for number in itertools.count(2)))
    return next(free for free in (path.with_name(path.name + name) for name in names) if not free.exists())


def sync_folder(folder: Path) -> None:
    """New names in a folder are on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def wanted_file(path: Path, session_id: str) -> Path:
    """Is there while another program waits for a session of the store `path`."""
    return path.parent / "locks" / f"{session_id}.wanted"


def _address_file(path: Path, session_id: str) -> Path:
    """Holds the address of the program that has a session of the store `path` open."""
    return path.parent / "locks" / f"{session_id}.address"


def holder_of(path: Path, session_id: str) -> str | None:
    """The address of the program that holds the lock of a session ("" without one); None where it is free."""
    lock = path.parent / "locks" / f"{session_id}.lock"
    if not lock.exists():
        return None
    try:
        with filelock.FileLock(lock, timeout=0):  # for a moment, which whoever opens the session waits for
            return None
    except filelock.Timeout:
        address = _address_file(path, session_id)
        return address.read_text() if address.exists() else ""


def lock_session(path: Path, session_id: str, *, address: str = "") -> filelock.BaseFileLock:
    """Hold the lock of a session in the store `path`; a killed program gives it up by dying.

    Raises `filelock.Timeout` when it is held, and `OSError`.
    """
    folder = path.parent / "locks"
    make_private_folder(folder)
    lock = filelock.FileLock(folder / f"{session_id}.lock", timeout=_LOCK_TIMEOUT_S)
    lock.acquire(poll_interval=_LOCK_TIMEOUT_S / 4)
    wanted_file(path, session_id).unlink(missing_ok=True)  # whoever waited for it has it now, or is gone
    if address:
        _address_file(path, session_id).write_text(address)
    else:
        _address_file(path, session_id).unlink(missing_ok=True)
    return lock


def failure(path: Path, error: Exception) -> StorageError:
    refused = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.FullError, apsw.IOError, OSError)
    kind = NotWritable if isinstance(error, refused) else StorageError
    return kind(_explain(path, error))


def _explain(path: Path, error: Exception) -> str:
    match error:
        case apsw.FullError():
            return f"The disk is full: {path} could not be written. Free some space; what was stored before is safe."
        case apsw.CorruptError() | apsw.NotADBError():
            repair = "agentcli sessions fsck --repair restores what can be restored"
            return f"{path} is damaged ({error}): {repair}, and --no-session does without."
        case apsw.ConstraintError():
            return f"{path} does not fit what is stored ({error}): was it replaced while the session was open?"
        case apsw.BusyError():
            return f"{path} is locked by another program for more than {BUSY_TIMEOUT_MS / 1000:g} s."
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | OSError():
            return (
                f"{path} could not be opened or written ({error}): check its folder's permissions, or use --no-session."
            )
        case _:
            return f"{path}: {error}."
