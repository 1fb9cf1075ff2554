"""Reads small files of a project, which may turn out to be pipes or endless, and replaces files of the program."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MAX_SMALL_FILE_BYTES = 1024 * 1024


def is_file(path: Path) -> bool:
    """Return True for a file; False also for one in a folder that may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_small_file(
    path: Path, *, max_bytes: int = MAX_SMALL_FILE_BYTES, real: Path | None = None, is_cut: bool = False
) -> bytes:
    """Return the content of a regular file without ever waiting, as opening a FIFO would.

    Args:
        path: The file.
        max_bytes: The largest size that is read.
        real: The place that the path led to when it was judged; a file elsewhere is not read.
        is_cut: Return the first `max_bytes` of a larger file.

    Raises:
        OSError: If it cannot be read, is no regular file, is too large, or is elsewhere by now.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        is_elsewhere = False
        with suppress(OSError):  # no /proc: another system, which cannot say where the path led
            is_elsewhere = real is not None and os.readlink(f"/proc/self/fd/{descriptor}") != str(real)  # noqa: PTH115
        if is_elsewhere:
            raise OSError(errno.ELOOP, "it leads elsewhere by now", str(path))
        content = file.read(max_bytes if is_cut else max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
    return content


def make_private_folder(folder: Path) -> None:
    """Make a folder, and the folders around it that are missing, for their owner alone. Raises `OSError`."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                path.chmod(0o700)  # the umask may have removed what the owner needs
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def replace_file(file: Path, content: bytes, *, mode: int = 0o600, syncs: bool = True) -> None:
    """Replace a file at once; with `syncs` only when the content is on the disk. Raises `OSError`."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(descriptor, mode)
            out.write(content)
            if syncs:
                out.flush()
                os.fsync(descriptor)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def replace_private_file(file: Path, content: bytes, *, syncs: bool = True) -> None:
    """Replace a file as `replace_file` does, and make the folders around it that are missing. Raises `OSError`."""
    make_private_folder(file.parent)
    replace_file(file, content, syncs=syncs)
