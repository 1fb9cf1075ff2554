"""Tells whether what a repository has tracked may have changed, without running git (gitrepository-layout(5))."""

from __future__ import annotations

from pathlib import Path

from agentcli.settings.files import read_small_file

_MAX_LINK_BYTES = 4_096

GitState = tuple[object, ...]


def git_state(root: Path) -> GitState:
    """The state of the index and of HEAD where git works in `root`; empty where that is in no repository."""
    for folder in (root, *root.parents):
        link = folder / ".git"
        if _first_line(link / "HEAD"):
            return _state(link)
        if line := _first_line(link):
            return _state(folder / line.removeprefix("gitdir: "))
    return ()


def _state(git: Path) -> GitState:
    head = _first_line(git / "HEAD")
    common = git / (_first_line(git / "commondir") or ".")
    branch = common / head.removeprefix("ref: ")
    files = (git / "index", branch, common / "packed-refs", common / "reftable/tables.list")
    return (head, *map(_stamp, files))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return (status.st_ctime_ns, status.st_size, status.st_ino)


def _first_line(path: Path) -> str:
    """Empty where there is no such file. A command may have made a pipe of it, which is not waited for."""
    try:
        text = read_small_file(path, max_bytes=_MAX_LINK_BYTES, is_cut=True)
    except OSError:
        return ""
    return text.decode("utf-8", "surrogateescape").partition("\n")[0]
