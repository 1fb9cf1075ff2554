"""Reads what a command did from an overlay's upper folder (Documentation/filesystems/overlayfs.rst)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from agentcli.infra.changes.state import ChangeSet, Entry, entry_at, names_in, walk
from agentcli.infra.changes.writing import OVERLAY_ATTRIBUTES
from agentcli.infra.sandbox.dry_runs.caches import is_cache, is_tagged


def read_overlay(root: str, upper: str, started_ns: int, take: Callable[[Entry], None]) -> ChangeSet:
    """Read an overlay's upper folder. `started_ns` is when the command started, by file times.

    `take` is called for each entry that is looked at, and may raise. Raises `OSError`.
    """
    reader = _UpperFolder(ChangeSet(root), upper, started_ns, take)
    waiting = [("", False)]
    while waiting:  # not by recursion: a command can nest folders deeper than Python calls
        waiting += reader.look(*waiting.pop())
    return reader.changes


class _UpperFolder:
    def __init__(self, changes: ChangeSet, upper: str, started_ns: int, take: Callable[[Entry], None]) -> None:
        self.changes = changes
        self._upper = upper
        self._started_ns = started_ns
        self._take = take

    def look(self, path: str, is_covered: bool) -> list[tuple[str, bool]]:
        """Note one entry. Gives what is in it, and whether what the root has there is covered."""
        changes, where = self.changes, f"{self._upper}/{path}" if path else self._upper
        now, below = entry_at(where), entry_at(changes.at(path))
        assert now is not None
        if path and self._is_cache(path, now, below):
            changes.caches.append(path)
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
            changes.before[path] = below
        if below is None and not is_covered and now.kind != "folder" and _attribute(where, "origin"):
            changes.stale.add(path)
        if now.kind != "other":
            changes.after[path] = now
            _open_to_owner(now)
        if now.kind != "folder":
            return []
        return [(f"{path}/{name}" if path else name, is_covered) for name in names_in(where)]

    def _gone(self, path: str) -> None:
        for below, entry in walk(self.changes.root, path):
            self._take(entry._replace(size=0))
            self.changes.before[below] = entry
            if entry.kind != "folder" and entry.changed_ns > self._started_ns:
                self.changes.stale.add(below)

    def _is_cache(self, path: str, now: Entry, below: Entry | None) -> bool:
        """By its name, or because the folder says so: one that was there before must have said so before."""
        if ".git" in path.split("/"):
            return False
        is_folder = "folder" in {now.kind, below.kind if below is not None else now.kind}
        if is_cache(path, is_folder=is_folder):
            return True
        return is_folder and is_tagged(self.changes.at(path) if below is not None else f"{self._upper}/{path}")


def _open_to_owner(entry: Entry) -> None:
    """Let the owner read an entry of an overlay, whatever mode the command gave it; `entry.mode` still says which."""
    needed = {"file": 0o400, "folder": 0o700}.get(entry.kind, 0)
    if entry.mode & needed != needed:
        os.chmod(entry.source, entry.mode | needed)  # noqa: PTH101


def _is_whiteout(where: str) -> bool:
    found = os.lstat(where)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _attribute(where: str, name: str) -> bytes:
    try:
        return os.getxattr(where, OVERLAY_ATTRIBUTES + name, follow_symlinks=False)
    except OSError:
        return b""
