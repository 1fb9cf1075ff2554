"""Reads, makes and moves files by the open folder they are in, so that no link set meanwhile leads elsewhere.

Commands may run at the same time, and put a link in the place of any folder that they can write.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20

Place = tuple[int, int]  # device and inode


class Entry(Struct, frozen=True, array_like=True):
    """A file with its contents, a symlink with its target, or a folder, which has no content of its own.

    Of a file for which there was no room only `stamp` is known: it can be seen to have changed.
    """

    mode: int
    content: bytes = b""
    stamp: tuple[int, ...] = ()


class PinnedFolders:
    """Opens folders from the top down without following a link, and keeps them open. `held` are open already."""

    def __init__(self, held: Mapping[Path, int] | None = None) -> None:
        self._held = dict(held or {})
        self._open: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def open(self, path: Path) -> int:
        """A descriptor to name what is in a folder by. Raises `OSError`, also where a link is on the way."""
        descriptor = self._held.get(path)
        if descriptor is None:
            descriptor = self._open.get(path)
        if descriptor is None:
            around = None if path == path.parent else self.open(path.parent)
            descriptor = os.open(path.name or path, os.O_PATH | _FOLDER, dir_fd=around)
            self._open[path] = descriptor
        return descriptor

    def forget(self, path: Path) -> None:
        """Another folder is to stand at this path."""
        self._held.pop(path, None)
        for known in [known for known in self._open if known.is_relative_to(path)]:
            os.close(self._open.pop(known))

    def place(self, path: Path) -> Place | None:
        """None where there is nothing, or a link is on the way; a link itself has a place."""
        try:
            return place_of(os.stat(path.name, dir_fd=self.open(path.parent), follow_symlinks=False))
        except OSError:
            return None

    def names(self, path: Path) -> list[str]:
        """Raises `OSError`."""
        descriptor = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self.open(path))
        try:
            return os.listdir(descriptor)  # noqa: PTH208  a path could lead elsewhere
        finally:
            os.close(descriptor)

    def look(self, path: Path, room: int) -> Entry | None:
        """The entry at a path; None for nothing, and for what has no contents of its own."""
        try:
            return _look(self.open(path.parent), path.name, room)
        except OSError:
            return None

    def make(self, path: Path, entry: Entry) -> None:
        """Make a file or link at once and as a whole, in place of what is there; a folder where nothing is.

        Raises `OSError`.
        """
        folder, mode = self.open(path.parent), stat.S_IMODE(entry.mode)
        if stat.S_ISDIR(entry.mode):
            self.forget(path)
            os.mkdir(path.name, dir_fd=folder)
            self.set_mode(path, entry)
            return
        draft = f".agentcli-{secrets.token_hex(8)}"
        if stat.S_ISLNK(entry.mode):
            os.symlink(entry.content, os.fsencode(draft), dir_fd=folder)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(entry.content)
                os.fchmod(file.fileno(), mode)
        try:
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise

    def set_mode(self, path: Path, entry: Entry) -> None:
        """Give a file or folder the mode of its entry. Raises `OSError`."""
        descriptor = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.open(path.parent))
        try:
            if stat.S_IFMT(os.fstat(descriptor).st_mode) != stat.S_IFMT(entry.mode):
                raise OSError(errno.ESTALE, "it changes all the time")
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(entry.mode))  # noqa: PTH101  fchmod takes no O_PATH
        finally:
            os.close(descriptor)

    def move(self, path: Path, to: Path) -> None:
        """Raises `OSError`."""
        source, target = self.open(path.parent), self.open(to.parent)
        os.rename(path.name, to.name, src_dir_fd=source, dst_dir_fd=target)
        self.forget(path)

    def move_aside(self, path: Path, asides: Sequence[Path]) -> Path:
        """Move into a new folder in the first of `asides` on the same disk; that folder. Raises `OSError`."""
        for around in asides:
            aside = around / f"agentcli-put-aside-{secrets.token_hex(4)}"
            os.mkdir(aside.name, 0o700, dir_fd=self.open(around))
            try:
                self.move(path, aside / (path.name.lstrip(".") or "_"))
            except OSError as error:
                with suppress(OSError):
                    os.rmdir(aside.name, dir_fd=self.open(around))
                if error.errno != errno.EXDEV or around == asides[-1]:
                    raise
            else:
                return aside
        raise ValueError("asides")


def place_of(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def _look(folder: int, name: str, room: int) -> Entry | None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return Entry(status.st_mode, os.fsencode(os.readlink(name, dir_fd=folder)))
    if stat.S_ISDIR(status.st_mode):
        return Entry(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > room:
        return Entry(status.st_mode, b"", (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return Entry(status.st_mode, _read(folder, name, room))


def _read(folder: int, name: str, room: int) -> bytes:
    """Up to one byte more than there is room for: what grows meanwhile is no reason to take all memory."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        content = b""
        while len(content) <= room and (part := os.read(descriptor, min(_CHUNK, room + 1 - len(content)))):
            content += part
        return content
    finally:
        os.close(descriptor)
