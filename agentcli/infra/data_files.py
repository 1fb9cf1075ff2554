"""Large results on disk: contents by their hash, and a link to them for each call that has one."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from msgspec import Struct

from agentcli.settings.files import make_private_folder
from agentcli.tools.data_files import DataFile, DataFiles

log = logging.getLogger(__name__)

AFTER_CLEANING = 0.8  # of the size that is allowed
_CHUNK = 1024 * 1024


class Bounds(Struct, frozen=True):
    """Limits of the age of files from their creation on and of their size together, and how often they are applied."""

    max_age_hours: float = 24.0
    max_size_gb: float = 10.0
    clean_every_minutes: float = 60.0


class DataFolder:
    """The files of all sessions in one folder, which several processes may use at once.

    `ab/cdef…` holds what has that hash, with the time when it was used last; `calls/SESSION/CALL` is a link to it, with
    the time when it was made. `is_resumable` tells for a session id whether that session can still be opened: what that
    names is never deleted. `outputs` holds a folder for each session with what its commands wrote, which is cleaned,
    too.
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

    def of_session(self, session_id: str) -> SessionData:
        self._bring_up()
        return SessionData(self, session_id)

    def add(self, source: Path, hash: str, size: int, call_id: str, session_id: str) -> DataFile:
        """Take a file over. Raises `OSError`."""
        path, link, now = self.folder / hash[:2] / hash[2:], self._link(session_id, call_id), self._clock()
        make_private_folder(path.parent)
        os.utime(source, (now, now))
        shutil.move(source, path)  # over an equal one, should there be one
        _make_link(link, hash, now)
        self.clean_when_due()
        return DataFile(path, hash, size, now, now, call_id, session_id)

    def find(self, call_id: str, session_id: str) -> DataFile | None:
        link, now = self._link(session_id, call_id), self._clock()
        try:
            created, hash = link.lstat().st_mtime, _hash_of(link)
            path = self.folder / hash[:2] / hash[2:]
            os.utime(path, (now, now))
            return DataFile(path, hash, path.stat().st_size, created, now, call_id, session_id)
        except FileNotFoundError:
            return None

    def share(self, source: str, target: str) -> None:
        """Let a session that goes on from another one find what that one kept."""
        for link in self._link(source, "").parent.glob("*"):
            copy = self._link(target, "").with_name(link.name)
            make_private_folder(copy.parent)
            with contextlib.suppress(FileExistsError):
                shutil.copy2(link, copy, follow_symlinks=False)

    def _link(self, session_id: str, call_id: str) -> Path:
        name = hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()
        return self.folder / "calls" / quote(session_id, safe="") / name

    def new_file(self) -> tuple[int, Path]:
        """An open, empty file in the folder, to be filled and then given to `add`."""
        make_private_folder(self.folder)
        descriptor, name = tempfile.mkstemp(prefix=".new.", dir=self.folder)
        return descriptor, Path(name)

    def clean(self) -> int:
        """Delete what is too old, then what was used least recently above the bound; gives how many files went."""
        self._bring_up()
        now, removed = self._clock(), 0
        links: defaultdict[str, list[Path]] = defaultdict(list)
        for link in self.folder.glob("calls/*/*"):
            links[_hash_of(link)].append(link)
        files = []
        for path in self.folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):  # others clean, too
                about = path.stat()
                made = [link.lstat().st_mtime for link in links[path.parent.name + path.name]]
                files.append(
                    (now - max(made, default=about.st_mtime) <= self._kept_s, about.st_mtime, about.st_size, path)
                )
        total = sum(size for _, _, size, _ in files)
        bound = self._largest * AFTER_CLEANING if total > self._largest else float("inf")
        for is_young, _, size, path in sorted(files):  # those that are too old come first
            if is_young and total <= bound:
                break
            named = links[path.parent.name + path.name]
            if any(self._is_resumable(unquote(session)) for session in {link.parent.name for link in named}):
                continue
            for link in (path, *named):
                link.unlink(missing_ok=True)
            total -= size
            removed += 1
        for session in self.folder.glob("calls/*"):
            with contextlib.suppress(OSError):
                session.rmdir()  # those that are empty now
        self._remove_leftovers(now)
        self._remove_outputs(now)
        return removed

    def _bring_up(self) -> None:
        """Make links from the database in which an earlier version kept the results of calls."""
        index = self.folder / "index.db"
        if not index.exists():
            return
        import apsw

        try:
            with contextlib.closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READWRITE)) as database:
                for session_id, call_id, hash, created in database.execute(
                    "SELECT session_id, call_id, hash, created FROM files"
                ):
                    if not os.path.lexists(link := self._link(session_id, call_id)):
                        _make_link(link, hash, created)
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            log.warning("Large results of earlier sessions cannot be found any more: %s (%s).", index, error)
        except (apsw.Error, OSError) as error:  # another program uses it, or nothing can be written now
            log.info("%s is read the next time: %s.", index, error)
            return
        with contextlib.suppress(OSError):
            for file in self.folder.glob("index.db*"):
                file.unlink(missing_ok=True)

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


def _make_link(link: Path, hash: str, created: float) -> None:
    make_private_folder(link.parent)
    new = link.with_name(f"{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(Path("..", "..", hash[:2], hash[2:]))
    os.utime(new, (created, created), follow_symlinks=False)
    new.replace(link)


def _hash_of(link: Path) -> str:
    return "".join(link.readlink().parts[-2:])


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
