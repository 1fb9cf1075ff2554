"""Tells which of the many files of a search are kept from tools, without judging each of them in full.

Judging a path takes tens of microseconds, and a search may find matches in fifty thousand files. Nearly all of them
can be told to be plain by a look at their names; the others are judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fnmatch import translate
from pathlib import Path

from agentcli.tools.path_kinds import SECRET_GLOBS, SECRET_HOME_PATHS, fold_name

_EXTENSIONS = frozenset(glob.rpartition(".")[2].encode() for glob in SECRET_GLOBS if glob.startswith("*"))
_STARTS = frozenset(glob[:2].encode() for glob in SECRET_GLOBS if not glob.startswith("*"))
_OTHERS = re.compile("|".join(translate(glob) for glob in SECRET_GLOBS if not glob.startswith("*")).encode())

# A secret folder, or one that leads to one, has a part of such a name.
_FOLDERS = frozenset(fold_name(part).encode() for path in SECRET_HOME_PATHS for part in path.split("/"))


class SecretFiles:
    """Whether the file at a path, relative to `base` and as the bytes it is, is one that `is_secret` speaks of.

    `is_secret` is asked only where the name of the file or of a folder of it is not plainly harmless: it has to be
    the judgement of `path_kinds.is_secret`.
    """

    def __init__(self, base: Path, is_secret: Callable[[Path], bool]) -> None:
        self._base = base
        self._is_secret = is_secret
        self._is_plain_base = not is_secret(base / "a") and _is_plain_folder(os.fsencode(base))
        self._plain_folders: dict[bytes, bool] = {}

    def __call__(self, path: bytes) -> bool:
        folder, _, name = path.rpartition(b"/")
        is_plain = self._plain_folders.get(folder)
        if is_plain is None:
            is_plain = self._is_plain_base and _is_plain_folder(folder)
            self._plain_folders[folder] = is_plain
        return not (is_plain and _is_plain(name)) and self._is_secret(self._base / os.fsdecode(path))


def _is_plain_folder(path: bytes) -> bool:
    return not any(_is_odd(part) or part.lower() in _FOLDERS for part in path.split(b"/") if part)


def _is_plain(name: bytes) -> bool:
    folded = name.lower()
    if folded.rpartition(b".")[2] in _EXTENSIONS or folded in _FOLDERS or _is_odd(name):
        return False
    return folded[:2] not in _STARTS or _OTHERS.match(folded) is None


_USUAL = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."


def _is_odd(name: bytes) -> bool:
    """Whether some file system takes it for another name."""
    if not name.translate(None, _USUAL):
        return name.endswith(b".")
    return not name.isascii() or b"~" in name or b":" in name or name.endswith((b".", b" "))
