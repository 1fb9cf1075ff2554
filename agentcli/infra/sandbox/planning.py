"""Everything in a workspace that may not be written although the folder around it can."""

from __future__ import annotations

from agentcli.infra.sandbox.bounds import Bounds
from agentcli.infra.sandbox.git_folders import protect_at_a_glance, protect_repository
from agentcli.infra.sandbox.masks import is_real
from agentcli.infra.sandbox.protection import Protection, is_inside, kind_of
from agentcli.infra.sandbox.repositories import Repositories

# One that can be committed to costs six mounts, about a millisecond; one that is read-only as a whole costs one.
MOST_TO_COMMIT_TO = 3
MOST_REPOSITORIES = 100


def plan_protection(bounds: Bounds, cwd: str, repositories: Repositories) -> Protection:
    """What to protect now. Commands can commit in the roots, the repositories nearest to them, and where they start."""
    protection = Protection()
    if bounds.profile != "workspace-write":
        return protection
    may_commit = ".git" not in bounds.protected
    for root in map(str, bounds.roots):
        if may_commit:
            protection.add(protect_repository(root))
        for name in bounds.protected:
            protection.protect(root, name)
        for path in map(str, bounds.protected_paths):
            if path != root and is_inside(path, root):
                protection.protect(root, path.removeprefix(root))
        nested = repositories.inside(root)
        for number, folder in enumerate(nested[:MOST_REPOSITORIES]):
            is_chosen = may_commit and (number < MOST_TO_COMMIT_TO or is_inside(cwd, folder))
            protection.add(_protect_nested(folder, root, is_chosen))
        if len(nested) > MOST_REPOSITORIES or repositories.is_partial(root):
            protection.problems.append(f"{root} has too many folders or repositories to protect all that are in it.")
    for folder in map(str, bounds.writable):
        if kind_of(folder) == "folder":
            protection.add(protect_repository(folder))
    return protection


def _protect_nested(folder: str, root: str, may_commit: bool) -> Protection:
    """A worktree of a repository elsewhere is no reason to make that one writable."""
    if not is_real(folder):  # gone meanwhile, or a link is on the way there now
        return Protection()
    if may_commit:
        protection = protect_repository(folder)
        if all(is_inside(path, root) for path in protection.writable):
            return protection
    return protect_at_a_glance(folder)
