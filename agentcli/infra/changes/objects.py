"""Keeps contents of files as git keeps them: loose objects of a bare repository (gitformat-loose, git 2.39).

They are written here, not by git: a machine without git has checkpoints too, and nothing of a project's own settings,
filters or attributes can change a byte. `git --git-dir FOLDER cat-file -p ID` shows one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from agentcli.settings.files import make_private_folder

_FASTEST = 1  # of zlib's levels: half the time of the default, a few per cent larger
_CHUNK = 1 << 20


class Objects:
    """The contents in one folder, by their id (40 hexadecimal digits). Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_made = False

    def make(self) -> None:
        """Make the folder a bare repository, so that git reads it. Raises `OSError`."""
        if self._is_made:
            return
        make_private_folder(self.folder.parent)
        for name in ("", "objects", "refs"):
            (self.folder / name).mkdir(exist_ok=True, mode=0o700)
        settings = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n\tpruneExpire = never\n"
        for name, text in (("config", settings), ("HEAD", "ref: refs/heads/main\n")):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(text)
        self._is_made = True

    def has(self, id: str) -> bool:
        return os.path.exists(self._path(id))  # noqa: PTH110  # a tenth of the time of a Path

    def put(self, source: int) -> tuple[str, int]:
        """Keep what an open file holds; gives its id and its size in bytes. Raises `OSError`.

        Of one that grows meanwhile as much is kept as it held at first.
        """
        size = os.fstat(source).st_size
        if size <= _CHUNK:
            content = b"".join(_read(source, size))
            return self.put_bytes(content), len(content)
        return self._put_large(source, size)

    def put_bytes(self, content: bytes) -> str:
        """Raises `OSError`."""
        head = b"blob %d\0" % len(content)
        id = hashlib.sha1(head + content, usedforsecurity=False).hexdigest()
        if not self.has(id):
            with self._new() as (path, file):
                file.write(zlib.compress(head + content, _FASTEST))
                self._move(path, file, id)
        return id

    def get(self, id: str) -> bytes:
        """Raises `OSError`, also where what is stored under the id is something else."""
        with self._opened(id) as parts:
            return b"".join(parts)

    def copy(self, id: str, target: Path) -> None:
        """Write a content to a new file. Raises `OSError`."""
        with self._opened(id) as parts, target.open("xb") as file:
            for part in parts:
                file.write(part)

    def _put_large(self, source: int, size: int) -> tuple[str, int]:
        """Piece by piece; the size stands first, so one that gets shorter meanwhile is read again."""
        for _ in range(3):
            os.lseek(source, 0, os.SEEK_SET)
            head = b"blob %d\0" % size
            digest, read = hashlib.sha1(head, usedforsecurity=False), 0
            with self._new() as (path, file):
                packer = zlib.compressobj(_FASTEST)
                file.write(packer.compress(head))
                for part in _read(source, size):
                    digest.update(part)
                    read += len(part)
                    file.write(packer.compress(part))
                file.write(packer.flush())
                if read == size:
                    self._move(path, file, digest.hexdigest())
                    return digest.hexdigest(), size
            size = os.fstat(source).st_size
        raise OSError(f"a file changes all the time ({size:,} bytes)")

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[str, BinaryIO]]:
        self.make()
        descriptor, path = tempfile.mkstemp(dir=self.folder / "objects", prefix="tmp_obj_")
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123  # buffered: it writes all or raises
                yield path, file
        finally:
            Path(path).unlink(missing_ok=True)

    def _move(self, path: str, file: BinaryIO, id: str) -> None:
        """Give a whole object its name."""
        file.flush()
        target = Path(self._path(id))
        target.parent.mkdir(0o700, exist_ok=True)
        Path(path).rename(target)

    def _path(self, id: str) -> str:
        return f"{self.folder}/objects/{id[:2]}/{id[2:]}"

    @contextlib.contextmanager
    def _opened(self, id: str) -> Iterator[Iterator[bytes]]:
        with Path(self._path(id)).open("rb") as file:
            yield _unpacked(iter(lambda: file.read(_CHUNK), b""), id)


def _read(source: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or fewer where there are not so many."""
    while size and (part := os.read(source, min(size, _CHUNK))):
        size -= len(part)
        yield part


def _unpacked(packed: Iterator[bytes], id: str) -> Iterator[bytes]:
    """The content, checked against its id at the end. Raises `OSError`."""
    unpacker, digest, head = zlib.decompressobj(), hashlib.sha1(usedforsecurity=False), b""
    is_content = False
    try:
        for data in packed:
            part = unpacker.decompress(data)
            digest.update(part)
            if not is_content:
                head, found, part = (head + part).partition(b"\0")
                is_content = bool(found)
            if is_content and part:
                yield part
    except zlib.error as error:
        raise OSError(f"checkpoint {id} is damaged: {error}") from error
    if digest.hexdigest() != id or not unpacker.eof:
        raise OSError(f"checkpoint {id} is damaged")
