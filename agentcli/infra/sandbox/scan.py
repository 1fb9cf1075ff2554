"""Scans a workspace for what commands may not read or write: secret files, auto-executed files, repositories.

The folders are walked once, the nearest first; later only those are read in which the kernel noted a change. Stamps
are of the last change of a folder, which no program can set, not of its last modification.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agentcli.infra.sandbox.folder_watch import FolderWatch
from agentcli.infra.sandbox.mounts.mount_points import came_and_went
from agentcli.infra.sandbox.secret_files import SecretFiles
from agentcli.safety.paths.judge import is_read_only_name

# Folders that tools fill, with how many levels below them are looked at. Installed packages bring sample keys by the
# hundred, and are no place for the person's own: below these only repositories count.
_SHALLOW = {".git": 0, "__pycache__": 0} | dict.fromkeys(
    ("node_modules", "site-packages", ".venv", "venv", ".tox", "target"), 2
)
_ANY_DEPTH = 10_000
_TICK_NS = 20_000_000  # a folder can change twice within a tick of the clock of its file system, by one stamp
# The files of other machines change without the kernel noting it: so long its notes are enough, and so many times as
# long as the last walk took.
_WATCHED_S = 30.0
_PER_WALK = 100


class Extent(Struct, frozen=True):
    """Bounds a walk: how long, and how many ordinary folders, folders named in `_SHALLOW`, and folders in these."""

    max_folders: tuple[int, int, int] = (20_000, 20_000, 1_000)
    max_s: float = 1.0


_USUAL = Extent()

Stamp = tuple[int, int, int]  # device, inode, time of the last change
_NO_STAMPS: dict[str, Stamp | None] = {"/": None}


class _Folder(Struct, kw_only=True):
    stamp: tuple[int, int]  # the inode, and the time of its last change
    rank: int
    folders: tuple[str, ...]
    secrets: Sequence[Path]
    obeyed: Sequence[Path]
    is_repository: bool

    def holds_the_same(self, other: _Folder) -> bool:
        return replace(self, stamp=other.stamp) == other


class _Findings(NamedTuple):
    """The findings in all folders of a tree, apart from its root's own level where that is protected by name."""

    secrets: list[Path]
    obeyed: list[Path]
    repositories: list[str]


class _Work:
    """Folders that are still to be read, in a queue for each rank, with how many levels are read below."""

    def __init__(self, budgets: tuple[int, int, int]) -> None:
        self.queues = tuple(deque[tuple[str, int]]() for _ in budgets)
        self.left = [*budgets]

    def add(self, path: str, *, around: int = 0, levels: int = _ANY_DEPTH, any_depth: bool = False) -> None:
        """Add a folder in one of the rank `around`, of which so many `levels` are read."""
        below = _SHALLOW.get(path.rpartition(os.sep)[2])
        if around:
            if levels and below != 0:
                self.queues[2].append((path, levels - 1))
        elif below is None:
            self.queues[0].append((path, levels))
        else:
            self.queues[1].append((path, _ANY_DEPTH if below and any_depth else below))

    def take(self) -> Iterator[tuple[str, int, int]]:
        """Yield paths with rank and levels while there is room for them."""
        while (rank := next((r for r in range(3) if self.queues[r] and self.left[r]), None)) is not None:
            self.left[rank] -= 1
            path, levels = self.queues[rank].popleft()
            yield path, rank, levels


class _Tree:
    """The folders of one root; `unread` are tried again, `rest` is left of the walk, `late` of updates."""

    def __init__(self, extent: Extent) -> None:
        self.folders: dict[str, _Folder] = {}
        self.found: _Findings | None = None  # of these folders
        self.unread: set[str] = set()
        self.watch = FolderWatch()
        self.watched_until = 0.0
        self.rest = _Work(extent.max_folders)
        self.late = _Work(extent.max_folders)


class PresentPaths:
    """Tells which of some paths exist; those in folders that have not changed are known from before."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = [*map(str, paths)]
        self._stamps: dict[str, Stamp | None] = _NO_STAMPS  # of the innermost folders around them that are there
        self._present: Sequence[Path] = ()

    def now(self) -> Sequence[Path]:
        looked_ns = time.time_ns()
        if any(_stamp_of(folder) != stamp for folder, stamp in self._stamps.items()):
            around = {folder: _stamp_of(folder) for folder in map(_existing_around, self._paths)}
            self._present = [Path(path) for path in self._paths if os.path.lexists(path)]
            is_old = all(stamp is not None and stamp[2] < looked_ns - _TICK_NS for stamp in around.values())
            self._stamps = around if is_old else _NO_STAMPS
        return self._present


def _stamp_of(folder: str) -> Stamp | None:
    try:
        status = os.stat(folder)  # noqa: PTH116  # a tenth of the time of a Path
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _existing_around(path: str) -> str:
    """Return the nearest folder above that exists; a link that leads nowhere counts, since its target may be made."""
    while not os.path.lexists(path := path.rpartition("/")[0] or "/"):
        pass
    return path


class Scan:
    """Remembers what is in the roots, for all commands of a session.

    `is_secret` is what `SecretFiles` asks; `denied` gives a test for further files, as of then, which is equal to the
    one before as long as the rules are.
    """

    def __init__(
        self,
        is_secret: Callable[[Path], bool] = lambda path: False,
        denied: Callable[[], Callable[[Path], bool] | None] = lambda: None,
        extent: Extent = _USUAL,
    ) -> None:
        self._secret_files = SecretFiles(Path("/"), is_secret)
        self._denied = denied
        self._extent = extent
        self.kept_plans: dict[Any, Any] = {}  # of what is protected, as long as nothing changed; kept by who makes them
        self._judged_by: Callable[[Path], bool] | None = None
        self._trees: dict[str, _Tree] = {}
        self._lock = threading.Lock()

    def repositories(self, root: str) -> list[str]:
        """The folders below `root` that git would take for a repository, the nearest first, new ones last."""
        return self._found(root).repositories

    def protected(self, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Secret files, and what programs obey by themselves below the roots' own level, as they are now."""
        found = [self._found(str(root)) for root in roots]
        return [path for one in found for path in one.secrets], [path for one in found for path in one.obeyed]

    def _found(self, root: str) -> _Findings:
        with self._lock:
            tree = self._looked_at(root)
            if tree.found is None:
                inner = {path: folder for path, folder in tree.folders.items() if path != root}
                tree.found = _Findings(
                    [path for folder in tree.folders.values() for path in folder.secrets],
                    [path for folder in inner.values() for path in folder.obeyed],
                    [path for path, folder in inner.items() if folder.is_repository],
                )
            return tree.found

    def is_partial(self, root: str) -> bool:
        """True if there were too many folders to look at all of them."""
        tree = self._trees.get(root)
        return tree is not None and bool(tree.rest.queues[0] or tree.late.queues[0])

    def folders(self, root: str) -> dict[str, _Folder]:
        """Each folder in `root`, links not followed: walked once, then compared where the kernel noted a change."""
        with self._lock:
            return dict(self._looked_at(root).folders)

    def _looked_at(self, root: str) -> _Tree:
        if (denied := self._denied()) != self._judged_by:  # the rules changed: every name is judged anew
            self._judged_by = denied
            self._trees.clear()
        if root not in self._trees:
            self._trees[root] = _Tree(self._extent)
        tree = self._trees[root]
        changes = tree.watch.take(came_and_went) if tree.folders else None
        if changes is None or any((*changes, tree.unread, *tree.rest.queues, *tree.late.queues)):
            self.kept_plans = {}
        if changes is None or root in changes[1] or time.monotonic() > tree.watched_until:
            tree.found = None
            self.kept_plans = {}
            self._walk(root, tree)
        else:
            self._update(tree, *changes)
        return tree

    def _walk(self, root: str, tree: _Tree) -> None:
        began = time.monotonic()
        tree.unread.clear()
        tree.rest, tree.late = _Work(self._extent.max_folders), _Work(self._extent.max_folders)
        tree.rest.queues[0].append((root, _ANY_DEPTH))
        seen: dict[str, _Folder] = {}
        self._read(tree.rest, tree, seen, began + self._extent.max_s)
        ended = time.monotonic()
        tree.watched_until = ended + max(_WATCHED_S, _PER_WALK * (ended - began))
        # What was found once is not lost again.
        tree.folders = tree.folders | seen if any(tree.rest.queues) else seen

    def _update(self, tree: _Tree, changed: set[str], replaced: set[str]) -> None:
        """Read folders in which something changed, all that is new in them, and what is left of the walk."""
        known, late = tree.folders, tree.late
        deadline = time.monotonic() + self._extent.max_s
        late.left = [*self._extent.max_folders]
        if replaced or tree.unread or any((*late.queues, *tree.rest.queues)):
            tree.found = None
        for path in [path for path in known if _is_in(path, replaced)] if replaced else ():
            del known[path]
        for path in tree.unread:
            late.add(path, any_depth=True)
        tree.unread.clear()
        for path in sorted(changed & known.keys()):
            folder = self._look_at(path, known[path].rank, None, tree)
            if folder is None or not folder.holds_the_same(known[path]):  # else mount points came and went
                tree.found = None
            if folder is None:
                del known[path]
                continue
            known[path] = folder
            for child in folder.folders:
                if child not in known:
                    late.add(child, around=folder.rank, any_depth=True)
        self._read(late, tree, known, deadline, any_depth=True)
        self._read(tree.rest, tree, known, deadline)

    def _read(
        self, work: _Work, tree: _Tree, into: dict[str, _Folder], deadline: float, *, any_depth: bool = False
    ) -> None:
        if time.monotonic() >= deadline:
            return
        for path, rank, levels in work.take():
            folder = self._look_at(path, rank, tree.folders.get(path), tree)
            if folder is not None:
                into[path] = folder
                for child in folder.folders:
                    work.add(child, around=rank, levels=levels, any_depth=any_depth)
            if time.monotonic() >= deadline:
                break

    def _look_at(self, path: str, rank: int, before: _Folder | None, tree: _Tree) -> _Folder | None:
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
            is_closed = _SHALLOW.get(path.rpartition(os.sep)[2]) == 0
            folders = () if is_closed else sorted(each.path for each in inside if each.is_dir(follow_symlinks=False))
            secrets = self._secrets(inside) if rank < 2 else ()
        except FileNotFoundError:
            return None
        except OSError:
            tree.unread.add(path)
            return None
        obeyed = [entry.path for entry in inside if is_read_only_name(entry.name) and entry.name != ".git"]
        names = {entry.name for entry in inside}
        return _Folder(
            stamp=(status.st_ino, status.st_ctime_ns if status.st_ctime_ns < looked_ns - _TICK_NS else 0),
            rank=rank,
            folders=tuple(folders),
            secrets=secrets,
            obeyed=[] if rank else [Path(path) for path in obeyed],
            is_repository=not is_closed and (".git" in names or names >= {"HEAD", "objects", "refs"}),
        )

    def _secrets(self, entries: Sequence[os.DirEntry[str]]) -> list[Path]:
        names = [os.fsencode(entry.path)[1:] for entry in entries if not entry.is_dir(follow_symlinks=False)]
        secret, is_denied = self._secret_files.among(names), self._judged_by
        if is_denied is not None:
            secret |= {name for name in names if is_denied(_path(name))}
        return sorted(map(_path, secret))


def _is_in(path: str, folders: set[str]) -> bool:
    """True if a path is one of these folders, or lies below one."""
    while path:
        if path in folders:
            return True
        path = path.rpartition(os.sep)[0]
    return False


def _path(name: bytes) -> Path:
    return Path("/", os.fsdecode(name))
