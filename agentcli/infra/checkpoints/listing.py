"""Lists what git would not ignore in a folder, and sizes up what it would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from agentcli.tools.ripgrep import find_rg


class Listed(NamedTuple):
    """The files that git would not ignore, and the folders around them."""

    files: frozenset[str]
    folders: frozenset[str]


def listed_files(root: str) -> Listed:
    """As ripgrep lists them, by .gitignore and git's own settings. Raises `OSError` where it cannot be run."""
    options = ("--files", "--null", "--no-config", "--no-messages", "--hidden", "--no-require-git", "--no-ignore-dot")
    done = subprocess.run(
        [find_rg(), *options, "--glob=!.git"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    files = frozenset(os.fsdecode(done.stdout).split("\0")[:-1])
    folders: set[str] = set()
    for path in files:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return Listed(files, frozenset(folders))


def sizes_below(folder: str) -> Iterator[int]:
    """The size of each entry below a folder, in bytes."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
