"""What is mounted over a file that commands may not read: as long and as old as that file, and readable for nobody.

git looks at the length and the time of a file before it reads it (`core.checkStat`, which is `minimal` for commands): a
secret file that is in the repository, as those of tests are, is unchanged for it, and everything else can be committed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

NOTHING = "/dev/null"  # a device, on a mount without devices: it cannot be read either


class HiddenFiles:
    """Files with nothing in them, of no size on the disk. They go with this object."""

    def __init__(self) -> None:
        self._folder = ""

    def over(self, path: str) -> str:
        """The path of what to mount over the file at `path`; `NOTHING` where that is no file, or there is no room."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._like(status)
        return NOTHING

    def _like(self, status: os.stat_result) -> str:
        """Raises `OSError`."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="agentcli-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        mode = status.st_mode & stat.S_IXUSR  # git would see that this changed
        path = Path(self._folder, f"{status.st_size}-{status.st_mtime_ns}-{mode}")
        if not path.exists():
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
