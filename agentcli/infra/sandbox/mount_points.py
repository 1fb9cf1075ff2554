"""Makes mount points for names that do not exist and must not be made, while commands run.

A mount needs a real file or folder under it, on the real disk, where the person sees it. It is made before the command
and removed after the last one that needs it, whichever process that is, because commands of several sessions run at the
same time. Removing it earlier would take the mount away from a running sandbox (Linux does that since 3.18), and the
protection with it.

Each command therefore holds a shared lock (flock) on what it mounts on, and a command that ends removes it after
getting the exclusive lock. A mount point is recognised by its look, not by a list. After a kill the keeper, or else the
next start, removes what the session's note names. A folder is removed by rmdir, which never removes one that the person
has put something into.
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

# An empty folder with the sticky bit: nothing makes such a `.vscode` or `.git/hooks` by itself.
MOUNT_POINT_MODE = 0o1755
# The common folder of a repository "is this one": what git assumes without the file. Anything else there would send git
# elsewhere for its hooks and configuration, an empty file would stop it, and nothing but a file can be mounted on.
COMMON_FOLDER_IS_HERE = b".\n"
NOTE = "mount_points"
PROTECTED = "protected.json"  # beside the note: what to revert after a kill
_PATIENCE_S = 0.5
_LOOK_EVERY_S = 0.02
_NOTHING_CAN_BE_MADE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.ELOOP}
_made: set[str] = set()  # where this process had mount points


class _HeldName(NamedTuple):
    """A mount point: a name in an open folder, and the descriptor that holds its lock.

    `content` is that of a file, None for a folder.
    """

    folder: int
    name: str
    lock: int
    content: bytes | None


class Note:
    """Names mount points in a file before they are made. One that is not there any more does no harm."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._named: set[str] = set()  # the paths in the file

    def add(self, path: str, content: bytes | None) -> None:
        if path not in self._named:
            # Without room for the note, a kill may leave the mount point; the command runs all the same.
            with suppress(OSError), self._file.open("ab") as file:
                file.write(os.fsencode(path) + (b"\0folder" if content is None else b"\0file " + content) + b"\0")
                self._named.add(path)


class MountPoints:
    """Mount points of one command, added to `note` before they are made; `close` releases them."""

    def __init__(self, note: Note | None = None) -> None:
        self._held: list[_HeldName] = []
        self._folders: dict[str, int] = {}  # descriptors of the folders around them, by path
        self._note = note

    def close(self) -> None:
        for held in self._held:
            with suppress(OSError):
                _remove_unless_used(held)
        descriptors = [*self._folders.values(), *(held.lock for held in self._held)]
        self._held.clear()
        self._folders.clear()
        if not descriptors:
            return
        # Closing frees what was removed, which can take the disk a while. A `Thread` would have us wait for its start.
        try:
            start_new_thread(_close, (descriptors,))
        except RuntimeError:  # no room for a thread
            _close(descriptors)

    def hold(self, path: str, content: bytes | None = None) -> bool:
        """Make a folder at a path, or a file with this content, unless something is there; return True to mount on it.

        It returns False where neither agentcli nor the command can make anything (a read-only disk, a folder of
        somebody else), and for a path with a symlink in it. Raises `OSError`.
        """
        _made.add(path)
        if self._note is not None:
            self._note.add(path, content)
        parent, _, name = path.rpartition("/")
        try:
            if parent not in self._folders:
                self._folders[parent] = open_real(parent)
            folder = self._folders[parent]
            lock = _lock_or_make(folder, name, content)
        except OSError as error:
            if error.errno in _NOTHING_CAN_BE_MADE:
                return False
            raise
        if lock is not None:
            self._held.append(_HeldName(folder, name, lock, content))
        return True


class SessionNote(Note):
    """Notes the mount points of a session's commands in a file, so that they can be removed after a kill.

    agentcli holds a lock on the folder of the file. It shares the lock on the file with the keeper, which after the
    death of agentcli goes on until it has ended what ran. Making a note raises `OSError`.
    """

    def __init__(self, around: Path) -> None:
        around.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = Path(tempfile.mkdtemp(dir=around))
        self.path = self._folder / NOTE
        self._folder_lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._folder_lock, fcntl.LOCK_EX)  # before there is a note: one without a lock is abandoned
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        super().__init__(self.path)

    def close(self, *, is_done: bool = True) -> None:
        """Remove the note if all `is_done`; otherwise the next start of agentcli cleans up by it."""
        if is_done:
            shutil.rmtree(self._folder, ignore_errors=True)
        _close([self.descriptor, self._folder_lock])


@contextmanager
def locked(path: Path, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock on a file or folder. Raises `OSError` where somebody else keeps it."""
    until = time.monotonic() + patience_s
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise BlockingIOError(errno.EAGAIN, "it is locked", str(path))
            time.sleep(_LOOK_EVERY_S)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_noted(note: Path) -> None:
    """Remove the mount points that a killed process noted, unless somebody uses them. Raises nothing."""
    with closing(MountPoints()) as points, suppress(OSError):
        words = note.read_bytes().split(b"\0")  # two for each, as `Note.add` writes them; the last may be missing
        for path, kind in zip(map(os.fsdecode, words[::2]), words[1::2], strict=False):
            if os.path.lexists(path):
                points.hold(path, None if kind == b"folder" else kind.removeprefix(b"file "))


def open_real(path: str) -> int:
    """Open a path for no more than looking at it. Raises `OSError`, also for a symlink on the way."""
    descriptor = os.open(path or "/", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    if real_path(descriptor) != (path or "/"):
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a symbolic link is on the way", path)
    return descriptor


def real_path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # pathlib takes longer than the kernel


def is_mount_point(path: str) -> bool:
    """Return True if a path is an empty folder that agentcli made to be mounted on."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX) and not any(Path(path).iterdir())


def came_and_went(path: str) -> bool:
    """Return True if only mount points of this process appeared and disappeared at a path."""
    if path in _made and os.path.lexists(path) and not is_mount_point(path):
        _made.discard(path)  # it is somebody's, and its end will be a change too
    return path in _made


def _lock_or_make(folder: int, name: str, content: bytes | None) -> int | None:
    """Open the mount point with this name, made if nothing is there, and lock it against its removal.

    Return None if somebody else's file or folder has the name. Raises `OSError`.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_DIRECTORY if content is None else 0)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        is_new = _make(folder, name, content)
        try:
            lock = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:  # removed by the last command that held it
            continue
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.EACCES, errno.ENXIO}:  # somebody's, to be mounted on
                return None
            raise
        if not is_new and not _is_ours(lock, content):
            os.close(lock)
            return None
        if _stays_while_locked(folder, name, lock):
            return lock
        os.close(lock)
        time.sleep(0.001)
    raise TimeoutError(errno.ETIMEDOUT, "another process keeps this locked", name)


def _make(folder: int, name: str, content: bytes | None) -> bool:
    """Make a mount point; return False if the name is taken. A file appears as a whole: git may read it at once."""
    descriptor = -1
    try:
        if content is None:
            os.mkdir(name, MOUNT_POINT_MODE, dir_fd=folder)
            return True
        try:
            descriptor = os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=folder)
        except OSError:  # a disk without files that have no name
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


def _stays_while_locked(folder: int, name: str, lock: int) -> bool:
    """Lock a mount point; return False if it was removed meanwhile, or another command is removing it."""
    with suppress(OSError):  # on a disk without locks nobody gets the exclusive one, and nothing is removed
        if not _try_lock(lock, fcntl.LOCK_SH):  # it is about to be removed
            return False
    try:
        return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(lock))
    except FileNotFoundError:
        return False


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _is_ours(descriptor: int, content: bytes | None) -> bool:
    if content is None:
        return bool(os.fstat(descriptor).st_mode & stat.S_ISVTX) and not os.listdir(descriptor)
    return os.pread(descriptor, len(content) + 1, 0) == content  # one byte more, so that a longer file differs


def _remove_unless_used(held: _HeldName) -> None:
    """Remove a mount point. Raises `BlockingIOError` if another command holds it too: the last one removes it."""
    fcntl.flock(held.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    status = os.fstat(held.lock)
    if not os.path.samestat(os.stat(held.name, dir_fd=held.folder, follow_symlinks=False), status):
        return  # the name was taken by something else meanwhile
    if not stat.S_ISDIR(status.st_mode):
        if _is_ours(held.lock, held.content):
            os.unlink(held.name, dir_fd=held.folder)
        return
    try:
        os.rmdir(held.name, dir_fd=held.folder)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:  # the person uses it now, so it loses its mark
            os.fchmod(held.lock, 0o755)
