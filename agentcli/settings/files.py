"""Reads small files that a project brings, which may be pipes or endless, and replaces files of our own."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

LARGEST_SMALL_FILE = 1024 * 1024  # bytes


def is_file(path: Path) -> bool:
    """Return True if a file is there; False too in a folder that may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_small_file(
    path: Path, *, most: int = LARGEST_SMALL_FILE, really: Path | None = None, is_cut: bool = False
) -> bytes:
    """Return a regular file's content. Raises `OSError`, also for anything else and for more than `most` bytes.

    It never waits, as opening a FIFO would. With `is_cut` it is the first `most` bytes. `really` is where the path led
    before: what it leads to by now is not read, if that is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if really is not None and _place_of(descriptor) not in (None, really):
            raise OSError(errno.ELOOP, "it leads elsewhere by now", str(path))
        content = file.read(most if is_cut else most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def _place_of(descriptor: int) -> Path | None:
    """None where the system does not tell."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
    except OSError:
        return None


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, for their owner alone. Raises `OSError`."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                path.chmod(0o700)  # a umask may have taken away what the owner needs
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def replace_file(file: Path, content: bytes, *, mode: int = 0o600, syncs: bool = True) -> None:
    """Replace a file at once, with `syncs` once the content is on the disk. Raises `OSError`."""
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
