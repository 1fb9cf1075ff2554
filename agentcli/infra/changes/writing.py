"""Reads files, and replaces them atomically.

Callers pass paths that were checked before and contain no link. These functions open exactly that file, even if
somebody replaces a part of the path with a link meanwhile: an open folder is used only if the kernel reports that path
for it. Where the kernel cannot report it, each folder of the path is opened from its parent without following links.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

MADE_MEANWHILE = "something else was made there since the command started"
TICK_NS = 20_000_000  # a file can change twice within one tick of the file system's clock, and keep its times
OVERLAY_ATTRIBUTES = "user.overlay."  # the extended attributes in which an overlay keeps its own data

# O_PATH needs no more than the right to pass through a folder.
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for the writer of a pipe
CHUNK_BYTES = 1 << 20
_LINK_ERROR = "a link was put in place of {}"


class ConflictError(OSError):
    """Somebody else has changed the file at a path."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.ESTALE, why)


def open_to_read(path: Path) -> BufferedReader:
    """Open a regular file at a real path. Raises `OSError` for anything else."""
    return BufferedReader(open_source(str(path)))


def open_source(path: str) -> FileIO:
    """Open a regular file at a real path, without a buffer. Raises `OSError` for anything else."""
    folder_path, _, name = path.rpartition("/")
    with opened_folder(Path(folder_path or "/")) as folder:
        return FileIO(_open_file(name, os.O_RDONLY, folder))


def write(path: Path, content: bytes) -> None:
    """Replace or create a file so that a reader sees the old or the new contents, never a part. Raises `OSError`.

    An existing file keeps its mode, owner and extended attributes. It is written in place if a new file could not have
    all its hard links or its owner, or cannot be created in its folder.
    """
    with opened_folder(path.parent, makes=True) as folder:
        status = _status_of_file(folder, path.name)
        if status is not None and not os.access(path.name, os.W_OK, dir_fd=folder):
            if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            raise PermissionError(errno.EACCES, "the file is read-only")
        if status is None:
            return write_atomically(folder, path.name, partial(write_all, content=content), mode=0o666)
        if status.st_nlink == 1 and os.geteuid() in (0, status.st_uid):
            with contextlib.suppress(PermissionError):  # no file can be made there, or none with the old owner or mode
                return write_atomically(folder, path.name, partial(_fill_like, (folder, path.name), status, content))
        return _overwrite(folder, path.name, content)


def write_atomically(folder: int, name: str, fill: Callable[[int], None], *, mode: int = 0o600, **options: Any) -> None:
    """Make a file, fill it, and move it into place, with the `options` of `move_into_place`. Raises `OSError`.

    Where the file system allows it, the file has no name until it is filled, so that a kill leaves nothing behind.
    Elsewhere others could open it early, so it starts with `mode`, and `fill` sets the final mode.
    """
    with move_into_place(folder, name, **options) as temporary:
        descriptor, is_named = _new_file(folder, temporary, mode)
        try:
            fill(descriptor)
            if not is_named:
                os.link(f"/proc/self/fd/{descriptor}", temporary, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(descriptor)  # some file systems report a full disk only here


@contextlib.contextmanager
def move_into_place(
    folder: int, name: str, *, temporary: str = "", check: Callable[[], None] | None = None, replaces: bool = True
) -> Iterator[str]:
    """Yield a temporary name, and rename the file that the body makes there to `name`. Raises `OSError`.

    `check` runs right before the rename, and may raise. Without `replaces`, an entry at `name` is a `ConflictError`.
    """
    temporary = temporary or f".{name[:40]}.{os.urandom(6).hex()}"  # cut: file systems limit the length of names
    try:
        yield temporary
        if check is not None:
            check()
        if not replaces:  # unlike a rename, a hard link never replaces anything
            try:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                return
            except FileExistsError:
                raise ConflictError(MADE_MEANWHILE) from None
            except OSError as error:  # on a disk without hard links it is renamed after all
                if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
                    raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


@contextlib.contextmanager
def opened_folder(path: Path, *, makes: bool = False) -> Iterator[int]:
    """Yield the descriptor of a folder. With `makes`, missing folders are made, and removed again if the body fails."""
    new_folders: list[tuple[int, str]] = []  # open parent and name
    with contextlib.ExitStack() as opened:
        try:
            names: tuple[str, ...] = ()
            if (descriptor := _open_confirmed(str(path))) is None:  # open each of its folders from the one before
                descriptor, names = os.open(path.anchor, _FOLDER_FLAGS), path.parts[1:]
            opened.callback(os.close, descriptor)
            for name in names:
                descriptor = _open_folder(name, descriptor, new_folders if makes else None)
                opened.callback(os.close, descriptor)
            yield descriptor
        except BaseException:
            for folder, name in reversed(new_folders):
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=folder)
            raise


def copy_attributes(source: int, target: int) -> None:
    """Copy the extended attributes that can be read and set, without those of an overlay."""
    if not hasattr(os, "listxattr"):  # Python on a Mac does not have it
        return
    for name in os.listxattr(source):
        if not name.startswith((OVERLAY_ATTRIBUTES, "trusted.")):
            with contextlib.suppress(OSError):  # not every file system takes every attribute
                os.setxattr(target, name, os.getxattr(source, name))


def write_all(descriptor: int, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


def remove_tree(folder: Path) -> None:
    """Remove a folder, whatever the modes of its contents. Contents that cannot be removed stay. Raises nothing."""
    import shutil
    import subprocess

    with contextlib.suppress(RecursionError):  # the folders are nested deeper than Python's recursion limit
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():  # some contents are nested too deeply, or cannot be entered
        for program in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*program, "--", folder], stderr=subprocess.DEVNULL, check=False)


def _open_confirmed(folder: str) -> int | None:
    """Open a folder; return None if that fails, or if the kernel does not confirm that no link was on the way."""
    try:
        descriptor = os.open(folder, _FOLDER_FLAGS)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # there may be no /proc
        if os.readlink(f"/proc/self/fd/{descriptor}") == folder:  # noqa: PTH115  # a `Path` would double the time
            return descriptor
    os.close(descriptor)
    return None


def _open_folder(name: str, parent: int, new_folders: list[tuple[int, str]] | None) -> int:
    """Open a folder in an open folder. With a list of `new_folders`, a missing one is made and added to it."""
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if new_folders is None:
            raise
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, _LINK_ERROR.format(name)) from None
        raise
    with contextlib.suppress(FileExistsError):  # somebody else has just made it
        os.mkdir(name, dir_fd=parent)
        new_folders.append((parent, name))
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _open_file(name: str, access: int, folder: int) -> int:
    """Open a regular file in an open folder, and return its descriptor. Raises `OSError` for anything else."""
    try:
        descriptor = os.open(name, access | _FILE_FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:  # the kernel's text would mention too many links
            raise OSError(errno.ELOOP, _LINK_ERROR.format(name)) from None
        raise
    if stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a regular file")


def _status_of_file(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a regular file in an open folder, None if nothing is there. Raises `OSError` otherwise."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return status
        os.close(_open_file(name, os.O_RDONLY, folder))  # raises an error that says what it is
    return None


def _fill_like(folder_and_name: tuple[int, str], before: os.stat_result, content: bytes, descriptor: int) -> None:
    """Fill a new file, and give it the owner, attributes and mode of an old one, whose status is `before`."""
    folder, name = folder_and_name
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    with contextlib.suppress(OSError), FileIO(_open_file(name, os.O_RDONLY, folder)) as old:  # it may not be readable
        copy_attributes(old.fileno(), descriptor)
    write_all(descriptor, content)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))  # last, because a new owner and writing clear setuid


def _new_file(folder: int, temporary: str, mode: int) -> tuple[int, bool]:
    """Make an empty file with `mode` less the umask; return its descriptor, and True if it has a name."""
    if unnamed := getattr(os, "O_TMPFILE", 0):
        try:
            return os.open(".", unnamed | os.O_WRONLY | os.O_CLOEXEC, mode, dir_fd=folder), False
        except OSError as error:
            # The file system or an old kernel does not support files without a name.
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FILE_FLAGS, mode, dir_fd=folder), True


def _overwrite(folder: int, name: str, content: bytes) -> None:
    """Write in place. If that fails halfway, as on a full disk, write the old content back into the same space."""
    with os.fdopen(_open_file(name, os.O_RDWR, folder), "r+b", buffering=0) as file:
        before = file.readall()
        try:
            _rewrite(file.fileno(), content)
        except OSError:
            _rewrite(file.fileno(), before)
            raise


def _rewrite(descriptor: int, content: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    write_all(descriptor, content)
    os.ftruncate(descriptor, len(content))  # last, so that the old content keeps its space until all is written
