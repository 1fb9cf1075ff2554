"""Makes the temporary folders of attempts, and removes those of processes that were killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from agentcli.infra.changes.writing import remove_tree

_PREFIX, _UNLOCKED = "agentcli-eval-", "new-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed afterwards; while this process lives, a lock on it says that it is in use."""
    around = os.path.realpath(gettempdir())  # without links, as the sandbox names folders
    made = Path(mkdtemp(dir=around, prefix=f"{_UNLOCKED}{_PREFIX}"))
    lock = os.open(made, _FOLDER)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name.removeprefix(_UNLOCKED)))  # nobody removes it by the first name
        try:
            yield folder
        finally:
            with suppress(OSError):
                remove_tree(folder)
    finally:
        os.close(lock)


def remove_abandoned() -> None:
    """Remove the folders that belong to no living process."""
    for folder in Path(os.path.realpath(gettempdir())).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or in use
            lock = os.open(folder, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.geteuid():
                    remove_tree(folder)
            finally:
                os.close(lock)
