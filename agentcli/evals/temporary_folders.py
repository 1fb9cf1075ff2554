"""Makes the temporary folders of attempts, and removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from agentcli.infra.sandbox.trial.tree_copy import remove_tree

_PREFIX = "agentcli-eval-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed afterwards; while this process lives, a lock on it says that it is in use."""
    around = os.path.realpath(gettempdir())  # without links, as the sandbox names folders
    while (made := _make(around)) is None:
        pass
    folder, lock = made
    try:
        yield folder
    finally:
        with suppress(OSError):
            remove_tree(folder)
        os.close(lock)


def remove_abandoned() -> None:
    """Remove the folders that belong to no living process."""
    for folder in Path(os.path.realpath(gettempdir())).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or in use
            lock = os.open(folder, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid() and _is_at(folder, lock):
                    remove_tree(folder)
            finally:
                os.close(lock)


def _make(around: str) -> tuple[Path, int] | None:
    """Make a folder and lock it; None where `remove_abandoned` of another process came in between."""
    folder = Path(mkdtemp(dir=around, prefix=_PREFIX))
    try:
        lock = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if _is_at(folder, lock):
        return folder, lock
    os.close(lock)
    return None


def _is_at(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(folder.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
