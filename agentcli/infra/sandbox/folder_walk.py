"""Walks the folders of a workspace once, the nearest first, and then reads those that changed since."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from agentcli.infra.sandbox.folder_watch import FolderWatch

_Found = TypeVar("_Found")

_TICK_NS = 20_000_000  # a folder can change twice within a tick of the clock of its file system, by one stamp
_LONGEST_UPDATE_S = 1.0
# The files of other machines change without the kernel noting it: so long its notes are enough, and so many times as
# long as the last walk took.
_WATCHED_S = 30.0
_PER_WALK = 100


class Extent(Struct, frozen=True):
    """Bounds a walk.

    Folders named in `shallow` come last: at most `most_shallow` of them, down to `shallow_levels` below each; what is
    made in them later counts at any depth.
    """

    most_folders: int
    longest_s: float
    shallow: frozenset[str]
    most_shallow: int
    shallow_levels: int = 0
    skipped: frozenset[str] = frozenset()


class _Folder(Struct, Generic[_Found]):
    stamp: tuple[int, int]  # the inode, and the time of its last change, which no program can set
    folders: tuple[str, ...]
    found: _Found


class _Tree(Generic[_Found]):
    """What is known of one root. Folders that are `unread` are tried again each time.

    `waiting` and `shallow`, each with how many levels are looked at below, are left of the walk, and `late` of updates,
    when their time was over.
    """

    def __init__(self) -> None:
        self.folders: dict[str, _Folder[_Found]] = {}
        self.unread: set[str] = set()
        self.watch = FolderWatch()
        self.watched_until = 0.0
        self.begin("", 0, 0)

    def begin(self, root: str, left: int, left_shallow: int) -> None:
        self.waiting = deque([root] if root else [])
        self.shallow = deque[tuple[str, int]]()
        self.late = list[str]()
        self.left, self.left_shallow = left, left_shallow


class FolderWalk(Generic[_Found]):
    """Remembers, for all commands of a session, what `look` finds in a folder's path and entries."""

    def __init__(self, extent: Extent, look: Callable[[str, Sequence[os.DirEntry[str]]], _Found]) -> None:
        self._extent = extent
        self._look = look
        self._trees: dict[str, _Tree[_Found]] = {}
        self._lock = threading.Lock()

    def inside(self, root: str) -> list[tuple[str, _Found]]:
        """Each folder in `root` as it is now, itself among them, with what was found in it; links are not followed.

        The first time all of them are walked, later only those in which the kernel noted a change. Where it notes none,
        the stamps of all are compared.
        """
        with self._lock:
            tree = self._trees.setdefault(root, _Tree())
            changes = tree.watch.take() if tree.folders else None
            if changes is None or root in changes[1] or time.monotonic() > tree.watched_until:
                self._walk(root, tree)
            else:
                self._update(tree, *changes)
            return [(path, folder.found) for path, folder in tree.folders.items()]

    def is_partial(self, root: str) -> bool:
        """True if there were too many folders to look at all of them."""
        return root in self._trees and bool(self._trees[root].waiting or self._trees[root].late)

    def _walk(self, root: str, tree: _Tree[_Found]) -> None:
        began = time.monotonic()
        tree.unread.clear()
        tree.begin(root, self._extent.most_folders, self._extent.most_shallow)
        seen = self._go_on(tree, began + self._extent.longest_s)
        ended = time.monotonic()
        tree.watched_until = ended + max(_WATCHED_S, _PER_WALK * (ended - began))
        # What was found once is not lost again.
        tree.folders = tree.folders | seen if tree.waiting or tree.shallow else seen

    def _go_on(self, tree: _Tree[_Found], deadline: float) -> dict[str, _Folder[_Found]]:
        """Walk on from where the walk of a tree stands; the folders it reads."""
        extent, known = self._extent, tree.folders
        seen: dict[str, _Folder[_Found]] = {}
        while (tree.left if tree.waiting else tree.left_shallow and tree.shallow) and time.monotonic() < deadline:
            is_shallow = not tree.waiting
            path, levels = tree.shallow.popleft() if is_shallow else (tree.waiting.popleft(), extent.shallow_levels + 1)
            folder = self._look_at(path, known.get(path), tree)
            if folder is None:
                continue
            seen[path] = folder
            if is_shallow:
                tree.left_shallow -= 1
            else:
                tree.left -= 1
            for child in folder.folders:
                if not is_shallow and child.rpartition(os.sep)[2] not in extent.shallow:
                    tree.waiting.append(child)
                elif levels:
                    tree.shallow.append((child, levels - 1))
        return seen

    def _update(self, tree: _Tree[_Found], changed: set[str], replaced: set[str]) -> None:
        """Look at folders in which something changed, at all that is new in them, and at what is left of the walk."""
        extent, known = self._extent, tree.folders
        if replaced:
            for path in [path for path in known if _is_in(path, replaced)]:
                del known[path]
        new = deque(path for path in (*tree.unread, *tree.late) if not _is_in(path, replaced))
        tree.unread.clear()
        for path in sorted(changed & known.keys()):
            folder = self._look_at(path, None, tree)
            if folder is None:
                del known[path]
                continue
            new.extend(child for child in folder.folders if child not in known)
            known[path] = folder
        shallow = deque[str]()
        deadline, left, left_shallow = time.monotonic() + _LONGEST_UPDATE_S, extent.most_folders, extent.most_shallow
        while (left if new else left_shallow and shallow) and time.monotonic() < deadline:
            is_shallow = not new
            path = shallow.popleft() if is_shallow else new.popleft()
            if not is_shallow and path.rpartition(os.sep)[2] in extent.shallow:
                shallow.append(path)
                continue
            folder = self._look_at(path, None, tree)
            if folder is None:
                continue
            known[path] = folder
            if is_shallow:
                left_shallow -= 1
                shallow.extend(folder.folders)
            else:
                left -= 1
                new.extend(folder.folders)
        tree.late = [*new, *(shallow if left_shallow else ())]
        known |= self._go_on(tree, deadline)

    def _look_at(self, path: str, before: _Folder[_Found] | None, tree: _Tree[_Found]) -> _Folder[_Found] | None:
        """A folder, from memory where it has not changed since; None where it cannot be read."""
        try:
            tree.watch.add(path)
            status = os.stat(path, follow_symlinks=False)  # noqa: PTH116  # a tenth of the time of a Path
            if not stat.S_ISDIR(status.st_mode):
                return None
            if before is not None and before.stamp == (status.st_ino, status.st_ctime_ns):
                return before
            looked_ns = time.time_ns()
            with os.scandir(path) as entries:
                inside = list(entries)
            folders = [each.path for each in inside if each.name not in self._extent.skipped and _is_folder(each)]
        except FileNotFoundError:
            return None
        except OSError:
            tree.unread.add(path)
            return None
        stamp = status.st_ino, status.st_ctime_ns if status.st_ctime_ns < looked_ns - _TICK_NS else 0
        return _Folder(stamp, tuple(sorted(folders)), self._look(path, inside))


def _is_in(path: str, folders: set[str]) -> bool:
    """True if a path is one of these folders, or lies below one."""
    while path:
        if path in folders:
            return True
        path = path.rpartition(os.sep)[0]
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
