"""Walks the folders of a workspace, the nearest first, and reads again only those that changed."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

_Found = TypeVar("_Found")

_FRESH_FOR_S = 30.0
_QUICK_S = 0.05  # a walk that takes so long can be made after every command


class Extent(Struct, frozen=True):
    """Bounds a walk.

    Each walk reads `fresh_levels` below a root and folders that are new to it; every half minute one reads all.
    Folders named in `shallow` come last: at most `most_shallow` of them, down to `shallow_levels` below each.
    """

    most_folders: int
    longest_s: float
    fresh_levels: int
    shallow: frozenset[str]
    most_shallow: int
    shallow_levels: int = 0
    skipped: frozenset[str] = frozenset()


class _Folder(Struct, Generic[_Found]):
    modified_ns: int
    folders: tuple[str, ...]
    found: _Found


class FolderWalk(Generic[_Found]):
    """Remembers, for all commands of a session, what `look` finds in a folder's path and entries."""

    def __init__(self, extent: Extent, look: Callable[[str, Sequence[os.DirEntry[str]]], _Found]) -> None:
        self._extent = extent
        self._look = look
        self._known: dict[str, dict[str, _Folder[_Found]]] = {}
        self._walked_at: dict[str, float] = {}
        self._took_s: dict[str, float] = {}
        self._partial: set[str] = set()
        self._lock = threading.Lock()

    def inside(self, root: str, *, is_changed: bool = False) -> list[tuple[str, _Found]]:
        """Each folder in `root`, itself among them, with what was found in it; links are not followed.

        Deep in the workspace it is at most half a minute old; where that is `is_changed` and quickly walked, it is of
        now.
        """
        with self._lock:
            now = time.monotonic()
            is_old = now - self._walked_at.get(root, -_FRESH_FOR_S) >= _FRESH_FOR_S
            is_deep = is_old or (is_changed and self._took_s[root] < _QUICK_S)
            self._walk(root, is_deep=is_deep)
            if is_deep:
                self._walked_at[root], self._took_s[root] = now, time.monotonic() - now
            return [(path, folder.found) for path, folder in self._known[root].items()]

    def is_partial(self, root: str) -> bool:
        """True if there were too many folders to look at all of them."""
        return root in self._partial

    def _walk(self, root: str, *, is_deep: bool) -> None:
        extent, known = self._extent, self._known.get(root, {})
        seen = {} if is_deep else known
        waiting = deque([(root, 0)])
        shallow = deque[tuple[str, int, int]]()  # the last is how many levels are looked at below
        deadline, left, left_shallow = time.monotonic() + extent.longest_s, extent.most_folders, extent.most_shallow
        while (left if waiting else left_shallow and shallow) and time.monotonic() < deadline:
            is_shallow = not waiting
            path, depth, levels = shallow.popleft() if is_shallow else (*waiting.popleft(), extent.shallow_levels + 1)
            before = known.get(path)
            if before is not None and not is_deep and depth > extent.fresh_levels:
                continue
            folder = self._look_at(path, before)
            if folder is None:
                seen.pop(path, None)
                continue
            seen[path] = folder
            if is_shallow:
                left_shallow -= 1
            else:
                left -= 1
            if not (is_deep or depth < extent.fresh_levels or folder is not before):
                continue
            for child in folder.folders:
                if not is_shallow and child.rpartition(os.sep)[2] not in extent.shallow:
                    waiting.append((child, depth + 1))
                elif levels:
                    shallow.append((child, depth + 1, levels - 1))
        self._known[root] = known | seen if waiting or shallow else seen  # what was found once is not lost again
        if waiting:
            self._partial.add(root)
        elif is_deep:
            self._partial.discard(root)

    def _look_at(self, path: str, before: _Folder[_Found] | None) -> _Folder[_Found] | None:
        """A folder, from memory where it has not changed since; None where it cannot be read."""
        try:
            modified = os.stat(path).st_mtime_ns  # noqa: PTH116  # a tenth of the time of a Path
            if before is not None and before.modified_ns == modified:
                return before
            with os.scandir(path) as entries:
                inside = list(entries)
            folders = [each.path for each in inside if each.name not in self._extent.skipped and _is_folder(each)]
        except OSError:
            return None
        return _Folder(modified, tuple(sorted(folders)), self._look(path, inside))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
