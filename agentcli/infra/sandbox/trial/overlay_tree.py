"""Reads what a command did from an overlay's upper folder (Documentation/filesystems/overlayfs.rst)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

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
    touched = Touched()

    def gone(path: str) -> None:
        for below, entry in walk(area, path):
            take(entry._replace(size=0))
            touched.before[below] = entry
            if entry.kind != "folder" and entry.changed_ns >= started_ns:
                touched.stale.add(below)

    def look(path: str, is_covered: bool) -> None:
        where = f"{upper}/{path}" if path else upper
        now = entry_at(where)
        assert now is not None
        take(now)
        below = entry_at(f"{area}/{path}" if path else area)
        if now.kind == "other" and _is_whiteout(where):
            if not is_covered:
                gone(path)
            return
        replaces = now.kind != "folder" or below is None or below.kind != "folder"
        if not is_covered and (replaces or _attribute(where, "opaque") == b"y"):
            gone(path)
            is_covered = True
        elif not is_covered and below is not None:
            touched.before[path] = below
        if below is None and not is_covered and now.kind != "folder" and _attribute(where, "origin"):
            touched.stale.add(path)
        if now.kind != "other":
            touched.after[path] = now
            open_to_owner(now)
        if now.kind == "folder":
            for name in names_in(where):
                waiting.append((f"{path}/{name}" if path else name, is_covered))

    waiting = [("", False)]
    while waiting:  # not by recursion: a command can nest folders deeper than Python calls
        look(*waiting.pop())
    return touched


def _is_whiteout(where: str) -> bool:
    found = os.lstat(where)
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _attribute(where: str, name: str) -> bytes:
    try:
        return os.getxattr(where, LAYER_ATTRIBUTES + name, follow_symlinks=False)
    except OSError:
        return b""
