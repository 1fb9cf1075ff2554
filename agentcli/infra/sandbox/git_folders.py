"""Which parts of a repository make git run programs, and so may not be written by a command that may commit.

Hooks and configuration name programs. `commondir` tells git where to look for both (gitrepository-layout(5)): git obeys
it in every repository, not in linked worktrees alone. A worktree's `.git` is a file that leads elsewhere.
`info/attributes` names none: it says no more than a `.gitattributes`, which a command may write.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from agentcli.infra.sandbox.mount_points import COMMON_FOLDER_IS_HERE
from agentcli.infra.sandbox.protection import Protection, is_inside, kind_of

_MOST_MODULES = 100
_MOST_WORKTREES = 30
_DEEPEST_MODULE = 6

# Read here, because starting git for each command costs more than the rest of the preparation together. What is found
# is only ever protected, so finding too much does no harm.
_PATHS_IN_CONFIG = re.compile(r"^[ \t]*(hookspath|path)[ \t]*=[ \t]*(.+?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_WORKTREE_IN_CONFIG = re.compile(r"^[ \t]*worktree[ \t]*=[ \t]*(.+?)[ \t]*$", re.IGNORECASE | re.MULTILINE)
_WORKTREE_CONFIG = re.compile(r"^[ \t]*worktreeconfig\b", re.IGNORECASE | re.MULTILINE)


def protect_repository(worktree: str) -> Protection:
    """What there is to protect at `worktree`/.git; nothing when there is no repository."""
    protection = Protection()
    link = f"{worktree}/.git"
    match kind_of(link):
        case "folder":
            _protect_git_folder(link, worktree, protection)
        case "file":
            protection.read_only.append(link)
            _protect_linked(link, worktree, protection)
        case "link":
            protection.protect(worktree, ".git")
        case "nothing":
            pass
    return protection


def protect_at_a_glance(worktree: str) -> Protection:
    """One mount for a repository that need not be committed to: all of it is read-only."""
    link = f"{worktree}/.git"
    return Protection(read_only=[link] if kind_of(link) in {"folder", "file"} else [])


def _protect_linked(link: str, worktree: str, protection: Protection) -> None:
    """A `.git` file: that of a linked worktree or of a submodule.

    Whoever wrote it could lead us anywhere and have that made writable. So the other end has to point back, which only
    git run by the person can have made: outside the roots a command cannot write.
    """
    folder = _path_in_file(link, prefix="gitdir:")
    if folder is None:
        protection.problems.append(f"{link} is not a file that git understands.")
        return
    common = _path_in_file(f"{folder}/commondir")
    if common is not None and common != folder:  # its own: the placeholder of a command that runs now
        points_back = _is_same(_path_in_file(f"{folder}/gitdir"), link)
        is_in_place = folder.rpartition("/")[0] == f"{common}/worktrees"
        is_genuine = points_back and is_in_place and kind_of(f"{common}/objects") == "folder"
    else:
        common = folder
        told = _WORKTREE_IN_CONFIG.search(_text(f"{folder}/config"))
        is_genuine = told is not None and _is_same(str(Path(folder, _unquoted(told[1]))), worktree)
    if not is_genuine:
        protection.problems.append(f"{link} leads to {folder}, which does not lead back: commands cannot commit.")
        return
    _protect_git_folder(common, worktree, protection)


def _protect_git_folder(folder: str, worktree: str, protection: Protection) -> None:
    """Add a repository's own folder, with what it keeps for its submodules and worktrees.

    Where something in it cannot be mounted on, all of it is read-only: no commits rather than no protection.
    """
    found = Protection(writable=[folder])
    config = _text(f"{folder}/config")
    linked = _folders_in(f"{folder}/worktrees")
    found.read_only += linked[_MOST_WORKTREES:]
    why_not = [
        *_protect_one(folder, worktree, found),
        *(why for module in _modules(f"{folder}/modules") for why in _protect_one(module, "", found)),
        *(why for one in linked[:_MOST_WORKTREES] for why in _protect_worktree(one, config, found)),
    ]
    if why_not:
        outside = [path for path in found.read_only if not is_inside(path, folder)]
        missing = [path for path in found.missing_folders if not is_inside(path, folder)]
        found = Protection(found.writable[1:], [folder, *outside], missing, problems=found.problems)
        found.problems.append(f"{why_not[0]}, so all of {folder} is read-only: commands cannot commit.")
    protection.add(found)


def _protect_one(folder: str, worktree: str, protection: Protection) -> list[str]:
    """Protect what names programs in one git folder; why that is impossible, if it is."""
    why_not = _protect_entry(folder, "hooks", protection)
    if kind_of(f"{folder}/config") == "nothing":
        return [*why_not, f"{folder} has no config, which a command could add"]
    text = _text(f"{folder}/config")
    why_not += _protect_entry(folder, "config", protection)
    why_not += _protect_worktree_config(folder, text, protection)
    why_not += _protect_file(folder, "commondir", COMMON_FOLDER_IS_HERE, protection)
    if worktree:
        _protect_named(text, folder, worktree, protection)
    return why_not


def _protect_worktree(folder: str, config: str, protection: Protection) -> list[str]:
    """Protect where a linked worktree's folder leads to."""
    there = [name for name in ("commondir", "gitdir") if kind_of(f"{folder}/{name}") != "nothing"]
    why_not = [why for name in there for why in _protect_entry(folder, name, protection)]
    return why_not + _protect_worktree_config(folder, config, protection)


def _protect_worktree_config(folder: str, config: str, protection: Protection) -> list[str]:
    """Git reads it once `extensions.worktreeConfig` is set; until then it would not notice that it is a folder."""
    if _WORKTREE_CONFIG.search(config):
        return _protect_file(folder, "config.worktree", b"", protection)
    return _protect_entry(folder, "config.worktree", protection)


def _protect_file(folder: str, name: str, if_missing: bytes, protection: Protection) -> list[str]:
    path = f"{folder}/{name}"
    if kind_of(path) == "nothing" or (kind_of(path) == "file" and _text(path).encode() == if_missing):
        protection.missing_files[path] = if_missing
        return []
    return _protect_entry(folder, name, protection)


def _protect_entry(folder: str, name: str, protection: Protection) -> list[str]:
    path = f"{folder}/{name}"
    if kind_of(path) == "link":
        return [f"{path} is a symbolic link, which a command could replace"]
    protection.protect(folder, name)
    return []


def _protect_named(config: str, folder: str, worktree: str, protection: Protection) -> None:
    """Protect the folder of hooks and the files of configuration that the configuration names, in the worktree."""
    for key, value in _PATHS_IN_CONFIG.findall(config):
        base = worktree if key.lower() == "hookspath" else folder
        path = os.path.normpath(Path(base, _unquoted(value)))
        if is_inside(path, worktree) and path != worktree and not is_inside(path, folder):
            protection.protect(worktree, os.path.relpath(path, worktree))


def _modules(folder: str, depth: int = 0) -> list[str]:
    """The git folders of submodules, whose names may contain slashes; those of their submodules too."""
    found: list[str] = []
    for entry in _folders_in(folder):
        if os.path.lexists(f"{entry}/HEAD"):
            found += [entry, *_modules(f"{entry}/modules", depth + 1)]
        elif depth < _DEEPEST_MODULE:
            found += _modules(entry, depth + 1)
        if len(found) > _MOST_MODULES:
            break
    return found


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _path_in_file(file: str, prefix: str = "") -> str | None:
    """The real path that one of git's files names, relative to its own folder; None when it names none."""
    text = _text(file)
    path = text.removeprefix(prefix).strip()
    if not text.startswith(prefix) or not path or "\0" in path:
        return None
    return os.path.realpath(Path(file).parent / path)


def _text(file: str) -> str:
    """What is in a small file; empty for anything else. A pipe is not waited for."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, 1_000_000).decode(errors="surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _is_same(path: str | None, other: str) -> bool:
    return path is not None and os.path.realpath(path) == os.path.realpath(other)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
