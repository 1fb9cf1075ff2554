"""Reads, makes and moves files by the open folder they are in, so that no link set meanwhile leads elsewhere.

Commands may run at the same time, and put a link in the place of any folder that they can write.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from msgspec import Struct

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1 << 20

_GONE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))
_ALL_OF_OWNER, _LOOKED_INTO = stat.S_IRWXU, stat.S_IRUSR | stat.S_IXUSR

Place = tuple[int, int]  # device and inode
_Done = TypeVar("_Done")


class Entry(Struct, frozen=True, array_like=True):
    """A file with its contents, a symlink with its target, or a folder, which has no content of its own.

    Of a file that cannot be read, or for which there was no room, only `stamp` is known: it can be seen to change.
    """

    mode: int
    content: bytes = b""
    stamp: tuple[int, ...] = ()


class PinnedFolders:
    """Opens folders from the top down without following a link, and keeps them open. `held` are open already.

    With `unlocks`, a folder of ours whose mode keeps us out is opened to us; afterwards it has its mode again, unless
    nobody could look into it. What keeps us out for good is an error then, not nothing.
    """

    def __init__(self, held: Mapping[Path, int] | None = None, *, unlocks: bool = False) -> None:
        self._held = dict(held or {})
        self._open: dict[Path, int] = {}
        self._unlocks = unlocks
        self._unlocked: dict[Place, tuple[int, int]] = {}  # a descriptor, and the mode before

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor, mode in self._unlocked.values():
            with suppress(OSError):
                if mode & _LOOKED_INTO == _LOOKED_INTO:
                    _change_mode(descriptor, mode)
            os.close(descriptor)
        self._unlocked.clear()
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def modes(self) -> dict[Path, int]:
        """Of the folders that were opened here."""
        return {path: stat.S_IMODE(os.fstat(descriptor).st_mode) for path, descriptor in self._open.items()}

    def _within(self, path: Path, act: Callable[[int], _Done]) -> _Done:
        """Act by a folder's descriptor. Raises `OSError`."""
        descriptor = self.open(path)
        try:
            return act(descriptor)
        except PermissionError:
            if not self._unlocks:
                raise
            self._unlock(descriptor)
            return act(descriptor)

    def _unlock(self, descriptor: int) -> None:
        """Raises `OSError`."""
        status = os.fstat(descriptor)
        _change_mode(descriptor, stat.S_IMODE(status.st_mode) | _ALL_OF_OWNER)
        if place_of(status) not in self._unlocked:
            self._unlocked[place_of(status)] = os.dup(descriptor), stat.S_IMODE(status.st_mode)

    def _is_nothing(self, error: OSError) -> bool:
        return not self._unlocks or error.errno in _GONE

    def open(self, path: Path) -> int:
        """Open a folder, to name what is in it by the descriptor. Raises `OSError`, also where a link is on the way."""
        descriptor = self._held.get(path)
        if descriptor is None:
            descriptor = self._open.get(path)
        if descriptor is None:
            if path == path.parent:
                descriptor = os.open(path, os.O_PATH | _FOLDER)
            else:
                descriptor = self._within(path.parent, lambda it: os.open(path.name, os.O_PATH | _FOLDER, dir_fd=it))
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
            return place_of(self._within(path.parent, lambda it: os.stat(path.name, dir_fd=it, follow_symlinks=False)))
        except OSError as error:
            if not self._is_nothing(error):
                raise
            return None

    def names(self, path: Path) -> list[str]:
        """Raises `OSError`."""
        descriptor = self._within(path, lambda it: os.open(".", os.O_RDONLY | _FOLDER, dir_fd=it))
        try:
            return os.listdir(descriptor)  # noqa: PTH208  a path could lead elsewhere
        finally:
            os.close(descriptor)

    def look(self, path: Path, room: int) -> Entry | None:
        """The entry at a path; None for nothing, and for what has no contents of its own."""
        try:
            return self._within(path.parent, lambda it: _look(it, path.name, room))
        except OSError as error:
            if not self._is_nothing(error):
                raise
            return None

    def make(self, path: Path, entry: Entry) -> None:
        """Make a file or link at once and as a whole, in place of what is there; a folder where nothing is.

        Raises `OSError`.
        """
        if stat.S_ISDIR(entry.mode):
            self.forget(path)
            self._within(path.parent, lambda it: os.mkdir(path.name, dir_fd=it))
            self.set_mode(path, entry)
            return
        self._within(path.parent, lambda it: _make(it, path.name, entry))

    def set_mode(self, path: Path, entry: Entry) -> None:
        """Give a file or folder the mode of its entry. Raises `OSError`."""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = self._within(path.parent, lambda it: os.open(path.name, flags, dir_fd=it))
        try:
            status = os.fstat(descriptor)
            if stat.S_IFMT(status.st_mode) != stat.S_IFMT(entry.mode):
                raise OSError(errno.ESTALE, "it changes all the time")
            _change_mode(descriptor, stat.S_IMODE(entry.mode))
            if place_of(status) in self._unlocked:
                os.close(self._unlocked.pop(place_of(status))[0])
        finally:
            os.close(descriptor)

    def let_in(self, path: Path, mode: int) -> bool:
        """Give a folder back its mode where nobody can look into it any more. Raises `OSError`."""
        descriptor = self.open(path)
        if not mode & ~os.fstat(descriptor).st_mode & _LOOKED_INTO:
            return False
        _change_mode(descriptor, mode)
        return True

    def move(self, path: Path, to: Path) -> None:
        """Raises `OSError`."""
        try:
            self._rename(path, to)
        except PermissionError:
            if not self._unlocks:
                raise
            for folder in (path.parent, to.parent):
                self._unlock(self.open(folder))
            with suppress(OSError):
                self._unlock(self.open(path))  # a folder of which `..` will be another
            self._rename(path, to)
        self.forget(path)

    def _rename(self, path: Path, to: Path) -> None:
        source, target = self.open(path.parent), self.open(to.parent)
        os.rename(path.name, to.name, src_dir_fd=source, dst_dir_fd=target)

    def move_aside(self, path: Path, asides: Sequence[Path]) -> Path:
        """Move into a new folder in the first of `asides` that takes it; that folder. Raises `OSError`."""
        for around in asides:
            aside = around / f"agentcli-put-aside-{secrets.token_hex(4)}"
            try:
                self._within(around, partial(_make_own_folder, aside.name))
                self.move(path, aside / (path.name.lstrip(".") or "_"))
            except OSError:
                with suppress(OSError):
                    os.rmdir(aside.name, dir_fd=self.open(around))
                if around == asides[-1]:
                    raise
            else:
                return aside
        raise ValueError("asides")


def place_of(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def _change_mode(descriptor: int, mode: int) -> None:
    os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101  # fchmod takes no O_PATH


def _make_own_folder(name: str, folder: int) -> None:
    os.mkdir(name, 0o700, dir_fd=folder)


def _make(folder: int, name: str, entry: Entry) -> None:
    draft = f".agentcli-{secrets.token_hex(8)}"
    if stat.S_ISLNK(entry.mode):
        os.symlink(entry.content, os.fsencode(draft), dir_fd=folder)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(entry.content)
            os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))
    try:
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _look(folder: int, name: str, room: int) -> Entry | None:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return Entry(status.st_mode, os.fsencode(os.readlink(name, dir_fd=folder)))
    if stat.S_ISDIR(status.st_mode):
        return Entry(status.st_mode)
    if not stat.S_ISREG(status.st_mode):
        return None
    stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if status.st_size > room:
        return Entry(status.st_mode, b"", stamp)
    try:
        return Entry(status.st_mode, _read(folder, name, room))
    except PermissionError:
        return Entry(status.st_mode, b"", stamp)


def _read(folder: int, name: str, room: int) -> bytes:
    """Read up to one byte more than there is room for: what grows meanwhile is no reason to take all memory."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        content = b""
        while len(content) <= room and (part := os.read(descriptor, min(_CHUNK, room + 1 - len(content)))):
            content += part
        return content
    finally:
        os.close(descriptor)
