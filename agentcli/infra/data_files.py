"""Large results on disk: contents by their hash, and a link to them for each call that has one."""

from __future__ import annotations

import contextlib
import hashlib
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

AFTER_CLEANING = 0.8  # of the size that is allowed


class Retention(Struct, frozen=True):
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
        bounds: Retention = Retention(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._outputs = outputs
        self._is_resumable = is_resumable
        self._kept_s = bounds.max_age_hours * 3_600
        self._largest = bounds.max_size_gb * 1024**3
        self._cleaned_every_s = bounds.clean_every_minutes * 60
        self.clock = clock

    def of_session(self, session_id: str) -> SessionData:
        return SessionData(self, session_id)

    def share(self, source: str, target: str) -> None:
        """Let a session that goes on from another one find what that one kept."""
        for link in self.links_of(source).glob("*"):
            copy = self.links_of(target) / link.name
            make_private_folder(copy.parent)
            with contextlib.suppress(FileExistsError):
                shutil.copy2(link, copy, follow_symlinks=False)

    def links_of(self, session_id: str) -> Path:
        return self.folder / "calls" / quote(session_id, safe="")

    def clean(self) -> int:
        """Delete what is too old, then what was used least recently above the bound; returns how many files went."""
        now, removed = self.clock(), 0
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
        return removed

    def _remove_leftovers(self, now: float) -> None:
        """Remove what a crash left half written, and the output of commands whose sessions cannot be resumed."""
        for path in self.folder.glob(".new.*"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > self._kept_s:
                    path.unlink()
        for folder in self._outputs.glob("*/") if self._outputs is not None else ():
            with contextlib.suppress(OSError):
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))  # in use, it is young
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
            if abs(self.clock() - stamp.stat().st_mtime) < self._cleaned_every_s:
                return
        stamp.touch()
        os.utime(stamp, (self.clock(), self.clock()))
        self.clean()


def _hash_of(link: Path) -> str:
    return "".join(link.readlink().parts[-2:])


class SessionData:
    """Implements `DataFiles` for one session."""

    def __init__(self, data: DataFolder, session_id: str) -> None:
        self._data = data
        self._session_id = session_id

    def store(self, content: bytes, call_id: str) -> DataFile:
        make_private_folder(self._data.folder)
        descriptor, name = tempfile.mkstemp(prefix=".new.", dir=self._data.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return self._add(Path(name), hashlib.sha256(content).hexdigest(), call_id)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def adopt(self, path: Path, call_id: str) -> DataFile:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return self._add(path, digest, call_id)

    def _add(self, source: Path, hash: str, call_id: str) -> DataFile:
        """Take a file over. Raises `OSError`."""
        path, link, now = self._path(hash), self._link(call_id), self._data.clock()
        size = source.stat().st_size
        new = link.with_name(f"{link.name}.new")
        make_private_folder(path.parent)
        os.utime(source, (now, now))
        shutil.move(source, path)  # over an equal one, should there be one
        make_private_folder(link.parent)
        new.unlink(missing_ok=True)
        new.symlink_to(Path("..", "..", hash[:2], hash[2:]))
        os.utime(new, (now, now), follow_symlinks=False)
        new.replace(link)
        self._data.clean_when_due()
        return DataFile(path, hash, size, created=now, accessed=now, call_id=call_id, session_id=self._session_id)

    def find(self, call_id: str) -> DataFile | None:
        link, now = self._link(call_id), self._data.clock()
        try:
            created, hash = link.lstat().st_mtime, _hash_of(link)
            path = self._path(hash)
            os.utime(path, (now, now))
            return DataFile(path, hash, path.stat().st_size, created, now, call_id=call_id, session_id=self._session_id)
        except FileNotFoundError:
            return None

    def _path(self, hash: str) -> Path:
        return self._data.folder / hash[:2] / hash[2:]

    def _link(self, call_id: str) -> Path:
        return (
            self._data.links_of(self._session_id) / hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()
        )


if TYPE_CHECKING:
    _: type[DataFiles] = SessionData
