"""Large results on disk: contents by their hash, and a small database that says which calls they belong to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
from msgspec import Struct

from agentcli.settings.files import make_private_folder
from agentcli.tools.data_files import DataFile, DataFiles

VERSION = 1
AFTER_CLEANING = 0.8  # of the size that is allowed
_CHUNK = 1024 * 1024

# One row for each call; several may name one file.
_TABLES = """
CREATE TABLE files (
    hash TEXT NOT NULL,
    size INTEGER NOT NULL,
    created REAL NOT NULL,
    accessed REAL NOT NULL,
    call_id TEXT NOT NULL,
    session_id TEXT NOT NULL,
    PRIMARY KEY (session_id, call_id)
) STRICT;
CREATE INDEX files_by_hash ON files (hash);
"""


class Bounds(Struct, frozen=True):
    """How long files are kept from their creation on, how large all are together, and how often that is seen to."""

    max_age_hours: float = 24.0
    max_size_gb: float = 10.0
    clean_every_minutes: float = 60.0


class DataFolder:
    """The files of all sessions in one folder, which several processes may use at once.

    `is_resumable` tells for a session id whether that session can still be opened: what it names is never deleted.
    `outputs` holds a folder for each session with what its commands wrote, which is cleaned with the rest.
    """

    def __init__(
        self,
        folder: Path,
        *,
        outputs: Path | None = None,
        is_resumable: Callable[[str], bool] = lambda session_id: False,
        bounds: Bounds = Bounds(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._outputs = outputs
        self._is_resumable = is_resumable
        self._kept_s = bounds.max_age_hours * 3_600
        self._largest = bounds.max_size_gb * 1024**3
        self._cleaned_every_s = bounds.clean_every_minutes * 60
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._lock = threading.Lock()  # calls come from several threads

    def of_session(self, session_id: str) -> SessionData:
        return SessionData(self, session_id)

    def add(self, source: Path, hash: str, size: int, call_id: str, session_id: str) -> DataFile:
        """Take a file over. Raises `OSError`."""
        path = self._path(hash)
        make_private_folder(path.parent)
        shutil.move(source, path)  # over an equal one, should there be one
        now = self._clock()
        with self._database() as database:
            database.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", (hash, size, now, now, call_id, session_id)
            )
        self.clean_when_due()
        return DataFile(path, hash, size, now, now, call_id, session_id)

    def find(self, call_id: str, session_id: str) -> DataFile | None:
        with self._database() as database:
            row: Any = database.execute(
                "UPDATE files SET accessed = ? WHERE session_id = ? AND call_id = ? RETURNING hash, size, created",
                (self._clock(), session_id, call_id),
            ).get
        if row is None:
            return None
        hash, size, created = row
        path = self._path(hash)
        return DataFile(path, hash, size, created, self._clock(), call_id, session_id) if path.exists() else None

    def share(self, source: str, target: str) -> None:
        """Let a session that goes on from another one find what that one kept."""
        with self._database() as database:
            database.execute(
                "INSERT OR IGNORE INTO files SELECT hash, size, created, accessed, call_id, ? FROM files "
                "WHERE session_id = ?",
                (target, source),
            )

    def new_file(self) -> tuple[int, Path]:
        """An open, empty file in the folder, to be filled and then given to `add`."""
        make_private_folder(self.folder)
        descriptor, name = tempfile.mkstemp(prefix=".new.", dir=self.folder)
        return descriptor, Path(name)

    def clean(self) -> int:
        """Delete what is too old, then what was used least recently above the bound; gives how many files went."""
        now, removed = self._clock(), 0
        with self._database() as database:
            rows: list[Any] = database.execute(
                "SELECT hash, max(size), max(created) FROM files GROUP BY hash ORDER BY max(accessed)"
            ).fetchall()
            total = sum(size for _, size, _ in rows)
            bound = self._largest * AFTER_CLEANING if total > self._largest else float("inf")
            rows.sort(key=lambda row: now - row[2] <= self._kept_s)  # those that are too old come first
            for hash, size, created in rows:
                if now - created <= self._kept_s and total <= bound:
                    break
                if self._is_named(database, hash):
                    continue
                database.execute("DELETE FROM files WHERE hash = ?", (hash,))
                self._path(hash).unlink(missing_ok=True)
                total -= size
                removed += 1
        self._remove_leftovers(now)
        self._remove_outputs(now)
        return removed

    def _is_named(self, database: apsw.Connection, hash: str) -> bool:
        rows: Any = database.execute("SELECT DISTINCT session_id FROM files WHERE hash = ?", (hash,))
        return any(self._is_resumable(session_id) for (session_id,) in rows.fetchall())

    def _remove_leftovers(self, now: float) -> None:
        """Remove files that a crash left half written."""
        for path in self.folder.glob(".new.*"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > self._kept_s:
                    path.unlink()

    def _remove_outputs(self, now: float) -> None:
        """Remove the output of commands whose sessions cannot be resumed; of a running one, something is newer."""
        for folder in self._outputs.glob("*/") if self._outputs is not None else ():
            with contextlib.suppress(OSError):
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - newest > self._kept_s and not self._is_resumable(folder.name):
                    shutil.rmtree(folder)

    def clean_when_due(self) -> None:
        """Clean if that was not done a short while ago. Raises `OSError`."""
        if not self.folder.is_dir():
            if self._outputs is None or not self._outputs.is_dir():
                return
            make_private_folder(self.folder)
        stamp = self.folder / ".cleaned"
        with contextlib.suppress(FileNotFoundError):
            if abs(self._clock() - stamp.stat().st_mtime) < self._cleaned_every_s:
                return
        stamp.touch()
        os.utime(stamp, (self._clock(), self._clock()))
        self.clean()

    def _path(self, hash: str) -> Path:
        return self.folder / hash[:2] / hash[2:]

    @contextlib.contextmanager
    def _database(self) -> Iterator[apsw.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection:
                    yield self._connection
            except apsw.Error as error:
                raise OSError(5, f"the index of {self.folder} could not be used: {error}") from error

    def _open(self) -> apsw.Connection:
        make_private_folder(self.folder)
        connection = apsw.Connection(str(self.folder / "index.db"))
        connection.set_busy_timeout(5_000)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", 1)
        with connection:
            version: Any = connection.pragma("user_version")
            if version > VERSION:
                raise OSError(5, f"{self.folder} was written by a newer agentcli: update it")
            if version == 0:
                connection.execute(_TABLES)
                connection.pragma("user_version", VERSION)
        return connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class SessionData:
    """Implements `DataFiles` for one session."""

    def __init__(self, folder: DataFolder, session_id: str) -> None:
        self._folder = folder
        self._session_id = session_id

    def store(self, content: bytes, call_id: str) -> DataFile:
        descriptor, path = self._folder.new_file()
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            hash = hashlib.sha256(content).hexdigest()
            return self._folder.add(path, hash, len(content), call_id, self._session_id)
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def adopt(self, path: Path, call_id: str) -> DataFile:
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return self._folder.add(path, digest.hexdigest(), size, call_id, self._session_id)

    def find(self, call_id: str) -> DataFile | None:
        return self._folder.find(call_id, self._session_id)


if TYPE_CHECKING:
    _: type[DataFiles] = SessionData
