"""Limits how much of a workspace snapshots cover, and lists what git would not ignore in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from subprocess import DEVNULL, PIPE, Popen

import msgspec

from agentcli.tools.ripgrep import find_rg


class SnapshotLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of checkpoints: at most `max_file_bytes` of a file, `max_files` and `max_bytes` in all.

    Of what git ignores no more than `ignored_files` and `ignored_bytes` together. `excluded` are globs of names, or of
    paths relative to the folder; `own` are folders of agentcli itself. Fewer than `min_borrowed` files are all copied.
    """

    max_file_bytes: int = 50_000_000
    max_files: int = 200_000
    max_bytes: int = 5_000_000_000
    ignored_files: int = 5_000
    ignored_bytes: int = 50_000_000
    excluded: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    min_borrowed: int = 200

    def check(self, root: str, *, files: int = 0, size: int = 0) -> None:
        """Raise `TooManyFiles` for more than is covered."""
        if files > self.max_files:
            raise TooManyFiles(f"{root} holds more than {self.max_files:,} files (checkpoints.most_files)")
        if size > self.max_bytes:
            raise TooManyFiles(f"{root} holds more than {self.max_bytes / 1e9:g} GB (checkpoints.most_gb)")


class TooManyFiles(Exception):  # it says what is so
    """A folder holds more than checkpoints cover."""


def listed_paths(root: str, limits: SnapshotLimits) -> frozenset[str]:
    """Return the files that git would not ignore, by .gitignore and its settings, and the folders around them.

    Raises `TooManyFiles`, and `OSError` where ripgrep cannot be run.
    """
    options = ("--files", "--null", "--no-config", "--no-messages", "--hidden", "--no-require-git", "--no-ignore-dot")
    parts, count = [], 0
    with Popen([find_rg(), *options, "--glob=!.git"], cwd=root, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as running:
        assert running.stdout is not None
        try:
            while part := running.stdout.read(1 << 20):
                parts.append(part)
                count += part.count(b"\0")
                limits.check(root, files=count)
        finally:
            running.kill()
    found = set(os.fsdecode(b"".join(parts)).split("\0")[:-1])
    for path in [*found]:
        while (path := path.rpartition("/")[0]) and path not in found:
            found.add(path)
    return frozenset(found)


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
