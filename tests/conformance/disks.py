"""A disk for SQLite that loses its power, or fails, at a chosen moment."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

CHECKPOINT_PAGES = 20  # often, so that power is cut in the middle of checkpoints, too


class Disk(apsw.VFS):
    """Passes everything on to the real disk, and knows what of it was synced.

    After a cut each file holds what was synced, and none, a beginning or a random half of what was written since, the
    last write torn. Names of files are taken to be safe at once, and the disk not to lie about a sync.
    """

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.waiting: dict[str, list[tuple[int, bytes]]] = {}  # offset and bytes; a cut to a size has no bytes
        self.before_each: Callable[[str, str], None] = lambda step, name: None
        self.real = apsw.vfs_names()[0]
        super().__init__("test-disk", self.real, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.synced.pop(filename, None)
        self.waiting.pop(filename, None)

    def know(self, filename: str) -> None:
        path = Path(filename)
        self.synced.setdefault(filename, bytearray(path.read_bytes() if path.exists() else b""))
        self.waiting.setdefault(filename, [])

    def sync(self, filename: str) -> None:
        for write in self.waiting[filename]:
            _apply(self.synced[filename], *write)
        self.waiting[filename].clear()

    def after_a_cut(self, chance: random.Random) -> dict[str, bytes]:
        """What the files hold, by name, if the power goes now."""
        return {Path(name).name: self._left(name, chance) for name in self.synced}

    def _left(self, name: str, chance: random.Random) -> bytes:
        content, writes = bytearray(self.synced[name]), self.waiting[name]
        match chance.choice(("none", "beginning", "half")):
            case "none":
                kept = []
            case "beginning":
                kept = writes[: chance.randint(0, len(writes))]
            case _:
                kept = [write for write in writes if chance.random() < 0.5]
        for offset, data in kept[:-1]:
            _apply(content, offset, data)
        for offset, data in kept[-1:]:
            _apply(content, offset, data[: chance.randint(1, len(data))] if data else data)
        return bytes(content)


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if not data:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name
        if self._name:
            disk.know(self._name)
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._name:
            self._disk.before_each("write", self._name)
        super().xWrite(data, offset)
        if self._name:
            self._disk.waiting[self._name].append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        if self._name:
            self._disk.waiting[self._name].append((newsize, b""))

    def xSync(self, flags: int) -> None:
        if self._name:
            self._disk.before_each("sync", self._name)
        super().xSync(flags)
        if self._name:
            self._disk.sync(self._name)


@contextmanager
def disk() -> Iterator[Disk]:
    """Every connection that is opened meanwhile is on this disk."""
    made = Disk()

    def check_often(connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(CHECKPOINT_PAGES)

    apsw.connection_hooks.append(check_often)
    try:
        yield made
    finally:
        apsw.connection_hooks.remove(check_often)
        made.unregister()


@contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size."""
    disk = folder / "disk"
    disk.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path, *, all_but: int = 0) -> None:
    """Write a file to it that takes all room, or leaves so much."""
    free = shutil.disk_usage(disk).free
    with suppress(OSError), (disk / "filler").open("ab") as filler:
        filler.write(bytes(free - all_but if all_but else 2 * free + 100_000))


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    if subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, check=False).returncode:
        pytest.skip("this disk cannot be made read-only")
    yield
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
