"""The thread that writes to an SQLite database: work goes in, and is committed together."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import apsw

from agentcli.errors import OUT_OF_MEMORY, StorageError
from agentcli.infra.sessions.database import failure

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Job(NamedTuple):
    """Something to be done with the connection, and who waits for it; one that `writes` needs a sound file."""

    work: Callable[[apsw.Connection], Any]
    future: asyncio.Future[Any]
    writes: bool


class Writer:
    """The thread that owns the only writing connection. Work queued together is committed together.

    `connect` opens today's tables; where it is given True, a sound file may take a damaged one's place. Without a path
    the database is in memory: there is no thread, and work is done at once.
    """

    def __init__(self, path: Path | None, connect: Callable[[bool], apsw.Connection]) -> None:
        self._path = path or Path(":memory:")
        self._connect = connect
        self._has_thread = path is not None
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: apsw.Connection | None = None
        self._file: tuple[int, int] = (0, 0)  # which one the connection writes to
        self.has_written = False

    def submit(self, work: Callable[[apsw.Connection], T], *, writes: bool = False) -> asyncio.Future[T]:
        """Queue work, which is given the connection; one that `writes` gets a new file in place of a damaged one."""
        job = _Job(work, asyncio.get_running_loop().create_future(), writes)
        if not self._has_thread:
            _resolve(job.future, *self._results((job,)))
            return job.future
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name=f"agentcli-{self._path.name}", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:  # later work must not wait for a thread that never ran
                raise StorageError(f"{self._path} could not be opened. {OUT_OF_MEMORY}") from error
            self._thread = thread
        self._queue.put(job)
        return job.future

    async def drain(self) -> None:
        """Wait until everything queued so far is stored or has failed."""
        if self._thread is not None:
            with suppress(StorageError):
                await self.submit(lambda db: None)
        await asyncio.sleep(0)  # callbacks of what was done at once run meanwhile

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
            for one, result in zip(jobs, self._results(jobs), strict=True):
                with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                    one.future.get_loop().call_soon_threadsafe(_resolve, one.future, result)
            if job is not None:
                job = self._queue.get()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _results(self, jobs: Sequence[_Job]) -> list[Any]:
        """Do all work in one transaction; a `StorageError` stands for each that failed."""
        try:
            return self._commit(jobs)
        except (apsw.Error, OSError, UnicodeEncodeError) as error:
            return [failure(self._path, error)] * len(jobs)
        except StorageError as error:
            return [error] * len(jobs)
        except Exception as bug:  # nobody would get an answer any more if this thread ended
            log.exception("work on %s failed", self._path)
            return [StorageError(f"{self._path}: {bug!r}.")] * len(jobs)

    def _commit(self, jobs: Sequence[_Job]) -> list[Any]:
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
                except StorageError as error:  # it has changed nothing
                    results.append(error)
        self.has_written |= is_written
        return results


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if isinstance(result, StorageError):
        future.set_exception(result)
    else:
        future.set_result(result)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """As `with connection`, which would let no other thread run while it waits for a lock or the disk."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk has ended it already
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


def _identity(path: Path) -> tuple[int, int]:
    """Return which file a path names now; nothing where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
