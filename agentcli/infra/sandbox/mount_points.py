"""Holds mount points at missing paths that commands must not create, for as long as the commands run.

A mount needs a real file or folder under it, on the real disk, where the person sees it. This mount point is created
before the command and removed after the last command that needs it, whichever process that is, because commands of
several sessions run at the same time. Removing it earlier would remove the mount from a running sandbox (Linux has
done so since 3.18), and with it the protection.

Each command therefore holds a shared lock (flock) on its mount points; a command that ends removes those on which it
gets the exclusive lock. A mount point is recognised by its mode and content, not by a list. After a kill the keeper, or
else the next start, removes those in the session's `CleanupNote`, but no folder that the person has put something into.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

# Marks an empty folder as a mount point: no other program creates a `.vscode` or `.git/hooks` with the sticky bit.
MOUNT_POINT_MODE = 0o1755
# The content of a mount point for the file `commondir`: "the common folder is this one", which git also assumes without
# the file. With other contents git would look elsewhere for hooks and configuration; with an empty file it would fail.
COMMON_FOLDER_IS_HERE = b".\n"
LIST_NAME = "mount_points"  # the file of a `MountPointList`
PROTECTED = "protected.json"  # a file beside it: the contents to revert to after a kill
_PATIENCE_S = 0.5  # for another process to release a mount point
_RETRY_EVERY_S = 0.02
_CANNOT_CREATE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.ELOOP}
_own_paths: set[str] = set()  # paths where this process has had mount points, so that scans take no notice of these


class _HeldMountPoint(NamedTuple):
    """A mount point that this process has locked: a name in an open folder."""

    folder: int  # a descriptor
    name: str
    lock: int  # the descriptor that holds the lock
    content: bytes | None  # of a file; None for a folder


class MountPointList:
    """Lists mount points in a file before they are created. A listed one that no longer exists does no harm."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._named: set[str] = set()  # the paths in the file

    def add(self, path: str, content: bytes | None) -> None:
        if path not in self._named:
            # On a full disk the command runs anyway, and a kill may leave the mount point behind.
            with suppress(OSError), self._file.open("ab") as file:
                file.write(os.fsencode(path) + (b"\0folder" if content is None else b"\0file " + content) + b"\0")
                self._named.add(path)


class MountPoints:
    """The mount points of one command, added to `listing` before they are created; `close` releases them."""

    def __init__(self, listing: MountPointList | None = None) -> None:
        self._held: list[_HeldMountPoint] = []
        self._folders: dict[str, int] = {}  # path of a folder with mount points -> its descriptor
        self._listing = listing

    def close(self) -> None:
        for held in self._held:
            with suppress(OSError):
                _remove_if_last(held)
        descriptors = [*self._folders.values(), *(held.lock for held in self._held)]
        self._held.clear()
        self._folders.clear()
        if descriptors:
            # Closing frees the removed files, which can take a while. `Thread.start` would wait until the thread runs.
            try:
                start_new_thread(_close, (descriptors,))
            except RuntimeError:  # no more threads can be started
                _close(descriptors)

    def ensure(self, path: str, content: bytes | None = None) -> bool:
        """Create and lock a folder, or a file with this content; return True if the path can be mounted on.

        What somebody else has at the path stays as it is. Returns False if neither agentcli nor the command could
        create it (a read-only disk, another user's folder), and for a path with a symlink in it. Raises `OSError`.
        """
        _own_paths.add(path)
        if self._listing is not None:
            self._listing.add(path, content)
        parent, _, name = path.rpartition("/")
        try:
            if parent not in self._folders:
                self._folders[parent] = open_real(parent)
            folder = self._folders[parent]
            lock = _lock_or_create(folder, name, content)
        except OSError as error:
            if error.errno in _CANNOT_CREATE:
                return False
            raise
        if lock is not None:
            self._held.append(_HeldMountPoint(folder, name, lock, content))
        return True


class CleanupNote(MountPointList):
    """Lists the mount points of a session's commands, for cleaning up after a kill; `PROTECTED` may be beside it.

    agentcli holds a lock on the file's folder. It shares the lock on the file with the keeper, which outlives a killed
    agentcli until it has ended the commands. Creating a note raises `OSError`.
    """

    def __init__(self, notes_folder: Path) -> None:
        notes_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = Path(tempfile.mkdtemp(dir=notes_folder))
        self.path = self._folder / LIST_NAME
        self._folder_lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._folder_lock, fcntl.LOCK_EX)  # before the note exists: an unlocked note would be cleaned up
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        super().__init__(self.path)

    def close(self, *, is_all_reverted: bool) -> None:
        """Remove the note if `is_all_reverted`; otherwise the next start of agentcli uses it to clean up."""
        if is_all_reverted:
            shutil.rmtree(self._folder, ignore_errors=True)
        _close([self.descriptor, self._folder_lock])


@contextmanager
def locked(path: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock on a file or folder. Raises `OSError` if another process holds it for longer than `patience_s`."""
    deadline = time.monotonic() + patience_s
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise BlockingIOError(errno.EAGAIN, "it is locked", str(path))
            time.sleep(_RETRY_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_listed(file: Path) -> None:
    """Remove the mount points in the list of a killed process, unless they are in use. Never raises `OSError`."""
    with closing(MountPoints()) as points, suppress(OSError):
        words = file.read_bytes().split(b"\0")  # of `MountPointList.add`: paths and kinds; the last may be cut off
        for path, kind in zip(map(os.fsdecode, words[::2]), words[1::2], strict=False):
            if os.path.lexists(path):  # take it over; closing `points` then removes it
                points.ensure(path, None if kind == b"folder" else kind.removeprefix(b"file "))


def open_real(path: str) -> int:
    """Open a path with O_PATH, which gives no access to contents. Raises `OSError`, also if the path has a symlink."""
    path = path or "/"  # "" is what is left of `/name` when its last part is cut off
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if real_path(descriptor) != path:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a symbolic link is on the way", path)
    return descriptor


def real_path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # pathlib takes longer than the kernel


def is_mount_point(path: str) -> bool:
    """Return True if a path is an empty folder that agentcli created as a mount point, known by its sticky bit."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX) and not any(Path(path).iterdir())


def had_only_mount_points(path: str) -> bool:
    """Return True if all that has appeared and disappeared at a path was mount points of this process."""
    if path in _own_paths and os.path.lexists(path) and not is_mount_point(path):
        _own_paths.discard(path)  # somebody else created it, so its removal will be a change as well
    return path in _own_paths


def _lock_or_create(folder: int, name: str, content: bytes | None) -> int | None:
    """Return a lock on a mount point, created if the name is free; None if it is somebody else's. Raises `OSError`."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_DIRECTORY if content is None else 0)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        is_new = _create(folder, name, content)
        try:
            lock = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:  # removed by the last command that held it
            continue
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.EACCES, errno.ENXIO}:
                return None  # somebody else's: it can be mounted on as it is
            raise
        if not is_new and not _is_ours(lock, content):
            os.close(lock)
            return None
        if _lock_unless_removed(folder, name, lock):
            return lock
        os.close(lock)
        time.sleep(0.001)
    raise TimeoutError(errno.ETIMEDOUT, "another process keeps this locked", name)


def _create(folder: int, name: str, content: bytes | None) -> bool:
    """Create a mount point; return False if the name is taken. If possible, a file has its content from the start."""
    descriptor = -1
    try:
        if content is None:
            os.mkdir(name, MOUNT_POINT_MODE, dir_fd=folder)
            return True
        try:  # the file has no name until it has its content, because git must not read it empty
            descriptor = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=folder)
        except OSError:  # the file system does not support O_TMPFILE
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            os.write(descriptor, content)
        else:
            os.write(descriptor, content)
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder)
    except FileExistsError:
        return False
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return True


def _lock_unless_removed(folder: int, name: str, lock: int) -> bool:
    """Lock a mount point; return False if it was removed meanwhile, or another command is removing it."""
    with suppress(OSError):  # on a file system without locks nobody gets the exclusive lock, so nothing is removed
        if not _try_lock(lock, fcntl.LOCK_SH):
            return False
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(lock))
    except FileNotFoundError:
        return False


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _is_ours(descriptor: int, content: bytes | None) -> bool:
    """Return True for a mount point of agentcli: an empty folder with the sticky bit, or a file with this content."""
    if content is None:
        return bool(os.fstat(descriptor).st_mode & stat.S_ISVTX) and not os.listdir(descriptor)
    return os.pread(descriptor, len(content) + 1, 0) == content  # reads one byte more to recognise longer files


def _remove_if_last(held: _HeldMountPoint) -> None:
    """Remove a mount point. Raises `BlockingIOError` if other commands hold it too: the last one removes it."""
    fcntl.flock(held.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(held.lock)
    if not os.path.samestat(os.stat(held.name, dir_fd=held.folder, follow_symlinks=False), status):
        return  # something else has the name now
    if not stat.S_ISDIR(status.st_mode):
        if _is_ours(held.lock, held.content):
            os.unlink(held.name, dir_fd=held.folder)
        return
    try:
        os.rmdir(held.name, dir_fd=held.folder)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:  # the person uses the folder now: remove its sticky bit
            os.fchmod(held.lock, 0o755)
