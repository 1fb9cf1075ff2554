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

from agentcli.conversation.history import short_prompt
from agentcli.conversation.schema import as_readable
from agentcli.errors import StorageError
from agentcli.settings.files import make_private_folder

VERSION = 5
BUSY_TIMEOUT_MS = 5_000
_LOCK_TIMEOUT_S = 0.02  # somebody may only look whether a session is open
_COPY_EVERY_S = 86_400.0
_STEPS = (0, 1, 4)  # released versions that are brought up to this one; version 1 is that of a file with streams alone

T = TypeVar("T")


class NotWritable(StorageError):
    """The file cannot be written, nor opened as for writing; it may be possible to read it."""


def connect(
    path: Path, on_notice: Callable[[str], None] = lambda text: None, *, synchronous: str = "full"
) -> apsw.Connection:
    """Connect for writing to today's tables, made where there are none; another program's is refused untouched."""
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("synchronous", synchronous)
        connection.transaction_mode = "IMMEDIATE"
        _add_functions(connection)
        if connection.pragma("user_version") != VERSION:
            with connection:  # from here on nobody else makes them
                _upgrade_tables(connection, on_notice)
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


def connect_to_memory(may_replace: bool = False) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    connection.execute(_tables(0))
    connection.pragma("foreign_keys", "on")
    return connection


def open_raw(path: Path) -> apsw.Connection:
    """Return a connection that changes neither the file nor its log by itself, not even when it is closed."""
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
    """Return the version of its tables, 0 for none. Raises `StorageError` for a newer one and for another program's."""
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


def _upgrade_tables(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    """Make the tables, or those of an older file into today's; such a file is copied first."""
    version = checked_version(connection)
    if version == VERSION:  # another program was faster
        return
    if version:
        kept = free_name(path := Path(connection.filename), f".v{version}")
        with vacuum_into(path, kept):  # by another connection, since this one writes
            pass
        on_notice(f"The session database is brought up to this version of agentcli: {kept} is the one of before.")
    connection.execute(_tables(version))
    connection.pragma("user_version", VERSION)


def _tables(version: int) -> str:
    """Return the statements that make today's tables in a file of a version."""
    folder = Path(__file__).parent
    tables = (folder / "sqlite_tables.sql").read_text()
    return (folder / "sqlite_from_4.sql").read_text().replace("(sqlite_tables.sql)", tables) if version == 4 else tables


def _add_functions(connection: apsw.Connection) -> None:
    def in_short(*values: Any) -> str:
        version, body = values
        record = {"id": "", "parent_id": None, "time": 0.0, "schema_version": version, "body": body}
        return short_prompt(as_readable(record).body)

    connection.create_scalar_function("crc32", lambda *values: crc32(values[0]), 1, deterministic=True)
    connection.create_scalar_function("in_short", in_short, 2, deterministic=True)


@contextmanager
def vacuum_into(path: Path, target: Path) -> Iterator[Path]:
    """Copy a database with its log, for its owner alone; it takes its place after the block that looks at it."""
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
    """Return the path with the suffix, numbered from 2 on where one is taken: what is kept is never overwritten."""
    names = (f"{path.name}{suffix}{f'-{number}' * (number > 1)}" for number in itertools.count(1))
    return next(free for free in map(path.with_name, names) if not free.exists())


def copy_of(path: Path) -> Path:
    """Return the sound copy that is made of a database once a day."""
    return path.with_name(f"{path.name}.copy")


def is_copy_due(path: Path) -> bool:
    try:
        return abs(time.time() - copy_of(path).stat().st_mtime) > _COPY_EVERY_S
    except OSError:
        return path.exists()


def sync_folder(folder: Path) -> None:
    """Wait until new names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SessionLock:
    """The lock of a session, which a kill frees, with the holder's address, and `wanted` while another waits."""

    def __init__(self, path: Path, session_id: str) -> None:
        self._file, self._address, self.wanted = (
            path.parent / "locks" / f"{session_id}.{suffix}" for suffix in ("lock", "address", "wanted")
        )
        self._lock = filelock.FileLock(self._file, timeout=_LOCK_TIMEOUT_S)
        self.release = self._lock.release

    def acquire(self, *, address: str = "") -> None:
        """Raises `filelock.Timeout` when it is held, and `OSError`."""
        make_private_folder(self.wanted.parent)
        self._lock.acquire(poll_interval=_LOCK_TIMEOUT_S / 4)
        self.wanted.unlink(missing_ok=True)  # whoever waited for it has it now, or is gone
        if address:
            self._address.write_text(address)
        else:
            self._address.unlink(missing_ok=True)

    def holder(self) -> str | None:
        """Return the address of the program that has it ("" without one); None where it is free."""
        if not self._file.exists():
            return None
        try:
            with self._lock.acquire(timeout=0):  # for a moment, which whoever opens the session waits for
                return None
        except filelock.Timeout:
            return self._address.read_text() if self._address.exists() else ""


def failure(path: Path, error: Exception) -> StorageError:
    match error:
        case apsw.FullError():
            text = f"The disk is full: {path} could not be written. Free some space; what was stored before is safe."
        case apsw.CorruptError() | apsw.NotADBError():
            repair = "agentcli sessions fsck --repair restores what can be restored"
            return StorageError(f"{path} is damaged ({error}): {repair}, and --no-session does without.")
        case apsw.ConstraintError():
            return StorageError(
                f"{path} does not fit what is stored ({error}): was it replaced while the session was open?"
            )
        case apsw.BusyError():
            return StorageError(f"{path} is locked by another program for more than {BUSY_TIMEOUT_MS / 1000:g} s.")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | OSError():
            text = (
                f"{path} could not be opened or written ({error}): check its folder's permissions, or use --no-session."
            )
        case apsw.IOError():
            text = f"{path}: {error}."
        case _:
            return StorageError(f"{path}: {error}.")
    return NotWritable(text)
