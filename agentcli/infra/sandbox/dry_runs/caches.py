"""Keeps the caches that dry runs make: later ones of the session see them, the real folders never get them."""

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
    with os.fdopen(descriptor, "rb") as tag, contextlib.suppress(OSError):
        return tag.read(len(_SIGNATURE)) == _SIGNATURE
    return False


class CacheLayers:
    """One layer for each root, in `folder`, which must be on the disk of the overlays' upper folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._caches: dict[str, set[str]] = {}  # the paths of caches, by root
        self._users = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """A command uses the layers while the body runs."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    def below(self, root: str) -> str:
        """The layer to be mounted over a root; empty when it holds nothing."""
        caches = self._caches.get(root, set())
        for path in [path for path in caches if not (Path(root) / path).parent.is_dir()]:
            caches.discard(path)
            gone = next(one for one in (*reversed(Path(path).parents), Path(path)) if not (Path(root) / one).is_dir())
            _remove(self._layer(root) / gone)
        return str(self._layer(root)) if caches else ""

    def take(self, root: str, upper: str, paths: Sequence[str]) -> list[str]:
        """Move caches out of an upper folder nobody else uses; return those that say they are, and are new."""
        if self._users > 1 or not paths:
            return []
        known = self._caches.setdefault(root, set())
        tagged = [path for path in paths if path not in known and is_tagged(f"{upper}/{path}")]
        with contextlib.suppress(OSError):  # a cache that is lost costs the next command some time
            for path in paths:
                _make_folders(root, self._layer(root), path)
                _merge(f"{upper}/{path}", f"{self._layer(root)}/{path}")
                known.add(path)
        return [path for path in tagged if path in known]

    def _layer(self, root: str) -> Path:
        return self._folder / f"caches-{[*self._caches].index(root)}"


def _make_folders(root: str, layer: Path, path: str) -> None:
    """The folders around a cache look as they do in the root, which they cover."""
    for around in parents_of(path):
        folder, real = layer / around, (Path(root) / around).stat()
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, real.st_uid, real.st_gid)
        folder.chmod(stat.S_IMODE(real.st_mode))


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
