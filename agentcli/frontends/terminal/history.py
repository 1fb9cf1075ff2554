"""What the person sent before, for each project, in one file that several processes share."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

MOST_ENTRIES = 1_000  # of one project
KEPT_BYTES = 4 * 1024 * 1024  # what is read from the end of the file, and what trimming leaves of it
LARGEST_FILE = 2 * KEPT_BYTES
LONGEST_ENTRY = 200_000  # characters; a longer one is not written
_LOCK_TRIES = 20  # 5 ms apart


class _Entry(msgspec.Struct):
    """A line of the file; `time` is in seconds since 1970."""

    project: str
    text: str
    time: float


class ProjectHistory(History):
    """Reads its file when the entries are first asked for. A disk that fails takes the history, never the session.

    Lines that are no entries are skipped, such as those prompt_toolkit's own `FileHistory` wrote.
    """

    def __init__(self, file: Path, project: str) -> None:
        super().__init__()
        self._file = file
        self._project = project
        self._load_once = asyncio.Lock()

    async def load(self) -> AsyncGenerator[str, None]:
        async with self._load_once:
            if not self._loaded:
                stored = await asyncio.to_thread(lambda: list(self.load_history_strings()))
                own = set(self._loaded_strings)  # sent before the file was read, which may hold them by now
                self._loaded_strings += [text for text in stored if text not in own]
                self._loaded = True
        for text in list(self._loaded_strings):
            yield text

    def append_string(self, string: str) -> None:
        """The same as the entry before it is no entry."""
        if self._loaded_strings[:1] != [string]:
            super().append_string(string)

    def load_history_strings(self) -> Iterator[str]:
        """The project's entries, newest first."""
        try:
            lines = _tail(self._file).split(b"\n")
        except OSError:
            return
        texts = (text for line in reversed(lines) if (text := self._text(line)))
        yield from itertools.islice((text for text, _ in itertools.groupby(texts)), MOST_ENTRIES)

    def store_string(self, string: str) -> None:
        if len(string) > LONGEST_ENTRY:
            return
        entry = {"project": self._project, "text": string, "time": round(time.time(), 3)}
        line = json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n"
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _append(self._file, line)
            if self._file.stat().st_size > LARGEST_FILE:
                _trim(self._file)
        except OSError:
            pass

    def _text(self, line: bytes) -> str:
        if not line.startswith(b"{"):
            return ""
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except (msgspec.MsgspecError, ValueError):
            return ""
        return entry.text if entry.project == self._project else ""


def _tail(file: Path) -> bytes:
    """The whole lines among the last `KEPT_BYTES`."""
    with file.open("rb") as stream:
        start = max(0, os.fstat(stream.fileno()).st_size - KEPT_BYTES)
        stream.seek(start)
        if start:
            stream.readline()
        return stream.read(KEPT_BYTES)


def _append(file: Path, line: bytes) -> None:
    """One write, so that lines of several processes do not mix."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            with _locked(descriptor, fcntl.LOCK_SH):
                if not _is_still(file, descriptor):
                    continue  # another process has trimmed the file since it was opened
                os.fchmod(descriptor, 0o600)
                os.write(descriptor, line if _ends_with_newline(descriptor) else b"\n" + line)
                return
        finally:
            os.close(descriptor)


def _trim(file: Path) -> None:
    """Keep the newest lines; another process that trims or appends right now makes this wait for the next entry."""
    with file.open("rb") as stream, _locked(stream.fileno(), fcntl.LOCK_EX) as is_locked:
        if not is_locked or not _is_still(file, stream.fileno()):
            return
        descriptor, trimmed = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(descriptor, "wb") as target:
                target.write(_tail(file))
            Path(trimmed).replace(file)
        except OSError:
            Path(trimmed).unlink(missing_ok=True)
            raise


@contextmanager
def _locked(descriptor: int, kind: int) -> Iterator[bool]:
    """Whether the lock was got: a process that is stopped while it holds one must not stop this one."""
    is_locked = False
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            is_locked = True
            break
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:  # a file system without locks
            break
    try:
        yield is_locked
    finally:
        if is_locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_still(file: Path, descriptor: int) -> bool:
    return os.path.samestat(os.fstat(descriptor), file.stat())


def _ends_with_newline(descriptor: int) -> bool:
    """A full disk can have cut the last line off."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
