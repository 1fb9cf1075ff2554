"""Finds what changed in a folder since the last scan, and stores the contents of each state.

A file is read again only if its inode or its ctime has changed; programs cannot set the ctime. Files that git ignores
are covered up to a limit, and large files without their contents. `left_out` lists what is missing.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, SubprocessError

import msgspec

from agentcli.conversation.entries import FileKind, FileState, stored_path
from agentcli.infra.changes.state import BorrowedObjects, Objects, TrackedFile, is_cache, joined, kind_of, state_of
from agentcli.infra.changes.writing import TICK_NS
from agentcli.infra.sandbox.mount_points import MOUNT_POINT_MODE, is_mount_point
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.sandbox import find_rg

_GIT_NAMES = frozenset(("HEAD", "objects", "refs"))  # a folder with these is a bare repository
_RG_ARGUMENTS = ("--files", "--null", "--no-config", "--no-messages", "--hidden", "--no-require-git", "--no-ignore-dot")

Difference = tuple[FileState | None, FileState | None]  # before and now


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_file_bytes: int = 50_000_000
    max_files: int = 200_000
    max_bytes: int = 5_000_000_000
    max_ignored_files: int = 5_000  # of the files that git ignores
    max_ignored_bytes: int = 50_000_000
    excluded: tuple[str, ...] = ()  # globs of paths or names
    own_folders: tuple[str, ...] = ()  # agentcli's, which are never covered
    min_files_to_borrow: int = 200  # with fewer files, copying them is faster than asking git which it has

    def check(self, root: str, *, files: int = 0, size: int = 0) -> None:
        if files > self.max_files:
            raise FolderTooLarge(f"{root} holds more than {self.max_files:,} files (checkpoints.most_files)")
        if size > self.max_bytes:
            raise FolderTooLarge(f"{root} holds more than {self.max_bytes / 1e9:g} GB (checkpoints.most_gb)")


class FolderTooLarge(Exception):
    """A folder holds more files or bytes than checkpoints cover."""


class _KnownEntry(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An entry as it was at the last scan."""

    changed_ns: int  # the ctime; 0 if the entry must be read again
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
    """The state of a folder at the last scan."""

    root: str
    entries: dict[str, dict[str, _KnownEntry]] = {}  # by relative folder and name; the root is ""
    left_out: dict[str, str] = {}  # by path, the reason why it is not covered
    skipped: set[int] = set()  # inodes of entries that are not covered: if one is moved, it is not new
    looked_ns: int = 0  # Unix time at which the scan began


_DECODER = msgspec.msgpack.Decoder(FolderState)


class FolderIndex:
    """Stores a folder's entries in `file`, and finds changes. A `git` program in a `writable` folder is not run."""

    def __init__(
        self, root: Path, file: Path, objects: Objects, limits: SnapshotLimits, *, writable: Sequence[Path] = ()
    ) -> None:
        self.root, self.file = str(root), file
        self.objects, self.limits, self.files_scanned = objects, limits, 0
        self.state = self._load()
        self.borrowed = BorrowedObjects(self.root, objects.folder / "borrowed" / index_name(self.root), writable)

    def refresh(self, *, saves: bool = True) -> dict[str, Difference]:
        """Return the changes since the last scan, by relative path. Raises `FolderTooLarge`, `OSError`."""
        differences, state = _Scan(self).run()
        changed_files = [before for before, _ in differences.values() if before is not None and before.kind == "file"]
        # Undo needs the old contents of changed files; only those of unchanged files may stay borrowed from git.
        self.borrowed.copy((file.content for file in changed_files if file.content), self.objects)
        previous, self.state = self.state, state  # without `saves`, the new state is only in memory
        if saves and (differences or state.skipped != previous.skipped or not self.file.exists()):
            self._save()
        return differences

    def _load(self) -> FolderState:
        nothing_known = FolderState(root=stored_path(self.root))
        try:
            content = self.file.read_bytes()
            is_json = content.startswith(b"{")  # `_save` writes JSON for some file names; msgpack begins differently
            state = msgspec.convert(json.loads(content), FolderState) if is_json else _DECODER.decode(content)
        except (OSError, ValueError):  # without a usable index everything is read again
            return nothing_known
        # The file's name is a part of a hash, which two roots may share.
        return state if state.root == nothing_known.root else nothing_known

    def _save(self) -> None:
        make_private_folder(self.file.parent)
        try:
            content = msgspec.msgpack.encode(self.state)
        except UnicodeEncodeError:  # a file name is not UTF-8; json is slower, but can escape it
            content = json.dumps(msgspec.to_builtins(self.state)).encode()
        replace_file(self.file, content, syncs=False)  # if a crash of the system loses it, everything is read again


class _Scan:
    """Scans a folder once, and takes untouched entries from the previous state. Paths are relative to the folder."""

    def __init__(self, index: FolderIndex) -> None:
        self._index, self._root, self._limits, self._before = index, index.root, index.limits, index.state
        now_ns = time.time_ns()
        # When the previous scan began; 0 if the clock was set back since then.
        self._previous_scan_ns = self._before.looked_ns if self._before.looked_ns < now_ns else 0
        self._racy_since_ns = now_ns - TICK_NS  # a file changed after this may change again and keep its ctime
        self._known = dict(self._before.entries)  # less the folders that have become repositories
        left_out = {path: why for path, why in self._before.left_out.items() if os.path.lexists(f"{self._root}/{path}")}
        self._state = FolderState(root=self._before.root, left_out=left_out, looked_ns=now_ns)
        self._differences: dict[str, Difference] = {}
        self._newly_covered: set[str] = set()  # folders that existed at the last scan, but were not covered
        self._new_bytes = 0  # in the new files of this scan
        self._borrowed: dict[str, TrackedFile] = {}  # files whose contents are borrowed, by path

    def run(self) -> tuple[dict[str, Difference], FolderState]:
        """Return the differences from the previous state by path, and the new state."""
        if not self._known:  # the first scan of this folder: later, few files are new
            self._borrow()
        self._index.files_scanned = 0
        folders = [""]  # still to scan; "" is the root
        while folders:
            folder = folders.pop()
            folders += self._scan_folder(folder)
            self._index.files_scanned += len(self._state.entries.get(folder, ()))
            self._limits.check(self._root, files=self._index.files_scanned)
        for folder, known in self._known.items():
            for name in known.keys() - self._state.entries.get(folder, {}).keys():
                self._differences[joined(folder, name)] = known[name].state, None  # it was removed
        return self._differences, self._state

    def _borrow(self) -> None:
        """Find contents to borrow. Raises `FolderTooLarge` if the rest exceeds the limits, before it is stored."""
        if len(self._paths_not_ignored) >= self._limits.min_files_to_borrow:
            with suppress(OSError, ValueError, SubprocessError):  # then all files are copied
                self._borrowed = self._index.borrowed.borrow()
        for path in self._paths_not_ignored - self._borrowed.keys():
            with suppress(OSError):  # the file was just removed
                self._count_new(os.lstat(f"{self._root}/{path}"))
        self._new_bytes = 0  # they are counted again when they are stored

    def _count_new(self, status: os.stat_result) -> None:
        """Add a file that is to be stored to the new bytes. Raises `FolderTooLarge` if they exceed the limit."""
        if stat.S_ISREG(status.st_mode) and status.st_size <= self._limits.max_file_bytes:
            self._new_bytes += status.st_size
            self._limits.check(self._root, size=self._new_bytes)

    def _scan_folder(self, folder: str) -> list[str]:
        """Record the entries of a folder, and return the folders in it."""
        state, known = self._state, self._known.get(folder, {})
        try:
            with os.scandir(f"{self._root}/{folder}" if folder else self._root) as entries:
                inner_entries = list(entries)
        except (FileNotFoundError, NotADirectoryError):  # the folder was just removed
            return []
        except PermissionError as error:  # its contents are assumed to be unchanged
            state.left_out[folder] = error.strerror or str(error)
            state.entries |= {path: entries for path, entries in self._known.items() if _is_at_or_below(path, folder)}
            return []
        if {entry.name for entry in inner_entries} >= _GIT_NAMES:
            state.left_out[folder] = "it is a git repository"
            # `run` reports everything in `_known` that was not found as removed, so the contents are taken out.
            self._known = {path: names for path, names in self._known.items() if not _is_at_or_below(path, folder)}
            return []
        if folder in self._before.left_out:  # it can be covered now
            state.left_out.pop(folder, None)
            self._newly_covered.add(folder)
        now = state.entries[folder] = {}
        for entry in inner_entries:
            before = after = known.get(entry.name)
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # the entry was just removed
                continue
            if before is None or before.changed_ns != status.st_ctime_ns or before.inode != status.st_ino:
                after = self._record(folder, entry.name, status, before)
            if after is not None:
                now[entry.name] = after
        return [joined(folder, name) for name, entry in now.items() if entry.kind == "folder"]

    def _record(self, folder: str, name: str, status: os.stat_result, before: _KnownEntry | None) -> _KnownEntry | None:
        """Return the record of an entry that is new or was touched, and add its change to the differences.

        An entry that is skipped, is a mount point or was just removed keeps its old record, if it has one: this scan
        reports no change. A socket, a device and an ignored new entry that is too large get no record.
        """
        state, path, kind, is_new = self._state, joined(folder, name), kind_of(status), before is None
        if kind is None:  # a socket or a device
            return None
        if self._is_skipped(path, name, is_folder=kind == "folder"):
            state.skipped.add(status.st_ino)  # so that it is not new if it is moved later
            return before
        if stat.S_IMODE(status.st_mode) == MOUNT_POINT_MODE and is_mount_point(f"{self._root}/{path}"):
            return before  # the sandbox of a running or killed command created it
        is_ignored = before.is_ignored if before is not None else self._is_ignored(path)
        if is_new and is_ignored and not self._fits_ignored_limits(path, kind, status):
            state.left_out[path] = "git ignores it, and it is large"
            state.skipped.add(status.st_ino)
            return None
        state.left_out.pop(path, None)
        if kind == "file" and status.st_size > self._limits.max_file_bytes:
            state.left_out[path] = f"{status.st_size / 1e6:,.0f} MB"  # recorded below, without its contents
        if (now := self._file_state(path, status, is_new=is_new)) is None:
            return before
        if is_new and is_ignored and kind == "file":
            ignored_files, ignored_bytes = self._ignored_totals
            self._ignored_totals = ignored_files + 1, ignored_bytes + now.size
        if is_new and self._was_there(folder, path, status):  # it was just not covered before, so it is no change
            if kind == "folder":
                self._newly_covered.add(path)
        elif before is None or before.state != now:
            self._differences[path] = before.state if before is not None else None, now
        is_settled = status.st_ctime_ns < self._racy_since_ns  # otherwise the next scan reads it again
        changed_ns = status.st_ctime_ns if is_settled else 0
        fields = msgspec.structs.asdict(now)
        return _KnownEntry(changed_ns=changed_ns, inode=status.st_ino, is_ignored=is_ignored, **fields)

    def _file_state(self, path: str, status: os.stat_result, *, is_new: bool) -> FileState | None:
        """Return an entry's state, with its contents stored or borrowed; None if it was just removed."""
        borrowed = self._borrowed.get(path) if status.st_size <= self._limits.max_file_bytes else None
        if borrowed is not None and borrowed.is_unchanged(status):
            return FileState("file", stat.S_IMODE(status.st_mode), borrowed.id, status.st_size)
        if is_new:
            self._count_new(status)
        return state_of(f"{self._root}/{path}", status, self._index.objects, max_bytes=self._limits.max_file_bytes)

    def _was_there(self, folder: str, path: str, status: os.stat_result) -> bool:
        """Return True for an entry that existed at the last scan but was not covered, even if it was moved since."""
        if folder in self._newly_covered or path in self._before.left_out or status.st_ino in self._before.skipped:
            return True
        # Moving a folder does not change the ctimes of its contents. If a ctime is older than the last scan (less a
        # tick, because ctimes may lag) but the inode is unknown, the entry came with a folder that was not covered.
        return status.st_ctime_ns < self._previous_scan_ns - TICK_NS and status.st_ino not in self._known_inodes

    @cached_property
    def _known_inodes(self) -> set[int]:
        """The inodes of all entries of the last scan: a new path with one of them is a known file that was moved."""
        return {known.inode for entries in self._before.entries.values() for known in entries.values()}

    def _is_skipped(self, path: str, name: str, *, is_folder: bool) -> bool:
        """Return True for an entry that is not covered; one that a setting excludes is reported as left out."""
        if name == ".git" or is_cache(name, is_folder=is_folder) or f"{self._root}/{path}" in self._limits.own_folders:
            return True
        if any(fnmatch(path, glob) or fnmatch(name, glob) for glob in self._limits.excluded):
            self._state.left_out[path] = "excluded by checkpoints.exclude"
            return True
        return False

    def _is_ignored(self, path: str) -> bool:
        # A path that was left out before is taken as ignored, which avoids the slow listing.
        return path in self._before.left_out or path not in self._paths_not_ignored

    @cached_property
    def _paths_not_ignored(self) -> set[str]:
        """The files that git does not ignore, and the folders around them. Raises `FolderTooLarge`, `OSError`."""
        command, parts, count = [find_rg(), *_RG_ARGUMENTS, "--glob=!.git"], [], 0
        with Popen(command, cwd=self._root, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as running:
            assert running.stdout is not None
            try:
                while part := running.stdout.read(1 << 20):
                    parts.append(part)
                    count += part.count(b"\0")
                    self._limits.check(self._root, files=count)
            finally:
                running.kill()  # it still runs if there are too many files
        paths = set(os.fsdecode(b"".join(parts)).split("\0")[:-1])  # each name ends with a NUL
        for path in [*paths]:
            while (path := path.rpartition("/")[0]) and path not in paths:  # `rg` lists only files
                paths.add(path)
        return paths

    def _fits_ignored_limits(self, path: str, kind: FileKind, status: os.stat_result) -> bool:
        """Return True if an ignored file, or a folder with all its contents, fits into the limits for ignored files."""
        files, total = self._ignored_totals
        sizes = _entry_sizes(f"{self._root}/{path}") if kind == "folder" else [status.st_size if kind == "file" else 0]
        for size in sizes:
            files, total = files + 1, total + size
            if files > self._limits.max_ignored_files or total > self._limits.max_ignored_bytes:
                return False
        return True

    @cached_property
    def _ignored_totals(self) -> tuple[int, int]:
        """The number and the total size of ignored files that are covered."""
        sizes = [
            entry.size
            for folder, entries in self._before.entries.items()
            for name, entry in entries.items()
            if entry.is_ignored and entry.kind == "file" and os.path.lexists(f"{self._root}/{folder}/{name}")
        ]
        return len(sizes), sum(sizes)


def index_name(root: str) -> str:
    """Return a file name for what is stored about a root."""
    return hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def _is_at_or_below(path: str, folder: str) -> bool:
    return path == folder or not folder or path.startswith(f"{folder}/")


def _entry_sizes(folder: str) -> Iterator[int]:
    for where, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(OSError):  # the entry was just removed
                yield os.lstat(f"{where}/{name}").st_size
