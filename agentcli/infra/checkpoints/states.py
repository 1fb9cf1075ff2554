"""Takes down what is at a path, and keeps what a file holds."""

from __future__ import annotations

import os
import stat

from agentcli.conversation.file_changes import FileKind, FileState, stored_path
from agentcli.infra.checkpoints.objects import Objects

_KINDS: dict[int, FileKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
}
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def kind_of(status: os.stat_result) -> FileKind | None:
    """None for what no checkpoint holds: sockets and devices."""
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def state_at(path: str, objects: Objects, *, largest: int) -> FileState | None:
    """What is at a path, links not followed; None where nothing is, or what no checkpoint holds.

    Files of more than `largest` bytes, and those that cannot be read, are taken down without their contents. Raises
    `OSError` where these cannot be kept.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state_of(path, status, objects, largest=largest)


def state_of(path: str, status: os.stat_result, objects: Objects, *, largest: int) -> FileState | None:
    """As `state_at`, of a path that was just looked at."""
    kind, mode = kind_of(status), stat.S_IMODE(status.st_mode)
    match kind:
        case None:
            return None
        case "link":
            try:
                return FileState("link", mode, stored_path(os.readlink(path)))  # noqa: PTH115  # text, as the path is
            except OSError:  # gone since
                return None
        case "file" if status.st_size <= largest:
            return _file(path, mode, status.st_size, objects)
        case _:
            return FileState(kind, mode, size=status.st_size if kind == "file" else 0)


def _file(path: str, mode: int, size: int, objects: Objects) -> FileState | None:
    try:
        source = os.open(path, _LOOK)
    except FileNotFoundError:
        return None
    except OSError:  # not ours to read
        return FileState("file", mode, size=size)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return FileState("file", mode, size=size)
        id, size = objects.put(source)
        return FileState("file", mode, id, size)
    finally:
        os.close(source)
