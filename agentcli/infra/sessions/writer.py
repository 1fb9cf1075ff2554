"""The thread that writes to the session database, and what it says when the file or the disk fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import apsw

from agentcli.errors import StorageError
from agentcli.infra.sessions.files import free_name
from agentcli.infra.sessions.schema import prepare

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5_000

T = TypeVar("T")
Work = Callable[[apsw.Connection], Any]


class Writer:
    """The thread that owns the only writing connection. Work queued together is committed together."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        self._path = path
        self._on_notice = on_notice
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: tuple[int, int] = (0, 0)  # which one the connection writes to

    def submit(self, work: Work, *, writes: bool = False) -> asyncio.Future[Any]:
        """Queue work, which is given the connection; one that `writes` gets a new file in place of a damaged one."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="agentcli-sessions", daemon=True)
            self._thread.start()
        self._queue.put(_Job(work, future, loop, writes))
        return future

    async def call(self, work: Callable[[apsw.Connection], T]) -> T:
        result: T = await self.submit(work)
        return result

    async def drain(self) -> None:
        """Wait until everything queued so far is stored or has failed."""
        if self._thread is not None:
            with contextlib.suppress(StorageError):
                await self.submit(lambda db: None)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()  # it has little left to do, and nothing else runs at this point

    def _serve(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._queue.get()) is not None:
            jobs = [job]
            stop = False
            while not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    stop = True
                    break
                jobs.append(following)
            try:
                if connection is not None and self._file != _identity(self._path):
                    connection.close()  # a repair has put another one in its place
                    connection = None
                if connection is None:
                    connection = self._opened(may_replace=any(job.writes for job in jobs))
                results = self._commit(connection, [job.work for job in jobs])
            except (apsw.Error, OSError, StorageError) as error:
                failure = error if isinstance(error, StorageError) else _failure(self._path, error)
                for job in jobs:
                    job.tell(None, failure)
            except Exception as bug:  # nobody would be told anything any more if this thread ended
                log.exception("work on the session database failed")
                for job in jobs:
                    job.tell(None, StorageError(f"{self._path}: {bug!r}."))
            else:
                for job, result in zip(jobs, results, strict=True):
                    job.tell(result, result if isinstance(result, StorageError) else None)
            if stop:
                break
        if connection is not None:
            connection.close()

    def _commit(self, connection: apsw.Connection, works: Sequence[Work]) -> list[Any]:
        """All works in one transaction; one that raises `StorageError` fails alone (it has changed nothing)."""
        results: list[Any] = []
        with _transaction(connection):
            if self._file != _identity(self._path):
                raise StorageError(f"{self._path} was replaced by another file just now: try again.")
            for work in works:
                try:
                    results.append(work(connection))
                except StorageError as error:
                    results.append(error)
        return results

    def _opened(self, *, may_replace: bool) -> apsw.Connection:
        """With `may_replace` what can be read takes a damaged file's place; who only reads is told of the damage."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            return self._connected()
        except (apsw.NotADBError, apsw.CorruptError):
            if not may_replace:
                raise
            if kept := self._rebuilt():
                self._on_notice(
                    f"The session database was damaged: it is kept as {kept}, and a new one holds what could be read."
                )
                return self._connected()
            aside = free_name(self._path, f".damaged-{int(time.time())}")
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    self._path.with_name(self._path.name + suffix).replace(aside.with_name(aside.name + suffix))
            self._on_notice(f"The session database was damaged: it is kept as {aside}, a new one was begun.")
            return self._connected()

    def _rebuilt(self) -> str:
        """Where the damaged file is kept, once another is in its place; empty where nothing can be made of it."""
        with contextlib.suppress(StorageError):
            kept: str = import_module("agentcli.infra.sessions.fsck").repair(self._path, even_if_open=True).kept_as
            return kept
        return ""

    def _connected(self) -> apsw.Connection:
        connection = connect(self._path, self._on_notice)
        self._file = _identity(self._path)
        return connection


@dataclass(frozen=True)
class _Job:
    """Something to be done with the connection, and who waits for it; one that `writes` needs a sound file."""

    work: Work
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    writes: bool

    def tell(self, result: Any, error: StorageError | None) -> None:
        def settle() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self.loop.call_soon_threadsafe(settle)


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


@contextlib.contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    """As `with connection`, which would let no other thread run while it waits for a lock or the disk."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            with contextlib.suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int]:
    """Which file a path names now; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


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
