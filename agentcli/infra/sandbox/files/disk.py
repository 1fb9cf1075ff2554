"""Reads and writes files of this machine; a write is all or nothing.

A path that reaches these functions has been judged and is real: no part of it is a link. What is opened is what was
judged, even when somebody puts a link in its place meanwhile: a folder is used only if the kernel says of the open
folder that it is the one of that path; where it cannot say so, each folder on the way is opened from the one before,
and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentcli.tools.sandbox import FileStatus

# O_PATH asks for no more than the right to pass through a folder.
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def status_of(path: Path) -> FileStatus | None:
    """Look at a path, links followed; None when nothing is there. Raises `OSError`."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return FileStatus("folder", status.st_size)
    return FileStatus("file" if stat.S_ISREG(status.st_mode) else "other", status.st_size, status.st_nlink)


def open_to_read(path: Path) -> BinaryIO:
    """A regular file at a real path. Raises `OSError` for anything else, without waiting for a pipe's other end."""
    with _opened(path.parent) as folder:
        descriptor = _open_file(path.name, os.O_RDONLY, folder)
    return os.fdopen(descriptor, "rb")


def write(path: Path, content: bytes) -> None:
    """Replace or create a file so that a reader sees the old or the new contents, never a part.

    Mode, owner and extended attributes of an existing file stay. One with several hard links, or whose owner or folder
    is not ours, is written in place: a new file could not take its place and stay theirs. Raises `OSError`.
    """
    with _opened(path.parent, make=True) as folder:
        status = _status_in(folder, path.name)
        if status is not None and not os.access(path.name, os.W_OK, dir_fd=folder):
            raise _refused_by(folder)
        if status is not None and (status.st_nlink > 1 or os.geteuid() not in (0, status.st_uid)):
            _overwrite(folder, path.name, content)
            return
        try:
            _replace(folder, path.name, content, status)
        except _CannotReplaceError:
            _overwrite(folder, path.name, content)


def _refused_by(folder: int) -> OSError:
    """The error for a folder in which no file may be written."""
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        return OSError(errno.EROFS, os.strerror(errno.EROFS))
    return PermissionError(errno.EACCES, "the file is read-only")


class _CannotReplaceError(Exception):
    """The file can be changed, but no new one can take its place."""


@contextlib.contextmanager
def _opened(path: Path, *, make: bool = False) -> Iterator[int]:
    """A folder's descriptor. Folders that are missing are made, and taken away again when what follows fails."""
    descriptor = _open_at_once(path)
    if descriptor is None:
        with _opened_step_by_step(path, make=make) as descriptor:
            yield descriptor
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_at_once(path: Path) -> int | None:
    """A folder's descriptor; None when it is not there, or is not known to be the one of this path."""
    try:
        descriptor = os.open(path, _FOLDER)
    except OSError:
        return None
    with contextlib.suppress(OSError):  # no /proc: another system
        # As text: a `Path` of what is read would take as long as all else here.
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):  # noqa: PTH115
            return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _opened_step_by_step(path: Path, *, make: bool) -> Iterator[int]:
    made: list[tuple[int, str]] = []
    descriptors = [os.open(path.anchor, _FOLDER)]
    try:
        for name in path.parts[1:]:
            descriptors.append(_open_folder(name, descriptors[-1], made if make else None))
            if not made:
                os.close(descriptors.pop(-2))
        yield descriptors[-1]
    except BaseException:
        for folder, name in reversed(made):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=folder)
        raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _open_folder(name: str, within: int, made: list[tuple[int, str]] | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=within)
    except FileNotFoundError:
        if made is None:
            raise
    except NotADirectoryError:
        if stat.S_ISLNK(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
            raise _link(name) from None
        raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=within)
        made.append((within, name))
    return os.open(name, _FOLDER, dir_fd=within)


def _link(name: str) -> OSError:
    return OSError(errno.ELOOP, f"a link was put in place of {name}")


def _open_file(name: str, access: int, folder: int) -> int:
    try:
        descriptor = os.open(name, access | _FILE, dir_fd=folder)
    except OSError as error:
        raise (_link(name) if error.errno == errno.ELOOP else error) from None
    try:
        _require_regular(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file")


def _status_in(folder: int, name: str) -> os.stat_result | None:
    """Raises `OSError` when there is something else than a regular file."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise _link(name)
    _require_regular(status.st_mode)
    return status


def _replace(folder: int, name: str, content: bytes, before: os.stat_result | None) -> None:
    """Raises `_CannotReplaceError` before anything is written where a new file could not be like the old one."""
    try:
        descriptor, temporary = _new_file(folder, name)
    except PermissionError as error:
        if before is None:
            raise
        raise _CannotReplaceError from error
    try:
        try:
            if before is not None:
                _take_over(descriptor, folder, name, before)
            _write_all(descriptor, content)
            if before is not None:
                # Last: a new owner and writing clear setuid.
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            if not temporary:
                temporary = _temporary_name(name)
                os.link(f"/proc/self/fd/{descriptor}", temporary, dst_dir_fd=folder, follow_symlinks=True)
        finally:
            os.close(descriptor)  # some disks say only here that they are full
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        raise


def _new_file(folder: int, name: str) -> tuple[int, str]:
    """Make an empty file with the mode the umask leaves. Its name is empty where it can do without: a kill then leaves
    nothing behind.
    """
    if unnamed := getattr(os, "O_TMPFILE", 0):
        try:
            return os.open(".", unnamed | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=folder), ""
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    temporary = _temporary_name(name)
    return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FILE, 0o666, dir_fd=folder), temporary


def _temporary_name(name: str) -> str:
    return f".{name[:40]}.{os.urandom(6).hex()}"


def _take_over(descriptor: int, folder: int, name: str, before: os.stat_result) -> None:
    """Give a new file the owner and the extended attributes of the one it replaces."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError as error:
            raise _CannotReplaceError from error
    if not hasattr(os, "listxattr"):
        return
    with contextlib.suppress(OSError):  # not every file can be read, not every attribute be set
        old = _open_file(name, os.O_RDONLY, folder)
        try:
            for attribute in os.listxattr(old):
                with contextlib.suppress(OSError):
                    os.setxattr(descriptor, attribute, os.getxattr(old, attribute))
        finally:
            os.close(old)


def _overwrite(folder: int, name: str, content: bytes) -> None:
    """Write in place; when that fails half way, put back what was there, for which the room is still taken."""
    with os.fdopen(_open_file(name, os.O_RDWR, folder), "r+b", buffering=0) as file:
        before = file.readall()
        try:
            _fill(file.fileno(), content)
        except OSError:
            _fill(file.fileno(), before)
            raise


def _fill(descriptor: int, content: bytes) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    _write_all(descriptor, content)
    os.ftruncate(descriptor, len(content))


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
