"""Reaches files by the open folder they are in, so that no link or folder put in the way meanwhile leads elsewhere."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from agentcli.conversation.file_changes import FileState, real_path
from agentcli.infra.changes.objects import Objects
from agentcli.infra.changes.state import names_in, state_at
from agentcli.infra.changes.writing import move_into_place, write_all, write_atomically
from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours
from agentcli.infra.sandbox.scan import Scan

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Place = tuple[int, int]  # device and inode


class Contents(Objects):
    """Contents in memory: those on the disk a command could lock away, because it may change modes anywhere."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.kept: dict[str, bytes] = {}

    def put(self, source: int) -> tuple[str, int]:
        with open(source, "rb", closefd=False) as file:
            content = file.read(os.fstat(source).st_size)
        return self.put_bytes(content), len(content)

    def put_bytes(self, content: bytes) -> str:
        id = blob_id(content)
        self.kept[id] = content
        return id


class HeldFolder(NamedTuple):
    """A folder, open. `around` is the folder that it was in, `mode` the mode that it had."""

    descriptor: int
    place: Place
    around: Place
    mode: int

    def by_path(self, rest: str = "") -> str:
        return by_descriptor(self.descriptor, rest)

    @property
    def name(self) -> str:
        return name_of(path_of(self.descriptor))

    def is_in_place(self, name: str) -> bool:
        return self.name == name and place_of(os.lstat(self.by_path(".."))) == self.around

    def is_removed(self) -> bool:
        """True if the folder was removed; a name that only looks so does not count."""
        if not self.name.endswith(" (deleted)"):
            return False
        try:
            return place_of(os.lstat(self.by_path(f"../{self.name}"))) != self.place
        except FileNotFoundError:
            return True

    def let_in(self) -> None:
        """Give the folder's owner back what would keep us out of it. Raises `OSError`."""
        mode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)
        if taken := self.mode & ~mode & stat.S_IRWXU:
            _chmod(self.descriptor, mode | taken)


class HeldFolders(dict[str, HeldFolder]):
    """Folders by the paths at which they were when they were opened."""

    def hold(self, path: str, found: str = "") -> None:
        """Open the folder at a path, or at the one where it was found, if there is one."""
        if path not in self:
            with suppress(OSError), self.opened(above(found or path)) as around:
                folder = os.open(name_of(found or path) or ".", _FOLDER, dir_fd=around)
                status = os.fstat(folder)
                mode = stat.S_IMODE(status.st_mode)
                self[path] = HeldFolder(folder, place_of(status), place_of(os.fstat(around)), mode)

    def hold_again(self, before: dict[str, HeldFolder], roots: Sequence[str], known: Collection[str]) -> None:
        """Open folders that another process held, where they are by now, with what is `known` to have been in them."""
        for path in sorted(before):
            self._hold_if_same(path, before[path], path)
        lost = {before[path].place[1]: path for path in before if path not in self}
        for root in roots if lost else ():
            for found, folder in Scan().folders(root).items():
                if path := lost.get(folder.stamp[0], ""):
                    self._hold_if_same(path, before[path], found)
                    names = {name_of(each) for each in known if above(each) == path}
                    if path in self and not names.intersection(names_in(self[path].by_path())):
                        self.drop(path)  # its number went to another folder

    def _hold_if_same(self, path: str, before: HeldFolder, found: str) -> None:
        self.hold(path, found)
        now = self.get(path)
        if now is not None and now.place == before.place:
            self[path] = before._replace(descriptor=now.descriptor)
            with suppress(OSError):
                self[path].let_in()
        elif now is not None:
            self.drop(path)

    def drop(self, *paths: str) -> None:
        for path in paths:
            os.close(self.pop(path).descriptor)

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Open a folder from the nearest one around it that is held, following no link. Raises `OSError`."""
        anchor = path
        while anchor not in self and anchor != "/":
            anchor = above(anchor)
        folder = os.dup(self[anchor].descriptor) if anchor in self else os.open("/", _FOLDER)
        try:
            for part in filter(None, path[len(anchor) :].split("/")):
                below = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
            yield folder
        finally:
            os.close(folder)

    def state(self, path: str, objects: Objects, largest: int) -> FileState | None:
        """The state of a path; None where nothing is."""
        with suppress(FileNotFoundError, NotADirectoryError), self.opened(above(path)) as folder:
            return state_in(folder, name_of(path), objects, largest)
        return None


def above(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def place_of(status: os.stat_result) -> Place:
    return status.st_dev, status.st_ino


def path_of(descriptor: int, name: str = "") -> str:
    """The path of a folder, or of something in it, as of now."""
    folder = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # text
    return f"{folder}/{name}" if name else folder


def by_descriptor(folder: int, name: str = "") -> str:
    """A path that leads to an open folder, or to something in it, wherever it is."""
    return f"/proc/self/fd/{folder}/{name}"


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def state_in(folder: int, name: str, objects: Objects, largest: int) -> FileState | None:
    """The state of a name in an open folder; None where nothing is."""
    path = by_descriptor(folder, name)
    return None if is_mount_point_of_ours(path) else state_at(path, objects, largest=largest)


def unlock(folder: int, name: str) -> bool:
    """Let its owner into a folder, which could not be moved else; False where nothing is."""
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            change_mode(folder, name, stat.S_IMODE(mode) | stat.S_IRWXU)
        return True
    return False


def change_mode(folder: int, name: str, mode: int) -> None:
    """Change the mode of a folder, never of what a link leads to. Raises `OSError`."""
    descriptor = os.open(name, _FOLDER, dir_fd=folder)
    try:
        _chmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _chmod(descriptor: int, mode: int) -> None:
    os.chmod(by_descriptor(descriptor).rstrip("/"), mode)  # noqa: PTH101  # fchmod takes no O_PATH


def make(folder: int, name: str, state: FileState, content: bytes) -> None:
    """Make something where nothing is, a file at once and as a whole. Raises `OSError`."""
    if state.kind == "folder":
        os.mkdir(name, dir_fd=folder)
        change_mode(folder, name, state.mode)
    elif state.kind == "file":
        write_atomically(folder, name, partial(_fill, content, state.mode))
    else:
        with move_into_place(folder, name) as temporary:
            if state.kind == "link":
                os.symlink(real_path(state.content), temporary, dir_fd=folder)
            else:
                os.mkfifo(temporary, state.mode, dir_fd=folder)


def _fill(content: bytes, mode: int, descriptor: int) -> None:
    write_all(descriptor, content)
    os.fchmod(descriptor, mode)
