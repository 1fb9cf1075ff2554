"""Finds files of a workspace that commands may not read or write, by name, looking only at what changed."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from agentcli.infra.sandbox.files.secret_files import SecretFiles
from agentcli.safety.paths.protected import READ_ONLY_NAMES

MOST_FOLDERS = 20_000
LONGEST_WALK_S = 1.0
_FRESH_FOR_S = 30.0
_ALWAYS_FRESH = 2  # levels that are looked at each time
_QUICK_S = 0.05  # a walk that takes so long can be made after every command
# Installed packages bring sample keys by the hundred, and are no place for the person's own: of these the files are
# looked at, not the folders in them.
_SHALLOW = frozenset((".git", "node_modules", "__pycache__", "site-packages", ".venv", "venv", ".tox", "target"))


_OBEYED = frozenset(READ_ONLY_NAMES) - {".git"}  # repositories are looked for on their own


class _Folder(Struct):
    modified_ns: int
    folders: tuple[str, ...]
    secrets: tuple[Path, ...]
    protected: tuple[Path, ...]


class ProtectedFiles:
    """Finds them for all commands of a session. A folder is read again only where it changed."""

    def __init__(
        self, is_secret: Callable[[Path], bool], denied: Callable[[], Callable[[Path], bool] | None] = lambda: None
    ) -> None:
        """`is_secret` is what `SecretFiles` asks; `denied` gives a test for further files, as of then."""
        self._is_secret = is_secret
        self._denied = denied
        self._by_root: dict[Path, SecretFiles] = {}
        self._known: dict[str, _Folder] = {}
        self._walked: dict[Path, float] = {}
        self._partial: set[Path] = set()
        self._took: dict[Path, float] = {}
        self._looking = threading.Lock()

    def is_partial(self, root: Path) -> bool:
        """True if there was more than could be looked at."""
        return root in self._partial

    def inside(self, roots: Sequence[Path], *, is_changed: bool = False) -> tuple[list[Path], list[Path]]:
        """Secret files, and what programs obey by themselves below the roots' own level.

        Below two levels what is found is at most half a minute old; in a workspace that is quickly looked at
        it is of now, where it `is_changed`.
        """
        with self._looking:
            return self._inside(roots, is_changed)

    def _inside(self, roots: Sequence[Path], is_changed: bool) -> tuple[list[Path], list[Path]]:
        secrets: list[Path] = []
        protected: list[Path] = []
        for root in roots:
            now = time.monotonic()
            is_old = now - self._walked.get(root, -_FRESH_FOR_S) >= _FRESH_FOR_S
            if is_old or (is_changed and self._took[root] < _QUICK_S):
                self._walked[root] = now
                self._walk(root, deepest=None)
                self._took[root] = time.monotonic() - now
            else:
                self._walk(root, deepest=_ALWAYS_FRESH)
            prefix = f"{root}{os.sep}"
            for path, folder in self._known.items():
                if path == str(root) or path.startswith(prefix):
                    secrets += folder.secrets
                    protected += folder.protected if path != str(root) else ()
        return secrets, protected

    def _walk(self, root: Path, *, deepest: int | None) -> None:
        waiting = deque([(str(root), 0)])
        deadline, count = time.monotonic() + LONGEST_WALK_S, 0
        while waiting and count < MOST_FOLDERS and time.monotonic() < deadline:
            path, depth = waiting.popleft()
            if deepest is not None and depth > deepest and path in self._known:
                continue
            count += 1
            folder = self._look_at(path, root)
            if folder is None:
                self._known.pop(path, None)
                continue
            self._known[path] = folder
            waiting.extend((child, depth + 1) for child in folder.folders)
        if deepest is None:
            (self._partial.add if waiting else self._partial.discard)(root)

    def _look_at(self, path: str, root: Path) -> _Folder | None:
        before = self._known.get(path)
        try:
            modified = os.stat(path).st_mtime_ns  # noqa: PTH116  # a tenth of the time of a Path
            if before is not None and before.modified_ns == modified:
                return before
            folders, files, protected = [], [], []
            is_shallow = path.rpartition(os.sep)[2] in _SHALLOW
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name in _OBEYED and not is_shallow:
                        protected.append(Path(entry.path))
                    if entry.is_dir(follow_symlinks=False):
                        if not is_shallow:
                            folders.append(entry.path)
                    else:
                        files.append(entry.path)
        except OSError:
            return None
        secrets = self._secret_among(files, root)
        return _Folder(modified, tuple(folders), tuple(secrets), tuple(protected))

    def _secret_among(self, paths: Sequence[str], root: Path) -> list[Path]:
        if root not in self._by_root:
            self._by_root[root] = SecretFiles(root, self._is_secret)
        start = len(str(root).rstrip(os.sep)) + 1
        names = {os.fsencode(path)[start:]: path for path in paths}
        secret, is_denied = self._by_root[root].among(list(names)), self._denied()
        return [
            Path(path)
            for name, path in names.items()
            if name in secret or (is_denied is not None and is_denied(Path(path)))
        ]
