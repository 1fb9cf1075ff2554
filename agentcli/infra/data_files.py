"""Large results on disk: contents by their hash, and a link to them for each call that has one."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from agentcli.settings.files import make_private_folder, read_small_file, replace_file
from agentcli.settings.structs import DataSettings
from agentcli.tools.data_files import DataFile, DataFiles

AFTER_CLEANING = 0.8  # of the size that is allowed


class DataFolder:
    """The files of all sessions in one folder, which several processes may use at once.

    `ab/cdef…` holds what has that hash, with the time when it was used last; `calls/SESSION/CALL` is a link to it, with
    the time when it was made. What a session names for which `is_resumable` is true is never deleted. `outputs` holds a
    folder for each session with what its commands wrote, which is cleaned, too.
    """

    def __init__(
        self,
        folder: Path,
        *,
        outputs: Path | None = None,
        is_resumable: Callable[[str], bool] = lambda session_id: False,
        settings: DataSettings = DataSettings(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self._outputs = outputs
        self._is_resumable = is_resumable
        self._kept_s = settings.max_age_hours * 3_600
        self._max_bytes = settings.max_size_gb * 1024**3
        self._cleaned_every_s = settings.clean_every_minutes * 60
        self.clock = clock

    def of_session(self, session_id: str) -> SessionData:
        return SessionData(self, session_id)

    def share(self, source: str, target: str) -> None:
        """Let a session that goes on from another one find what that one kept."""
        for link in self.links_of(source).glob("*"):
            copy = self.links_of(target) / link.name
            make_private_folder(copy.parent)
            with suppress(FileExistsError):
                shutil.copy2(link, copy, follow_symlinks=False)

    def links_of(self, session_id: str) -> Path:
        return self.folder / "calls" / quote(session_id, safe="")

    def target_of(self, link: Path) -> Path:
        return self.folder.joinpath(*link.readlink().parts[-2:])

    def clean(self) -> None:
        """Delete what is too old, then what was used least recently above the bound."""
        now, links = self.clock(), defaultdict[Path, list[Path]](list)
        for link in self.folder.glob("calls/*/*"):
            links[self.target_of(link)].append(link)
        files = []
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):  # others clean, too
                about = path.stat()
                made = max((link.lstat().st_mtime for link in links[path]), default=about.st_mtime)
                files.append((now - made <= self._kept_s, about.st_mtime, about.st_size, path))
        total = sum(size for _, _, size, _ in files)
        bound = self._max_bytes * AFTER_CLEANING if total > self._max_bytes else float("inf")
        for is_young, _, size, path in sorted(files):  # those that are too old come first
            if is_young and total <= bound:
                break
            if not any(map(self._is_resumable, {unquote(link.parent.name) for link in links[path]})):
                for file in (path, *links[path]):
                    file.unlink(missing_ok=True)
                total -= size
        for session in self.folder.glob("calls/*"):
            with suppress(OSError):
                session.rmdir()  # those that are empty now
        for folder in self._outputs.glob("*/") if self._outputs is not None else ():
            with suppress(OSError):
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
        if not stamp.exists() or abs(self.clock() - stamp.stat().st_mtime) >= self._cleaned_every_s:
            stamp.touch()
            os.utime(stamp, (self.clock(), self.clock()))
            self.clean()


class SessionData:
    """Implements `DataFiles` for one session."""

    def __init__(self, data: DataFolder, session_id: str) -> None:
        self._data = data
        self._links = data.links_of(session_id)

    def store(self, content: bytes, call_id: str) -> DataFile:
        hash, link, now = sha256(content).hexdigest(), self._link(call_id), self._data.clock()
        path, new = self._data.folder / hash[:2] / hash[2:], link.with_name(f"{link.name}.new")
        for folder in (path.parent, link.parent):
            make_private_folder(folder)
        replace_file(path, content, syncs=False)
        os.utime(path, (now, now))
        new.unlink(missing_ok=True)
        new.symlink_to(Path("..", "..", hash[:2], hash[2:]))
        os.utime(new, (now, now), follow_symlinks=False)
        new.replace(link)
        self._data.clean_when_due()
        return DataFile(path, hash, len(content))

    def find(self, call_id: str) -> Path | None:
        now = self._data.clock()
        try:
            path = self._data.target_of(self._link(call_id))
            os.utime(path, (now, now))
        except FileNotFoundError:
            return None
        return path

    def _link(self, call_id: str) -> Path:
        return self._links / sha256(call_id.encode(errors="surrogatepass")).hexdigest()


if TYPE_CHECKING:
    _: type[DataFiles] = SessionData


log = logging.getLogger(__name__)

_PRUNED_AT = 1.1  # times as many as are kept


class SummaryFiles:
    """Files by key: for so many hours, and the newest `most`. What cannot be read or written is missing."""

    def __init__(self, folder: Path, *, hours: float, most: int) -> None:
        self._folder = folder
        self._seconds = hours * 3_600
        self._most = most

    def get(self, key: str) -> str | None:
        file = self._folder / key
        try:
            is_fresh = time.time() - file.stat().st_mtime < self._seconds
            return read_small_file(file).decode() if is_fresh else None
        except (OSError, UnicodeDecodeError):
            return None

    def __setitem__(self, key: str, text: str) -> None:
        try:
            make_private_folder(self._folder)
            replace_file(self._folder / key, text.encode(errors="replace"), syncs=False)
            files = [(file.stat().st_mtime, file) for file in self._folder.iterdir()]
            if len(files) > _PRUNED_AT * self._most:
                for _, file in sorted(files, reverse=True)[self._most :]:
                    file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a summary could not be kept: %s", error)
