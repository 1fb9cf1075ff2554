"""What a command did to a folder that something else stood in for: the changes, in the pieces a person decides about.

A piece is a file, a link, or a folder that is empty or whose mode changed. Other folders come and go with what is in
them. What only makes sense as a whole is one piece: the inside of a `.git`, and a folder where a file was or the other
way round.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from agentcli.infra.sandbox.mount_points import real_path
from agentcli.tools.text_diff import unified_diff

LARGEST_TEXT = 256_000  # bytes of a file of which a diff is made
LONGEST_DIFFS = 2_000_000  # characters of all the diffs of one try
_CHUNK = 1 << 20
_LAYER = "user.overlay."  # what an overlay remembers in attributes

Kind = Literal["created", "changed", "deleted", "mode"]
What = Literal["file", "folder", "link", "pipe", "repository", "tree"]
EntryKind = Literal["file", "folder", "link", "pipe", "other"]


class Side(Struct, frozen=True):
    """What is at a path: `mode` are the permission bits, `size` is in bytes, `target` where a link leads."""

    mode: int
    size: int = 0
    target: str = ""


class FileChange(Struct, frozen=True):
    """One piece. `path` is relative to `root`; `name` is unique, as a person calls it.

    `before` is None for what is new, `after` for what is gone, both for a piece of several `files`. `diff` is a unified
    one, empty where the contents are the same, are no text or are too long.
    """

    name: str
    root: Path
    path: str
    kind: Kind
    what: What
    before: Side | None = None
    after: Side | None = None
    diff: str = ""
    files: int = 1


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
    """By paths relative to a folder, empty for itself: what was there and what is there now.

    `stale` are those that somebody else has changed since the command started.
    """

    before: dict[str, Entry] = field(default_factory=dict)
    after: dict[str, Entry] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)

    def of(self, path: str) -> tuple[Entry | None, Entry | None]:
        return self.before.get(path), self.after.get(path)


class Piece(NamedTuple):
    """A change, the folder it is in, and the paths it consists of."""

    change: FileChange
    area: str
    touched: Touched
    paths: tuple[str, ...]


_KINDS: dict[int, EntryKind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
}


def entry_at(name: str, *, folder: int | None = None, where: str = "") -> Entry | None:
    """What is at a path, or under a name in an open folder; None when there is nothing."""
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


def overlay_changes(area: str, upper: str, started_ns: int, take: Callable[[Entry], None]) -> Touched:
    """What an overlay over `area` has in its upper folder. `started_ns` is when the command started, by file times.

    `take` is called for each entry that is looked at, and may raise. Whiteouts and opaque folders are as in
    Documentation/filesystems/overlayfs.rst. Raises `OSError`.
    """
    touched = Touched()

    def gone(path: str) -> None:
        for below, entry in walk(area, path):
            take(entry._replace(size=0))
            touched.before[below] = entry
            if entry.kind != "folder" and entry.changed_ns >= started_ns:
                touched.stale.add(below)

    def look(path: str, *, is_covered: bool) -> None:
        where = f"{upper}/{path}" if path else upper
        now = entry_at(where)
        assert now is not None
        take(now)
        below = entry_at(f"{area}/{path}" if path else area)
        if now.kind == "other" and _is_whiteout(where):
            if not is_covered:
                gone(path)
            return
        replaces = now.kind != "folder" or below is None or below.kind != "folder"
        if not is_covered and (replaces or _attribute(where, "opaque") == b"y"):
            gone(path)
            is_covered = True
        elif not is_covered and below is not None:
            touched.before[path] = below
        if below is None and not is_covered and now.kind != "folder" and _attribute(where, "origin"):
            touched.stale.add(path)
        if now.kind != "other":
            touched.after[path] = now
            open_to_owner(now)
        if now.kind == "folder":
            for name in _names(where):
                look(f"{path}/{name}" if path else name, is_covered=is_covered)

    look("", is_covered=False)
    return touched


def open_to_owner(entry: Entry) -> None:
    """Let the owner read an entry of a stand-in, whatever mode the command gave it; `entry.mode` still says which."""
    needed = {"file": 0o400, "folder": 0o700}.get(entry.kind, 0)
    if entry.mode & needed != needed:
        os.chmod(entry.where, entry.mode | needed)  # noqa: PTH101


def walk(area: str, path: str) -> Iterator[tuple[str, Entry]]:
    """Everything at and below a path that is relative to `area`: outer folders before what is in them."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        where = f"{area}/{path}" if path else area
        entry = entry_at(where)
        if entry is None:
            continue
        yield path, entry
        if entry.kind == "folder":
            waiting += [f"{path}/{name}" if path else name for name in _names(where)]


def pieces_of(
    area: str,
    touched: Touched,
    *,
    can_reach: Callable[[str], bool],
    name_of: Callable[[str], str],
    budget: list[int],
) -> list[Piece]:
    """The changes in one folder, by path; only where the command can have made them.

    `name_of` gives an absolute path's name for a person; `budget` holds the characters left for diffs. Raises
    `OSError`.
    """
    paths = sorted(path for path in {*touched.before, *touched.after} if can_reach(f"{area}/{path}" if path else area))
    paths = [path for path in paths if _differs(*touched.of(path))]
    wholes: dict[str, list[str]] = {}
    pieces: list[Piece] = []
    full = {parent for path in paths for parent in _parents(path)}
    for path in paths:
        whole = _whole(area, path, touched)
        before, after = touched.of(path)
        if whole is not None:
            wholes.setdefault(whole, []).append(path)
        elif not (path in full and _is_folder(before or after) and (before is None or after is None)):
            pieces.append(Piece(_change(area, path, before, after, name_of, budget), area, touched, (path,)))
    for path, inside in wholes.items():
        change = _change_of_many(area, path, touched, inside, name_of)
        pieces.append(Piece(change, area, touched, tuple(inside)))
    return sorted(pieces, key=lambda piece: piece.change.path)


def copy_attributes(source: int, target: int) -> None:
    """Extended attributes, those of an overlay aside; what cannot be read or set is left out."""
    for name in os.listxattr(source):
        if not name.startswith((_LAYER, "trusted.")):
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError:  # not every file system takes every attribute
                continue


def _whole(area: str, path: str, touched: Touched) -> str | None:
    """The path of the piece that this one is only a part of: the outermost of them."""
    for around in (*_parents(path), path):
        before, after = touched.of(around)
        is_git = os.path.basename(around or area) == ".git"  # noqa: PTH119  # relative paths as text
        if is_git and (around != path or _is_folder(before or after) or around == ""):
            return around
        if before is not None and after is not None and _is_folder(before) != _is_folder(after):
            return around
    return None


def _parents(path: str) -> list[str]:
    """The folders around a relative path, outermost first: `a/b/c` has the area itself, `a` and `a/b`."""
    if not path:
        return []
    parts = path.split("/")
    return ["", *("/".join(parts[:count]) for count in range(1, len(parts)))]


def _differs(before: Entry | None, after: Entry | None) -> bool:
    if before is None or after is None:
        return before is not after
    if (before.kind, before.mode, before.owner, before.target) != (after.kind, after.mode, after.owner, after.target):
        return True
    return before.kind == "file" and not _is_same(before, after)


def _is_same(before: Entry, after: Entry) -> bool:
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


def _change(
    area: str,
    path: str,
    before: Entry | None,
    after: Entry | None,
    name_of: Callable[[str], str],
    budget: list[int],
) -> FileChange:
    entry = after or before
    assert entry is not None
    name = name_of(f"{area}/{path}" if path else area)
    is_mode = before is not None and after is not None and before.kind == after.kind
    if is_mode and before is not None and after is not None:
        same = before.kind == "folder" or (before.kind == "file" and _is_same(before, after))
        is_mode = same and before.target == after.target
    diff = "" if is_mode else _diff(name, before, after, budget)
    kind: Kind = "created" if before is None else "deleted" if after is None else "mode" if is_mode else "changed"
    what: What = entry.kind if entry.kind != "other" else "file"
    return FileChange(name, Path(area), path, kind, what, _side(before), _side(after), diff)


def _change_of_many(
    area: str, path: str, touched: Touched, inside: list[str], name_of: Callable[[str], str]
) -> FileChange:
    before, after = touched.of(path)
    is_git = os.path.basename(path or area) == ".git"  # noqa: PTH119
    is_new = path in inside and before is None
    is_gone = path in inside and after is None
    files = sum(not _is_folder(touched.after.get(one) or touched.before.get(one)) for one in inside)
    name = name_of(f"{area}/{path}" if path else area)
    kind: Kind = "created" if is_new else "deleted" if is_gone else "changed"
    return FileChange(name, Path(area), path, kind, "repository" if is_git else "tree", files=files)


def _side(entry: Entry | None) -> Side | None:
    return None if entry is None else Side(entry.mode, entry.size if entry.kind == "file" else 0, entry.target)


def _diff(name: str, before: Entry | None, after: Entry | None, budget: list[int]) -> str:
    texts = [_text(entry) for entry in (before, after)]
    if budget[0] <= 0 or texts[0] is None or texts[1] is None:
        return ""
    diff = unified_diff(name, texts[0], texts[1])
    budget[0] -= len(diff)
    return diff if budget[0] >= 0 else ""


def _text(entry: Entry | None) -> str | None:
    """A file's text, none at all for no file; None for what is no text or is too long."""
    if entry is None:
        return ""
    if entry.kind != "file" or entry.size > LARGEST_TEXT:
        return None
    try:
        with open_content(entry) as file:
            text = os.read(file, LARGEST_TEXT + 1).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


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


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and entry.kind == "folder"


def _is_whiteout(where: str) -> bool:
    found = os.lstat(where)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _attribute(where: str, name: str) -> bytes:
    try:
        return os.getxattr(where, _LAYER + name, follow_symlinks=False)
    except OSError:
        return b""


def _names(folder: str) -> list[str]:
    """In an order that makes `walk` give them by name."""
    return sorted((path.name for path in Path(folder).iterdir()), reverse=True)
