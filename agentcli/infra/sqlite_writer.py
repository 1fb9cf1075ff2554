"""The thread that writes to an SQLite database: work goes in, and is committed together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import apsw

from agentcli.errors import OUT_OF_MEMORY, StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[apsw.Connection], Any]


class Writer:
    """The thread that owns the only writing connection. Work queued together is committed together.

    `connect` opens today's tables; where it is given True, a sound file may take a damaged one's place. `failure` says
    what to tell of an error of SQLite or the disk.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[bool], apsw.Connection],
        failure: Callable[[Exception], StorageError],
        *,
        name: str,
    ) -> None:
        self._path = path
        self._connect = connect
        self._failure = failure
        self._name = name
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._file: tuple[int, int] = (0, 0)  # which one the connection writes to
        self.has_written = False

    def submit(self, work: Work, *, writes: bool = False) -> asyncio.Future[Any]:
        """Queue work, which is given the connection; one that `writes` gets a new file in place of a damaged one."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # later work must not wait for a thread that never ran
                raise StorageError(f"{self._path} could not be opened. {OUT_OF_MEMORY}") from error
            self._thread = thread
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
                    connection = self._connect(any(job.writes for job in jobs))
                    self._file = _identity(self._path)
                results = self._commit(connection, [job.work for job in jobs])
                self.has_written |= any(job.writes for job in jobs)
            except (apsw.Error, OSError, StorageError) as error:
                failure = error if isinstance(error, StorageError) else self._failure(error)
                for job in jobs:
                    job.tell(None, failure)
            except Exception as bug:  # nobody would be told anything any more if this thread ended
                log.exception("work on %s failed", self._path)
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
        with transaction(connection):
            if self._file != _identity(self._path):
                raise StorageError(f"{self._path} was replaced by another file just now: try again.")
            for work in works:
                try:
                    results.append(work(connection))
                except StorageError as error:
                    results.append(error)
        return results


class MemoryWriter(Writer):
    """Does the work for a database in memory, at once and without a thread."""

    def __init__(self, new_connection: Callable[[], apsw.Connection]) -> None:
        self._new_connection = new_connection
        self._connection: apsw.Connection | None = None

    def run(self, work: Callable[[apsw.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._new_connection()
        try:
            with transaction(self._connection):
                return work(self._connection)
        except (apsw.Error, UnicodeEncodeError) as error:
            raise StorageError(f"It could not be kept in memory: {error}.") from error

    def submit(self, work: Work, *, writes: bool = False) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            done.set_result(self.run(work))
        except StorageError as error:
            done.set_exception(error)
        return done

    async def drain(self) -> None:
        await asyncio.sleep(0)  # callbacks of what is done run meanwhile

    async def close(self) -> None:
        await asyncio.sleep(0)


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
    """Which file a path names now; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
