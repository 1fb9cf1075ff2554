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


def with_worktree(groups: Sequence[ChangeGroup], repository: ChangeGroup, words: GitChanges) -> list[ChangeGroup]:
    """The groups, where those of a worktree are one with its repository: one without the other would be a muddle.

    What programs obey stays a group of its own. A repository in which git has only noted something is no change.
    """
    top = repository.paths[0].partition(".git")[0]
    others = [
        _marked(group, top, words) if group.changes.root == repository.changes.root else group
        for group in groups
        if group is not repository
    ]
    logs = [path for path in repository.paths if _is_shorter(path, repository.changes)]
    if words.is_same and not logs and all(_is_note(path.rpartition(".git/")[2]) for path in repository.paths):
        return others
    files = [
        group
        for group in others
        if group.changes.root == repository.changes.root
        and group.paths[0].startswith(top)
        and not group.summary.is_obeyed
        and group.summary.what != "repository"
    ]
    loses = {group.summary.loses for group in files}
    summary = replace(
        repository.summary,
        diff="".join(
            [words.text, *(group.summary.diff or f"{group.summary.kind} {group.summary.name}\n" for group in files)]
        ),
        files=repository.summary.files + sum(group.summary.files for group in files),
        size=repository.summary.size + sum(group.summary.size for group in files),
        notes=(
            *(f"loses {lost}" for lost in words.lost),
            *(f"loses entries of the log of {shown_path(path.rpartition('logs/')[2])}" for path in logs),
            *(f"{group.summary.name}: {note}" for group in files for note in group.summary.notes),
        ),
        loses="tree" if "tree" in loses else "work" if words.lost or logs or "work" in loses else "",
    )
    paths = (*repository.paths, *(path for group in files for path in group.paths))
    gone = {id(group) for group in files}
    return [ChangeGroup(summary, repository.changes, paths), *(group for group in others if id(group) not in gone)]


def _marked(group: ChangeGroup, top: str, words: GitChanges) -> ChangeGroup:
    """The group, marked where it takes away work that was in no commit."""
    taken = words.uncommitted if group.summary.kind == "deleted" else words.reverted
    if group.summary.kind == "created" or not any(path.removeprefix(top) in taken for path in group.paths):
        return group
    return _losing_work(group)


def _losing_work(group: ChangeGroup) -> ChangeGroup:
    notes = ("overwrites what was not committed", *group.summary.notes)
    return group._replace(summary=replace(group.summary, notes=notes, loses=group.summary.loses or "work"))


def taken_away(groups: Sequence[ChangeGroup]) -> dict[str, set[str]]:
    """The files of whose contents nothing is left, by their area; without those of which that is known to lose work."""
    gone = {
        area: _gone_files(changes) for area, changes in {group.changes.root: group.changes for group in groups}.items()
    }
    found: dict[str, set[str]] = {}
    for group in groups:
        taken = gone[group.changes.root].intersection(group.paths)
        if group.summary.kind == "changed" and _is_written_over(group.summary.diff):
            taken.update(group.paths)
        if taken and not group.summary.loses and group.summary.kind in ("changed", "deleted"):
            found.setdefault(group.changes.root, set()).update(taken)
    return found


def with_lost_work(
    groups: Sequence[ChangeGroup], area: str, taken: set[str], uncommitted: Collection[str]
) -> list[ChangeGroup]:
    """The groups, marked where they take away what was in no commit; a folder's name there ends with a slash."""
    lost = {
        path for path in taken if path in uncommitted or any(f"{parent}/" in uncommitted for parent in parents_of(path))
    }
    return [
        _losing_work(group) if group.changes.root == area and lost.intersection(group.paths) else group
        for group in groups
    ]


def _is_written_over(diff: str) -> bool:
    """True where no line of a text is left, however it is indented now."""
    lines = diff.partition("\n@@ ")[2].splitlines()[1:]
    old, new = ({line[1:].strip() for line in lines if line[0] == sign} - {""} for sign in "-+")
    return bool(old) and not old & new and not any(line[0] == " " for line in lines)


def _is_note(path: str) -> bool:
    return path in {"index", "AUTO_MERGE", "COMMIT_EDITMSG", "ORIG_HEAD", "gc.log"} or path.startswith(
        ("objects", "logs")
    )


def _is_shorter(path: str, changes: ChangeSet) -> bool:
    """True for a log of git's that lost entries."""
    before, after = changes.of(path)
    is_log = ".git/logs/" in f"/{path}" and before is not None and before.kind == "file"
    return is_log and before is not None and (after is None or after.size < before.size)


def with_loss_of_tree(groups: Sequence[ChangeGroup], changes: ChangeSet) -> list[ChangeGroup]:
    """The groups, marked where together they take away more than half of the files that were there."""
    gone = _gone_files(changes)
    count = _files_in(changes.root, most=2 * len(gone)) if len(gone) > 1 else 0
    is_most = 2 * len(gone) > count if len(gone) > HANDFUL else len(gone) == count
    if not is_most or not count:
        return [*groups]
    notes: tuple[str, ...] = (
        f"{len(gone):,} of the {count:,} files in {shown_path(changes.root)} would be gone or empty",
    )
    marked = []
    for group in groups:
        if gone.intersection(group.paths):
            group = group._replace(summary=replace(group.summary, loses="tree", notes=(*notes, *group.summary.notes)))
            notes = ()  # said once
        marked.append(group)
    return marked


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


def _files_in(root: str, *, most: int) -> int:
    """Counts files until there are more than `most`."""
    count = 0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _NOT_COUNTED]
        count += sum(not os.path.islink(f"{folder}/{name}") for name in files)  # noqa: PTH114
        if count > most:
            break
    return count
