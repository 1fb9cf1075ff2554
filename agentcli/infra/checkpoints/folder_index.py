"""Finds what changed in a folder since it was last looked at; the contents of each state are kept.

A file that the system says is untouched is not read again: its inode and the time of its last change, which nobody can
set, are as they were. What git would ignore is covered up to a limit, and so are large files; `left_out` has the rest.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import msgspec

from agentcli.conversation.file_changes import FileKind, FileState, real_path, stored_path
from agentcli.infra.changes.objects import Objects
from agentcli.infra.changes.state import kind_of, state_of
from agentcli.infra.checkpoints.borrowed import TICK_NS, BorrowedObjects, TrackedFile, stamp_of
from agentcli.infra.checkpoints.listing import SnapshotLimits, listed_paths, sizes_below
from agentcli.infra.sandbox.dry_runs.caches import is_cache
from agentcli.infra.sandbox.mounts.mount_points import MOUNT_POINT_MODE, is_mount_point_of_ours
from agentcli.settings.files import make_private_folder

_GITS_OWN = frozenset(("HEAD", "objects", "refs"))  # a folder with these is a repository's own, whatever its name

Difference = tuple[FileState | None, FileState | None]  # before and now


class _Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry as it was last seen. One with `changed_ns` 0 is read again."""

    changed_ns: int
    inode: int
    kind: FileKind
    mode: int
    content: str
    size: int
    is_ignored: bool

    @property
    def state(self) -> FileState:
        return FileState(self.kind, self.mode, self.content, self.size)


class FolderState(msgspec.Struct, kw_only=True):
    """The knowledge of a folder: entries by folder and name, and what is left out, by path, with the reason.

    `skipped` are inodes of what was not looked at, which may be moved; `looked_ns` is when the last look began, by the
    clock of file systems. Where names are no text all are stored as `stored_path` writes them.
    """

    root: str
    entries: dict[str, dict[str, _Known]] = {}
    left_out: dict[str, str] = {}
    skipped: set[int] = set()
    looked_ns: int = 0
    is_escaped: bool = False

    def renamed(self, name_of: Callable[[str], str], *, is_escaped: bool) -> FolderState:
        entries = {name_of(f): {name_of(n): one for n, one in inside.items()} for f, inside in self.entries.items()}
        left_out = {name_of(path): why for path, why in self.left_out.items()}
        return msgspec.structs.replace(self, entries=entries, left_out=left_out, is_escaped=is_escaped)


class FolderIndex:
    """The entries of one folder, which must be a real path, as they were last seen; kept in `file` between sessions.

    A git in a `writable` folder is not run. `files_scanned` counts the files of a running look.
    """

    def __init__(
        self, root: Path, file: Path, objects: Objects, limits: SnapshotLimits, *, writable: Sequence[Path] = ()
    ) -> None:
        self.root, self.file = str(root), file
        self.objects, self.limits, self.files_scanned = objects, limits, 0
        self.state = self._load()
        self.left_out = self.state.left_out
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        self.borrowed = BorrowedObjects(self.root, objects.folder / "borrowed" / name, writable)

    def refresh(self) -> dict[str, Difference]:
        """Look at all of it; gives what is not as it was when it was last looked at, by path relative to the folder.

        Raises `TooManyFiles`, `OSError` where contents cannot be kept.
        """
        walk = _FolderWalk(self)
        self.state.looked_ns = time.time_ns()
        walk.run()
        before = (state for state, _ in walk.differences.values() if state is not None and state.kind == "file")
        self.borrowed.copy((state.content for state in before if state.content), self.objects)
        if walk.differences or walk.skipped != self.state.skipped or not self.file.exists():
            self.state.skipped = walk.skipped
            self._save()
        return walk.differences

    def note(self, path: str) -> None:
        """Look at one path, relative to the folder, whose state is known to be of somebody's doing already."""
        folder, _, name = path.rpartition("/")
        if folder in self.state.entries:
            walk = _FolderWalk(self)
            walk.look_at(folder, name)
            self.state.skipped |= walk.skipped

    def _load(self) -> FolderState:
        nothing = FolderState(root=stored_path(self.root))
        try:
            found = msgspec.msgpack.decode(self.file.read_bytes(), type=FolderState)
        except (OSError, msgspec.MsgspecError):  # all of it is read again
            return nothing
        if found.root != nothing.root:
            return nothing
        return found.renamed(real_path, is_escaped=False) if found.is_escaped else found

    def _save(self) -> None:
        make_private_folder(self.file.parent)
        new = self.file.with_name(f"{self.file.name}.{os.urandom(4).hex()}.new")
        try:
            content = msgspec.msgpack.encode(self.state)
        except UnicodeEncodeError:  # names that are no text
            content = msgspec.msgpack.encode(self.state.renamed(stored_path, is_escaped=True))
        new.write_bytes(content)
        new.replace(self.file)


class _FolderWalk:
    """One look at a folder, which brings its index up to date."""

    def __init__(self, index: FolderIndex) -> None:
        self.differences: dict[str, Difference] = {}
        self.skipped: set[int] = set()
        self._index, self._root, self._limits = index, index.root, index.limits
        self._entries, self._left_out, self._left_before = index.state.entries, index.left_out, dict(index.left_out)
        self._looked_ns = index.state.looked_ns if index.state.looked_ns < time.time_ns() else 0  # it may be set back
        self._racy_since_ns = time.time_ns() - TICK_NS
        self._gone_inodes: set[int] = set()
        self._first_seen: set[str] = set()  # folders in which nothing is new, though nothing of it was known
        self._kept = 0  # bytes of new files in this look
        self._tracked: dict[str, TrackedFile] = {}

    def run(self) -> None:
        for path in [path for path in self._left_out if not os.path.lexists(f"{self._root}/{path}")]:
            del self._left_out[path]
        if not self._entries:
            self._borrow()
        waiting, self._index.files_scanned = [""], 0
        while waiting:
            folder = waiting.pop()
            inside = self._look_in(folder)
            self._index.files_scanned += len(self._entries.get(folder, ()))
            self._limits.check(self._root, files=self._index.files_scanned)
            waiting += inside

    def _borrow(self) -> None:
        """Raise `TooManyFiles` before the first look reads and keeps more than is covered."""
        if len(self._listing) >= self._limits.min_borrowed:
            self._tracked = self._index.borrowed.borrow()
        for path in self._listing - self._tracked.keys():
            with suppress(OSError):
                self._count_stored(os.lstat(f"{self._root}/{path}"))
        self._kept = 0

    def _count_stored(self, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode) and status.st_size <= self._limits.max_file_bytes:
            self._kept += status.st_size
            self._limits.check(self._root, size=self._kept)

    def look_at(self, folder: str, name: str) -> None:
        path = f"{folder}/{name}" if folder else name
        try:
            status = os.lstat(f"{self._root}/{path}")
        except OSError:
            if name in self._entries.get(folder, {}):
                self._gone(folder, name)
            return
        self._take(folder, name, status)

    def _look_in(self, folder: str) -> list[str]:
        """Look at the entries of a folder; gives the folders in it."""
        try:
            with os.scandir(f"{self._root}/{folder}" if folder else self._root) as found:
                inside = list(found)
        except (FileNotFoundError, NotADirectoryError):  # gone since
            self._gone_inside(folder)
            return []
        except PermissionError as error:
            self._left_out[folder] = error.strerror or str(error)
            return []
        if {entry.name for entry in inside} >= _GITS_OWN:
            self._left_out[folder] = "it is a git repository"
            self._forget_inside(folder)
            return []
        if folder in self._left_before:  # it could not be looked at before
            self._left_out.pop(folder, None)
            self._first_seen.add(folder)
        known = self._entries.setdefault(folder, {})
        below, present = list[str](), set[str]()
        for entry in inside:
            name = entry.name
            before = known.get(name)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # gone since
                continue
            if before is None or before.changed_ns != status.st_ctime_ns or before.inode != status.st_ino:
                self._take(folder, name, status)
                before = known.get(name)
            if before is not None:
                present.add(name)
                if before.kind == "folder":
                    below.append(f"{folder}/{name}" if folder else name)
        for name in known.keys() - present:
            self._gone(folder, name)
        return below

    def _take(self, folder: str, name: str, status: os.stat_result) -> None:
        """Take down an entry that is new, or was touched."""
        known = self._entries.setdefault(folder, {})
        path = f"{folder}/{name}" if folder else name
        before, kind = known.get(name), kind_of(status)
        if kind is None:
            if before is not None:
                self._gone(folder, name)
            return
        if self._is_skipped(path, name, is_folder=kind == "folder"):
            self.skipped.add(status.st_ino)
            return
        if stat.S_IMODE(status.st_mode) == MOUNT_POINT_MODE and is_mount_point_of_ours(f"{self._root}/{path}"):
            return  # a command runs, or was killed
        if before is not None:
            is_ignored = before.is_ignored
        else:  # what was left out for that is not listed again each time
            is_ignored = path in self._left_before or path not in self._listing
        if before is None and is_ignored and (why := self._beyond_limits(path, kind, status)):
            self._left_out[path] = why
            self.skipped.add(status.st_ino)
            return
        if kind == "file" and status.st_size > self._limits.max_file_bytes:
            self._left_out[path] = f"{status.st_size / 1e6:,.0f} MB"
        else:
            self._left_out.pop(path, None)
        if (state := self._state(path, status, is_new=before is None)) is None:
            return
        changed_ns = status.st_ctime_ns if status.st_ctime_ns < self._racy_since_ns else 0
        known[name] = _Known(
            changed_ns, status.st_ino, state.kind, state.mode, state.content, size=state.size, is_ignored=is_ignored
        )
        if is_ignored and before is None and kind == "file":
            self._count_ignored(1, state.size)
        if before is not None and before.kind == "folder" != state.kind:
            self._gone_inside(path)
        if before is None and self._was_there(folder, path, status):
            if kind == "folder":
                self._first_seen.add(path)
        elif before is None or before.state != state:
            self._differ(path, before.state if before is not None else None, state)

    def _state(self, path: str, status: os.stat_result, *, is_new: bool) -> FileState | None:
        tracked = self._tracked.get(path) if status.st_size <= self._limits.max_file_bytes else None
        if tracked is not None and tracked.stamp == stamp_of(status):
            return FileState("file", stat.S_IMODE(status.st_mode), tracked.id, status.st_size)
        if is_new:
            self._count_stored(status)
        return state_of(f"{self._root}/{path}", status, self._index.objects, largest=self._limits.max_file_bytes)

    def _was_there(self, folder: str, path: str, status: os.stat_result) -> bool:
        """True for what was there before, only not looked at, and for what such a thing was moved to.

        What is in a folder that is moved keeps its times: it was made before the last look, and was not seen then.
        """
        if folder in self._first_seen or path in self._left_before or status.st_ino in self._index.state.skipped:
            return True
        return status.st_ctime_ns < self._looked_ns - TICK_NS and status.st_ino not in self._inodes

    @cached_property
    def _inodes(self) -> set[int]:
        """The inodes of everything that was known at the last look: what has them now was moved, and is known."""
        return {known.inode for inside in self._entries.values() for known in inside.values()} | self._gone_inodes

    def _gone(self, folder: str, name: str) -> None:
        path = f"{folder}/{name}" if folder else name
        before = self._entries[folder].pop(name)
        self._gone_inodes.add(before.inode)
        self._left_out.pop(path, None)
        if before.is_ignored and before.kind == "file":
            self._count_ignored(-1, -before.size)
        self._differ(path, before.state, None)
        if before.kind == "folder":
            self._gone_inside(path)

    def _forget_inside(self, folder: str) -> None:
        """Know no more of what is in a folder, without calling it gone."""
        for inside in [inside for inside in self._entries if inside == folder or inside.startswith(f"{folder}/")]:
            del self._entries[inside]
        self.differences = {p: both for p, both in self.differences.items() if not p.startswith(f"{folder}/")}

    def _gone_inside(self, path: str) -> None:
        for name in list(self._entries.get(path, ())):
            self._gone(path, name)
        self._entries.pop(path, None)

    def _differ(self, path: str, before: FileState | None, now: FileState | None) -> None:
        first = self.differences.pop(path, (before, now))[0]
        if first != now:
            self.differences[path] = (first, now)

    def _is_skipped(self, path: str, name: str, *, is_folder: bool) -> bool:
        if name == ".git" or is_cache(name, is_folder=is_folder) or f"{self._root}/{path}" in self._limits.own:
            return True
        if self._limits.excluded and any(fnmatch(path, glob) or fnmatch(name, glob) for glob in self._limits.excluded):
            self._left_out[path] = "excluded by checkpoints.exclude"
            return True
        return False

    @cached_property
    def _listing(self) -> frozenset[str]:
        return listed_paths(self._root, self._limits)

    def _beyond_limits(self, path: str, kind: FileKind, status: os.stat_result) -> str:
        """Say why an ignored file, or folder as a whole, is left out; empty where it is not."""
        sizes = sizes_below(f"{self._root}/{path}") if kind == "folder" else [status.st_size if kind == "file" else 0]
        files, total = self._ignored
        for size in sizes:
            files, total = files + 1, total + size
            if files > self._limits.ignored_files or total > self._limits.ignored_bytes:
                return "git ignores it, and it is large"
        return ""

    @cached_property
    def _ignored(self) -> tuple[int, int]:
        """The number and the bytes of ignored files that are covered."""
        known = [one for inside in self._entries.values() for one in inside.values()]
        sizes = [one.size for one in known if one.is_ignored and one.kind == "file"]
        return len(sizes), sum(sizes)

    def _count_ignored(self, files: int, size: int) -> None:
        if "_ignored" in self.__dict__:  # else they are counted when that is asked
            self._ignored = self._ignored[0] + files, self._ignored[1] + size
