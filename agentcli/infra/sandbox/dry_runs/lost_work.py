"""Marks the changes that take work away: most of a tree, commits, and what was in no commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from agentcli.infra.changes.groups import INSTALLED, ChangeGroup, shown_path
from agentcli.infra.changes.state import ChangeSet, digest_of, parents_of
from agentcli.infra.sandbox.dry_runs.git_changes import GitChanges

HANDFUL = 5  # most of a tree is more files than these, or all

_NOT_COUNTED = INSTALLED | {".git"}
_NOTES = {"index", "AUTO_MERGE", "COMMIT_EDITMSG", "ORIG_HEAD", "gc.log"}  # that git makes without changing anything


def with_worktree(groups: Sequence[ChangeGroup], repository: ChangeGroup, git: GitChanges) -> list[ChangeGroup]:
    """The groups, where those of a worktree are one with its repository: one without the other would be a muddle.

    What programs obey stays a group of its own. A repository in which git has only noted something is no change.
    """
    root, top = repository.changes.root, repository.paths[0].partition(".git")[0]
    others = [group for group in groups if group is not repository]
    own = [number for number, group in enumerate(others) if group.changes.root == root]
    for number in own:  # those that take away what was in no commit
        group = others[number]
        taken = git.uncommitted if group.summary.kind == "deleted" else git.reverted
        if group.summary.kind != "created" and any(path.removeprefix(top) in taken for path in group.paths):
            others[number] = _losing_work(group)
    logs = [path for path in repository.paths if _is_shorter(path, repository.changes)]
    if git.is_same and not logs and all(_is_note(path.rpartition(".git/")[2]) for path in repository.paths):
        return others
    joined = {
        number
        for number in own
        if others[number].paths[0].startswith(top)
        and not others[number].summary.is_obeyed
        and others[number].summary.what != "repository"
    }
    whole, files = repository.summary, [others[number].summary for number in sorted(joined)]
    loses = {file.loses for file in files}
    summary = replace(
        whole,
        diff="".join([git.text, *(file.diff or f"{file.kind} {file.name}\n" for file in files)]),
        files=whole.files + sum(file.files for file in files),
        size=whole.size + sum(file.size for file in files),
        notes=(
            *(f"loses {lost}" for lost in git.lost),
            *(f"loses entries of the log of {shown_path(path.rpartition('logs/')[2])}" for path in logs),
            *(f"{file.name}: {note}" for file in files for note in file.notes),
        ),
        loses="tree" if "tree" in loses else "work" if git.lost or logs or "work" in loses else "",
    )
    paths = (*repository.paths, *(path for number in sorted(joined) for path in others[number].paths))
    rest = (group for number, group in enumerate(others) if number not in joined)
    return [ChangeGroup(summary, repository.changes, paths), *rest]


def find_lost_files(groups: Sequence[ChangeGroup]) -> dict[str, set[str]]:
    """The files of whose contents nothing is left, by their root; without those of which that is known to lose work."""
    gone = {root: _gone_files(changes) for root, changes in {one.changes.root: one.changes for one in groups}.items()}
    found: dict[str, set[str]] = {}
    for group in groups:
        summary, root = group.summary, group.changes.root
        taken = gone[root].intersection(group.paths)
        if summary.kind == "changed" and _is_written_over(summary.diff):
            taken.update(group.paths)
        if taken and not summary.loses and summary.kind in ("changed", "deleted"):
            found.setdefault(root, set()).update(taken)
    return found


def with_lost_work(
    groups: Sequence[ChangeGroup], root: str, taken: set[str], uncommitted: Collection[str]
) -> list[ChangeGroup]:
    """The groups, marked where they take away what was in no commit; a folder's name there ends with a slash."""
    lost = {
        path for path in taken if path in uncommitted or any(f"{parent}/" in uncommitted for parent in parents_of(path))
    }
    return [_losing_work(one) if one.changes.root == root and lost.intersection(one.paths) else one for one in groups]


def with_loss_of_tree(groups: Sequence[ChangeGroup], changes: ChangeSet) -> list[ChangeGroup]:
    """The groups, marked where together they take away more than half of the files that were there."""
    gone = _gone_files(changes)
    count = _count_files(changes.root, limit=2 * len(gone)) if len(gone) > 1 else 0
    is_most = 2 * len(gone) > count if len(gone) > HANDFUL else len(gone) == count
    if not is_most or not count:
        return [*groups]
    notes = [f"{len(gone):,} of the {count:,} files in {shown_path(changes.root)} would be gone or empty"]
    marked = []
    for group in groups:
        if gone.intersection(group.paths):
            summary = replace(group.summary, loses="tree", notes=(*notes, *group.summary.notes))
            group, notes = group._replace(summary=summary), []  # it is said once
        marked.append(group)
    return marked


def _losing_work(group: ChangeGroup) -> ChangeGroup:
    notes = ("overwrites what was not committed", *group.summary.notes)
    return group._replace(summary=replace(group.summary, notes=notes, loses=group.summary.loses or "work"))


def _is_written_over(diff: str) -> bool:
    """True where no line of a text is left, however it is indented now."""
    lines = diff.partition("\n@@ ")[2].splitlines()[1:]
    old, new = ({line[1:].strip() for line in lines if line[0] == sign} - {""} for sign in "-+")
    return bool(old) and not old & new and not any(line[0] == " " for line in lines)


def _is_note(path: str) -> bool:
    return path in _NOTES or path.startswith(("objects", "logs"))


def _is_shorter(path: str, changes: ChangeSet) -> bool:
    """True for a log of git's that lost entries."""
    before, after = changes.of(path)
    if before is None or before.kind != "file" or ".git/logs/" not in f"/{path}":
        return False
    return after is None or after.size < before.size


def _gone_files(changes: ChangeSet) -> set[str]:
    """The files that were deleted or emptied; not those that were moved, or can be installed again."""
    gone = {}
    for path, before in changes.before.items():
        after = changes.after.get(path)
        is_gone = after is None or after.kind != "file" or (before.size and not after.size)
        if before.kind == "file" and is_gone and not _NOT_COUNTED.intersection(path.split("/")):
            gone[path] = before
    sizes = {before.size for before in gone.values()}
    made = [entry for path, entry in changes.after.items() if path not in gone and entry.size in sizes]
    moved = {digest_of(entry) for entry in made if entry.kind == "file"}
    return {path for path, before in gone.items() if not moved or digest_of(before) not in moved}


def _count_files(root: str, *, limit: int) -> int:
    """Counts files until there are more than `limit`."""
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _NOT_COUNTED]
        count += sum(not os.path.islink(f"{folder}/{name}") for name in files)  # noqa: PTH114
        if count > limit:
            break
    return count
