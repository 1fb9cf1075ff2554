"""Groups the changes that a command made in a folder, so that the person can decide about each group.

A group is usually one file, link or empty folder, or the new mode of a folder. Other folders are made and removed with
their contents. Changes that only make sense together are one group: the contents of a `.git`, a folder that replaces a
file or the reverse, and a folder with many files that was made or removed, apart from auto-executed files in it.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePath
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from agentcli.infra.changes.state import ChangeSet, FileEntry, differs, has_same_content, joined, parents_of
from agentcli.infra.changes.writing import copy_attributes
from agentcli.safety.paths.judge import is_auto_executed
from agentcli.tools.command import ChangeSummary
from agentcli.tools.text.diff import diff_hunks, unified_diff, with_hunks

_MAX_DIFFS_CHARS = 2_000_000  # in all diffs of one dry run together
_MAX_TEXT_BYTES = 256_000  # in a larger file no diff is shown
_MAX_SEPARATE = 8  # a folder with more files that was made or removed is one group
_MAX_NAMED = 5  # names in a note about several files
_MAX_PAIRS = 1_000  # more pairs of a deleted and a new file are not compared, so that it stays fast
_MIN_SHARED = 0.6  # share of equal lines above which two files are a rename


class ChangeGroup(NamedTuple):
    """Changes that are applied or discarded together."""

    summary: ChangeSummary
    changes: ChangeSet  # of the whole command
    paths: tuple[str, ...]  # those of the group, relative to the root of `changes`
    moved_root: str = ""  # the path of a new folder that can be moved as a whole


class DiffLimit(Struct):
    """The characters left for diffs; each diff reduces them."""

    chars_left: int = _MAX_DIFFS_CHARS


def group_changes(changes: ChangeSet, *, name_of: Callable[[str], str], diff_limit: DiffLimit) -> list[ChangeGroup]:
    """Group changes for the person's decision; `name_of` returns the name to show for a path. Raises `OSError`."""
    paths = [path for path in sorted({*changes.before, *changes.after}) if differs(*changes.before_and_after(path))]
    counts = Counter(parent for path in paths for parent in parents_of(path))  # the changes below each folder
    large_folders = {
        path for path in paths if path and counts[path] > _MAX_SEPARATE and _is_made_or_removed_folder(path, changes)
    }
    paths_by_group: dict[str, list[str]] = {}  # of each group of several paths, by its outermost one
    groups: list[ChangeGroup] = []
    for path in paths:
        is_implied = path in counts and _is_made_or_removed_folder(path, changes)  # by the changes in the folder
        if (group_path := _large_group_around(path, changes, large_folders)) is not None:
            paths_by_group.setdefault(group_path, []).append(path)
        elif not is_implied:
            groups.append(ChangeGroup(_summary(path, changes, name_of(changes.at(path)), diff_limit), changes, (path,)))
    for path, contents in paths_by_group.items():
        inside = {inner for inner in (*changes.before, *changes.after) if inner == path or inner.startswith(f"{path}/")}
        summary = _summary_of_many(path, changes, contents, name_of(changes.at(path)))
        # The root ("") exists, and a folder that also has entries of other groups cannot be moved without them.
        is_movable = bool(path) and summary.kind == "created" and inside == {*contents}
        groups.append(ChangeGroup(summary, changes, tuple(contents), path if is_movable else ""))
    return _join_renames(groups, changes)


def _join_renames(groups: list[ChangeGroup], changes: ChangeSet) -> list[ChangeGroup]:
    """Join a deleted file and a new one with most of its lines into one group: a rename, applied as a whole."""
    files = [group for group in groups if group.summary.what == "file" and not group.summary.is_auto_executed]
    old_groups = [group for group in files if group.summary.kind == "deleted"]
    new_groups = [group for group in files if group.summary.kind == "created"]
    if len(old_groups) * len(new_groups) > _MAX_PAIRS:
        return groups
    for old in old_groups:
        before = changes.before[old.paths[0]]
        shares = [_shared_part(before, changes.after[new.paths[0]]) for new in new_groups]
        if (share := max(shares, default=0.0)) > _MIN_SHARED:
            new = new_groups.pop(shares.index(share))
            old_text, new_text = _text_of(before) or "", _text_of(changes.after[new.paths[0]]) or ""
            diff = unified_diff(new.summary.name, old_text, new_text)
            name, notes = f"{old.summary.name} → {new.summary.name}", (*new.summary.notes, f"{int(share * 100)} %")
            summary = replace(new.summary, name=name, kind="renamed", diff=diff, hunks=1, notes=notes)
            groups = [group for group in groups if group is not old and group is not new]
            groups.append(ChangeGroup(summary, changes, (*old.paths, *new.paths)))
    return groups


def _shared_part(before: FileEntry, after: FileEntry) -> float:
    """Return the share of lines that two files have in common, from 0 to 1."""
    if before.size == 0:  # two empty files are no sign of a rename
        return 0.0
    if has_same_content(before, after):  # also of files that are not text
        return 1.0
    old, new = (Counter((_text_of(entry) or "").splitlines()) for entry in (before, after))
    return (old & new).total() / max(old.total(), new.total(), 1)


def shown_path(path: str) -> str:
    """Return a path for the person and the log; bytes that are not UTF-8 are written as `\\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def pick_hunks(group: ChangeGroup, chosen: Collection[int], contents_path: Path) -> ChangeGroup:
    """Return a group reduced to the chosen hunks of its only file, written to `contents_path`. Raises `OSError`."""
    path = group.paths[0]
    before, after = group.changes.before[path], group.changes.after[path]
    old, new = (_content(entry).decode(errors="surrogateescape") for entry in (before, after))
    contents_path.write_bytes(with_hunks(old, new, chosen).encode(errors="surrogateescape"))
    with after.open() as source, contents_path.open("rb") as target:
        copy_attributes(source.fileno(), target.fileno())
    entry = after._replace(source=str(contents_path), size=contents_path.stat().st_size)
    return group._replace(changes=replace(group.changes, before={path: before}, after={path: entry}))


def attention_order(group: ChangeGroup) -> tuple[bool, bool, bool, str]:
    """Return the sort key that puts the groups first that the person should look at most closely."""
    summary = group.summary  # False comes before True
    return (not summary.is_auto_executed, not summary.permanent_loss, not summary.notes, summary.name)


def _large_group_around(path: str, changes: ChangeSet, large_folders: Collection[str]) -> str | None:
    """Return the outermost path of the group that contains a path, None if the path is a group of its own."""
    large_folder = None
    for folder in (*parents_of(path), path):
        before, after = changes.before_and_after(folder)
        # A file named `.git`, as in a worktree, is not a repository. The root ("") may be one, but has no entry.
        is_folder = folder != path or folder == "" or _is_folder(before or after)
        if (is_folder and _is_repository(folder, changes)) or changes.swaps_folder(folder):
            return folder
        if large_folder is None and folder in large_folders:
            large_folder = folder
    return None if is_auto_executed(PurePath(path)) else large_folder


def _is_made_or_removed_folder(path: str, changes: ChangeSet) -> bool:
    before, after = changes.before_and_after(path)
    return (before is None or after is None) and _is_folder(before or after)


def _is_repository(path: str, changes: ChangeSet) -> bool:
    """Return True for a `.git`, and for a new folder that git would take for a bare repository."""
    if (path or changes.root).rpartition("/")[2] == ".git":
        return True
    return all(joined(path, name) in changes.after for name in ("HEAD", "objects", "refs"))


def _summary(path: str, changes: ChangeSet, name: str, diff_limit: DiffLimit) -> ChangeSummary:
    """Describe the change of one path, for the question whether to apply it. Raises `OSError`."""
    before, after = changes.before_and_after(path)
    entry = after or changes.before[path]
    kind: Literal["created", "changed", "deleted", "mode"]
    if before is None or after is None:
        kind = "created" if before is None else "deleted"
    else:
        kind = "mode" if _differs_only_in_mode(before, after) else "changed"
    diff_and_hunks = ("", 1) if kind == "mode" else _diff(name, before, after, diff_limit)
    diff, hunks = diff_and_hunks or ("", 1)  # a change without a diff can only be applied as a whole
    is_executed = is_auto_executed(PurePath(path))
    notes: list[str] = []
    if after is not None and after.kind == "link":
        notes.append(f"leads to {shown_path(after.target)}")
    if before is not None and after is not None and before.mode != after.mode and before.kind == after.kind:
        notes.append(f"mode {before.mode:o} → {after.mode:o}")
    elif before is None and _is_program(after):
        notes.append("executable")
    if diff_and_hunks is None and after is not None and after.kind == "file":  # the contents cannot be shown
        old = f"{before.size:,} → " if before is not None and before.kind == "file" else ""
        notes.append(f"contents not shown: {old}{after.size:,} bytes")
    return ChangeSummary(
        name=name,
        kind=kind,
        what=entry.kind if entry.kind != "other" else "file",  # a deleted socket or device counts as a file
        diff=diff,
        hunks=1 if is_executed else hunks,  # an auto-executed file is applied as a whole
        files=int(entry.kind != "folder"),
        size=entry.size if entry.kind == "file" else 0,
        notes=tuple(notes),
        is_auto_executed=is_executed,
    )


def _differs_only_in_mode(before: FileEntry, after: FileEntry) -> bool:
    """Return True for a folder or file that stays what it was; links and pipes have no mode that matters."""
    if before.kind != after.kind:
        return False
    return before.kind == "folder" or (before.kind == "file" and has_same_content(before, after))


def _is_program(entry: FileEntry | None) -> bool:
    return entry is not None and entry.kind == "file" and bool(entry.mode & 0o111)


def _summary_of_many(path: str, changes: ChangeSet, paths: list[str], name: str) -> ChangeSummary:
    """Describe a group of changes as one, for the question whether to apply it; `paths` are at or below `path`."""
    before, after = changes.before_and_after(path)
    is_git = _is_repository(path, changes)
    # `path` itself may not be in the group: then it is neither new nor gone.
    is_new = path in paths and before is None
    is_gone = path in paths and after is None
    entries = {inner: changes.after.get(inner) or changes.before[inner] for inner in paths}
    files = [entry for entry in entries.values() if entry.kind != "folder"]
    notes: list[str] = []
    if not is_git and not is_gone:  # written programs and links get a note, but not those in a `.git`
        written = {inner.removeprefix(f"{path}/"): entry for inner, entry in entries.items() if inner in changes.after}
        notes += _counting_notes("executable", [inner for inner, entry in written.items() if _is_program(entry)])
        links = [f"{inner} → {entry.target}" for inner, entry in written.items() if entry.kind == "link"]
        notes += _counting_notes("link", links)
    return ChangeSummary(
        name=name,
        kind="created" if is_new else "deleted" if is_gone else "changed",
        what="repository" if is_git else "folder" if is_new or is_gone else "tree",  # a tree: some files in a folder
        files=len(files),
        size=sum(entry.size for entry in files if entry.kind == "file"),
        notes=tuple(notes),
        # A new repository may bring hooks, which git executes. Commands cannot write those of an existing one.
        is_auto_executed=is_new if is_git else is_auto_executed(PurePath(path)),
        permanent_loss="tree" if is_git and is_gone else "",  # undo does not bring back a `.git`
    )


def _counting_notes(noun: str, names: Sequence[str]) -> list[str]:
    """Return a note such as `2 executables: bin/a, bin/b`, or nothing for no names."""
    if not names:
        return []
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return [f"{len(names):,} {noun}{'s' if len(names) > 1 else ''}: {shown_path(', '.join(names[:_MAX_NAMED]))}{more}"]


def _diff(name: str, before: FileEntry | None, after: FileEntry | None, limit: DiffLimit) -> tuple[str, int] | None:
    """Return the diff and the number of hunks to choose from, None if the file is no text or the limit is reached."""
    if limit.chars_left <= 0 or (old := _text_of(before)) is None or (new := _text_of(after)) is None:
        return None
    diff = unified_diff(name, old, new)
    limit.chars_left -= len(diff)
    if limit.chars_left < 0:
        return None
    hunks = len(diff_hunks(diff))
    # Hunks cannot be chosen if they do not show every change (line ends, for example), or if a line break in the name
    # spoils their headers.
    is_divisible = "\n" not in name and ("\r" not in old + new or with_hunks(old, new, range(hunks)) == new)
    return diff, (hunks if is_divisible and hunks else 1)  # 1: it can only be applied as a whole


def _text_of(entry: FileEntry | None) -> str | None:
    """Return a file's text, "" if there is no file, None if the file is not text or too long."""
    if entry is None or entry.kind != "file":
        return ""
    if entry.size > _MAX_TEXT_BYTES:
        return None
    try:
        text = _content(entry).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def _content(entry: FileEntry) -> bytes:
    with entry.open() as file:
        return file.read(_MAX_TEXT_BYTES + 1)  # limited, because the file may have grown since


def _is_folder(entry: FileEntry | None) -> bool:
    return entry is not None and entry.kind == "folder"
