"""Reads what a command did from an overlay's upper folder (Documentation/filesystems/overlayfs.rst)."""

from __future__ import annotations

import os
from collections.abc import Callable

from agentcli.infra.changes.state import ChangeSet, FileEntry, entry_at, names_in, walk
from agentcli.infra.changes.writing import OVERLAY_ATTRIBUTES
from agentcli.infra.sandbox.dry_runs.caches import is_cache, is_tagged


def read_overlay(root: str, upper: str, started_ns: int, take: Callable[[FileEntry], None]) -> ChangeSet:
    """Read an overlay's upper folder. `started_ns` is when the command started, by file times.

    `take` is called for each entry that is looked at, and may raise. Raises `OSError`.
    """
    changes = ChangeSet(root)
    waiting = [("", False)]  # paths, and whether what the root has there is covered
    while waiting:  # not by recursion: a command can nest folders deeper than Python calls
        path, is_covered = waiting.pop()
        where = f"{upper}/{path}" if path else upper
        now, below = entry_at(where), entry_at(changes.at(path))
        assert now is not None
        if path and _is_cache(path, now, below):
            changes.caches.append(path)
            continue
        take(now)
        replaces = now.kind != "folder" or below is None or below.kind != "folder"
        if not is_covered and (replaces or _attribute(where, "opaque") == b"y"):
            for gone, entry in walk(root, path):
                take(entry._replace(size=0))
                changes.before[gone] = entry
                if entry.kind != "folder" and entry.changed_ns > started_ns:
                    changes.stale.add(gone)
            is_covered = True
        elif not is_covered and below is not None:
            changes.before[path] = below
        if now.kind == "other":  # the mark of what was deleted, or what cannot be kept
            continue
        changes.after[path] = now
        _open_to_owner(now)
        if now.kind == "folder":
            waiting += [(f"{path}/{name}" if path else name, is_covered) for name in names_in(where)]
    return changes


def _is_cache(path: str, now: FileEntry, below: FileEntry | None) -> bool:
    """By its name, or because the folder says so: one that was there before must have said so before."""
    if ".git" in path.split("/"):
        return False
    is_folder = "folder" in {now.kind, below.kind if below is not None else now.kind}
    if is_cache(path, is_folder=is_folder):
        return True
    return is_folder and is_tagged((below or now).source)


def _open_to_owner(entry: FileEntry) -> None:
    """Let the owner read an entry of an overlay, whatever mode the command gave it; `entry.mode` still says which."""
    needed = {"file": 0o400, "folder": 0o700}.get(entry.kind, 0)
    if entry.mode & needed != needed:
        os.chmod(entry.source, entry.mode | needed)  # noqa: PTH101


def _attribute(where: str, name: str) -> bytes:
    try:
        return os.getxattr(where, OVERLAY_ATTRIBUTES + name, follow_symlinks=False)
    except OSError:
        return b""
