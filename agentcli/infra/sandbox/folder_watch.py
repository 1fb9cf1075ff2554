"""Tells in which folders entries were made, renamed or removed, by inotify(7): the kernel notes it as it happens.

All watches of a process share one descriptor, of which a person may have few. Where the kernel gives no watches, or
noted more than it keeps, nothing is known, and whoever asks has to look for itself.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakSet, finalize

_ENTRIES = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
_REPLACED = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_OVERFLOWED, _FORGOTTEN = 0x4000, 0x8000
_HOW = 0x01000000 | 0x02000000 | 0x04000000  # IN_ONLYDIR, IN_DONT_FOLLOW, IN_EXCL_UNLINK
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_SHARE = 2  # of the watches that a person may have, one part in so many is for each process


class FolderWatch:
    """Watches the folders of one tree. `is_complete` until one of them could not be watched."""

    def __init__(self) -> None:
        self.is_complete = True
        self.paths: dict[int, str] = {}
        self.changed: set[str] = set()
        self.replaced: set[str] = set()
        self.has_lost_some = False

    def add(self, path: str) -> None:
        """Note from now on what happens in the folder that is at `path` now."""
        if self.is_complete:
            _shared().add(self, path)

    def take(self) -> tuple[set[str], set[str]] | None:
        """The folders in which something changed since the last time, and those that went or are others now.

        None where that is not known.
        """
        if self.paths:
            _shared().read()
        changed, replaced, has_lost_some = self.changed, self.replaced, self.has_lost_some
        self.changed, self.replaced, self.has_lost_some = set(), set(), False
        return None if has_lost_some or not self.is_complete else (changed, replaced)


class _Inotify:
    """The descriptor of this process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        has_it = sys.platform == "linux"
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if has_it else -1
        self._most = _most_watches()
        self._watches: WeakSet[FolderWatch] = WeakSet()
        self._numbers: dict[int, int] = {}  # of the kernel's watches, with how many trees have them
        self._lock = threading.RLock()  # a watch may be collected while it is held

    def add(self, watch: FolderWatch, path: str) -> None:
        with self._lock:
            number = -1
            if self._descriptor >= 0 and len(self._numbers) < self._most:
                number = self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _ENTRIES | _REPLACED | _HOW)
                if number < 0 and ctypes.get_errno() in _NOT_THERE:
                    return
            if number < 0:
                watch.is_complete = False
                self._release(watch.paths)
                return
            if watch not in self._watches:
                self._watches.add(watch)
                finalize(watch, self.release, watch.paths).atexit = False
            if number not in watch.paths:
                self._numbers[number] = self._numbers.get(number, 0) + 1
            watch.paths[number] = path

    def leave(self) -> None:
        for watch in self._watches:
            watch.is_complete = False
            watch.paths.clear()

    def release(self, paths: dict[int, str]) -> None:
        with self._lock:
            self._release(paths)

    def _release(self, paths: dict[int, str]) -> None:
        for number in paths:
            if self._numbers.get(number, 0) > 1:
                self._numbers[number] -= 1
            elif self._numbers.pop(number, 0):
                self._libc.inotify_rm_watch(self._descriptor, number)
        paths.clear()

    def read(self) -> None:
        """Hand on what the kernel has noted."""
        with self._lock:
            for number, what in self._events():
                for watch in self._watches:
                    watch.has_lost_some |= bool(what & _OVERFLOWED)
                    if (path := watch.paths.get(number)) is None:
                        continue
                    if what & _ENTRIES:
                        watch.changed.add(path)
                    if what & (_REPLACED | _FORGOTTEN):
                        watch.replaced.add(path)
                    if what & _FORGOTTEN:
                        del watch.paths[number]
                if what & _FORGOTTEN:
                    self._numbers.pop(number, None)

    def _events(self) -> Iterator[tuple[int, int]]:
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, what, _, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size + length
                yield number, what


_NOT_THERE = frozenset((2, 13, 20, 40))  # ENOENT, EACCES, ENOTDIR, ELOOP: the walk finds no folder there either
_made: list[_Inotify] = []
_making = threading.Lock()


def _shared() -> _Inotify:
    with _making:
        if not _made:
            _made.append(_Inotify())
        return _made[0]


def _begin_anew() -> None:
    """Leave the descriptor to the process that was forked: two would take each other's events."""
    for inotify in _made:
        inotify.leave()
    _made.clear()


os.register_at_fork(after_in_child=_begin_anew)


def _most_watches() -> int:
    try:
        return int(Path("/proc/sys/fs/inotify/max_user_watches").read_text()) // _SHARE
    except (OSError, ValueError):
        return 0
