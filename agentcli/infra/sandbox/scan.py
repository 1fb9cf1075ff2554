"""Scans a workspace for paths that commands must not read or write: secret and auto-executed files, repositories.

All folders are read once, those near the root first. Later only folders in which the kernel reports a change
(inotify(7)) are read again. Stamps have a folder's change time, because programs can set the modification time.
"""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import msgspec

from agentcli.infra.changes.writing import TICK_NS
from agentcli.infra.sandbox.mount_points import had_only_mount_points
from agentcli.infra.sandbox.secret_files import SecretFiles
from agentcli.safety.paths.judge import is_read_only_name

# Folders that tools fill -> the number of levels below them that are read. Packages contain hundreds of sample keys,
# and people keep no keys of their own there, so in deeper folders only repositories are looked for.
_SHALLOW = {".git": 0, "__pycache__": 0} | dict.fromkeys(
    ("node_modules", "site-packages", ".venv", "venv", ".tox", "target"), 2
)
_ANY_DEPTH = 10_000
# The ranks of folders: ordinary, filled by tools (see `_SHALLOW`), and below those; and the limits by rank.
_ORDINARY, _FILLED, _BELOW_FILLED = range(3)
_MAX_FOLDERS = (20_000, 20_000, 1_000)
# The kernel does not report changes by other machines. After this time, or after this many times the duration of the
# last walk if that is longer, all folders are read again.
_WATCHED_S = 30.0
_PER_WALK = 100

_ENTRY_EVENTS = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE
_REPLACED_EVENTS = 0x400 | 0x800  # IN_DELETE_SELF, IN_MOVE_SELF
_OVERFLOWED, _FORGOTTEN = 0x4000, 0x8000  # IN_Q_OVERFLOW: events were lost; IN_IGNORED: the watch has ended
# With the flags IN_ONLYDIR, IN_DONT_FOLLOW and IN_EXCL_UNLINK.
_WATCHED = _ENTRY_EVENTS | _REPLACED_EVENTS | 0x01000000 | 0x02000000 | 0x04000000
_MAX_WATCHES = 30_000  # of one tree; a user usually has 65,536 or more, and other programs need some
_HEADER = struct.Struct("iIII")  # of an event: watch number, bits, a cookie, length of the name that follows
_NO_FOLDER = {errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ELOOP}  # the walk cannot read such a folder either
_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """Watches the folders of a tree, only in the process that created it."""

    def __init__(self) -> None:
        self.is_complete = True  # until a folder cannot be watched
        self._paths: dict[int, str] = {}  # number of the kernel's watch -> folder
        self._process = os.getpid()  # a forked process shares the descriptor, and must not consume its events
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1
        self._close = finalize(self, os.close, self._descriptor) if self._descriptor >= 0 else None

    def add(self, path: str) -> None:
        """Watch one more folder; if that fails, give up the whole watch, which then reports nothing."""
        if not self.is_complete:
            return
        if self._descriptor >= 0 and self._process == os.getpid() and len(self._paths) < _MAX_WATCHES:
            watch = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), _WATCHED)
            if watch >= 0:
                self._paths[watch] = path
                return
            if ctypes.get_errno() in _NO_FOLDER:
                return
        self.is_complete = False  # changes in this folder would be missed, so all folders must be read again anyway
        self._paths.clear()
        if self._close is not None:
            self._close()

    def take_changes(self) -> tuple[set[str], set[str]] | None:
        """Return the folders that changed, and those removed or moved, since the last call; None if that is unknown."""
        if not self.is_complete or self._process != os.getpid():
            return None
        entries: set[tuple[str, bytes]] = set()
        replaced: set[str] = set()
        has_overflowed = False
        for watch, event, name in self._events():
            has_overflowed |= bool(event & _OVERFLOWED)
            path = self._paths.pop(watch, None) if event & _FORGOTTEN else self._paths.get(watch)
            if path is not None and event & _ENTRY_EVENTS:
                entries.add((path, name))
            if path is not None and event & (_REPLACED_EVENTS | _FORGOTTEN):
                replaced.add(path)
        # Each command makes and removes mount points: because of these alone no folder has to be read again.
        changed = {path for path, name in entries if not had_only_mount_points(f"{path}/{os.fsdecode(name)}")}
        return None if has_overflowed else (changed, replaced)

    def _events(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the waiting events: the number of the watch, the bits of the event, the name of the entry."""
        with contextlib.suppress(BlockingIOError):
            while self._paths:
                data, start = os.read(self._descriptor, 1 << 16), 0
                while start < len(data):
                    watch, event, _, length = _HEADER.unpack_from(data, start)
                    end = start + _HEADER.size + length
                    yield watch, event, data[end - length : end].rstrip(b"\0")
                    start = end


class _Folder(msgspec.Struct, kw_only=True):
    stamp: tuple[int, int]  # the inode, and its change time in ns (0: read the folder again)
    rank: int
    folders: tuple[str, ...]
    secrets: Sequence[Path]
    auto_executed: Sequence[Path]
    is_repository: bool


class _Findings(NamedTuple):
    """The findings in all folders of a tree."""

    secrets: list[Path]
    auto_executed: list[Path]
    repositories: list[str]


class _WalkQueue:
    """Folders that still have to be read, by rank."""

    def __init__(self, max_folders: tuple[int, int, int]) -> None:
        self.by_rank = tuple(deque[tuple[str, int]]() for _ in max_folders)  # a path, and how many levels below to read
        self.remaining = [*max_folders]  # how many folders of each rank may still be read

    def add(self, path: str, *, outer_rank: int = _ORDINARY, levels: int = _ANY_DEPTH, is_new: bool = False) -> None:
        """Add a folder from one of rank `outer_rank`; `levels` below it are read, unless `_SHALLOW` limits them."""
        shallow_levels = _SHALLOW.get(path.rpartition(os.sep)[2])  # None for an ordinary folder
        if outer_rank != _ORDINARY:
            if levels and shallow_levels != 0:
                self.by_rank[_BELOW_FILLED].append((path, levels - 1))
        elif shallow_levels is None:
            self.by_rank[_ORDINARY].append((path, levels))
        else:
            # A command may have filled a new folder, so it is read at any depth, but not if nothing in it is ever read.
            levels = _ANY_DEPTH if shallow_levels and is_new else shallow_levels
            self.by_rank[_FILLED].append((path, levels))

    def take(self) -> Iterator[tuple[str, int, int]]:
        """Yield the queued folders, each with its rank and levels, up to the limit of each rank."""
        while ranks := [rank for rank, queue in enumerate(self.by_rank) if queue and self.remaining[rank]]:
            rank = ranks[0]
            self.remaining[rank] -= 1
            path, levels = self.by_rank[rank].popleft()
            yield path, rank, levels


class _Tree:
    """The folders below one root: those that were read, and those that still have to be."""

    def __init__(self, max_folders: tuple[int, int, int]) -> None:
        self.folders: dict[str, _Folder] = {}  # by path
        self.findings: _Findings | None = None  # of all folders, collected on demand
        self.watch = FolderWatch()
        self.watched_until = 0.0  # monotonic time until which the kernel's reports are relied on
        self.unreadable: set[str] = set()  # folders that the next update tries again
        self.unwalked = _WalkQueue(max_folders)  # folders that the last walk did not reach
        self.new = _WalkQueue(max_folders)  # folders that updates found

    @property
    def has_unread(self) -> bool:
        """Return True if the next update will read folders even if nothing changes."""
        return bool(self.unreadable) or any((*self.unwalked.by_rank, *self.new.by_rank))


class Scan:
    """Remembers the findings in the roots, for all commands of a session."""

    def __init__(
        self,
        is_secret: Callable[[Path], bool] = lambda path: False,  # as for `SecretFiles`
        denied: Callable[[], Callable[[Path], bool] | None] = lambda: None,  # returns equal tests for equal rules
        *,
        max_folders: tuple[int, int, int] = _MAX_FOLDERS,
        max_s: float = 1.0,  # about the longest time of one walk
    ) -> None:
        self._secret_files = SecretFiles(Path("/"), is_secret)
        self._denied = denied
        self._max_folders, self._max_s = max_folders, max_s
        self.kept_plans: dict[Any, Any] = {}  # the cache of `plan_protection`; cleared whenever a tree changes
        self._is_denied: Callable[[Path], bool] | None = None  # the test from `denied` that the trees were read with
        self._trees: dict[str, _Tree] = {}  # by root
        self._lock = threading.Lock()

    def repositories(self, root: str) -> list[str]:
        """Return the folders below `root` that git accepts as repositories, near ones first, new ones last."""
        return self._findings_in(root).repositories

    def secrets_and_auto_executed(self, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Return the secret files in the roots, and the auto-executed files in folders below the roots."""
        trees = [self._findings_in(str(root)) for root in roots]
        secrets = [path for tree in trees for path in tree.secrets]
        return secrets, [path for tree in trees for path in tree.auto_executed]

    def _findings_in(self, root: str) -> _Findings:
        """Return what commands must not read or write in a root; it is collected again only after a change."""
        with self._lock:
            tree = self._current_tree(root)
            if tree.findings is None:
                # In the root itself auto-executed files and the repository are protected by their names.
                below_root = {path: folder for path, folder in tree.folders.items() if path != root}
                tree.findings = _Findings(
                    [path for folder in tree.folders.values() for path in folder.secrets],
                    [path for folder in below_root.values() for path in folder.auto_executed],
                    [path for path, folder in below_root.items() if folder.is_repository],
                )
            return tree.findings

    def is_partial(self, root: str) -> bool:
        """Return True if ordinary folders are still unread: there are too many, or the time was up."""
        tree = self._trees.get(root)
        return tree is not None and bool(tree.unwalked.by_rank[_ORDINARY] or tree.new.by_rank[_ORDINARY])

    def folders(self, root: str) -> dict[str, _Folder]:
        with self._lock:
            return dict(self._current_tree(root).folders)

    def _current_tree(self, root: str) -> _Tree:
        """Return the tree of a root, updated by the kernel's reports or, if these are missing, by another walk."""
        if (is_denied := self._denied()) != self._is_denied:  # the rules changed, so every name must be tested again
            self._is_denied = is_denied
            self._trees.clear()
        tree = self._trees.get(root) or self._trees.setdefault(root, _Tree(self._max_folders))
        changes = tree.watch.take_changes() if tree.folders else None
        changed, replaced = changes or (set[str](), {root})  # unknown changes: as if the root were replaced
        if root in replaced or time.monotonic() > tree.watched_until:
            tree.findings = None
            self.kept_plans = {}
            self._walk(root, tree)
            return tree
        if changed or replaced or tree.has_unread:  # the update reads these folders, and may find more to protect
            self.kept_plans = {}
        self._update(tree, changed, replaced)
        return tree

    def _walk(self, root: str, tree: _Tree) -> None:
        """Read all folders again, as many as the limits allow."""
        began = time.monotonic()
        tree.unreadable.clear()
        tree.unwalked, tree.new = _WalkQueue(self._max_folders), _WalkQueue(self._max_folders)
        tree.unwalked.by_rank[_ORDINARY].append((root, _ANY_DEPTH))
        seen: dict[str, _Folder] = {}
        self._read_queued(tree.unwalked, tree, seen, began + self._max_s)
        ended = time.monotonic()
        tree.watched_until = ended + max(_WATCHED_S, _PER_WALK * (ended - began))
        # After an incomplete walk, the folders of earlier walks are kept.
        tree.folders = tree.folders | seen if any(tree.unwalked.by_rank) else seen

    def _update(self, tree: _Tree, changed: set[str], replaced: set[str]) -> None:
        """Read `changed` folders, new ones in them, and unreached ones; forget `replaced` ones, to find them as new."""
        known = tree.folders
        deadline = time.monotonic() + self._max_s
        tree.new.remaining = [*self._max_folders]  # each update has the full limits for new folders
        if replaced or tree.has_unread:
            tree.findings = None  # `_findings_in` collects them again
        for path in [path for path in known if _is_at_or_below(path, replaced)] if replaced else ():
            del known[path]
        for path in tree.unreadable:  # these may be readable now
            tree.new.add(path, is_new=True)
        tree.unreadable.clear()
        for path in sorted(changed & known.keys()):
            folder = self._read_folder(path, known[path].rank, before=None, tree=tree)  # even with an equal stamp
            # If only the stamp differs, mount points appeared and disappeared, and the findings are still valid.
            if folder is None or msgspec.structs.replace(folder, stamp=known[path].stamp) != known[path]:
                tree.findings = None
            if folder is None:
                del known[path]
                continue
            known[path] = folder
            for child in [each for each in folder.folders if each not in known]:
                tree.new.add(child, outer_rank=folder.rank, is_new=True)
        # A command may have just changed all that is in a new folder, so it is read at any depth.
        self._read_queued(tree.new, tree, known, deadline, are_new=True)
        self._read_queued(tree.unwalked, tree, known, deadline)

    def _read_queued(
        self, queue: _WalkQueue, tree: _Tree, into: dict[str, _Folder], deadline: float, *, are_new: bool = False
    ) -> None:
        """Read the queued folders and those in them into a dictionary, until the deadline."""
        for path, rank, levels in queue.take():  # reads at least one folder, even after the deadline
            folder = self._read_folder(path, rank, tree.folders.get(path), tree)
            if folder is not None:
                into[path] = folder
                for child in folder.folders:
                    queue.add(child, outer_rank=rank, levels=levels, is_new=are_new)
            if time.monotonic() >= deadline:
                break

    def _read_folder(self, path: str, rank: int, before: _Folder | None, tree: _Tree) -> _Folder | None:
        """Read a folder; return `before` if it has not changed since, or None if it cannot be read."""
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
            is_closed = _SHALLOW.get(path.rpartition(os.sep)[2]) == 0  # no folder inside it is read
            folders = () if is_closed else sorted(each.path for each in inside if each.is_dir(follow_symlinks=False))
            secrets = self._secrets_among(inside) if rank != _BELOW_FILLED else ()  # deeper, packages have sample keys
        except FileNotFoundError:
            return None
        except OSError:
            tree.unreadable.add(path)
            return None
        # Without `.git`, because only parts of it are protected: see protection/planning.py.
        auto_executed = [entry.path for entry in inside if is_read_only_name(entry.name) and entry.name != ".git"]
        names = {entry.name for entry in inside}
        # A folder that changed just now may change again within the same clock tick, so it must be read again.
        return _Folder(
            stamp=(status.st_ino, status.st_ctime_ns if status.st_ctime_ns < looked_ns - TICK_NS else 0),
            rank=rank,
            folders=tuple(folders),
            secrets=secrets,
            # Nobody opens a project in the folders of tools.
            auto_executed=[*map(Path, auto_executed)] if rank == _ORDINARY else [],
            # A working copy with `.git`, or a bare repository.
            is_repository=not is_closed and (".git" in names or names >= {"HEAD", "objects", "refs"}),
        )

    def _secrets_among(self, entries: Sequence[os.DirEntry[str]]) -> list[Path]:
        # Relative to /, the base of `_secret_files`.
        names = [os.fsencode(entry.path)[1:] for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return sorted(Path("/", os.fsdecode(name)) for name in self._secret_files.among(names, self._is_denied))


def _is_at_or_below(path: str, folders: set[str]) -> bool:
    while path and path not in folders:
        path = path.rpartition(os.sep)[0]
    return bool(path)
