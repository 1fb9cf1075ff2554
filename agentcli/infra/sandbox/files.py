"""Files of this machine: what there is, reading, and writing that is all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from agentcli.tools.sandbox import FileStatus


def status_of(path: Path) -> FileStatus | None:
    """What there is at a path, links followed; None when there is nothing. Raises `OSError`."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(status.st_mode):
        return FileStatus("folder", status.st_size)
    return FileStatus("file" if stat.S_ISREG(status.st_mode) else "other", status.st_size, status.st_nlink)


def open_to_read(path: Path) -> BinaryIO:
    """A regular file at a real path. Raises `OSError` for anything else, without waiting for a pipe's other end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def write(path: Path, content: bytes) -> None:
    """Replace or create a file so that a reader sees the old or the new contents, never a part.

    Mode and owner of an existing file stay; one with several hard links, or whose owner or folder is not ours, is
    written in place. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    status = path.stat() if path.exists() else None
    if status is not None and (
        status.st_nlink > 1 or not os.access(path.parent, os.W_OK) or os.geteuid() not in (0, status.st_uid)
    ):
        _overwrite(path, content)
    else:
        _replace(path, content, status)


def _overwrite(path: Path, content: bytes) -> None:
    """Write in place; when that fails half way, put back what was there, for which the room is still taken."""
    before = path.read_bytes()
    try:
        _fill(path, content)
    except OSError:
        _fill(path, before)
        raise


def _fill(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def _replace(path: Path, content: bytes, status: os.stat_result | None) -> None:
    if status is not None and not os.access(path, os.W_OK):
        raise PermissionError(13, "the file is read-only")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if status is None:
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(descriptor, 0o666 & ~mask)
            else:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))  # after the owner, which clears setuid
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
