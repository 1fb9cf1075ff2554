"""Reads the paths of submodules from git's index (gitformat-index(5), versions 2 to 4)."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_KIND, _SUBMODULE, _FOLDER = 0o170000, 0o160000, 0o040000
_HAS_MORE_FLAGS, _LENGTH = 0x4000, 0xFFF
_LARGEST = 100_000_000  # bytes


def submodules_in(index: str, *, hash_size: int) -> tuple[str, ...] | None:
    """Submodule paths from the worktree; None for an index that is not understood, such as one split in two files."""
    try:
        found = Path(index).stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError:
        return None
    return _submodules_in(index, hash_size, (found.st_mtime_ns, found.st_size, found.st_ino))


@lru_cache(maxsize=256)
def _submodules_in(index: str, hash_size: int, state: tuple[int, int, int]) -> tuple[str, ...] | None:
    if state[1] > _LARGEST or not Path(index).is_file():
        return None
    try:
        return tuple(_read_submodules(Path(index).read_bytes(), hash_size))
    except (OSError, ValueError, struct.error):
        return None


def _read_submodules(data: bytes, hash_size: int) -> Iterator[str]:
    """Raises `ValueError` and `struct.error`."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError
    entry = struct.Struct(f">24xI{12 + hash_size}xH")
    at, name = 12, b""
    for _ in range(count):
        mode, flags = entry.unpack_from(data, at)
        start, kept = at + entry.size + (2 if flags & _HAS_MORE_FLAGS else 0), b""
        if version == 4:
            dropped, start = _read_number(data, start)
            kept = name[: max(0, len(name) - dropped)]
        length = flags & _LENGTH
        end = data.index(0, start) if length == _LENGTH else start + length - len(kept)
        if end < start:
            raise ValueError
        name = kept + data[start:end]
        if mode & _KIND == _SUBMODULE and name:
            yield os.fsdecode(name)
        elif mode & _KIND in (_SUBMODULE, _FOLDER):  # the name is in another file; a folder stands for what is in it
            raise ValueError
        at = end + 1 if version == 4 else at + ((end - at + 8) & ~7)
    while at <= len(data) - hash_size - 8:
        extension, size = struct.unpack_from(">4sI", data, at)
        if extension == b"link":
            raise ValueError
        at += 8 + size
    if at > len(data) - hash_size:
        raise ValueError


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable width, as in packs (offset encoding), and where it ends."""
    number = -1
    while True:
        (byte,) = struct.unpack_from("B", data, at)
        at += 1
        number = (number + 1) << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at
