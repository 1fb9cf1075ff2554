"""Keeps contents of files as git keeps them: loose objects of a bare repository (gitformat-loose, git 2.39).

They are written here, not by git: a machine without git has checkpoints too, and nothing of a project's own settings,
filters or attributes can change a byte. `git --git-dir FOLDER cat-file -p ID` shows one.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentcli.settings.files import make_private_folder

_FASTEST = 1  # of zlib's levels: half the time of the default, a few per cent larger
_CHUNK = 1 << 20
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
        """Keep what an open file holds; gives its id and its size in bytes. Raises `OSError`.

        Of one that grows meanwhile as much is kept as it held at first; one that gets shorter is read again.
        """
        for _ in range(3):
            size = os.fstat(source).st_size
            os.lseek(source, 0, os.SEEK_SET)
            if size <= _CHUNK:
                content = b"".join(_read(source, size))
                return self.put_bytes(content), len(content)
            if id := self._store(_read(source, size), size):
                return id, size
        raise OSError(f"a file changes all the time ({size:,} bytes)")

    def put_bytes(self, content: bytes) -> str:
        """Raises `OSError`."""
        id = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        return id if self.has(id) else self._store([content], len(content))

    def get(self, id: str) -> bytes:
        """Raises `OSError`, also where what is stored under the id is something else."""
        return b"".join(self._parts(id))

    def copy(self, id: str, target: Path) -> None:
        """Write a content to a new file. Raises `OSError`."""
        with target.open("xb") as file:
            file.writelines(self._parts(id))

    def _store(self, parts: Iterable[bytes], size: int) -> str:
        """Write an object; gives its id, or nothing where the parts are less than `size`, which stands first in it."""
        self.make()
        head = b"blob %d\0" % size
        digest, packer, missing = hashlib.sha1(usedforsecurity=False), zlib.compressobj(_FASTEST), len(head) + size
        descriptor, path = tempfile.mkstemp(dir=self.folder / "objects", prefix="tmp_obj_")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for part in itertools.chain((head,), parts):
                    digest.update(part)
                    missing -= len(part)
                    file.write(packer.compress(part))
                file.write(packer.flush())
            if missing:
                return ""
            target = Path(self._path(digest.hexdigest()))
            target.parent.mkdir(0o700, exist_ok=True)
            Path(path).rename(target)
            return digest.hexdigest()
        finally:
            Path(path).unlink(missing_ok=True)

    def _path(self, id: str) -> str:
        return f"{self.folder}/objects/{id[:2]}/{id[2:]}"

    def _parts(self, id: str) -> Iterator[bytes]:
        """The content, checked against its id at the end. Raises `OSError`."""
        unpacker, digest, head = zlib.decompressobj(), hashlib.sha1(usedforsecurity=False), b""
        is_content = False
        with Path(self._path(id)).open("rb") as file:
            while data := file.read(_CHUNK):
                try:
                    part = unpacker.decompress(data)
                except zlib.error as error:
                    raise OSError(f"checkpoint {id} is damaged: {error}") from error
                digest.update(part)
                if not is_content:
                    head, found, part = (head + part).partition(b"\0")
                    is_content = bool(found)
                if is_content and part:
                    yield part
        if digest.hexdigest() != id or not unpacker.eof:
            raise OSError(f"checkpoint {id} is damaged")


def _read(source: int, size: int) -> Iterator[bytes]:
    """The first `size` bytes, or fewer where there are not so many."""
    while size and (part := os.read(source, min(size, _CHUNK))):
        size -= len(part)
        yield part
