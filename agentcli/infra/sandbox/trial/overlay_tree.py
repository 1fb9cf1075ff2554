"""Reads what a command did from an overlay's upper folder (Documentation/filesystems/overlayfs.rst)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from agentcli.infra.sandbox.trial.caches import is_cache, is_tagged
from agentcli.infra.sandbox.trial.tree_entries import (
    LAYER_ATTRIBUTES,
    Entry,
    Touched,
    entry_at,
    names_in,
    open_to_owner,
    walk,
)


def overlay_changes(area: str, upper: str, started_ns: int, take: Callable[[Entry], None]) -> Touched:
    """Read an overlay's upper folder. `started_ns` is when the command started, by file times.

    `take` is called for each entry that is looked at, and may raise. Raises `OSError`.
    """
    reader = _UpperFolder(area, upper, started_ns, take)
    waiting = [("", False)]
    while waiting:  # not by recursion: a command can nest folders deeper than Python calls
        waiting += reader.look(*waiting.pop())
    return reader.touched


class _UpperFolder:
    def __init__(self, area: str, upper: str, started_ns: int, take: Callable[[Entry], None]) -> None:
        self.touched = Touched()
        self._area = area
        self._upper = upper
        self._started_ns = started_ns
        self._take = take

    def look(self, path: str, is_covered: bool) -> list[tuple[str, bool]]:
        """Note one entry. Gives what is in it, and whether what the area has there is covered."""
        where = f"{self._upper}/{path}" if path else self._upper
        now = entry_at(where)
        assert now is not None
        below = entry_at(f"{self._area}/{path}" if path else self._area)
        if path and self._is_cache(path, now, below):
            self.touched.caches.append(path)
            return []
        self._take(now)
        if now.kind == "other" and _is_whiteout(where):
            if not is_covered:
                self._gone(path)
            return []
        replaces = now.kind != "folder" or below is None or below.kind != "folder"
        if not is_covered and (replaces or _attribute(where, "opaque") == b"y"):
            self._gone(path)
            is_covered = True
        elif not is_covered and below is not None:
            self.touched.before[path] = below
        if below is None and not is_covered and now.kind != "folder" and _attribute(where, "origin"):
            self.touched.stale.add(path)
        if now.kind != "other":
            self.touched.after[path] = now
            open_to_owner(now)
        if now.kind != "folder":
            return []
        return [(f"{path}/{name}" if path else name, is_covered) for name in names_in(where)]

    def _gone(self, path: str) -> None:
        for below, entry in walk(self._area, path):
            self._take(entry._replace(size=0))
            self.touched.before[below] = entry
            if entry.kind != "folder" and entry.changed_ns > self._started_ns:
                self.touched.stale.add(below)

    def _is_cache(self, path: str, now: Entry, below: Entry | None) -> bool:
        """By its name, or because the folder says so: one that was there before must have said so before."""
        if ".git" in path.split("/"):
            return False
        is_folder = "folder" in {now.kind, below.kind if below is not None else now.kind}
        if is_cache(path, is_folder=is_folder):
            return True
        return is_folder and is_tagged(f"{self._area if below is not None else self._upper}/{path}")


def _is_whiteout(where: str) -> bool:
    found = os.lstat(where)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _attribute(where: str, name: str) -> bytes:
    try:
        return os.getxattr(where, LAYER_ATTRIBUTES + name, follow_symlinks=False)
    except OSError:
        return b""
