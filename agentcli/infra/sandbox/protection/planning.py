"""Plans the protection of workspace paths that may not be written although their folder may be.

A command that may commit must not write the parts of a repository that make git run programs: hooks, configuration, and
`commondir`, which leads git to the folder of both (gitrepository-layout(5)) in every repository, not only in linked
worktrees. A worktree's `.git` is a file that leads elsewhere. `info/attributes` is not protected: it can do no more
than a `.gitattributes`, which a command may write.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

from agentcli.infra.changes.writing import TICK_NS
from agentcli.infra.sandbox.confinement import Bounds, Protection, is_inside, is_real, kind_of, resolve_existing
from agentcli.infra.sandbox.git_config import NamedPaths, find_named_paths, read_linked_path
from agentcli.infra.sandbox.mount_points import COMMON_FOLDER_IS_HERE
from agentcli.infra.sandbox.secret_files import Stamp, stamp_of

MAX_COMMITTABLE = 3  # repositories; each costs six mounts, about a millisecond, a read-only one costs a single mount
MAX_REPOSITORIES = 100
_MAX_TO_FOLLOW = 20  # repositories whose configured paths get mounts, whose number is limited (backends/linux.py)
MAX_MODULES = 100
_MAX_WORKTREES = 30  # per repository; further ones are completely read-only, so commands cannot commit in them
_MAX_MODULE_DEPTH = 6

# The mount point for a missing file that a configuration includes is known by this content; git refuses a folder there.
NO_CONFIGURATION = b"# Nothing. It is here while a command runs.\n"


def plan_protection(bounds: Bounds, cwd: str, *, max_committable: int = MAX_COMMITTABLE) -> Protection:
    """Plan the protection; commands may commit in the roots, in `cwd`, and in the first `max_committable` below."""
    if bounds.profile != "workspace-write":
        return Protection()
    resources, scan = bounds.resources, bounds.resources.scan
    scan.secrets_and_auto_executed(bounds.roots)  # updates the scan, and drops outdated plans
    key = (cwd, max_committable, bounds.roots, bounds.home, bounds.protected, resources.cache, resources.git)
    plans = scan.kept_plans  # the scan replaces this dictionary when a tree changes, so no outdated plan gets into it
    stamps, kept_plan = plans.get(key, ({}, None))
    if kept_plan is not None and not bounds.writable and all(stamp_of(file) == stamp for file, stamp in stamps.items()):
        return cast("Protection", kept_plan)
    writable = resolve_existing(filter(None, (*bounds.roots, *bounds.writable, resources.cache)))
    planner = RepositoryPlanner(tuple(each.path for each in writable), str(bounds.home), resources.git)
    plan = _make_plan(bounds, cwd, planner, max_committable)
    if planner.depends_only_on_stamps and not (plan.problems or bounds.writable):  # granted folders are not scanned
        plans[key] = planner.stamps, plan
    return plan


def _make_plan(bounds: Bounds, cwd: str, planner: "RepositoryPlanner", max_committable: int) -> Protection:
    """Plan what commands must not write in the roots, in the repositories below them and in the granted folders."""
    plan, scan = Protection(), bounds.resources.scan

    def plan_below_root(plan_one: Callable[..., Protection], folder: str, number: int) -> Protection:
        """Plan a repository by `plan_one`. Only the first ones and that of `cwd` accept commits: this costs mounts."""
        may_commit = number < max_committable or is_inside(cwd, folder)
        nested_plan = plan_one(folder, may_commit=may_commit)
        return nested_plan if may_commit else _limit_mounts(nested_plan, folder, number)

    for root in map(str, bounds.roots):
        plan.add(planner.plan_repository(root))
        # `join` leaves absolute names unchanged; those outside this root are skipped.
        for path in (os.path.join(root, name) for name in bounds.protected):  # noqa: PTH118
            if path != root and is_inside(path, root):
                plan.protect(root, path.removeprefix(root))
        found = scan.repositories(root)
        # Skip folders that have been replaced with symlinks since the scan.
        nested = [folder for folder in found[:MAX_REPOSITORIES] if is_real(folder)]
        for number, folder in enumerate(nested):
            plan.add(plan_below_root(planner.plan_nested, folder, number))
        if looks_like_git_dir(root):
            plan.add(planner.plan_git_folder(root, may_commit=True, is_root=True))
        # Bare repositories, and those with a worktree elsewhere; others are already protected through their worktrees.
        for number, folder in enumerate(filter(looks_like_git_dir, nested)):
            if folder not in plan.writable:
                plan.add(plan_below_root(planner.plan_git_folder, folder, number))
        if len(found) > MAX_REPOSITORIES or scan.is_partial(root):
            plan.problems.append(
                f"{root} has too many folders or repositories: some repositories in it may not be protected."
            )
    for folder in map(str, bounds.writable):
        if kind_of(folder) == "folder":
            plan.add(planner.plan_repository(folder))
    return plan


def _limit_mounts(plan: Protection, folder: str, number: int) -> Protection:
    """Return a repository's plan; if many repositories come before it, only the first mount, which is on its folder."""
    has_one_mount = not (plan.writable or plan.read_only[1:] or plan.missing_folders)
    if number < _MAX_TO_FOLLOW or has_one_mount:
        return plan
    problem = f"{folder} takes hooks or settings from elsewhere, which commands can write: there are too many like it."
    return Protection(read_only=plan.read_only[:1], problems=[problem])


class RepositoryPlanner:
    """Plans the protection of repositories."""

    def __init__(self, writable: tuple[str, ...], home: str, git: str) -> None:
        self._writable = writable  # the real paths of all folders that commands can write
        self._home = home  # the folder that `~` stands for
        self._git = git  # the program that reads configurations
        self.depends_only_on_stamps = True  # False once a plan depends on more than repositories' folders and `stamps`
        self.stamps: dict[str, Stamp] = {}  # of configuration files

    def _innermost_writable_around(self, path: str) -> str | None:
        return max((folder for folder in self._writable if is_inside(path, folder)), key=len, default=None)

    def plan_repository(self, worktree: str, *, may_commit: bool = True) -> Protection:
        """Plan for `worktree`/.git. Without `may_commit`, .git and the paths that its settings name are read-only."""
        plan, dot_git = Protection(), f"{worktree}/.git"
        match kind_of(dot_git), may_commit:
            case "folder", True:
                self._add_committable(dot_git, worktree, plan)
            case "folder", False:
                self._add_read_only(dot_git, worktree, plan)
            case "file", _:  # it only names a repository elsewhere, which is read-only unless it is added
                plan.read_only.append(dot_git)
                if may_commit:
                    self._add_repository_elsewhere(dot_git, worktree, plan)
            case "symlink", _:
                plan.protect(worktree, ".git")
        return plan

    def plan_nested(self, folder: str, *, may_commit: bool) -> Protection:
        """Plan for a repository below a root; commands cannot commit in one that is elsewhere (a linked worktree)."""
        plan = self.plan_repository(folder, may_commit=may_commit)
        if may_commit and any(self._innermost_writable_around(path) is None for path in plan.writable):
            return self.plan_repository(folder, may_commit=False)
        return plan

    def plan_git_folder(self, folder: str, *, may_commit: bool, is_root: bool = False) -> Protection:
        """Plan for a folder that is itself a git folder, such as a bare repository."""
        self.depends_only_on_stamps = False
        plan = Protection()
        if is_root:  # it stays writable, even if some of the programs that it names cannot be protected
            plan.problems += self._add_programs(folder, "", self._paths_named_in(folder), plan)
        else:
            add = self._add_committable if may_commit else self._add_read_only
            add(folder, "", plan)
        return plan

    def _add_repository_elsewhere(self, git_file: str, worktree: str, plan: Protection) -> None:
        """Add the repository to which the `.git` file of a linked worktree or of a submodule refers.

        A forged `.git` file could make any folder writable. A repository that is not writable yet must therefore refer
        back to the file: only the person's git can have made it do so.
        """
        self.depends_only_on_stamps = False
        folder = read_linked_path(git_file, "gitdir: ")
        if folder is None:
            plan.problems.append(f"{git_file} is not a file that git understands.")
            return
        common = read_linked_path(f"{folder}/commondir") or folder  # for a linked worktree, the shared repository
        writable_around = self._innermost_writable_around(folder)
        if writable_around is not None:  # if `common` is in it, too, this grants nothing new
            is_genuine = is_inside(common, writable_around)
        elif common != folder:  # a linked worktree, which shares a repository; a submodule has its own
            refers_back = read_linked_path(f"{folder}/gitdir") == os.path.realpath(git_file)
            is_genuine = refers_back and folder.rpartition("/")[0] == f"{common}/worktrees"
        else:
            named_worktree = self._paths_named_in(folder).worktree
            is_genuine = named_worktree is not None and os.path.realpath(named_worktree) == os.path.realpath(worktree)
        if is_genuine and looks_like_git_dir(common):
            self._add_committable(common, worktree, plan)
        else:
            plan.problems.append(f"{git_file} refers to {folder}, which does not refer back: commands cannot commit.")

    def _add_committable(self, folder: str, worktree: str, plan: Protection) -> None:
        """Add a git folder so that commands can commit; it is read-only if a part cannot be protected by a mount."""
        found = Protection(writable=[folder])
        named = self._paths_named_in(folder)
        gaps = self._add_programs(folder, worktree, named, found)  # the reasons why mounts cannot protect everything
        for module in modules_in(f"{folder}/modules"):
            gaps += self._add_programs(module, "", self._paths_named_in(module), found)
        worktrees = _folders_in(f"{folder}/worktrees")
        found.read_only += worktrees[_MAX_WORKTREES:]
        for each in worktrees[:_MAX_WORKTREES]:
            for name in ("commondir", "gitdir"):
                if kind_of(f"{each}/{name}") != "nothing":
                    gaps += _add_entry(each, name, found)
            gaps += _add_worktree_config(each, named, found)
        if gaps:
            found = Protection(problems=[f"{gaps[0]}, so all of {folder} is read-only: commands cannot commit."])
            self._add_read_only(folder, worktree, found)
        plan.add(found)

    def _add_read_only(self, folder: str, worktree: str, plan: Protection) -> None:
        """Add a git folder that commands cannot write, and the paths that it and its submodules name elsewhere."""
        plan.read_only.append(folder)
        for each in (folder, *modules_in(f"{folder}/modules")):
            self._add_named(self._paths_named_in(each), each, worktree if each == folder else "", plan)

    def _add_programs(self, folder: str, worktree: str, named: NamedPaths, plan: Protection) -> list[str]:
        """Add the parts of a git folder that name programs; return the reasons why some of them cannot be protected."""
        gaps = _add_entry(folder, "hooks", plan)
        if kind_of(f"{folder}/config") == "nothing":
            return [*gaps, f"{folder} has no config, which a command could add"]
        if named.is_refused:
            gaps.append(f"{folder} has a config that git does not read, or git is not installed")
        gaps += _add_entry(folder, "config", plan)
        gaps += _add_worktree_config(folder, named, plan)
        gaps += _add_entry(folder, "commondir", plan, COMMON_FOLDER_IS_HERE)
        self._add_named(named, folder, worktree, plan)
        return gaps

    def _paths_named_in(self, folder: str) -> NamedPaths:
        """Collect the paths that configurations of a git folder and its worktrees name; note what a plan depends on."""
        config = f"{folder}/config"
        looked_ns = time.time_ns()
        stamp = stamp_of(config)
        if stamp is not None:
            self.stamps[config] = stamp
        named = find_named_paths([config], self._home, self._git)
        # With nothing named and no further git folders, the plan can change only with this file and its stamp. A file
        # that has just changed may change again within the same tick of file times.
        is_old = stamp is not None and stamp.changed_ns < looked_ns - TICK_NS
        has_further_folders = any(os.path.lexists(f"{folder}/{name}") for name in ("modules", "worktrees"))
        self.depends_only_on_stamps &= is_old and named == NamedPaths() and not has_further_folders
        if not named.has_worktree_config:
            return named
        folders = (folder, *_folders_in(f"{folder}/worktrees")[:_MAX_WORKTREES])
        return find_named_paths([config, *(f"{each}/config.worktree" for each in folders)], self._home, self._git)

    def _add_named(self, named: NamedPaths, folder: str, worktree: str, plan: Protection) -> None:
        """Add the folders of hooks and the files of configuration that are `named`, if commands can write them."""
        start = worktree or named.worktree or folder  # where git runs hooks: `folder` if the repository is bare
        paths = [str(Path(start, hooks)) for hooks in named.hooks] + named.included
        placeholders: dict[str, bytes | None] = {}  # by path; None for a folder of hooks
        for path in paths:
            placeholder = NO_CONFIGURATION if path in named.included else None
            # Both the path as written, which a command could lead elsewhere, and the path to which it leads now.
            placeholders |= dict.fromkeys((os.path.normpath(path), os.path.realpath(path)), placeholder)
        for path, placeholder in placeholders.items():
            enclosing = [base for base in (worktree, folder) if base and is_inside(path, base)]
            self._protect_path(path, enclosing, placeholder, plan)

    def _protect_path(self, path: str, enclosing: list[str], placeholder: bytes | None, plan: Protection) -> None:
        """Protect a path and its parents up to the innermost `enclosing` folder, or else the innermost writable one."""
        base = max(enclosing, key=len) if enclosing else self._innermost_writable_around(path)
        if base is None:
            return
        holds_writable_folder = any(is_inside(folder, path) for folder in self._writable)
        if path == base or holds_writable_folder:
            plan.problems.append(f"Git takes hooks or settings from {path}, which commands can write.")
        else:
            plan.protect(base, os.path.relpath(path, base), placeholder)


def looks_like_git_dir(folder: str) -> bool:
    """Return True if git, started in a folder, would accept it as a repository's own folder."""
    return all(os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "objects", "refs"))


def modules_in(folder: str, depth: int = 0) -> list[str]:
    """Return the git folders of submodules and of their submodules; names of submodules may contain slashes."""
    found: list[str] = []
    for entry in _folders_in(folder):
        if os.path.lexists(f"{entry}/HEAD"):
            found += [entry, *modules_in(f"{entry}/modules", depth + 1)]
        elif depth < _MAX_MODULE_DEPTH:
            found += modules_in(entry, depth + 1)
        if len(found) > MAX_MODULES:
            break
    return found


def _add_worktree_config(folder: str, named: NamedPaths, plan: Protection) -> list[str]:
    """Add `config.worktree`. If git reads it (`extensions.worktreeConfig`), a missing one is mounted as empty."""
    return _add_entry(folder, "config.worktree", plan, b"" if named.has_worktree_config else None)


def _add_entry(folder: str, name: str, plan: Protection, placeholder: bytes | None = None) -> list[str]:
    """Add a file or folder; return the reason if it cannot be protected."""
    if kind_of(f"{folder}/{name}") == "symlink":
        return [f"{folder}/{name} is a symbolic link, which a command could replace"]
    plan.protect(folder, name, placeholder)
    return []


def _folders_in(folder: str) -> list[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    return []
