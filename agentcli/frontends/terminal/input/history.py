"""Stores the prompts of each project in one file that several processes share, and text that is not sent yet."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from agentcli.frontends.terminal.input.pastes import TypedText
from agentcli.llm.messages import Image
from agentcli.settings.files import make_private_folder, replace_file

MOST_ENTRIES = 1_000  # of one project
KEPT_BYTES = 4 * 1024 * 1024  # read from the end of the file, and left of it by trimming
LARGEST_FILE = 2 * KEPT_BYTES
LONGEST_ENTRY = 500_000  # bytes of its line; a longer one is not written
_LOCK_TRIES = 20  # 5 ms apart


class _Entry(msgspec.Struct, omit_defaults=True):
    """A line of the file; `time` is in seconds since 1970."""

    project: str
    text: str
    time: float
    pastes: dict[str, str | Image] = {}


class ProjectHistory:
    """Reads its file when entries are first asked for. A failing disk costs the history, never the session."""

    def __init__(self, file: Path | None, project: str) -> None:
        self._file = file
        self._project = project
        self._sent: list[TypedText] = []  # in this session, the newest last
        self._stored: list[TypedText] | None = None  # the newest first
        self._lock = threading.Lock()

    def load(self) -> None:
        """Read the file, if that has not been done. May be called from any thread."""
        with self._lock:
            if self._stored is None:
                own = list(self._sent)  # sent before the file was read, which may hold them by now
                self._stored = [sent for sent in self._read() if sent not in own]

    @property
    def entries(self) -> Sequence[TypedText]:
        """The project's entries, newest first."""
        self.load()
        return [*reversed(self._sent), *(self._stored or ())]

    def add(self, sent: TypedText) -> None:
        """Add an entry, unless it repeats the one before it."""
        if (self._sent[-1:] or (self._stored or [])[:1]) != [sent]:
            self._sent.append(sent)
            self._store(sent)

    def _read(self) -> Iterator[TypedText]:
        lines: Sequence[bytes] = ()
        with suppress(OSError):
            lines = _tail(self._file).split(b"\n") if self._file is not None else ()
        entries = (sent for line in reversed(lines) if (sent := self._entry(line)) is not None)
        return itertools.islice((sent for sent, _ in itertools.groupby(entries)), MOST_ENTRIES)

    def _store(self, sent: TypedText) -> None:
        lines = (self._line(one) for one in (sent, sent.without_images()))
        line = next((line for line in lines if len(line) <= LONGEST_ENTRY), b"")
        if self._file is not None and line:
            with suppress(OSError):
                make_private_folder(self._file.parent)
                _append(self._file, line)

    def _line(self, sent: TypedText) -> bytes:
        return msgspec.json.encode(_Entry(self._project, sent.text, round(time.time(), 3), sent.pastes)) + b"\n"

    def _entry(self, line: bytes) -> TypedText | None:
        try:
            entry = msgspec.json.decode(line, type=_Entry)
        except (msgspec.MsgspecError, ValueError):
            return None
        return TypedText(entry.text, entry.pastes) if entry.text and entry.project == self._project else None


def _tail(file: Path) -> bytes:
    """The whole lines among the last `KEPT_BYTES`."""
    with file.open("rb") as stream:
        start = max(0, os.fstat(stream.fileno()).st_size - KEPT_BYTES)
        stream.seek(start)
        if start:
            stream.readline()
        return stream.read(KEPT_BYTES)


def _append(file: Path, line: bytes) -> None:
    """Append a line with one write, so that lines of several processes do not mix; trim a file that is too large."""
    with _locked(file.parent) as is_locked:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            size = os.fstat(descriptor).st_size
            is_cut = size and os.pread(descriptor, 1, size - 1) != b"\n"  # a full disk cut the last line off
            os.write(descriptor, b"\n" + line if is_cut else line)
            if is_locked and os.fstat(descriptor).st_size > LARGEST_FILE:
                replace_file(file, _tail(file), syncs=False)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Yields True once locked, False after a while: a process stopped with the lock must not stop this one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_locked = False
        for _ in range(_LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
                break
            time.sleep(0.005)
        yield is_locked
    finally:
        os.close(descriptor)


MOST_SESSIONS = 50  # of one directory at the same time; one more has no draft


def drafts_of(folder: Path, cwd: Path) -> Drafts | None:
    """Take a place for this session's draft in a directory: one whose lock is free, as that of a killed session."""
    key = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]
    with suppress(OSError):  # a disk that takes nothing takes no drafts either
        make_private_folder(folder)
        for number in range(MOST_SESSIONS):
            lock = (folder / f"{key}.{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Drafts(folder / f"{key}.{number}", lock)
            except OSError:
                lock.close()
    return None


class Drafts:
    """One draft in one file. A failing disk costs the draft, never the session. `lock` is held meanwhile."""

    def __init__(self, file: Path, lock: TextIO | None = None) -> None:
        self._file = file
        self._lock = lock

    def save(self, draft: TypedText) -> None:
        """Store a text; an empty one leaves no draft."""
        if not draft.text:
            self.clear()
            return
        with suppress(OSError):
            make_private_folder(self._file.parent)
            replace_file(self._file, msgspec.json.encode(draft), syncs=False)

    def load(self) -> TypedText | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=TypedText)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def clear(self) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
