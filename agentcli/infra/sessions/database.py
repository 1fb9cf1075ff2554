"""Opens the session database, and says what to do when the file or the disk fails."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from agentcli.errors import StorageError
from agentcli.infra.sessions.files import free_name
from agentcli.infra.sessions.schema import prepare
from agentcli.settings.files import make_private_folder

BUSY_TIMEOUT_MS = 5_000

T = TypeVar("T")


class SessionDatabase:
    """Implements `Database` for the file of the sessions.

    `rebuild` puts what can be read of a damaged file in its place, and returns where the damaged one is kept: "" where
    nothing could be read. `on_notice` reports that to the person.
    """

    def __init__(self, path: Path, on_notice: Callable[[str], None], rebuild: Callable[[Path], str]) -> None:
        self._path = path
        self._on_notice = on_notice
        self._rebuild = rebuild

    def open(self, *, may_replace: bool) -> apsw.Connection:
        """With `may_replace` what can be read takes a damaged file's place; who only reads is told of the damage."""
        make_private_folder(self._path.parent)
        try:
            return connect(self._path, self._on_notice)
        except (apsw.NotADBError, apsw.CorruptError):
            if not may_replace:
                raise
            if kept := self._rebuild(self._path):
                self._on_notice(
                    f"The session database was damaged: it is kept as {kept}, and a new one holds what could be read."
                )
                return connect(self._path, self._on_notice)
            aside = free_name(self._path, f".damaged-{int(time.time())}")
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self._path.with_name(self._path.name + suffix).replace(aside.with_name(aside.name + suffix))
            self._on_notice(f"The session database was damaged: it is kept as {aside}, a new one was begun.")
            return connect(self._path, self._on_notice)

    def failure(self, error: Exception) -> StorageError:
        return _failure(self._path, error)


def on_a_copy(path: Path, work: Callable[[apsw.Connection], T], refused: NotWritable) -> T:
    """Read where SQLite cannot make the files it needs beside the database. Raises `StorageError`."""
    try:
        with tempfile.TemporaryDirectory(prefix="agentcli-") as folder:
            for suffix in ("", "-wal"):
                name = path.name + suffix
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path.with_name(name), Path(folder, name))
            connection = connect(Path(folder, path.name), lambda text: None)
            try:
                return work(connection)
            finally:
                connection.close()
    except (apsw.NotADBError, apsw.CorruptError) as damaged:
        raise _failure(path, damaged) from damaged
    except (apsw.Error, OSError) as error:
        raise refused from error


def connect(path: Path, on_notice: Callable[[str], None]) -> apsw.Connection:
    """A connection for writing to today's tables, which are made where there are none."""
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    try:
        _set_up(connection, on_notice)
        path.chmod(0o600)
    except Exception:
        connection.close()
        raise
    return connection


def _set_up(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    """Refuse a file that is not ours before anything of it is changed."""
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    connection.pragma("synchronous", "full")
    connection.transaction_mode = "IMMEDIATE"
    prepare(connection, on_notice)
    connection.pragma("journal_mode", "wal")
    connection.pragma("foreign_keys", "on")
    if sys.platform == "darwin":  # there a plain fsync does not reach the disk
        connection.pragma("fullfsync", "on")
        connection.pragma("checkpoint_fullfsync", "on")


class NotWritable(StorageError):
    """The file cannot be written, nor opened as for writing; it may be possible to read it."""


def _failure(path: Path, error: Exception) -> StorageError:
    refused = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.FullError, apsw.IOError, OSError)
    kind = NotWritable if isinstance(error, refused) else StorageError
    return kind(_said(path, error))


def _said(path: Path, error: Exception) -> str:
    match error:
        case apsw.FullError():
            return f"The disk is full: {path} could not be written. Free some space; what was stored before is safe."
        case apsw.CorruptError() | apsw.NotADBError():
            repair = "agentcli sessions fsck --repair makes a new one of what can be read"
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
