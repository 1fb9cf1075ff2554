"""The thread that writes to an SQLite database: work goes in, and is committed together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from agentcli.errors import OUT_OF_MEMORY, StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]


class Writer:
    """The thread that owns the only writing connection. Work queued together is committed together.

    `connect` opens today's tables; where it is given True, a sound file may take a damaged one's place. `failure`
    makes what is raised of an error of SQLite or the disk.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[bool], apsw.Connection],
        failure: Callable[[Path, Exception], StorageError],
        *,
        name: str,
    ) -> None:
        self._path = path
        self._connect = connect
        self._failure = failure
        self._name = name
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        self._file: tuple[int, int] = (0, 0)  # which one the connection writes to
        self.has_written = False

    def submit(self, work: Work[T], *, writes: bool = False) -> asyncio.Future[T]:
        """Queue work, which is given the connection; one that `writes` gets a new file in place of a damaged one."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # later work must not wait for a thread that never ran
                raise StorageError(f"{self._path} could not be opened. {OUT_OF_MEMORY}") from error
            self._thread = thread
        self._queue.put(_Job(work, future, writes))
        return future

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
        job = self._queue.get()
        while job is not None:
            jobs = [job]
            while not self._queue.empty() and (job := self._queue.get()) is not None:
                jobs.append(job)
            try:
                results = self._commit(jobs)
            except (apsw.Error, OSError) as error:
                results = [self._failure(self._path, error)] * len(jobs)
            except StorageError as error:
                results = [error] * len(jobs)
            except Exception as bug:  # nobody would get an answer any more if this thread ended
                log.exception("work on %s failed", self._path)
                results = [StorageError(f"{self._path}: {bug!r}.")] * len(jobs)
            for one, result in zip(jobs, results, strict=True):
                with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    one.future.get_loop().call_soon_threadsafe(_resolve, one.future, result)
            if job is not None:
                job = self._queue.get()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
        """Do all work in one transaction; one that raises `StorageError` fails alone (it has changed nothing)."""
        if self._connection is not None and self._file != _identity(self._path):
            self._connection.close()  # a repair has put another one in its place
            self._connection = None
        is_written = any(job.writes for job in jobs)
        if self._connection is None:
            self._connection = self._connect(is_written)
            self._file = _identity(self._path)
        results: list[Any] = []
        with transaction(self._connection):
            if self._file != _identity(self._path):
                raise StorageError(f"{self._path} was replaced by another file just now: try again.")
            for job in jobs:
                try:
                    results.append(job.work(self._connection))
                except StorageError as error:
                    results.append(error)
        self.has_written |= is_written
        return results


class MemoryWriter(Writer):
    """Does the work for a database in memory, at once and without a thread."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        super().__init__(Path(), lambda may_replace: connect(), lambda path, error: StorageError(str(error)), name="")

    def run(self, work: Work[T]) -> T:
        if self._connection is None:
            self._connection = self._connect(False)
        try:
            with transaction(self._connection):
                return work(self._connection)
        except (apsw.Error, UnicodeEncodeError) as error:
            raise StorageError(f"It could not be kept in memory: {error}.") from error

    def submit(self, work: Work[T], *, writes: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self.run(work))
        except StorageError as error:
            done.set_exception(error)
        return done

    async def drain(self) -> None:
        await asyncio.sleep(0)  # callbacks of what is done run meanwhile


class _Job(NamedTuple):
    """Something to be done with the connection, and who waits for it; one that `writes` needs a sound file."""

    work: Work[Any]
    future: asyncio.Future[Any]
    writes: bool


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, StorageError):
        future.set_exception(result)
    else:
        future.set_result(result)


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
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
    """Return which file a path names now; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
