"""Tells in which folders entries came and went, by inotify(7), as far as the kernel gives watches."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from weakref import finalize

_ENTRIES = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
_REPLACED = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_OVERFLOWED, _FORGOTTEN = 0x4000, 0x8000
_HOW = 0x01000000 | 0x02000000 | 0x04000000  # IN_ONLYDIR, IN_DONT_FOLLOW, IN_EXCL_UNLINK
_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 16
_SHARE = 2  # of the watches that a person may have, one part in so many is for each tree
_NOT_THERE = frozenset((2, 13, 20, 40))  # ENOENT, EACCES, ENOTDIR, ELOOP: the walk finds no folder there either


class FolderWatch:
    """Watches the folders of a tree, for the process that made it; `is_complete` until one cannot be watched."""

    def __init__(self) -> None:
        self.is_complete = True
        self._paths: dict[int, str] = {}
        self._process = os.getpid()
        self._descriptor = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1
        self._close = finalize(self, os.close, self._descriptor) if self._descriptor >= 0 else None
        if self._close is not None:
            self._close.atexit = False

    def add(self, path: str) -> None:
        """Note from now on what happens in the folder that is at `path` now."""
        if not self.is_complete:
            return
        number = -1
        if self._descriptor >= 0 and self._process == os.getpid() and len(self._paths) < _max_watches():
            number = _libc().inotify_add_watch(self._descriptor, os.fsencode(path), _ENTRIES | _REPLACED | _HOW)
            if number < 0 and ctypes.get_errno() in _NOT_THERE:
                return
        if number >= 0:
            self._paths[number] = path
            return
        self.is_complete = False
        self._paths.clear()
        if self._close is not None:
            self._close()

    def take(self, is_own: Callable[[str], bool] = lambda path: False) -> tuple[set[str], set[str]] | None:
        """The folders changed or gone since the last time, but by paths that `is_own` is true of; None if not known."""
        if not self.is_complete or self._process != os.getpid():
            return None
        entries: set[tuple[str, bytes]] = set()
        replaced: set[str] = set()
        has_lost_some = False
        for number, what, name in self._events():
            has_lost_some |= bool(what & _OVERFLOWED)
            path = self._paths.pop(number, None) if what & _FORGOTTEN else self._paths.get(number)
            if path is not None and what & _ENTRIES:
                entries.add((path, name))
            if path is not None and what & (_REPLACED | _FORGOTTEN):
                replaced.add(path)
        changed = {path for path, name in entries if not is_own(f"{path}/{os.fsdecode(name)}")}
        return None if has_lost_some else (changed, replaced)

    def _events(self) -> Iterator[tuple[int, int, bytes]]:
        with contextlib.suppress(BlockingIOError):
            while self._paths:
                data, at = os.read(self._descriptor, _READ_BYTES), 0
                while at < len(data):
                    number, what, _, length = _HEADER.unpack_from(data, at)
                    at += _HEADER.size + length
                    yield number, what, data[at - length : at].rstrip(b"\0")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _max_watches() -> int:
    try:
        return int(Path("/proc/sys/fs/inotify/max_user_watches").read_text()) // _SHARE
    except (OSError, ValueError):
        return 0
