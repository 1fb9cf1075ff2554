"""Keeps the caches that dry runs make: later dry runs of the session see them, the real folders never get them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentcli.infra.changes.state import parents_of
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
    """Return True if a path, relative or absolute, has the name of a cache."""
    name = path.rpartition("/")[2]
    return name in _FOLDERS or (not is_folder and (name in _FILES or name.endswith(_SUFFIXES)))


def is_tagged(folder: str) -> bool:
    """Return True if a folder says of itself that it is a cache."""
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{folder}/{_TAG}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as tag:
            return tag.read(len(_SIGNATURE)) == _SIGNATURE
    return False


class CacheLayers:
    """Keeps one layer for each root, in `folder`, which must be on the disk of the overlays' upper folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._caches: dict[str, set[str]] = {}  # the paths of caches, by root
        self._users = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def below(self, root: str) -> str:
        """Return the layer to be mounted over a root; empty when it holds nothing.

        Caches go with the folder around them.
        """
        caches = self._caches.get(root, set())
        for path in [path for path in caches if not (Path(root) / path).parent.is_dir()]:
            caches.discard(path)
            missing = next(
                one for one in (*reversed(Path(path).parents), Path(path)) if not (Path(root) / one).is_dir()
            )
            _remove(self._layer(root) / missing)
        return str(self._layer(root)) if caches else ""

    def take(self, root: str, upper: str, paths: Sequence[str]) -> list[str]:
        """Move caches out of an upper folder that nobody else uses; return the new ones that are tagged."""
        if self._users > 1 or not paths:
            return []
        known = self._caches.setdefault(root, set())
        tagged = [path for path in paths if path not in known and is_tagged(f"{upper}/{path}")]
        with contextlib.suppress(OSError):  # a cache that is lost costs the next command some time
            for path in paths:
                if not (Path(root) / path).parent.is_dir():  # the next command would find the new folder around it
                    continue
                for around in parents_of(path):  # they cover those of the root
                    (self._layer(root) / around).mkdir(parents=True, exist_ok=True)
                    copy_access(Path(root) / around, self._layer(root) / around)
                _merge(f"{upper}/{path}", f"{self._layer(root)}/{path}")
                known.add(path)
        return [path for path in tagged if path in known]

    def _layer(self, root: str) -> Path:
        return self._folder / f"caches-{[*self._caches].index(root)}"


def copy_access(source: Path, target: Path) -> None:
    """Give a folder the mode of another one, and for root its owner too. Raises `OSError`."""
    status = source.stat()
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    target.chmod(stat.S_IMODE(status.st_mode))


def _merge(source: str, target: str) -> None:
    """Move what is at `source` over what is at `target`. The entries of two folders are moved one by one."""
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
