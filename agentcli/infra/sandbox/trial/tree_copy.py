"""Copies the contents of files, and removes folders whatever is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path

_CHUNK = 1 << 20


def copy_bytes(source: int, target: int) -> None:
    """All of a file, inside the kernel where it can. Raises `OSError`."""
    try:
        while os.copy_file_range(source, target, 1 << 30):
            pass
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
        while data := os.read(source, _CHUNK):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]


def remove_tree(folder: Path) -> None:
    """Remove a folder of ours whatever modes are in it; what cannot be removed stays. Raises nothing."""
    try:
        for where, folders, _ in os.walk(folder):
            for name in folders:
                path = Path(where, name)
                if not path.is_symlink():
                    with contextlib.suppress(OSError):
                        path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:  # nested deeper than Python calls
        for program in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*program, "--", folder], stderr=subprocess.DEVNULL, check=False)
