"""Provides covers to mount over secret files: as long and as old as the file, and readable for nobody.

git looks at the length and the time of a file before it reads it (`core.checkStat`, which is `minimal` for commands): a
secret file that is in the repository, as those of tests are, is unchanged for it, and everything else can be committed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

NOTHING = "/dev/null"  # a device, on a mount without devices: it cannot be read either

_KEPT_FOR_S = 24 * 3_600  # what is mounted stays mounted when its name goes


class SecretCovers:
    """Files with nothing in them, of no size on the disk, in `folder`, which all sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_tidy = False

    def over(self, path: str) -> str:
        """The path of what to mount over the file at `path`; `NOTHING` where that is no file, or there is no room."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._like(status)
        return NOTHING

    def _like(self, status: os.stat_result) -> str:
        """Raises `OSError`."""
        mode = status.st_mode & stat.S_IXUSR  # git would see that this changed
        path = self._folder / f"{status.st_size}-{status.st_mtime_ns}-{mode}"
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._tidy_up()
            made = path.with_name(f".{os.urandom(6).hex()}")
            descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, status.st_size)
                os.utime(descriptor, ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            made.rename(path)
        return str(path)

    def _tidy_up(self) -> None:
        if self._is_tidy:
            return
        self._is_tidy = True
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if time.time() - path.lstat().st_ctime > _KEPT_FOR_S:
                    path.unlink()
