"""Plans the protection of everything in a workspace that may not be written although its folder can."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from agentcli.infra.sandbox.confinement import Bounds
from agentcli.infra.sandbox.git.folders import RepositoryPlanner, looks_like_the_inside
from agentcli.infra.sandbox.mounts.hide_plan import find_places, is_real
from agentcli.infra.sandbox.mounts.protect_plan import Protection, is_inside, kind_of

# One that can be committed to costs six mounts, about a millisecond; one that is read-only as a whole costs one.
MAX_TO_COMMIT_TO = 3
MAX_REPOSITORIES = 100
# What the configuration of one names costs mounts of its own, and there is a limit to those (bubblewrap_layout.py).
_MAX_TO_FOLLOW = 20


def plan_protection(bounds: Bounds, cwd: str, *, max_to_commit_to: int = MAX_TO_COMMIT_TO) -> Protection:
    """Plan what to protect now. Commands can commit in the roots, in the nearest repositories, and where they start."""
    plan = Protection()
    if bounds.profile != "workspace-write":
        return plan
    bounds.scan.protected(bounds.roots)  # forgets the plans where something changed, also one that is being made then
    plans = bounds.scan.kept_plans
    names = (bounds.protected, bounds.protected_paths)
    made_from = (cwd, max_to_commit_to, bounds.roots, bounds.home, bounds.cache, bounds.git, *names)
    kept = plans.get(made_from)
    if kept is not None and not bounds.writable and _are_untouched(kept[0]):
        return cast("Protection", kept[1])
    places = find_places((*bounds.roots, *bounds.writable, *((bounds.cache,) if bounds.cache is not None else ())))
    planner = RepositoryPlanner(tuple(place.path for place in places), str(bounds.home), bounds.git)
    may_commit = ".git" not in bounds.protected
    for root in map(str, bounds.roots):
        if may_commit:
            plan.add(planner.repository(root))
        for name in bounds.protected:
            plan.protect(root, name)
        for path in map(str, bounds.protected_paths):
            if path != root and is_inside(path, root):
                plan.protect(root, path.removeprefix(root))
        found = bounds.scan.repositories(root)
        # Else a link is on the way there now.
        nested = [folder for folder in found[:MAX_REPOSITORIES] if is_real(folder)]
        for number, folder in enumerate(nested):
            is_chosen = may_commit and (number < max_to_commit_to or is_inside(cwd, folder))
            plan.add(_bounded(_plan_nested(folder, planner, is_chosen), folder, number, is_chosen))
        if looks_like_the_inside(root):
            plan.add(planner.root_inside(root))
        # Bare repositories, and those whose worktree is elsewhere; where a worktree led there it is protected already.
        for number, folder in enumerate(filter(looks_like_the_inside, nested)):
            if folder not in plan.writable:
                is_chosen = may_commit and (number < max_to_commit_to or is_inside(cwd, folder))
                plan.add(_bounded(planner.inside(folder, may_commit=is_chosen), folder, number, is_chosen))
        if len(found) > MAX_REPOSITORIES or bounds.scan.is_partial(root):
            plan.problems.append(f"{root} has too many folders or repositories to protect all that are in it.")
    for folder in map(str, bounds.writable):
        if kind_of(folder) == "folder":
            plan.add(planner.repository(folder))
    if planner.is_plain and not (plan.problems or bounds.writable):
        plans[made_from] = planner.stamps, plan
    return plan


def _are_untouched(stamps: Mapping[str, tuple[int, ...]]) -> bool:
    for file, stamp in stamps.items():
        try:
            status = os.lstat(file)
        except OSError:
            return False
        if (status.st_ino, status.st_ctime_ns) != stamp:
            return False
    return True


def _plan_nested(folder: str, planner: RepositoryPlanner, may_commit: bool) -> Protection:
    """Plan one repository below a root. A worktree is no reason to make its repository elsewhere writable."""
    if may_commit:
        plan = planner.repository(folder)
        if all(planner.writable_around(path) is not None for path in plan.writable):
            return plan
    return planner.repository(folder, may_commit=False)


def _bounded(found: Protection, folder: str, number: int, may_commit: bool) -> Protection:
    """Protect no more than the repository itself for the last of many, and say so."""
    if may_commit or number < _MAX_TO_FOLLOW or not (found.writable or found.read_only[1:] or found.missing_folders):
        return found
    problem = f"{folder} takes hooks or settings from elsewhere, which commands can write: there are too many like it."
    return Protection(read_only=found.read_only[:1], problems=[problem])
