"""The SQLite file of the sessions: its tables and their versions, its copies, locks, and the thread that writes."""

import asyncio
import logging
import os
import queue
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import apsw

from agentcli.conversation.history import short_prompt
from agentcli.conversation.schema import as_readable
from agentcli.errors import OUT_OF_MEMORY, StorageError
from agentcli.settings.files import FileLock, make_private_folder

VERSION = 5
BUSY_TIMEOUT_MS = 5_000
_LOCK_TIMEOUT_S = 0.02  # another program may hold the lock for a moment, only to see if the session is open
_COPY_EVERY_S = 86_400.0
_OLD_VERSIONS = (0, 1, 4)  # released versions that are upgraded; 0 is an empty file, 1 has only the event streams

T = TypeVar("T")

log = logging.getLogger(__name__)


class NotWritable(StorageError):
    """The file cannot be opened for writing. It may be possible to read it."""


def connect(
    path: Path, on_notice: Callable[[str], None] = lambda text: None, *, synchronous: str = "full"
) -> apsw.Connection:
    """Connect for writing, and make or upgrade the tables. Raises `StorageError`, also for a foreign file."""
    if why := why_incomplete(path):  # SQLite would go on without what is missing
        raise apsw.CorruptError(why)
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("synchronous", synchronous)
        _add_functions(connection)
        if connection.pragma("user_version") != VERSION:
            with transaction(connection):  # it keeps other programs from doing the same
                _upgrade_tables(connection, on_notice)
        connection.pragma("journal_mode", "wal")
        connection.pragma("foreign_keys", "on")
        if sys.platform == "darwin":  # on a Mac a plain fsync does not reach the disk
            connection.pragma("fullfsync", "on")
            connection.pragma("checkpoint_fullfsync", "on")
        path.chmod(0o600)
    except Exception:
        connection.close()
        raise
    return connection


def connect_to_memory() -> apsw.Connection:
    """Connect to a new database in memory, for sessions and events that are not stored."""
    connection = apsw.Connection(":memory:")
    connection.execute(_tables(0))
    connection.pragma("foreign_keys", "on")
    return connection


def open_raw(path: Path) -> apsw.Connection:
    """Return a connection that by itself changes neither the file nor its log, not even when it is closed."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(1_000)
    _add_functions(connection)
    return connection


def read_copy(path: Path, work: Callable[[apsw.Connection], T], first_error: NotWritable) -> T:
    """Read a copy of a database in whose folder SQLite cannot make files; if that fails, too, raise `first_error`."""
    import shutil
    from tempfile import TemporaryDirectory

    try:
        with TemporaryDirectory(prefix="agentcli-") as folder:
            copy = Path(folder, path.name)
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copy2(f"{path}{suffix}", f"{copy}{suffix}")
            copy.chmod(0o600)  # writable, so that an older version can be upgraded
            with closing(connect(copy)) as connection:
                return work(connection)
    except (apsw.NotADBError, apsw.CorruptError) as damaged:
        raise storage_error(path, damaged) from damaged
    except (apsw.Error, OSError) as error:
        raise first_error from error


def checked_version(connection: apsw.Connection) -> int:
    """Return a file's version, 0 if it is empty. Raises `StorageError` for a newer file, or another program's."""
    version = int(connection.pragma("user_version"))
    if version > VERSION:
        raise StorageError(
            f"{connection.filename} was written by a newer agentcli (version {version}, this one knows {VERSION}): "
            "update agentcli."
        )
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    is_ours = version in (*_OLD_VERSIONS, VERSION)
    if version in (0, 1):  # other programs use these, too
        is_ours = not tables if version == 0 else "streams" in tables
    if not is_ours:
        raise StorageError(f"{connection.filename} belongs to another program: move it away.")
    return version


def _upgrade_tables(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    """Make the tables, or upgrade those of an older file after copying it."""
    version = checked_version(connection)
    if version == VERSION:  # another program has upgraded it in the meantime
        return
    if version:
        path = Path(connection.filename)
        old_file = path.with_name(f"{path.name}.v{version}")
        if old_file.exists():  # of an upgrade that failed: a kept file is never overwritten
            old_file = old_file.with_name(f"{old_file.name}-{time.time_ns()}")
        with vacuum_into(path, old_file):  # over another connection, because this one is in a transaction
            pass
        on_notice(f"The session database was upgraded for this version of agentcli. The old one is kept as {old_file}.")
    connection.execute(_tables(version))
    connection.pragma("user_version", VERSION)


def _tables(version: int) -> str:
    """Return the statements that add the tables to a file of version 0 or 1, or upgrade one of version 4."""
    folder = Path(__file__).parent
    tables = (folder / "sqlite_tables.sql").read_text()  # a line of the upgrade is a placeholder for these
    return (folder / "sqlite_from_4.sql").read_text().replace("(sqlite_tables.sql)", tables) if version == 4 else tables


def _add_functions(connection: apsw.Connection) -> None:
    """Add the SQL functions `crc32(body)` and `in_short(schema_version, body)`, which makes a title of a prompt."""

    def in_short(*values: Any) -> str:
        version, body = values
        record = {"id": "", "parent_id": None, "time": 0.0, "schema_version": version, "body": body}
        return short_prompt(as_readable(record).body)

    connection.create_scalar_function("crc32", lambda *values: crc32(values[0]), 1, deterministic=True)
    connection.create_scalar_function("in_short", in_short, 2, deterministic=True)


@contextmanager
def vacuum_into(path: Path, target: Path) -> Iterator[Path]:
    """Copy a database and its log into a private file, which the body may check before it becomes `target`."""
    if why := why_incomplete(path):  # its copy would replace a good one
        raise apsw.CorruptError(why)
    part = target.with_name(f"{target.name}.part")
    began = time.time()
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with closing(open_raw(path)) as db:
            db.execute("VACUUM INTO ?", (str(part),))
        yield part
        os.utime(part, (began, began))  # entries that were stored later may be missing in the copy
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def copy_of(path: Path) -> Path:
    """Return the path of the sound copy that is made once a day."""
    return path.with_name(f"{path.name}.copy")


def moved_log(path: Path, suffix: str) -> Path:
    """Return the path to which a repair moves a file's log (`-wal` or `-shm`) until the file is replaced."""
    file = path.resolve()
    return file.with_name(f"{file.name}{suffix}.{file.stat().st_ino}")  # with the inode, because a new file has no log


def why_incomplete(path: Path) -> str:
    """Return why a file is incomplete (it has a copy but no contents, or a repair has moved its log), or ""."""
    if not path.is_file():
        return ""
    if not path.stat().st_size and copy_of(path).exists():
        return "it is empty"
    return "its repair was not finished" if moved_log(path, "-wal").exists() else ""


def is_copy_due(path: Path) -> bool:
    try:
        return abs(time.time() - copy_of(path).stat().st_mtime) > _COPY_EVERY_S  # abs: the clock may be set back
    except OSError:  # there is no copy yet
        return path.exists()


def sync_folder(folder: Path) -> None:
    """Wait until new names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SessionLock:
    """The lock of a session, which the system releases if the holder is killed.

    `wanted_file` exists while another program asks for the session. A third file has the holder's address.
    """

    def __init__(self, path: Path, session_id: str) -> None:
        self._file, self._address, self.wanted_file = (
            path.parent / "locks" / f"{session_id}.{suffix}" for suffix in ("lock", "address", "wanted")
        )
        self._lock = FileLock(self._file, timeout_s=_LOCK_TIMEOUT_S, poll_s=_LOCK_TIMEOUT_S / 4)
        self.release = self._lock.release

    def acquire(self, *, address: str = "") -> None:
        """Take the lock. Raises `TimeoutError` if another program has it, and `OSError`."""
        make_private_folder(self.wanted_file.parent)
        self._lock.acquire()
        self.wanted_file.unlink(missing_ok=True)  # a program that still waits makes it again
        if address:
            self._address.write_text(address)
        else:
            self._address.unlink(missing_ok=True)

    def holder(self) -> str | None:
        """Return the address of the program that has the lock ("" without one), None if it is free."""
        if not self._file.exists():
            return None
        if self._lock.try_acquire():  # a program that opens the session just now waits for `_LOCK_TIMEOUT_S`
            self._lock.release()
            return None
        return self._address.read_text() if self._address.exists() else ""


_FAILURES: dict[type[Exception] | tuple[type[Exception], ...], str] = {  # messages; the first that fits applies
    (apsw.CorruptError, apsw.NotADBError): "{path} is damaged ({error}). agentcli sessions fsck --repair restores what "
    "can be restored, and --no-session does without.",
    apsw.ConstraintError: "{path} does not fit what is stored ({error}). Was it replaced while the session was open?",
    apsw.BusyError: "Another program has locked {path} for more than {busy_s:g} s. Try again when it has ended.",
    apsw.FullError: "The disk is full: {path} could not be written. Free some space. What was stored before is safe.",
    (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, OSError): "{path} could not be opened or written "
    "({error}). Check that it is a file, and its folder's permissions, or use --no-session.",
    Exception: "{path}: {error}.",
}
_MAY_BE_READ = (apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, OSError, apsw.IOError)


def storage_error(path: Path, error: Exception) -> StorageError:
    template = next(text for kinds, text in _FAILURES.items() if isinstance(error, kinds))
    text = template.format(path=path, error=error, busy_s=BUSY_TIMEOUT_MS / 1000)
    return NotWritable(text) if isinstance(error, _MAY_BE_READ) else StorageError(text)


_Job = tuple[Callable[[apsw.Connection], Any], asyncio.Future[Any]]  # work, and the future for its result


class Writer:
    """Owns the only writing connection, in a thread. Work that waits at the same time is committed together.

    Without a path the database is in memory: there is no thread, and work is done at once.
    """

    loop: asyncio.AbstractEventLoop  # of the last caller of `submit`

    def __init__(self, path: Path | None, connect: Callable[[], apsw.Connection]) -> None:
        self._has_thread = path is not None
        self._path = path or Path(":memory:")  # for messages
        self._connect = connect
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None

    def submit(self, work: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Queue work on the connection. Raises `StorageError`."""
        self.loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = self.loop.create_future()
        if not self._has_thread:
            (result,) = self._results([(work, future)])
            _resolve(future, result)
            return future
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"agentcli-{self._path.name}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # later work must not wait for a thread that does not run
                raise StorageError(f"{self._path} could not be opened. {OUT_OF_MEMORY}") from error
            self._thread = thread
        self._queue.put((work, future))
        return future

    async def drain(self) -> None:
        """Wait until everything queued so far is stored or has failed."""
        if self._thread is not None:
            with suppress(StorageError):
                await self.submit(lambda db: None)
        await asyncio.sleep(0)  # work in memory was done at once; its callbacks run here

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()  # it has little left to do, and nothing else runs at this point

    def _serve(self) -> None:
        """Do the queued work in this thread, all waiting jobs as one batch, until `close` queues None."""
        is_closed = False
        while not is_closed:
            waiting = [self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            batch = [job for job in waiting if job is not None]
            is_closed = len(batch) < len(waiting)
            results = self._results(batch) if batch else []
            for (_, future), result in zip(batch, results, strict=True):
                with suppress(RuntimeError):  # the loop has ended, so nobody waits any more
                    future.get_loop().call_soon_threadsafe(_resolve, future, result)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _results(self, jobs: Sequence[_Job]) -> list[Any]:
        """Do all work in one transaction; the result of failed work is a `StorageError`."""
        try:
            return self._commit(jobs)
        except (apsw.Error, OSError, UnicodeEncodeError) as error:
            return [storage_error(self._path, error)] * len(jobs)
        except StorageError as error:
            return [error] * len(jobs)
        except Exception as bug:  # if this thread ended, nobody would ever get an answer
            log.exception("work on %s failed", self._path)
            return [StorageError(f"{self._path}: {bug!r}.")] * len(jobs)

    def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        """Do all work in one transaction, and return the results; work may fail alone with a `StorageError`."""
        if self._connection is not None and _is_replaced(self._connection):  # by a repair
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = self._connect()
        results: list[Any] = []
        with transaction(self._connection):
            for work, _ in jobs:
                try:
                    results.append(work(self._connection))
                except StorageError as error:  # work that raises it has changed nothing
                    results.append(error)
        return results


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():  # the caller was cancelled
        return
    if isinstance(result, StorageError):
        future.set_exception(result)
    else:
        future.set_result(result)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run the body in a transaction. `with connection` would stop all threads while it waits for a lock or the disk.

    Raises `StorageError` if the file was replaced: writing to it would damage the new one, whose log has the same name.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_replaced(connection):
            raise StorageError(f"{connection.filename} was replaced by another file just now. Try again.")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


def _is_replaced(connection: apsw.Connection) -> bool:
    """Return True if the path of a connection's file leads to another file by now, or to none."""
    has_moved = array("i", [0])  # SQLite writes into it
    connection.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, has_moved.buffer_info()[0])
    return bool(has_moved[0])
