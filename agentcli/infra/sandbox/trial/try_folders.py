"""Makes a private folder for each try, gone when it ends, and limits how much may be in one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentcli.infra.sandbox.mounts.mount_points import NOTE, remove_left
from agentcli.infra.sandbox.trial.tree_copy import remove_tree
from agentcli.infra.sandbox.trial.tree_entries import Entry
from agentcli.settings.files import make_private_folder
from agentcli.tools.trial import TryLimits


def left_behind(folder: Path, *, spares: str = "") -> Iterator[Path]:
    """The tries of processes that are gone, each removed after it was looked at. Raises nothing.

    Those of others that run now are not among them, nor those in which a file that `spares` names is.
    """
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            try:
                lock = os.open(entry / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if entry.name.startswith("try-"):  # its removal was interrupted
                    remove_tree(entry)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if spares and (entry / spares).exists():
                    continue
                yield entry
                remove_left(entry / NOTE)
                remove_tree(entry)
            finally:
                os.close(lock)


class PrivateFolder:
    """A folder of one try, which says by a lock that it is in use."""

    def __init__(self, around: Path) -> None:
        """Raises `OSError`."""
        make_private_folder(around)
        made = Path(tempfile.mkdtemp(prefix="new-", dir=around.resolve()))
        self._lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name.replace("new-", "try-", 1)))

    def close(self) -> None:
        """Remove it; safe to call twice."""
        if self._lock >= 0:
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = -1


class TooMuch(Exception):  # it says what is so
    """A command changed more than a try can hold."""


class Counter:
    """Stops what looks at files when there are too many of them."""

    def __init__(self, limits: TryLimits, what: str) -> None:
        self._limits = limits
        self._what = what
        self._entries = self._bytes = 0

    def take(self, entry: Entry) -> None:
        self._entries += 1
        self._bytes += entry.size if entry.kind == "file" else 0
        if self._entries > self._limits.most_entries or self._bytes > self._limits.most_bytes:
            raise TooMuch(
                f"{self._what} more than {self._limits.most_entries:,} files or"
                f" {self._limits.most_bytes // 1_000_000:,} MB"
            )
