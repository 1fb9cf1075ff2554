"""Finds the repositories inside a workspace, without looking at everything each time.

A command that makes a repository of its own can give it hooks and configuration; nothing but looking afterwards tells.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_FOLDERS = 3_000
LONGEST_WALK_S = 0.1
_FRESH_FOR_S = 30.0
_SKIPPED = frozenset((".git", "__pycache__"))
# Full of folders, made by tools, and seldom with a repository in it: they come last, and only so many and so deep.
_MOST_SHALLOW, _SHALLOW_LEVELS = 1_000, 2
_SHALLOW = frozenset(
    "node_modules .venv venv .tox .nox .mypy_cache .ruff_cache .pytest_cache .cache site-packages"
    " target dist build .gradle .next .nuxt .terraform bower_components Pods DerivedData".split()
)


@dataclass
class _Folder:
    modified_ns: int
    folders: tuple[str, ...]
    is_repository: bool


class Repositories:
    """Finds repositories, for all commands of a process. A folder is read again only where it changed."""

    def __init__(self, *, most_folders: int = MOST_FOLDERS) -> None:
        self._most_folders = most_folders
        self._known: dict[str, dict[str, _Folder]] = {}
        self._looked_at: dict[str, float] = {}
        self._is_partial: set[str] = set()
        self._lock = threading.Lock()

    def inside(self, root: str, *, is_fresh: bool = False) -> list[str]:
        """The folders below `root`, itself not among them, that git would take for a repository; the nearest first.

        Of folders that tools make (`node_modules`, `build`) two levels are looked at, after all others.
        Folders with a `.git` in them, and those that look like the inside of one. At most half a minute old for what
        is more than two levels down, unless `is_fresh`; at most `most_folders` are looked at.
        """
        with self._lock:
            now = time.monotonic()
            deep = is_fresh or now - self._looked_at.get(root, -_FRESH_FOR_S) >= _FRESH_FOR_S
            known = self._known.get(root, {})
            seen = dict(self._walk(root, known, deepest=None if deep else 1))
            if deep:
                self._looked_at[root] = now
            else:
                seen = known | seen
            self._known[root] = seen
            return [path for path, folder in seen.items() if folder.is_repository and path != root]

    def is_partial(self, root: str) -> bool:
        """True if there were too many folders to look at all of them."""
        return root in self._is_partial

    def _walk(self, root: str, known: dict[str, _Folder], *, deepest: int | None) -> Iterator[tuple[str, _Folder]]:
        """Breadth first. Below `deepest` only folders that nobody has seen yet are looked at."""
        waiting, shallow = deque([(root, 0)]), deque[tuple[str, int, int]]()
        deadline = time.monotonic() + LONGEST_WALK_S

        def looked_at(path: str, depth: int) -> _Folder | None:
            before = known.get(path)
            return None if before and deepest is not None and depth > deepest else _look_at(path, before)

        count = 0
        while waiting:
            path, depth = waiting.popleft()
            folder = looked_at(path, depth)
            if folder is None:
                continue
            count += 1
            yield path, folder
            if count >= self._most_folders or time.monotonic() > deadline:
                self._is_partial.add(root)
                return
            for child in folder.folders:
                if child.rpartition(os.sep)[2] in _SHALLOW:
                    shallow.append((child, depth + 1, _SHALLOW_LEVELS))
                else:
                    waiting.append((child, depth + 1))
        if deepest is None:
            self._is_partial.discard(root)
        count = 0
        while shallow and count < _MOST_SHALLOW and time.monotonic() < deadline:
            path, depth, levels = shallow.popleft()
            folder = looked_at(path, depth)
            if folder is None:
                continue
            count += 1
            yield path, folder
            if levels and (deepest is None or folder is not known.get(path)):
                shallow.extend((child, depth + 1, levels - 1) for child in folder.folders)


def _look_at(path: str, before: _Folder | None) -> _Folder | None:
    """A folder's entries, from memory where the folder has not changed since."""
    try:
        modified = Path(path).stat().st_mtime_ns
        if before is not None and before.modified_ns == modified:
            return before
        with os.scandir(path) as entries:
            folders, names = [], set()
            for entry in entries:
                names.add(entry.name)
                if entry.name not in _SKIPPED and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    except OSError:
        return None
    looks_like_the_inside = {"HEAD", "objects", "refs"} <= names
    return _Folder(modified, tuple(sorted(folders)), ".git" in names or looks_like_the_inside)
