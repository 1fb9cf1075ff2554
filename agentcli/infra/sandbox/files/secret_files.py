"""Finds secret files among the many of a search, without judging each of them in full.

Judging a path takes tens of microseconds, and a search may find matches in fifty thousand files. Nearly all of them
can be told to be plain by a look at their names; the others are judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from itertools import repeat
from pathlib import Path

from agentcli.safety.paths.judge import SECRET_GLOB_EXCEPTIONS, SECRET_GLOBS, SECRET_HOME_PATHS, fold_name

_NEVER_SECRET = tuple(glob[1:].encode() for glob in SECRET_GLOB_EXCEPTIONS if glob.count("*") == 1 and glob[0] == "*")
_EXTENSIONS = frozenset(glob.rpartition(".")[2].encode() for glob in SECRET_GLOBS if glob.startswith("*"))
_OTHERS = re.compile("|".join(translate(glob) for glob in SECRET_GLOBS if not glob.startswith("*")).encode())

# A secret folder, or one that leads to one, has a part of such a name.
_FOLDERS = frozenset(
    fold_name(part).encode() for path in (*SECRET_HOME_PATHS, "proc", "secrets") for part in path.split("/")
)

_STARTS = frozenset(name[:2] for name in (*(glob.encode() for glob in SECRET_GLOBS if glob[0] != "*"), *_FOLDERS))

_IGNORED_ENDS = (b".", b" ")  # by Windows


class SecretFiles:
    """Finds the files `is_secret` is true of, asking it only where no name on the path is plainly harmless."""

    def __init__(self, base: Path, is_secret: Callable[[Path], bool]) -> None:
        self._base = base
        self._is_secret = is_secret
        is_plain_base = not is_secret(base / "a") and all(map(_is_plain_folder, os.fsencode(base).split(b"/")[1:]))
        self._plain_folders = {b"": is_plain_base}

    def among(self, paths: Sequence[bytes]) -> set[bytes]:
        """Return the paths that hold secrets."""
        folders = {folder for folder, _, _ in map(bytes.rpartition, paths, repeat(b"/"))}
        if all(map(self._is_plain_folder, folders)) and not _is_odd(b"".join(paths)):
            paths = [path for path in paths if not path.endswith(_NEVER_SECRET) and _may_match(path)]
        return {path for path in paths if not self._is_plain(path) and self._is_secret(self._base / os.fsdecode(path))}

    def _is_plain(self, path: bytes) -> bool:
        folder, _, name = path.rpartition(b"/")
        folded = name.lower()
        if folded.rpartition(b".")[2] in _EXTENSIONS or folded in _FOLDERS or _is_odd(name):
            return False
        return self._is_plain_folder(folder) and (folded[:2] not in _STARTS or _OTHERS.match(folded) is None)

    def _is_plain_folder(self, path: bytes) -> bool:
        is_plain = self._plain_folders.get(path)
        if is_plain is None:
            parent, _, name = path.rpartition(b"/")
            is_plain = self._plain_folders[path] = self._is_plain_folder(parent) and _is_plain_folder(name)
        return is_plain


def _is_plain_folder(name: bytes) -> bool:
    return name.lower() not in _FOLDERS and not _is_odd(name)


def _may_match(path: bytes) -> bool:
    """Of a path of usual letters in folders that are plain: a glance, which errs on the side of yes."""
    name = path[path.rfind(b"/") + 1 :].lower()
    return name[:2] in _STARTS or name[name.rfind(b".") + 1 :] in _EXTENSIONS or name.endswith(_IGNORED_ENDS)


def _is_odd(name: bytes) -> bool:
    """True if some file system takes it for another name."""
    return not name.isascii() or b"~" in name or b":" in name or name.endswith(_IGNORED_ENDS)
