"""Files that are kept for later: large results of calls, and summaries that models wrote."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from agentcli.settings.files import make_private_folder, read_small_file, replace_private_file
from agentcli.settings.structs import DataSettings
from agentcli.tools.workspace import DataFile

_FILLED_AFTER_CLEANING = 0.8  # of the allowed size
_PRUNED_AT = 1.1  # times as many summaries as are kept

log = logging.getLogger(__name__)


@dataclass
class DataFolder:
    """The large results of all sessions in one folder, which several processes may use at once.

    The file `ab/cdef…` has the content with that hash; its time is that of its last use. `calls/SESSION/CALL` is a link
    to the file; its time is that of the call. Results of a session for which `is_resumable` is true are never deleted.
    `outputs` is a folder in which each session has a folder with what its commands wrote; it is cleaned as well.
    """

    folder: Path
    outputs: Path | None = field(default=None, kw_only=True)
    is_resumable: Callable[[str], bool] = field(default=lambda session_id: False, kw_only=True)
    settings: DataSettings = field(default=DataSettings(), kw_only=True)
    clock: Callable[[], float] = field(default=time.time, kw_only=True)

    def of_session(self, session_id: str) -> SessionData:
        return SessionData(self, session_id)

    def share(self, source: str, target: str) -> None:
        """Let a fork find the results of the session that it was forked from."""
        for link in self.links_of(source).glob("*"):
            make_private_folder(self.links_of(target))
            with suppress(FileExistsError):
                shutil.copy2(link, self.links_of(target) / link.name, follow_symlinks=False)

    def links_of(self, session_id: str) -> Path:
        return self.folder / "calls" / quote(session_id, safe="")

    def target_of(self, link: Path) -> Path:
        return self.folder.joinpath(*link.readlink().parts[-2:])

    def clean(self) -> None:
        """Delete what is too old, then what was used least recently until the rest is below the allowed size."""
        now, links = self.clock(), defaultdict[Path, list[Path]](list)
        max_age_s, max_bytes = self.settings.max_age_hours * 3_600, self.settings.max_size_gb * 1024**3
        for link in self.folder.glob("calls/*/*"):
            links[self.target_of(link)].append(link)
        files = []
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):  # other processes clean, too
                status = path.stat()
                made_at = max((link.lstat().st_mtime for link in links[path]), default=status.st_mtime)
                files.append((now - made_at <= max_age_s, status.st_mtime, status.st_size, path))
        total = sum(size for _, _, size, _ in files)
        bound = max_bytes * _FILLED_AFTER_CLEANING if total > max_bytes else float("inf")
        for is_young, _, size, path in sorted(files):  # those that are too old come first
            if is_young and total <= bound:
                break
            if not any(map(self.is_resumable, {unquote(link.parent.name) for link in links[path]})):
                for file in (path, *links[path]):
                    file.unlink(missing_ok=True)
                total -= size
        for session in self.folder.glob("calls/*"):
            with suppress(OSError):  # it is not empty
                session.rmdir()
        for folder in self.outputs.glob("*/") if self.outputs is not None else ():
            with suppress(OSError):
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - newest > max_age_s and not self.is_resumable(folder.name):
                    shutil.rmtree(folder)

    def clean_when_due(self) -> None:
        """Clean, unless that was done a short while ago. Raises `OSError`."""
        stamp, interval_s = self.folder / ".cleaned", self.settings.clean_every_minutes * 60
        is_due = not stamp.exists() or abs(self.clock() - stamp.stat().st_mtime) >= interval_s
        if is_due and any(folder is not None and folder.is_dir() for folder in (self.folder, self.outputs)):
            make_private_folder(self.folder)
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
        make_private_folder(link.parent)
        replace_private_file(path, content, syncs=False)
        os.utime(path, (now, now))
        new.unlink(missing_ok=True)
        new.symlink_to(Path("..", "..", hash[:2], hash[2:]))
        os.utime(new, (now, now), follow_symlinks=False)
        new.replace(link)
        self._data.clean_when_due()
        return DataFile(path, hash, len(content))

    def find(self, call_id: str) -> Path | None:
        now = self._data.clock()
        with suppress(FileNotFoundError):
            path = self._data.target_of(self._link(call_id))
            os.utime(path, (now, now))
            return path
        return None

    def _link(self, call_id: str) -> Path:
        return self._links / sha256(call_id.encode(errors="surrogatepass")).hexdigest()


@dataclass
class SummaryFiles:
    """Summaries that models wrote, by key, so that a conversation does not pay for them again.

    The newest `max_files` are kept for some hours. A summary that cannot be read or written is missing.
    """

    folder: Path
    hours: float = field(kw_only=True)
    max_files: int = field(kw_only=True)

    def get(self, key: str) -> str | None:
        file = self.folder / key
        with suppress(OSError, UnicodeDecodeError):
            if time.time() - file.stat().st_mtime < self.hours * 3_600:
                return read_small_file(file).decode()
        return None

    def __setitem__(self, key: str, text: str) -> None:
        try:
            replace_private_file(self.folder / key, text.encode(errors="replace"), syncs=False)
            files = [(file.stat().st_mtime, file) for file in self.folder.iterdir()]
            if len(files) > _PRUNED_AT * self.max_files:
                for _, file in sorted(files, reverse=True)[self.max_files :]:
                    file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a summary could not be kept: %s", error)
