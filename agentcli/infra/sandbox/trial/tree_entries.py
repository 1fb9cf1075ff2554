"""Describes the entries of a folder, as they were before a command and as they are after it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from agentcli.infra.sandbox.mounts.mount_points import real_path

LAYER_ATTRIBUTES = "user.overlay."  # where an overlay remembers what it has to

_CHUNK = 1 << 20

EntryKind = Literal["file", "folder", "link", "pipe", "other"]


class Entry(NamedTuple):
    """Something on the disk, links not followed. As long as `identity` is the same nothing has touched it."""

    kind: EntryKind
    identity: tuple[int, ...]
    mode: int
    size: int
    owner: tuple[int, int]
    target: str
    where: str

    @property
    def changed_ns(self) -> int:
        """When anything of it was last changed, by the kernel's clock: nobody can set it."""
        return self.identity[3]


@dataclass
class Touched:
    """Entries before and now, by paths relative to a folder; the folder itself is the empty path.

    `stale` are those that somebody else has changed since the command started, `caches` those that are left out.
    """

    before: dict[str, Entry] = field(default_factory=dict)
    after: dict[str, Entry] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    caches: list[str] = field(default_factory=list)

    def of(self, path: str) -> tuple[Entry | None, Entry | None]:
        return self.before.get(path), self.after.get(path)


_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
}


def entry_at(name: str, *, folder: int | None = None, where: str = "") -> Entry | None:
    """Look at a path, or a name in an open folder; None when nothing is there."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return None
    owner = (found.st_uid, found.st_gid)
    mode = stat.S_IMODE(found.st_mode)
    identity = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, mode, *owner)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return Entry(kind, identity, mode, found.st_size, owner, target, where or name)


def open_to_owner(entry: Entry) -> None:
    """Let the owner read an entry of a stand-in, whatever mode the command gave it; `entry.mode` still says which."""
    needed = {"file": 0o400, "folder": 0o700}.get(entry.kind, 0)
    if entry.mode & needed != needed:
        os.chmod(entry.where, entry.mode | needed)  # noqa: PTH101


def walk(area: str, path: str) -> Iterator[tuple[str, Entry]]:
    """Yield everything at and below a path relative to `area`: outer folders before their contents."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        where = f"{area}/{path}" if path else area
        entry = entry_at(where)
        if entry is None:
            continue
        yield path, entry
        if entry.kind == "folder":
            waiting += [f"{path}/{name}" if path else name for name in names_in(where)]


def names_in(folder: str) -> list[str]:
    """In an order that makes `walk` give them by name."""
    return sorted((path.name for path in Path(folder).iterdir()), reverse=True)


@contextlib.contextmanager
def open_content(entry: Entry) -> Iterator[int]:
    """A file's contents, by descriptor. Raises `OSError`, also where a symlink is on the way by now."""
    descriptor = os.open(entry.where, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if real_path(descriptor) != entry.where:
            raise OSError(errno.ELOOP, "a symbolic link is on the way", entry.where)
        yield descriptor
    finally:
        os.close(descriptor)


def has_same_content(before: Entry, after: Entry) -> bool:
    if before.size != after.size:
        return False
    try:
        with open_content(before) as old, open_content(after) as new:
            while (data := os.read(old, _CHUNK)) == os.read(new, _CHUNK):
                if not data:
                    return True
    except OSError:  # what cannot be compared counts as changed
        pass
    return False


def copy_attributes(source: int, target: int) -> None:
    """Extended attributes, those of an overlay aside; what cannot be read or set is left out."""
    for name in os.listxattr(source):
        if not name.startswith((LAYER_ATTRIBUTES, "trusted.")):
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError:  # not every file system takes every attribute
                continue
