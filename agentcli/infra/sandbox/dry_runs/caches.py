"""Keeps the caches that tried commands make: later tries of the session see them, the real folders never get them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from agentcli.infra.changes.writing import remove_tree

_FOLDERS = frozenset(
    """
    __pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis .pytype .pyre .tox .nox .ipynb_checkpoints
    .parcel-cache .turbo .nx .sass-cache .jest-cache .nyc_output .gradle .ccls-cache .clangd .cache .phpunit.cache
    """.split()
)
_FILES = frozenset(".eslintcache .stylelintcache .coverage .DS_Store .phpunit.result.cache .php-cs-fixer.cache".split())
_SUFFIXES = (".pyc", ".tsbuildinfo")

# https://bford.info/cachedir/
_TAG, _SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"


def is_cache(path: str, *, is_folder: bool) -> bool:
    """True if a path, relative or absolute, has the name of a cache."""
    name = path.rpartition("/")[2]
    if name in _FOLDERS:
        return True
    return not is_folder and (name in _FILES or name.endswith(_SUFFIXES))


def is_tagged(folder: str) -> bool:
    """True if a folder says of itself that it is a cache."""
    try:
        descriptor = os.open(f"{folder}/{_TAG}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(_SIGNATURE)) == _SIGNATURE
    except OSError:
        return False
    finally:
        os.close(descriptor)


class CacheLayers:
    """One layer for each area, in `folder`, which must be on the disk of the overlays' upper folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layers: dict[str, Path] = {}
        self._caches: dict[str, set[str]] = {}
        self._users = 0

    def begin(self) -> None:
        """A command uses the layers, until `end`."""
        self._users += 1

    def end(self) -> None:
        self._users -= 1

    def below(self, area: str) -> str:
        """The layer to be mounted over an area; empty when it holds nothing."""
        layer, caches = self._layers.get(area), self._caches.get(area, set())
        if layer is None or not caches:
            return ""
        for path in [path for path in caches if not os.path.isdir(_around(area, path))]:  # noqa: PTH112
            caches.discard(path)
            gone = next(one for one in (*reversed(Path(path).parents), Path(path)) if not (Path(area) / one).is_dir())
            _remove(layer / gone)
        return str(layer) if caches else ""

    def take(self, area: str, upper: str, paths: Sequence[str]) -> list[str]:
        """Move caches out of an upper folder, unless another command works on what is below it. Raises nothing.

        Gives those that say of themselves that they are caches, and are new: by their names nobody could tell.
        """
        if self._users > 1 or not paths:
            return []
        known = self._caches.get(area, set())
        tagged = [path for path in paths if path not in known and is_tagged(f"{upper}/{path}")]
        layer = self._layers.get(area)
        if layer is None:
            layer = self._layers[area] = self._folder / f"caches-{len(self._layers)}"
        with contextlib.suppress(OSError):  # a cache that is lost costs the next command some time
            for path in paths:
                _make_folders(area, layer, path)
                _merge(f"{upper}/{path}", f"{layer}/{path}")
                self._caches.setdefault(area, set()).add(path)
        return [path for path in tagged if path in self._caches.get(area, set())]

    def close(self) -> None:
        remove_tree(self._folder)


def _around(area: str, path: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{area}/{folder}" if folder else area


def _make_folders(area: str, layer: Path, path: str) -> None:
    """The folders around a cache look as they do in the area, which they cover."""
    parts = ["", *path.split("/")[:-1]]
    for count in range(1, len(parts) + 1):
        around = "/".join(parts[:count])
        folder, real = f"{layer}{around}", os.stat(f"{area}{around}")  # noqa: PTH116
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        if os.geteuid() == 0:
            os.chown(folder, real.st_uid, real.st_gid)
        os.chmod(folder, stat.S_IMODE(real.st_mode))  # noqa: PTH101


def _merge(source: str, target: str) -> None:
    """Move what is at `source` over what is at `target`; what is in both folders, one by one."""
    waiting = [(source, target)]
    while waiting:
        source, target = waiting.pop()
        if _is_folder(source) and _is_folder(target):
            waiting += [(f"{source}/{name}", f"{target}/{name}") for name in os.listdir(source)]  # noqa: PTH208
            continue
        if _is_folder(source) != _is_folder(target):
            _remove(Path(target))
        os.rename(source, target)  # noqa: PTH104


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # noqa: PTH112, PTH114


def _remove(path: Path) -> None:
    if _is_folder(str(path)):
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
