"""Copies a folder for a command to work in, and finds what it changed: for where no overlay works."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from agentcli.infra.sandbox.mounts.mount_points import open_real
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, copy_attributes, entry_at, open_to_owner, walk

_CLONE = 0x40049409  # FICLONE, ioctl_ficlone(2): the same blocks on the disk until one of the two is written
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TreeCopy:
    """A copy of `area` at `copy`, which must not exist yet: `make` it once, then ask for the `changes`.

    What is at or below a path of `hidden` is there, but empty. Files of another owner become one's own, unless root
    copies; device nodes and sockets are left out.
    """

    def __init__(self, area: str, copy: str, *, hidden: Collection[str] = ()) -> None:
        self._area = area
        self._copy = copy
        self._hidden = hidden
        self._originals: dict[str, Entry] = {}
        self._copies: dict[str, tuple[int, ...]] = {}
        self._can_clone = True

    def make(self, take: Callable[[Entry], None]) -> None:
        """`take` is called for each entry before it is copied, and may raise. Raises `OSError`."""
        root = open_real(self._area)
        try:
            for path, folder, name, entry in self._entries(root):
                take(entry)
                self._originals[path] = entry
                self._copy_entry(path, folder, name, entry)
        except RecursionError as error:
            raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply to be copied") from error
        finally:
            os.close(root)
        for path, entry in reversed(self._originals.items()):
            self._finish(path, entry)
        for path in self._originals:
            made = entry_at(self._path(path))
            if made is not None:
                self._copies[path] = made.identity

    def changes(self, take: Callable[[Entry], None]) -> Touched:
        """Find what is not as it was copied; `take` as for `make`. Raises `OSError`."""
        touched = Touched()
        seen = set()
        for path, now in walk(self._copy, ""):
            seen.add(path)
            open_to_owner(now)  # before the walk goes into it
            before = self._originals.get(path)
            if before is not None and self._copies.get(path) == now.identity and now.kind != "folder":
                continue
            take(now)
            if now.kind != "other":
                touched.after[path] = now
            if before is not None:
                touched.before[path] = before
        for path in self._copies.keys() - seen:
            touched.before[path] = self._originals[path]
        return touched

    def _path(self, path: str) -> str:
        return f"{self._copy}/{path}" if path else self._copy

    def _entries(self, root: int) -> Iterator[tuple[str, int, str, Entry]]:
        """Yield everything, outer folders first: its relative path, the open folder it is in, its name there."""
        at_root = entry_at(".", folder=root, where=self._area)
        assert at_root is not None
        yield "", root, ".", at_root
        for where, folders, files, folder in os.fwalk(".", follow_symlinks=False, dir_fd=root, onerror=_fail):
            for name in list(folders) + files:
                path = os.path.normpath(f"{where}/{name}")
                entry = entry_at(name, folder=folder, where=f"{self._area}/{path}")
                if entry is None:
                    continue
                if entry.where in self._hidden and name in folders:
                    folders.remove(name)
                yield path, folder, name, entry

    def _copy_entry(self, path: str, folder: int, name: str, entry: Entry) -> None:
        there = self._path(path)
        match entry.kind:
            case "folder":
                os.mkdir(there, 0o700)  # noqa: PTH102  # a path of bytes that need not be text
            case "link":
                os.symlink(entry.target, there)  # noqa: PTH211
            case "pipe":
                os.mkfifo(there, 0o600)
            case "file":
                with open(there, "xb", opener=_private) as target:
                    if entry.where not in self._hidden:
                        self._copy_content(name, folder, target.fileno())
            case "other":
                pass

    def _copy_content(self, name: str, folder: int, target: int) -> None:
        source = os.open(name, _READ, dir_fd=folder)
        try:
            copy_attributes(source, target)
            if self._can_clone:
                try:
                    fcntl.ioctl(target, _CLONE, source)
                    return
                except OSError:
                    self._can_clone = False
            copy_bytes(source, target)
        finally:
            os.close(source)

    def _finish(self, path: str, entry: Entry) -> None:
        """Owner, mode and times, once nothing is written there any more."""
        there = self._path(path)
        if entry.kind == "other":
            return
        if os.geteuid() == 0:
            os.chown(there, *entry.owner, follow_symlinks=False)
        if entry.kind != "link":
            os.chmod(there, entry.mode)  # noqa: PTH101
        modified = entry.identity[2]
        os.utime(there, ns=(modified, modified), follow_symlinks=False)


def copy_bytes(source: int, target: int) -> None:
    """All of a file, inside the kernel where it can. Raises `OSError`."""
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
        while data := os.read(source, _CHUNK):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]


def remove_tree(folder: Path) -> None:
    """Remove a folder of ours whatever modes are in it; what cannot be removed stays. Raises nothing."""
    try:
        for where, folders, _ in os.walk(folder):
            for name in folders:
                path = Path(where, name)
                if not path.is_symlink():
                    with contextlib.suppress(OSError):
                        path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # nested deeper than Python calls
        for program in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*program, "--", folder], stderr=subprocess.DEVNULL, check=False)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _fail(error: OSError) -> None:
    raise error
