"""Keeps contents of files as git keeps them: loose objects of a bare repository (gitformat-loose, git 2.39).

They are written here, not by git: a machine without git has checkpoints too, and nothing of a project's own settings,
filters or attributes can change a byte. `git --git-dir FOLDER cat-file -p ID` shows one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from pathlib import Path

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
