"""Finds what changed in a folder since it was last looked at; the contents of each state are kept.

A file that the system says is untouched is not read again: its inode and the time of its last change, which nobody can
set, are as they were. What git would ignore is covered up to a limit, and so are large files; what is left out has a
name.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import msgspec

from agentcli.conversation.file_changes import FileKind, FileState, real_path, stored_path
from agentcli.infra.changes.objects import Objects
from agentcli.infra.changes.state import kind_of, state_of
from agentcli.infra.checkpoints.limits import Limits, TooManyFiles
from agentcli.infra.checkpoints.listing import Listed, listed_files, sizes_below
from agentcli.infra.sandbox.dry_runs.caches import is_cache
from agentcli.infra.sandbox.mounts.mount_points import MOUNT_POINT_MODE, is_mount_point_of_ours
from agentcli.settings.files import make_private_folder

# A file can change twice within a tick of the clock of the file system, and look untouched after the second time.
_TICK_NS = 20_000_000
_GITS_OWN = frozenset(("HEAD", "objects", "refs"))  # a folder with these is a repository's own, whatever its name

Difference = tuple[FileState | None, FileState | None]  # before and now


class _Known(NamedTuple):
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


class _Stored(msgspec.Struct):
    """The file of an index: entries by folder and name, and what is left out, by path, with the reason.

    `skipped` are inodes of what is not looked at. Where names are no text all are as `stored_path` writes them.
    """

    root: str
    entries: dict[str, dict[str, _Known]]
    left_out: dict[str, str]
    skipped: set[int] = set()
    looked_ns: int = 0
    is_escaped: bool = False


class FolderIndex:
    """What is known of one folder, which must be a real path. Kept in `file` between sessions."""

    def __init__(self, root: Path, file: Path, objects: Objects, limits: Limits) -> None:
        self.root = str(root)
        self.file = file
        self.left_out: dict[str, str] = {}
        self._objects = objects
        self._limits = limits
        self._entries: dict[str, dict[str, _Known]] = {}
        self._skipped: set[int] = set()
        self._looked_ns = 0  # when the last look began, by the clock of file systems
        self._is_loaded = False

    def refresh(self) -> dict[str, Difference]:
        """Look at all of it; gives what is not as it was when it was last looked at, by path relative to the folder.

        Raises `TooManyFiles`, `OSError` where contents cannot be kept.
        """
        self._load()
        walk, self._looked_ns = self._walk(), time.time_ns()
        walk.run()
        is_changed = bool(walk.differences) or walk.skipped != self._skipped or not self.file.exists()
        self._skipped = walk.skipped
        if is_changed:
            self._save()
        return walk.differences

    def note(self, path: str) -> None:
        """Look at one path, relative to the folder, whose state is known to be of somebody's doing already."""
        folder, _, name = path.rpartition("/")
        if not self._is_loaded or folder not in self._entries:
            return
        walk = self._walk()
        walk.look_at(folder, name)
        self._skipped |= walk.skipped

    def _walk(self) -> _Walk:
        return _Walk(
            self.root, self._entries, self.left_out, self._skipped, self._looked_ns, self._objects, self._limits
        )

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        try:
            stored = msgspec.msgpack.decode(self.file.read_bytes(), type=_Stored)
        except (OSError, msgspec.MsgspecError):  # all of it is read again
            return
        if real_path(stored.root) != self.root:
            return
        self._entries, self.left_out, self._skipped = stored.entries, stored.left_out, stored.skipped
        self._looked_ns = stored.looked_ns
        if stored.is_escaped:
            self._entries = _renamed(self._entries, real_path)
            self.left_out = {real_path(path): why for path, why in self.left_out.items()}

    def _save(self) -> None:
        make_private_folder(self.file.parent)
        new = self.file.with_name(f"{self.file.name}.{os.urandom(4).hex()}.new")
        stored = _Stored(stored_path(self.root), self._entries, self.left_out, self._skipped, self._looked_ns)
        try:
            content = msgspec.msgpack.encode(stored)
        except UnicodeEncodeError:  # names that are no text
            stored.entries, stored.is_escaped = _renamed(self._entries, stored_path), True
            stored.left_out = {stored_path(path): why for path, why in self.left_out.items()}
            content = msgspec.msgpack.encode(stored)
        new.write_bytes(content)
        new.replace(self.file)


def _renamed(entries: dict[str, dict[str, _Known]], name_of: Callable[[str], str]) -> dict[str, dict[str, _Known]]:
    return {
        name_of(folder): {name_of(name): known for name, known in inside.items()} for folder, inside in entries.items()
    }


class _Walk:
    """One look at a folder; `entries` and `left_out` are brought up to date.

    `skipped` are the inodes of what was not looked at the last time, which may have been moved since; that was at
    `looked_ns`.
    """

    def __init__(
        self,
        root: str,
        entries: dict[str, dict[str, _Known]],
        left_out: dict[str, str],
        skipped: set[int],
        looked_ns: int,
        objects: Objects,
        limits: Limits,
    ) -> None:
        self.differences: dict[str, Difference] = {}
        self._root = root
        self._entries = entries
        self._left_out = left_out
        self._objects = objects
        self._limits = limits
        self._racy_since_ns = time.time_ns() - _TICK_NS
        self.skipped: set[int] = set()
        self._skipped_before = skipped
        self._left_before = dict(left_out)
        self._looked_ns = looked_ns if looked_ns < time.time_ns() else 0  # the clock may have been set back
        self._gone_inodes: set[int] = set()
        self._known_inodes: set[int] | None = None
        self._first_seen: set[str] = set()  # folders in which nothing is new, though nothing of it was known
        self._kept = 0  # bytes of new files in this look
        self._listed: Listed | None = None
        self._ignored: list[int] | None = None

    def run(self) -> None:
        for path in [path for path in self._left_out if not os.path.lexists(f"{self._root}/{path}")]:
            del self._left_out[path]
        self._refuse_too_much()
        waiting, count = [""], 0
        while waiting:
            folder = waiting.pop()
            inside = self._look_in(folder)
            count += len(self._entries.get(folder, ()))
            if count > self._limits.most_files:
                raise TooManyFiles(
                    f"{self._root} holds more than {self._limits.most_files:,} files (checkpoints.most_files)"
                )
            waiting += inside

    def _refuse_too_much(self) -> None:
        """Raise `TooManyFiles` before the first look reads and keeps more than is covered."""
        if self._entries:
            return
        total = 0
        for path in self._listing().files:
            with suppress(OSError):
                size = os.lstat(f"{self._root}/{path}").st_size
                total += size if size <= self._limits.largest else 0
        self._count_kept(total)
        self._kept = 0

    def _count_kept(self, size: int) -> None:
        self._kept += size
        if self._kept > self._limits.most_bytes:
            raise TooManyFiles(
                f"{self._root} holds more than {self._limits.most_bytes / 1e9:g} GB (checkpoints.most_gb)"
            )

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
        below: list[str] = []
        seen = 0
        present = set()
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
                seen += 1
                present.add(name)
                if before.kind == "folder":
                    below.append(f"{folder}/{name}" if folder else name)
        if seen < len(known):
            for name in [name for name in known if name not in present]:
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
            is_ignored = path in self._left_before or self._is_ignored(path, kind)
        if before is None and is_ignored and (why := self._beyond_limits(path, kind, status)):
            self._left_out[path] = why
            self.skipped.add(status.st_ino)
            return
        if kind == "file" and status.st_size > self._limits.largest:
            self._left_out[path] = f"{status.st_size / 1e6:,.0f} MB"
        else:
            self._left_out.pop(path, None)
        if kind == "file" and before is None and status.st_size <= self._limits.largest:
            self._count_kept(status.st_size)
        state = state_of(f"{self._root}/{path}", status, self._objects, largest=self._limits.largest)
        if state is None:
            return
        changed_ns = status.st_ctime_ns if status.st_ctime_ns < self._racy_since_ns else 0
        known[name] = _Known(changed_ns, status.st_ino, state.kind, state.mode, state.content, state.size, is_ignored)
        if is_ignored and before is None and kind == "file":
            self._count_ignored(1, state.size)
        if before is not None and before.kind == "folder" != state.kind:
            self._gone_inside(path)
        if before is None and self._was_there(folder, path, status):
            if kind == "folder":
                self._first_seen.add(path)
        elif before is None or before.state != state:
            self._differ(path, before.state if before is not None else None, state)

    def _was_there(self, folder: str, path: str, status: os.stat_result) -> bool:
        """True for what was there before, only not looked at, and for what such a thing was moved to.

        What is in a folder that is moved keeps its times: it was made before the last look, and was not seen then.
        """
        if folder in self._first_seen or path in self._left_before or status.st_ino in self._skipped_before:
            return True
        return status.st_ctime_ns < self._looked_ns - _TICK_NS and status.st_ino not in self._inodes()

    def _inodes(self) -> set[int]:
        """Those of everything that was known at the last look: what has them now was moved, and is known."""
        if self._known_inodes is None:
            entries = (known for inside in self._entries.values() for known in inside.values())
            self._known_inodes = {known.inode for known in entries} | self._gone_inodes
        return self._known_inodes

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
            for path in [path for path in self.differences if path.startswith(f"{inside}/")]:
                del self.differences[path]

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
        if any(fnmatch(path, glob) or fnmatch(name, glob) for glob in self._limits.excluded):
            self._left_out[path] = "excluded by checkpoints.exclude"
            return True
        return False

    def _is_ignored(self, path: str, kind: FileKind) -> bool:
        """True for what git would ignore. A folder without files that it would not ignore counts as ignored."""
        listed = self._listing()
        return not (path in listed.folders if kind == "folder" else path in listed.files)

    def _listing(self) -> Listed:
        if self._listed is None:
            self._listed = listed_files(self._root, self._limits.most_files)
        return self._listed

    def _beyond_limits(self, path: str, kind: FileKind, status: os.stat_result) -> str:
        """Say why an ignored file, or folder as a whole, is left out; empty where it is not."""
        files, size = self._ignored_so_far()
        most, most_bytes = self._limits.ignored_files - files, self._limits.ignored_bytes - size
        if kind == "folder":
            count = total = 0
            for one in sizes_below(f"{self._root}/{path}"):
                count, total = count + 1, total + one
                if count > most or total > most_bytes:
                    break
        else:
            count, total = 1, status.st_size if kind == "file" else 0
        if count <= most and total <= most_bytes:
            return ""
        return "git ignores it, and it is large"

    def _ignored_so_far(self) -> list[int]:
        if self._ignored is None:
            those = [
                known
                for inside in self._entries.values()
                for known in inside.values()
                if known.is_ignored and known.kind == "file"
            ]
            self._ignored = [len(those), sum(known.size for known in those)]
        return self._ignored

    def _count_ignored(self, files: int, size: int) -> None:
        if self._ignored is not None:
            self._ignored[0] += files
            self._ignored[1] += size
