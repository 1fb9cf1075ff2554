"""Plans the protection of everything in a workspace that may not be written although its folder can."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.infra.sandbox.confinement import Bounds
from agentcli.infra.sandbox.git.folders import (
    GitSurroundings,
    looks_like_the_inside,
    protect_at_a_glance,
    protect_inside,
    protect_repository,
    protect_root_inside,
)
from agentcli.infra.sandbox.mounts.hide_plan import find_places, is_real
from agentcli.infra.sandbox.mounts.protect_plan import Protection, is_inside, kind_of

# One that can be committed to costs six mounts, about a millisecond; one that is read-only as a whole costs one.
MOST_TO_COMMIT_TO = 3
MOST_REPOSITORIES = 100
# What the configuration of one names costs mounts of its own, and there is a limit to those (bubblewrap_layout.py).
MOST_TO_FOLLOW = 20


def plan_protection(bounds: Bounds, cwd: str, *, most_to_commit_to: int = MOST_TO_COMMIT_TO) -> Protection:
    """Plan what to protect now. Commands can commit in the roots, the nearest repositories, and where they start."""
    protection = Protection()
    if bounds.profile != "workspace-write":
        return protection
    places = find_places((*bounds.roots, *bounds.writable, *((bounds.cache,) if bounds.cache is not None else ())))
    around = GitSurroundings(tuple(place.path for place in places), str(bounds.home), bounds.git)
    may_commit = ".git" not in bounds.protected
    for root in map(str, bounds.roots):
        if may_commit:
            protection.add(protect_repository(root, around))
        for name in bounds.protected:
            protection.protect(root, name)
        for path in map(str, bounds.protected_paths):
            if path != root and is_inside(path, root):
                protection.protect(root, path.removeprefix(root))
        nested = bounds.scan.repositories(root)
        for number, folder in enumerate(nested[:MOST_REPOSITORIES]):
            is_chosen = may_commit and (number < most_to_commit_to or is_inside(cwd, folder))
            protection.add(_bounded(_protect_nested(folder, around, is_chosen), folder, number, is_chosen))
        _protect_insides(
            root, nested[:MOST_REPOSITORIES], cwd if may_commit else None, protection, around, most_to_commit_to
        )
        if len(nested) > MOST_REPOSITORIES or bounds.scan.is_partial(root):
            protection.problems.append(f"{root} has too many folders or repositories to protect all that are in it.")
    for folder in map(str, bounds.writable):
        if kind_of(folder) == "folder":
            protection.add(protect_repository(folder, around))
    return protection


def _protect_nested(folder: str, around: GitSurroundings, may_commit: bool) -> Protection:
    """Protect one repository below a root. A worktree is no reason to make its repository elsewhere writable."""
    if not is_real(folder):  # gone meanwhile, or a link is on the way there now
        return Protection()
    if may_commit:
        protection = protect_repository(folder, around)
        if all(around.writable_around(path) is not None for path in protection.writable):
            return protection
    return protect_at_a_glance(folder, around)


def _protect_insides(
    root: str,
    nested: Sequence[str],
    cwd: str | None,
    protection: Protection,
    around: GitSurroundings,
    most_to_commit_to: int,
) -> None:
    """Protect bare repositories, and those whose worktree is elsewhere. Without `cwd` none may be committed to."""
    if looks_like_the_inside(root):
        protection.add(protect_root_inside(root, around))
    insides = [folder for folder in nested if looks_like_the_inside(folder) and is_real(folder)]
    for number, folder in enumerate(insides):
        if folder not in protection.writable:  # a worktree led there, and what it obeys is protected already
            may_commit = cwd is not None and (number < most_to_commit_to or is_inside(cwd, folder))
            found = protect_inside(folder, around, may_commit=may_commit)
            protection.add(_bounded(found, folder, number, may_commit))


def _bounded(found: Protection, folder: str, number: int, may_commit: bool) -> Protection:
    """Protect no more than the repository itself for the last of many, and say so."""
    if may_commit or number < MOST_TO_FOLLOW or not (found.writable or found.read_only[1:] or found.missing_folders):
        return found
    problem = f"{folder} takes hooks or settings from elsewhere, which commands can write: there are too many like it."
    return Protection(read_only=found.read_only[:1], problems=[problem])
