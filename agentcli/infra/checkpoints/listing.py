"""Lists what git would not ignore in a folder, and sizes up what it would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from agentcli.infra.checkpoints.limits import TooManyFiles
from agentcli.tools.ripgrep import find_rg

_PART = 1 << 20  # bytes that are read at a time


class Listed(NamedTuple):
    """The files that git would not ignore, and the folders around them."""

    files: frozenset[str]
    folders: frozenset[str]


def listed_files(root: str, most: int) -> Listed:
    """As ripgrep lists them, by .gitignore and git's own settings.

    Raises `TooManyFiles` for more than `most`, and `OSError` where ripgrep cannot be run.
    """
    options = ("--files", "--null", "--no-config", "--no-messages", "--hidden", "--no-require-git", "--no-ignore-dot")
    with subprocess.Popen(
        [find_rg(), *options, "--glob=!.git"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        parts, count = [], 0
        while part := running.stdout.read(_PART):
            parts.append(part)
            count += part.count(b"\0")
            if count > most:
                running.kill()
                raise TooManyFiles(f"{root} holds more than {most:,} files (checkpoints.most_files)")
    files = frozenset(os.fsdecode(b"".join(parts)).split("\0")[:-1])
    folders: set[str] = set()
    for path in files:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return Listed(files, frozenset(folders))


def sizes_below(folder: str) -> Iterator[int]:
    """The size of each entry below a folder, in bytes."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as found:
            for entry in found:
                with suppress(OSError):  # gone since
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry.stat(follow_symlinks=False).st_size
