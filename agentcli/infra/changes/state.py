"""Describes what is at a path: a `FileEntry` on the disk, a `FileState` in the log, both in a `ChangeSet`."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Literal, NamedTuple

from agentcli.conversation.file_changes import FileKind, FileState, stored_path
from agentcli.infra.changes.writing import open_source
from agentcli.settings.files import make_private_folder

_FASTEST = 1  # of zlib's levels: half the time of the default, a few per cent larger
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n\tpruneExpire = never\n"


class Objects:
    """The contents in one folder, by their id (40 hexadecimal digits). Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_made = False

    def make(self) -> None:
        """Make the folder a bare repository, so that git reads it. Raises `OSError`."""
        if self._is_made:
            return
        for name in ("", "objects", "refs"):
            make_private_folder(self.folder / name)
        for name, text in (("config", _CONFIG), ("HEAD", "ref: refs/heads/main\n")):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(text)
        self._is_made = True

    def has(self, id: str) -> bool:
        return os.path.exists(self._path(id))  # noqa: PTH110  # a tenth of the time of a Path

    def put(self, source: int) -> tuple[str, int]:
        """Store the contents of an open file as they are now; return their id and size in bytes. Raises `OSError`."""
        with os.fdopen(source, "rb", closefd=False) as file:
            for _ in range(3):
                size = os.fstat(source).st_size
                file.seek(0)
                if len(content := file.read(size)) == size:
                    return self.put_bytes(content), size
        raise OSError(f"a file changes all the time ({size:,} bytes)")

    def put_bytes(self, content: bytes) -> str:
        """Raises `OSError`."""
        head = b"blob %d\0" % len(content)
        digest = hashlib.sha1(head, usedforsecurity=False)
        digest.update(content)
        if not self.has(id := digest.hexdigest()):
            self._store(id, head, content)
        return id

    def get(self, id: str) -> bytes:
        """Raises `OSError`, also where what is stored under the id is something else."""
        try:
            stored = zlib.decompress(Path(self._path(id)).read_bytes())
        except zlib.error as error:
            raise OSError(f"checkpoint {id} is damaged: {error}") from error
        if hashlib.sha1(stored, usedforsecurity=False).hexdigest() != id:
            raise OSError(f"checkpoint {id} is damaged")
        return stored.partition(b"\0")[2]

    def _store(self, id: str, head: bytes, content: bytes) -> None:
        self.make()
        packer = zlib.compressobj(_FASTEST)
        target = Path(self._path(id))
        target.parent.mkdir(0o700, exist_ok=True)
        descriptor, path = tempfile.mkstemp(dir=self.folder / "objects", prefix="tmp_obj_")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines((packer.compress(head), packer.compress(content), packer.flush()))
            Path(path).rename(target)
        finally:
            Path(path).unlink(missing_ok=True)

    def _path(self, id: str) -> str:
        return f"{self.folder}/objects/{id[:2]}/{id[2:]}"


_CHUNK = 1 << 20
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: dict[int, FileKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe"}


class FileEntry(NamedTuple):
    """Something on the disk, links not followed; `source` has its contents, untouched while `stamp` is the same."""

    kind: FileKind | Literal["other"]
    stamp: tuple[int, ...]
    mode: int
    size: int
    owner: tuple[int, int]
    target: str
    source: str

    @property
    def changed_ns(self) -> int:
        """When anything of it was last changed, by the kernel's clock: nobody can set it."""
        return self.stamp[3]

    def open(self) -> FileIO:
        """A file's contents. Raises `OSError`, also where a link is on the way by now."""
        return open_source(self.source)


@dataclass
class ChangeSet:
    """Entries before and after, by paths relative to `root`; `stale` ones somebody else has changed since."""

    root: str
    before: dict[str, FileEntry] = field(default_factory=dict)
    after: dict[str, FileEntry] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    caches: list[str] = field(default_factory=list)

    def of(self, path: str) -> tuple[FileEntry | None, FileEntry | None]:
        return self.before.get(path), self.after.get(path)

    def at(self, path: str) -> str:
        """The whole of a path."""
        return f"{self.root}/{path}" if path else self.root


def kind_of(status: os.stat_result) -> FileKind | None:
    """None for what no checkpoint holds: sockets and devices."""
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def entry_at(name: str, *, folder: int | None = None, source: str = "") -> FileEntry | None:
    """Look at a path, or a name in an open folder; None when nothing is there."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return None
    owner, source = (status.st_uid, status.st_gid), source or name
    mode = stat.S_IMODE(status.st_mode)
    stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, mode, *owner)
    return FileEntry(kind_of(status) or "other", stamp, mode, status.st_size, owner, target=target, source=source)


def walk(root: str, path: str) -> Iterator[tuple[str, FileEntry]]:
    """Yield everything at and below a path relative to `root`: outer folders before their contents, by name."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if (entry := entry_at(f"{root}/{path}" if path else root)) is not None:
            yield path, entry
            if entry.kind == "folder":
                waiting += [joined(path, name) for name in names_in(entry.source)]


def joined(folder: str, name: str) -> str:
    """A name in a relative folder; the root itself is the empty path."""
    return f"{folder}/{name}" if folder else name


def names_in(folder: str) -> list[str]:
    """Return the names in a folder in reverse order: `walk` takes the last one first."""
    return sorted(os.listdir(folder), reverse=True)  # noqa: PTH208  # a tenth of the time of a Path


def parents_of(path: str) -> list[str]:
    """The folders around a relative path, outermost first: `a/b/c` has the root itself, `a` and `a/b`."""
    parts = path.split("/")
    return ["", *("/".join(parts[:count]) for count in range(1, len(parts)))] if path else []


def differs(before: FileEntry | None, after: FileEntry | None) -> bool:
    """True if there is a change; times alone are none."""
    if before is None or after is None:
        return before is not after
    if (before.kind, before.mode, before.owner, before.target) != (after.kind, after.mode, after.owner, after.target):
        return True
    return before.kind == "file" and not has_same_content(before, after)


def has_same_content(before: FileEntry, after: FileEntry) -> bool:
    if before.size != after.size:
        return False
    try:
        with before.open() as old, after.open() as new:
            while (data := old.read(_CHUNK)) == new.read(_CHUNK):
                if not data:
                    return True
    except OSError:  # what cannot be compared counts as changed
        pass
    return False


def digest_of(entry: FileEntry) -> bytes:
    """A digest of a file's contents; nothing else is like what cannot be read."""
    try:
        with entry.open() as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return os.fsencode(entry.source)


def state_at(path: str, objects: Objects, *, largest: int) -> FileState | None:
    """Record a path, links not followed, without contents over `largest` bytes; None for nothing. Raises `OSError`."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state_of(path, status, objects, largest=largest)


def state_of(path: str, status: os.stat_result, objects: Objects, *, largest: int) -> FileState | None:
    """As `state_at`, of a path that was just looked at."""
    kind, mode = kind_of(status), stat.S_IMODE(status.st_mode)
    if kind is None:
        return None
    if kind in ("folder", "pipe"):
        return FileState(kind, mode)
    unread = FileState("file", mode, size=status.st_size)
    try:
        if kind == "link":
            return FileState("link", mode, stored_path(os.readlink(path)))  # noqa: PTH115  # text, as the path is
        if status.st_size > largest:
            return unread
        source = os.open(path, _LOOK)
    except OSError as error:  # gone since, or not ours to read
        return None if kind == "link" or isinstance(error, FileNotFoundError) else unread
    try:
        return FileState("file", mode, *objects.put(source)) if stat.S_ISREG(os.fstat(source).st_mode) else unread
    finally:
        os.close(source)
