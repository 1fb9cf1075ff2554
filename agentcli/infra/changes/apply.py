"""Applies changes to real folders: each file is replaced atomically, and only if nobody else has changed it."""

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from agentcli.infra.changes import state, writing
from agentcli.infra.changes.groups import ChangeGroup
from agentcli.tools.command import ApplyOutcome, Conflict

_PATH_FLAGS = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC  # O_PATH needs no right to read
_CHANGED = "it was changed since the command started"
_DATABASE = b"SQLite format 3\0"  # https://www.sqlite.org/fileformat.html, 1.3.1

# The order of writing in a repository: objects before references to them, so that even a crash leaves it complete.
_GIT_ORDER = ("/objects/", "/refs/", "/logs/", "/packed-refs", "/index", "/HEAD")


class LiveFiles:
    """The files that programs have open for writing. If one were replaced, its program's next writes would be lost.

    The text of a conflict ends with `advice`. With `spares_databases`, SQLite databases are not replaced either.
    """

    def __init__(self, advice: str = "the command can be run directly", *, spares_databases: bool = True) -> None:
        self._advice, self._spares_databases = advice, spares_databases
        self._open: set[tuple[int, int]] = set()
        for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - unlike a Path's, it skips errors
            with contextlib.suppress(OSError):  # it was just closed
                if os.lstat(descriptor).st_mode & 0o200:  # the link's mode shows that the file is open for writing
                    status = os.stat(descriptor)  # noqa: PTH116
                    self._open.add((status.st_dev, status.st_ino))

    def require_free(self, folder: int, name: str) -> None:
        """Raise `ConflictError` if a file in an open folder must not be replaced."""
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (status.st_dev, status.st_ino) in self._open:
            raise writing.ConflictError(f"another program has it open for writing; {self._advice}")
        if self._spares_databases and _is_database(folder, name):
            raise writing.ConflictError(f"it is a database, which another program may have open; {self._advice}")


def apply_groups(
    groups: Sequence[ChangeGroup], token: str, *, is_resumed: bool = False, live: LiveFiles | None = None
) -> ApplyOutcome:
    """Apply changes. A group is a conflict if its files changed meanwhile, or the disk fails. Raises nothing.

    `token` is in the names of temporary files. With `is_resumed`, an interrupted call with the same token is finished.
    Files that programs have open (`live`) are not replaced.
    """
    names: list[str] = []
    conflicts: list[Conflict] = []
    application = _Application(token, live or LiveFiles(), is_resumed=is_resumed)
    # Removals come last, so that a file that was moved is never missing in both places.
    for group in sorted(groups, key=lambda one: (one.changes.root, one.summary.kind == "deleted", one.paths[0])):
        try:
            application.apply(group)
            names.append(group.summary.name)
        except OSError as error:
            conflicts.append(Conflict(group.summary.name, error.strerror or str(error)))
    application.finish_folders()
    return ApplyOutcome(tuple(names), tuple(conflicts))


class _Application:
    """Applies groups one after another. Folders get their modes, or are removed, only at the end.

    Methods take paths relative to the root of the current group's changes.
    """

    def __init__(self, token: str, live: LiveFiles, *, is_resumed: bool) -> None:
        self._token, self._live, self._is_resumed = token, live, is_resumed
        self._changes = state.ChangeSet(root="")  # those of the current group
        # By absolute path, the entry with the mode that a folder gets at the end; None if it is removed then.
        self._final_folders: dict[str, state.FileEntry | None] = {}

    def apply(self, group: ChangeGroup) -> None:
        """Apply a group. Raises `OSError`, and `ConflictError`, where possible before anything is changed."""
        self._changes = changes = group.changes
        paths, moved = group.paths, group.moved_root  # `moved`: a new folder that a single rename puts in place, or ""
        if self._is_resumed:  # a killed call may have applied a part: apply only the rest
            for path in paths:  # remove a temporary file that may be only half written
                with contextlib.suppress(OSError), _opened_parent(changes.at(path)) as (folder, name):
                    os.unlink(self._temporary(name), dir_fd=folder)
            if moved and not os.path.lexists(changes.after[moved].source):  # it was moved before the kill
                with _opened_parent(changes.at(moved)) as (folder, name):
                    _set_mode(folder, name, changes.after[moved])  # the kill may have come before this
                return
            paths = tuple(path for path in paths if not self._is_done(path))
        elif moved and self._move(group):  # on another disk it cannot be moved, and is copied below
            return
        removed = [path for path in paths if path not in changes.after]
        written = [path for path in paths if path in changes.after]
        swapped = [path for path in written if changes.swaps_folder(path)]  # a file replaces a folder, or the reverse
        for path in paths:  # check all paths before the first change
            self._require_unchanged(path)
        for path in (*removed, *swapped):
            self._require_nothing_else_in(path)
        # A folder that a file replaces is emptied first. Everything else is removed after the new files are written.
        in_swapped = [path for path in removed if any(path.startswith(f"{folder}/") for folder in swapped)]
        self._remove([*in_swapped, *swapped])
        for path in sorted(written, key=_git_order):
            self._make(path)
        self._remove([path for path in removed if path not in in_swapped])

    def finish_folders(self) -> None:
        """Set the modes of new folders, which may forbid writing into them, and remove deleted ones that are empty."""
        for path in sorted(self._final_folders, key=lambda path: -path.count("/")):  # inner folders first
            with contextlib.suppress(OSError), _opened_parent(path) as (folder, name):
                if (after := self._final_folders[path]) is not None:
                    _set_mode(folder, name, after)
                else:
                    os.rmdir(name, dir_fd=folder)

    def _now(self, path: str) -> state.FileEntry | None:
        """Return the entry at a path now, None if there is none. Raises `OSError`, also if a link is on the way."""
        with contextlib.suppress(FileNotFoundError), _opened_parent(self._changes.at(path)) as (folder, name):
            return state.entry_at(name, folder=folder, source=self._changes.at(path))
        return None

    def _temporary(self, name: str) -> str:
        return f".{name[:40]}.{self._token}"  # cut: file systems limit the length of names

    def _is_done(self, path: str) -> bool:
        """Return True if a path already has its new state. The owner may differ, because only root can set it."""
        after, now = self._changes.after.get(path), None
        with contextlib.suppress(OSError):
            now = self._now(path)
        if now is None or after is None:
            return now is None and after is None
        return not state.differs(now._replace(owner=after.owner), after)

    def _move(self, group: ChangeGroup) -> bool:
        """Move a new folder, whose contents nobody uses yet; return False if it is on another disk."""
        path = group.moved_root
        new = self._changes.after[path]
        if os.stat(new.source).st_dev != os.stat(self._changes.root).st_dev:  # noqa: PTH116
            return False
        self._require_unchanged(path)
        self._make_folders_around(path)
        for inner_path in reversed(group.paths):
            # The outermost folder gets its mode at the end: it can only be moved while its owner may write to it.
            _remove_overlay_traces(self._changes.after[inner_path], keeps_mode=inner_path == path)
        with _opened_parent(self._changes.at(path)) as (folder, name):
            if state.entry_at(name, folder=folder) is not None:
                raise writing.ConflictError(writing.MADE_MEANWHILE)
            os.rename(new.source, name, dst_dir_fd=folder)
            _set_mode(folder, name, new)
        return True

    def _require_unchanged(self, path: str) -> None:
        """Raise `ConflictError` if a path changed since the command started, or another program may write to it now."""
        before, after = self._changes.before_and_after(path)
        if path in self._changes.stale:
            raise writing.ConflictError("it was changed by something else while the command ran")
        try:
            now = self._now(path)
        except OSError as error:
            # The parent is still a file or a link, which this group replaces with a folder: nothing can be below it.
            if before is None and error.errno in (errno.ENOTDIR, errno.ELOOP):
                return
            raise
        if now is None:
            if before is not None and after is not None:  # without `after`, the command has removed it as well
                raise writing.ConflictError("it was removed since the command started")
        elif before is None:
            if not (now.kind == "folder" and after is not None and after.kind == "folder"):  # new folders can be merged
                raise writing.ConflictError(writing.MADE_MEANWHILE)
        elif not _is_same(now, before):
            raise writing.ConflictError(_CHANGED)
        elif now.kind == "file" and ".git" not in path.split("/"):  # git itself replaces its files
            with _opened_parent(self._changes.at(path)) as folder_and_name:
                self._live.require_free(*folder_and_name)

    def _require_nothing_else_in(self, path: str) -> None:
        """Raise `ConflictError` for a folder with something in it that the command did not remove."""
        if self._changes.before[path].kind != "folder":
            return
        with contextlib.suppress(FileNotFoundError), _opened_parent(self._changes.at(path)) as (parent, name):
            folder = os.open(name, state.READ_FLAGS | os.O_DIRECTORY, dir_fd=parent)
            try:
                contents = [f"{path}/{entry}" for entry in os.listdir(folder)]  # noqa: PTH208
            finally:
                os.close(folder)
            if any(inner not in self._changes.before or inner in self._changes.after for inner in contents):
                raise writing.ConflictError("something else was put into it since the command started")

    def _make(self, path: str) -> None:
        """Give a path its planned state; if the contents are the same, only the mode and the owner."""
        before, after = self._changes.before.get(path), self._changes.after[path]
        self._make_folders_around(path)
        if after.kind == "folder":
            return self._make_folder(path)
        with _opened_parent(self._changes.at(path)) as (folder, name):
            if before is not None and before.kind == after.kind == "file" and state.has_same_content(before, after):
                return _set_mode(folder, name, after)
            old = before if before is not None and before.kind != "folder" else None  # an old folder is gone by now
            check = partial(_require_same, folder, name, old)
            options: dict[str, Any] = {"temporary": self._temporary(name), "check": check, "replaces": old is not None}
            if after.kind == "file":
                return writing.write_atomically(folder, name, partial(_fill, after=after), **options)
            with writing.move_into_place(folder, name, **options) as temporary:
                if after.kind == "link":
                    os.symlink(after.target, temporary, dir_fd=folder)
                    _set_owner(partial(os.chown, temporary, dir_fd=folder, follow_symlinks=False), after.owner)
                else:
                    os.mkfifo(temporary, 0o600, dir_fd=folder)
                    _set_mode(folder, temporary, after)
        return None

    def _make_folders_around(self, path: str) -> None:
        for parent in state.parents_of(path)[1:]:
            before, after = self._changes.before_and_after(parent)
            if after is not None and before is None and after.kind == "folder":
                self._make_folder(parent)

    def _make_folder(self, path: str) -> None:
        """Make a folder if it is missing, and plan its mode for the end."""
        if path:  # "" is the root, which exists
            with _opened_parent(self._changes.at(path)) as (folder, name):
                try:
                    os.mkdir(name, 0o700, dir_fd=folder)  # it gets its own mode in `finish_folders`
                except FileExistsError:
                    present = state.entry_at(name, folder=folder)
                    if present is None or present.kind != "folder":
                        raise
        if self._final_folders.get(self._changes.at(path)) is None:  # it has no planned mode: new, or to be removed
            self._final_folders[self._changes.at(path)] = self._changes.after[path]

    def _remove(self, paths: Sequence[str]) -> None:
        """Remove files, then folders, inner ones first. Deleted folders around them are removed in `finish_folders`."""
        before, after = self._changes.before, self._changes.after
        for path in sorted(paths, key=lambda path: (before[path].kind == "folder", -path.count("/"))):
            with contextlib.suppress(FileNotFoundError), _opened_parent(self._changes.at(path)) as (folder, name):
                if before[path].kind == "folder":
                    os.rmdir(name, dir_fd=folder)
                else:
                    if state.entry_at(name, folder=folder) is not None:
                        _require_same(folder, name, before[path])  # others may change it while a large group is applied
                    os.unlink(name, dir_fd=folder)
            for parent in state.parents_of(path)[1:]:  # without the root
                if parent in before and parent not in after:
                    self._final_folders.setdefault(self._changes.at(parent), None)


@contextlib.contextmanager
def _opened_parent(path: str) -> Iterator[tuple[int, str]]:
    """Yield the open folder that contains a path, and the name in it. No link is followed. Raises `OSError`."""
    folder_path, _, name = path.rpartition("/")
    with writing.opened_folder(Path(folder_path or "/")) as folder:
        yield folder, name


def _git_order(path: str) -> tuple[int, str]:
    """Return the sort key of a path by `_GIT_ORDER`. All other paths come after objects and references."""
    numbers = [number for number, part in enumerate(_GIT_ORDER) if part in f"/{path}"]
    return min(numbers, default=_GIT_ORDER.index("/logs/")), path


def _is_same(now: state.FileEntry, before: state.FileEntry) -> bool:
    """Compare two entries; for folders only mode and owner, because the rest changes with their contents."""
    if now.kind == before.kind == "folder":
        return (now.mode, now.owner) == (before.mode, before.owner)
    return now.kind == before.kind and now.stamp == before.stamp


def _require_same(folder: int, name: str, before: state.FileEntry | None) -> None:
    """Raise `ConflictError` unless a name in an open folder still has the entry `before` (None: nothing)."""
    now = state.entry_at(name, folder=folder)
    if before is None and now is not None:
        raise writing.ConflictError(writing.MADE_MEANWHILE)
    if before is not None and (now is None or not _is_same(now, before)):
        raise writing.ConflictError(_CHANGED)


def _fill(target: int, after: state.FileEntry) -> None:
    """Give a new, open file the contents, attributes, owner, mode and time of an entry. Raises `OSError`."""
    with after.open() as source:
        writing.copy_attributes(source.fileno(), target)
        while data := source.read(writing.CHUNK_BYTES):
            writing.write_all(target, data)
    _set_owner(partial(os.fchown, target), after.owner)
    os.fchmod(target, after.mode)
    os.utime(target, ns=(after.stamp.modified_ns, after.stamp.modified_ns))  # times of access and of modification


def _set_owner(chown: Callable[[int, int], None], owner: tuple[int, int]) -> None:
    """Set a file's user and group; without root only the group, if the person is in it."""
    if os.geteuid() == 0:
        chown(*owner)
    else:
        with contextlib.suppress(PermissionError):
            chown(-1, owner[1])


def _set_mode(folder: int, name: str, after: state.FileEntry) -> None:
    """Set mode and owner through a descriptor, so that no link can redirect the change to another file."""
    descriptor = os.open(name, _PATH_FLAGS, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise writing.ConflictError("a link was put there since the command started")
        real_file = f"/proc/self/fd/{descriptor}"  # because fchown and fchmod refuse a descriptor of O_PATH
        if os.geteuid() == 0:  # only root may set another owner
            os.chown(real_file, *after.owner)
        os.chmod(real_file, after.mode)  # noqa: PTH101
    finally:
        os.close(descriptor)


def _remove_overlay_traces(entry: state.FileEntry, *, keeps_mode: bool) -> None:
    """Remove the overlay's attributes from a prepared entry, and unless `keeps_mode`, give it its planned mode."""
    for name in os.listxattr(entry.source, follow_symlinks=False):
        if name.startswith(writing.OVERLAY_ATTRIBUTES):
            os.removexattr(entry.source, name, follow_symlinks=False)
    has_mode = entry.kind in {"file", "folder"}
    if has_mode and not keeps_mode and stat.S_IMODE(os.lstat(entry.source).st_mode) != entry.mode:
        os.chmod(entry.source, entry.mode)  # noqa: PTH101


def _is_database(folder: int, name: str) -> bool:
    """Return True for an SQLite database, even if all of it is still in a log beside its empty file."""
    sqlite_logs = f"{name}-wal", f"{name}-journal"
    if any(state.entry_at(log, folder=folder) is not None for log in sqlite_logs):
        return True
    with contextlib.suppress(OSError), FileIO(os.open(name, state.READ_FLAGS, dir_fd=folder)) as file:
        return file.read(len(_DATABASE)) == _DATABASE
    return False
