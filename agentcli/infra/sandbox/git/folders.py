"""Finds the parts of a repository that make git run programs: a command that may commit must not write them.

Hooks and configuration name programs. `commondir` tells git where to look for both (gitrepository-layout(5)): git obeys
it in every repository, not in linked worktrees alone. A worktree's `.git` is a file that leads elsewhere.
`info/attributes` names none: it says no more than a `.gitattributes`, which a command may write.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcli.infra.sandbox.git.config import NamedPaths, named_paths, path_in, text_of
from agentcli.infra.sandbox.mounts.mount_points import COMMON_FOLDER_IS_HERE
from agentcli.infra.sandbox.mounts.protect_plan import Protection, is_inside, kind_of

MOST_MODULES = 100
_MOST_WORKTREES = 30
_DEEPEST_MODULE = 6

# Git refuses a folder where it includes a file. To be known as ours it has to say something that means nothing.
_NO_CONFIGURATION = b"# Nothing. It is here while a command runs.\n"


@dataclass(frozen=True)
class GitSurroundings:
    """`writable`: the real paths of all folders in which commands may have made anything. `home` is what `~` means.

    `git` is the program that is asked.
    """

    writable: tuple[str, ...]
    home: str
    git: str

    def writable_around(self, path: str) -> str | None:
        """The innermost of the writable folders that a path is in."""
        return max((folder for folder in self.writable if is_inside(path, folder)), key=len, default=None)


def protect_repository(worktree: str, around: GitSurroundings) -> Protection:
    """Plan what to protect at `worktree`/.git; nothing when there is no repository."""
    protection = Protection()
    link = f"{worktree}/.git"
    match kind_of(link):
        case "folder":
            _protect_git_folder(link, worktree, protection, around)
        case "file":
            protection.read_only.append(link)
            _protect_linked(link, worktree, protection, around)
        case "link":
            protection.protect(worktree, ".git")
        case "nothing":
            pass
    return protection


def protect_at_a_glance(worktree: str, around: GitSurroundings) -> Protection:
    """Protect a repository that need not be committed to with one read-only mount, and what it names elsewhere."""
    link = f"{worktree}/.git"
    match kind_of(link):
        case "folder":
            protection = Protection(read_only=[link])
            _protect_named(_named(link, around), link, worktree, protection, around)
            return protection
        case "file":
            return Protection(read_only=[link])
        case _:
            return Protection()


def looks_like_the_inside(folder: str) -> bool:
    """True if git, started there, would take it for a repository's own folder."""
    return all(os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "objects", "refs"))


def protect_inside(folder: str, around: GitSurroundings, *, may_commit: bool) -> Protection:
    """Plan what to protect in a folder that is the inside of a repository: a bare one, or one whose `.git` is a file.

    All of it is read-only unless commands may commit or push to it.
    """
    protection = Protection()
    if may_commit:
        _protect_git_folder(folder, "", protection, around)
    else:
        protection.read_only.append(folder)
        _protect_named(_named(folder, around), folder, "", protection, around)
    return protection


def protect_root_inside(root: str, around: GitSurroundings) -> Protection:
    """Plan it for a workspace that is itself such a folder, and has to stay writable."""
    protection = Protection()
    _protect_one(root, "", _named(root, around), protection, around)
    protection.problems += protection.gaps
    return protection


def _protect_linked(link: str, worktree: str, protection: Protection, around: GitSurroundings) -> None:
    """Protect a `.git` file: that of a linked worktree or of a submodule.

    Whoever wrote it could lead us anywhere and have that made writable. So the other end has to point back, and to lie
    where no command can write: then git made it, run by the person. What commands could have made themselves makes
    nothing writable that was not so before.
    """
    folder = path_in(link, "gitdir: ")
    if folder is None:
        protection.problems.append(f"{link} is not a file that git understands.")
        return
    common = path_in(f"{folder}/commondir") or folder
    written = around.writable_around(folder)
    if written is not None:
        is_genuine = is_inside(common, written)
    elif common != folder:  # its own: the placeholder of a command that runs now
        points_back = _is_same(path_in(f"{folder}/gitdir"), link)
        is_genuine = points_back and folder.rpartition("/")[0] == f"{common}/worktrees"
    else:
        told = _named(folder, around).worktree
        is_genuine = told is not None and _is_same(told, worktree)
    if not is_genuine or not looks_like_the_inside(common):
        protection.problems.append(f"{link} leads to {folder}, which does not lead back: commands cannot commit.")
        return
    _protect_git_folder(common, worktree, protection, around)


def _protect_git_folder(folder: str, worktree: str, protection: Protection, around: GitSurroundings) -> None:
    """Add a repository's own folder, with what it keeps for its submodules and worktrees.

    Where something in it cannot be mounted on, all of it is read-only: no commits rather than no protection.
    """
    found = Protection(writable=[folder])
    named = _named(folder, around)
    linked = _folders_in(f"{folder}/worktrees")
    found.read_only += linked[_MOST_WORKTREES:]
    _protect_one(folder, worktree, named, found, around)
    for module in modules_in(f"{folder}/modules"):
        _protect_one(module, "", _named(module, around), found, around)
    for one in linked[:_MOST_WORKTREES]:
        _protect_worktree(one, named, found)
    if gaps := found.gaps:
        outside = [path for path in found.read_only if not is_inside(path, folder)]
        missing = [path for path in found.missing_folders if not is_inside(path, folder)]
        files = {path: what for path, what in found.missing_files.items() if not is_inside(path, folder)}
        found = Protection(found.writable[1:], [folder, *outside], missing, files, found.problems)
        found.problems.append(f"{gaps[0]}, so all of {folder} is read-only: commands cannot commit.")
    protection.add(found)


def _protect_one(
    folder: str, worktree: str, named: NamedPaths, protection: Protection, around: GitSurroundings
) -> None:
    """Protect what names programs in one git folder."""
    _protect_entry(folder, "hooks", protection)
    if kind_of(f"{folder}/config") == "nothing":
        protection.gaps.append(f"{folder} has no config, which a command could add")
        return
    if named.is_refused:
        protection.gaps.append(f"{folder} has a config that git does not read, or git is not installed")
    _protect_entry(folder, "config", protection)
    _protect_worktree_config(folder, named, protection)
    _protect_file(folder, "commondir", COMMON_FOLDER_IS_HERE, protection)
    _protect_named(named, folder, worktree, protection, around)


def _protect_worktree(folder: str, named: NamedPaths, protection: Protection) -> None:
    """Protect where a linked worktree's folder leads to."""
    for name in ("commondir", "gitdir"):
        if kind_of(f"{folder}/{name}") != "nothing":
            _protect_entry(folder, name, protection)
    _protect_worktree_config(folder, named, protection)


def _protect_worktree_config(folder: str, named: NamedPaths, protection: Protection) -> None:
    """Git reads it once `extensions.worktreeConfig` is set; until then it would not notice that it is a folder."""
    if named.has_worktree_config:
        _protect_file(folder, "config.worktree", b"", protection)
    else:
        _protect_entry(folder, "config.worktree", protection)


def _protect_file(folder: str, name: str, if_missing: bytes, protection: Protection) -> None:
    """Protect a file that has to be one; `if_missing` is a content that means the same as no file."""
    path = f"{folder}/{name}"
    if kind_of(path) == "nothing" or (kind_of(path) == "file" and _holds(path, if_missing)):
        protection.missing_files[path] = if_missing
    else:
        _protect_entry(folder, name, protection)


def _holds(file: str, content: bytes) -> bool:
    return text_of(file).encode(errors="surrogateescape") == content


def _protect_entry(folder: str, name: str, protection: Protection) -> None:
    path = f"{folder}/{name}"
    if kind_of(path) == "link":
        protection.gaps.append(f"{path} is a symbolic link, which a command could replace")
    else:
        protection.protect(folder, name)


def _named(folder: str, around: GitSurroundings) -> NamedPaths:
    """Collect what the configuration of a git folder names, and that of each of its worktrees."""
    files = [f"{folder}/config"]
    named = named_paths(files, around.home, around.git)
    if not named.has_worktree_config:
        return named
    folders = (folder, *_folders_in(f"{folder}/worktrees")[:_MOST_WORKTREES])
    return named_paths([*files, *(f"{one}/config.worktree" for one in folders)], around.home, around.git)


def _protect_named(
    named: NamedPaths, folder: str, worktree: str, protection: Protection, around: GitSurroundings
) -> None:
    """Protect the folders of hooks and the files of configuration that are named, where commands can write them.

    A relative folder of hooks starts where git runs them: in the worktree, or in the folder of a bare repository.
    """
    start = worktree or named.worktree or folder
    for path in _ways_to(Path(start, hooks) for hooks in named.hooks):
        _protect_path(path, (worktree, folder), protection, around)
    for path in _ways_to(map(Path, named.included)):
        _protect_path(path, (worktree, folder), protection, around)
        if path in protection.missing_folders and kind_of(path.rpartition("/")[0]) == "folder":
            protection.missing_folders.remove(path)
            protection.missing_files[path] = _NO_CONFIGURATION
        elif path in protection.read_only and _holds(path, _NO_CONFIGURATION):
            protection.read_only.remove(path)
            protection.missing_files[path] = _NO_CONFIGURATION


def _ways_to(paths: Iterable[Path]) -> Iterable[str]:
    """Each path as written, which a command could lead elsewhere, and where it leads now."""
    return dict.fromkeys(way for path in paths for way in (os.path.normpath(path), os.path.realpath(path)))


def _protect_path(path: str, near: Sequence[str], protection: Protection, around: GitSurroundings) -> None:
    """Protect it below the nearest folder that it is in, so that few folders on the way need a mount."""
    inside = [base for base in near if base and is_inside(path, base)]
    base = max(inside, key=len) if inside else around.writable_around(path)
    if base is None:
        return
    if path == base or any(is_inside(folder, path) for folder in around.writable):
        protection.problems.append(f"Git takes hooks or settings from {path}, which commands can write.")
        return
    protection.protect(base, os.path.relpath(path, base))


def modules_in(folder: str, depth: int = 0) -> list[str]:
    """The git folders of submodules, whose names may contain slashes; those of their submodules too."""
    found: list[str] = []
    for entry in _folders_in(folder):
        if os.path.lexists(f"{entry}/HEAD"):
            found += [entry, *modules_in(f"{entry}/modules", depth + 1)]
        elif depth < _DEEPEST_MODULE:
            found += modules_in(entry, depth + 1)
        if len(found) > MOST_MODULES:
            break
    return found


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _is_same(path: str | None, other: str) -> bool:
    return path is not None and os.path.realpath(path) == os.path.realpath(other)
