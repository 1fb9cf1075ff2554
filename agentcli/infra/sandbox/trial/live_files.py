"""Finds files that another program works on: to replace one would lose what that program writes next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_DATABASE = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat.html, 1.3.1


class LiveFiles:
    """The files that are open for writing when this is made, as far as the kernel lets us look (proc_pid_fd(5)).

    `advice` says what to do about one. With `spares_databases` databases count as open.
    """

    def __init__(self, advice: str = "the command can be run directly", *, spares_databases: bool = True) -> None:
        self._open = set(_open_for_writing())
        self._advice = advice
        self._spares_databases = spares_databases

    def why(self, folder: int, name: str) -> str:
        """Say why a file, named in an open folder, is not to be replaced; empty where nothing speaks against it."""
        try:
            at = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return ""
        if (at.st_dev, at.st_ino) in self._open:
            return f"another program has it open for writing; {self._advice}"
        if self._spares_databases and _is_database(folder, name):
            return f"it is a database, which another program may have open; {self._advice}"
        return ""


def _is_database(folder: int, name: str) -> bool:
    for beside in (f"{name}-wal", f"{name}-journal"):
        with contextlib.suppress(OSError):
            os.stat(beside, dir_fd=folder, follow_symlinks=False)
            return True
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        return os.read(file, len(_DATABASE)) == _DATABASE
    except OSError:
        return False
    finally:
        os.close(file)


def _open_for_writing() -> Iterator[tuple[int, int]]:
    for process in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError), os.scandir(process) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mode & 0o200:
                        at = os.stat(entry.path)  # noqa: PTH116
                        yield at.st_dev, at.st_ino
