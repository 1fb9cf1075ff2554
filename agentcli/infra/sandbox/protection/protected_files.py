"""Finds files of a workspace that commands may not read or write, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agentcli.infra.sandbox.files.secret_files import SecretFiles
from agentcli.infra.sandbox.folder_walk import Extent, FolderWalk
from agentcli.safety.paths.protected import is_read_only_name

# Installed packages bring sample keys by the hundred, and are no place for the person's own: of these the files are
# looked at, not the folders in them.
_SHALLOW = frozenset((".git", "node_modules", "__pycache__", "site-packages", ".venv", "venv", ".tox", "target"))
_EXTENT = Extent(most_folders=20_000, longest_s=1.0, shallow=_SHALLOW, most_shallow=20_000)

_Found = tuple[Sequence[Path], Sequence[Path]]


class ProtectedFiles:
    """Finds them for all commands of a session.

    `is_secret` is what `SecretFiles` asks; `denied` gives a test for further files, as of then.
    """

    def __init__(
        self, is_secret: Callable[[Path], bool], denied: Callable[[], Callable[[Path], bool] | None] = lambda: None
    ) -> None:
        self._secret_files = SecretFiles(Path("/"), is_secret)
        self._denied = denied
        self._walk = FolderWalk(_EXTENT, self._look)

    def is_partial(self, root: Path) -> bool:
        """True if there was more than could be looked at."""
        return self._walk.is_partial(str(root))

    def inside(self, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Secret files, and what programs obey by themselves below the roots' own level, as they are now."""
        secrets: list[Path] = []
        obeyed: list[Path] = []
        for root in map(str, roots):
            for folder, (its_secrets, its_obeyed) in self._walk.inside(root):
                secrets += its_secrets
                obeyed += its_obeyed if folder != root else ()
        return secrets, obeyed

    def _look(self, folder: str, entries: Sequence[os.DirEntry[str]]) -> _Found:
        names = [os.fsencode(entry.path)[1:] for entry in entries if not entry.is_dir(follow_symlinks=False)]
        secret, is_denied = self._secret_files.among(names), self._denied()
        if is_denied is not None:
            secret |= {name for name in names if is_denied(_path(name))}
        is_shallow = folder.rpartition(os.sep)[2] in _SHALLOW
        obeyed = [] if is_shallow else [Path(entry.path) for entry in entries if is_read_only_name(entry.name)]
        # Repositories are looked for on their own.
        return sorted(map(_path, secret)), [path for path in obeyed if path.name != ".git"]


def _path(name: bytes) -> Path:
    return Path("/", os.fsdecode(name))
