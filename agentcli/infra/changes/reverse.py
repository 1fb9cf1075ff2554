"""Undoes changes to files, and keeps later changes to the same files.

The changes of each path are undone from the last to the first. A file that is still as a change left it gets its state
before the change. A file that was changed since is merged line by line. A file that cannot be merged is a conflict, and
stays as it is. The result is applied like the changes of a command.
"""

import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from agentcli.agent.interfaces import RestoredFile, RestoredHow
from agentcli.conversation.entries import FileChange, FileState, is_same_state, stored_path, system_path
from agentcli.errors import ToolError
from agentcli.infra.changes.apply import LiveFiles
from agentcli.infra.changes.groups import DiffLimit, group_changes
from agentcli.infra.changes.journal import PrivateFolder
from agentcli.infra.changes.state import ChangeSet, FileEntry, FileStamp, Objects, entry_at, parents_of, state_at
from agentcli.infra.changes.writing import ConflictError, copy_attributes
from agentcli.tools.text.diff import merged

_FOLDER_MODE = 0o755  # for missing folders around a restored file, whose own modes are unknown
_MAX_MERGED_BYTES = 10_000_000


# Runs a function in a thread to its end, even if the caller is cancelled.
InThread = Callable[[Callable[[], Sequence[RestoredFile]]], Awaitable[Sequence[RestoredFile]]]


class PathPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The present and the planned state of a path."""

    path: str
    now: FileState | None
    planned: FileState | None
    is_merged: bool = False
    conflict: str = ""  # why it stays as it is
    entry: FileEntry | None = None  # on disk, when the plan was made

    @property
    def outcome(self) -> RestoredFile:
        how: RestoredHow = "merged" if self.is_merged else "restored"
        if self.conflict:
            how = "conflict"
        elif self.planned == self.now:
            how = "kept"
        elif self.planned is None:
            how = "removed"
        return RestoredFile(self.path, how, self.conflict)


class PlannedRestoration:
    """Implements `Restoration`. New contents are prepared in a folder in `scratch`."""

    def __init__(self, plans: Sequence[PathPlan], objects: Objects, scratch: Path, in_thread: InThread) -> None:
        self._plans, self._objects, self._scratch, self._in_thread = plans, objects, scratch, in_thread
        self._changing = [plan for plan in plans if plan.now != plan.planned]
        self.files = tuple(plan.outcome for plan in plans)
        self.changes = tuple(FileChange(stored_path(plan.path), plan.now, plan.planned) for plan in self._changing)

    async def carry_out(self) -> Sequence[RestoredFile]:
        """Undo the changes, each as a whole or not at all, even if agentcli is killed. Raises `ToolError`."""
        return await self._in_thread(self._carry_out)

    def _carry_out(self) -> Sequence[RestoredFile]:
        if not self._changing:
            return self.files
        # Databases are replaced, too: unlike the command of a dry run, undo cannot be run directly instead.
        live = LiveFiles(advice="end it, then undo again", spares_databases=False)
        try:
            with closing(PrivateFolder(self._scratch)) as private:
                changes = self._change_set(private.path.resolve())
                no_diffs = DiffLimit(chars_left=0)  # because nobody would see them
                groups = group_changes(changes, name_of=lambda path: path, diff_limit=no_diffs)
                groups = [group._replace(moved_root="") for group in groups]  # there is no prepared folder to move
                outcome = private.apply(groups, live=live)
        except OSError as error:
            raise _nothing_undone(error) from error
        paths = {group.summary.name: [changes.at(path) for path in group.paths] for group in groups}
        conflicts = {path: conflict.why for conflict in outcome.conflicts for path in paths[conflict.name]}
        return [_outcome(plan, conflicts.get(plan.path, "")) for plan in self._plans]

    def _change_set(self, scratch: Path) -> ChangeSet:
        """Return the planned changes in the form of a command's, with new contents in `scratch`. Raises `OSError`."""
        changes = ChangeSet(root="")  # of the whole system
        for number, plan in enumerate(self._changing):
            path = plan.path.removeprefix("/")
            if (before := _make_accessible(plan)) is not None:
                changes.before[path] = before
            if plan.planned is not None:
                changes.after[path] = self._new_entry(plan.path, plan.planned, before, scratch / f"file-{number}")
        for path in [*changes.after]:
            # Folders around it that are missing now are made as well: innermost first, without the root.
            for parent in reversed(parents_of(path)[1:]):
                # A path in `before` exists, but is removed or replaced.
                stays = os.path.lexists(changes.at(parent)) and parent not in changes.before
                if stays or parent in changes.after:
                    break
                missing_folder = FileState("folder", _FOLDER_MODE)
                changes.after[parent] = self._new_entry(changes.at(parent), missing_folder, None, scratch)
        return changes

    def _new_entry(self, path: str, planned: FileState, before: FileEntry | None, file: Path) -> FileEntry:
        """Return the planned entry of a path, with its contents in a file of its own. Raises `OSError`."""
        if planned.kind == "file":
            file.write_bytes(self._objects.get(planned.content))
            if before is not None and before.kind == "file":
                with before.open() as source, file.open("rb") as copy:
                    copy_attributes(source.fileno(), copy.fileno())
        owner = before.owner if before is not None else _owner_of(path)
        kind, mode, size = planned.kind, planned.mode, planned.size
        stamp = FileStamp(0, size, time.time_ns(), 0, mode, *owner)  # the final file has no inode and no ctime yet
        target = system_path(planned.content) if kind == "link" else ""
        return FileEntry(kind=kind, stamp=stamp, mode=mode, size=size, owner=owner, target=target, source=str(file))


def plan_restoration(
    changes: Sequence[FileChange], objects: Objects, *, scratch: Path, max_bytes: int, in_thread: InThread
) -> PlannedRestoration:
    """Plan how to undo changes, given in the order in which they were made. Raises `ToolError`.

    A file that has more than `max_bytes` now is a conflict, for it cannot be stored. New contents go into `scratch`.
    """
    by_path = defaultdict[str, list[FileChange]](list)
    for change in changes:
        by_path[system_path(change.path)].append(change)
    try:
        plans = [_plan(path, by_path[path], objects, max_bytes=max_bytes) for path in sorted(by_path)]
    except OSError as error:
        raise _nothing_undone(error) from error
    removed = {plan.path for plan in plans if plan.planned is None}
    for number, plan in reversed([*enumerate(plans)]):  # the contents of a folder come before the folder
        is_removed_folder = plan.now is not None and plan.now.kind == "folder" and plan.planned is None
        with suppress(OSError):  # a folder that cannot be read: removing it fails if something is in it
            if is_removed_folder and any(entry.path not in removed for entry in os.scandir(plan.path)):
                plans[number] = PathPlan(path=plan.path, now=plan.now, planned=plan.now)  # it stays
                removed.discard(plan.path)
    return PlannedRestoration(plans, objects, scratch, in_thread)


def _plan(path: str, changes: Sequence[FileChange], objects: Objects, *, max_bytes: int) -> PathPlan:
    """Plan how to undo the changes of a path, which are in the order in which they were made. Raises `OSError`."""
    is_behind_link = Path(path).parent.resolve() != Path(path).parent
    # A path that the last change removed may be behind a link because the same change put that in place of a folder.
    if is_behind_link and changes[-1].after is not None:
        return PathPlan(path=path, now=None, planned=None, conflict="a symbolic link leads to it now")
    # Contents of a size that was stored once are read again, even if the limit is lower by now.
    max_bytes = max(max_bytes, *(state.size for change in changes for state in (change.before, change.after) if state))
    entry = now = None
    if not is_behind_link:
        entry = entry_at(path)  # before the state, so that a file that changes while it is read becomes a conflict
        now = state_at(path, objects, max_bytes=max_bytes)
    state, is_merged, conflict = now, False, ""  # `state` goes back through the changes, one after another
    try:
        for change in reversed(changes):
            earlier_state = _state_without(state, change, objects)
            is_merged |= earlier_state not in (state, change.before)  # neither unchanged nor exactly restored
            state = earlier_state
    except ConflictError as error:
        conflict = str(error.strerror)
    except OSError as error:
        conflict = f"its earlier contents are no longer stored ({error.strerror or error})"
    if not conflict and state != now and now is not None and not now.is_stored:
        conflict = f"it is too large to be stored ({now.size:,} bytes), or cannot be read"
    if conflict:
        return PathPlan(path=path, now=now, planned=now, conflict=conflict)
    return PathPlan(path=path, now=now, planned=state, is_merged=is_merged and state != now, entry=entry)


def _state_without(state: FileState | None, change: FileChange, objects: Objects) -> FileState | None:
    """Return the state of a path without one change. Raises `OSError`, and `ConflictError` if it is unknown."""
    before, after = change.before, change.after
    if is_same_state(state, before) or is_same_state(state, after):
        state = before
    elif state is None or (before is None and state.kind == "folder"):
        return None  # it was removed since, or is a new folder, which is removed if it is empty
    elif after is None:
        raise ConflictError("something else is there now")
    elif before is not None and state.kind == before.kind == after.kind == "file":
        state = _merged_file(state, before, after, objects)
    elif before is not None and state.kind == before.kind == "folder":
        return state  # its mode was changed since, and stays
    else:
        raise ConflictError("it was changed since")
    if state is not None and not state.is_stored:
        raise ConflictError(f"its earlier contents were not stored ({state.size:,} bytes): too large, or not readable")
    return state


def _merged_file(state: FileState, before: FileState, after: FileState, objects: Objects) -> FileState:
    """Undo the change from `before` to `after` in a file whose state is `state` now; its later changes stay."""
    mode = before.mode if state.mode == after.mode else state.mode  # a mode that was changed later stays
    if not (state.is_stored and before.is_stored and after.is_stored):
        raise ConflictError("its contents were not stored: it was too large, or could not be read")
    if state.content == after.content:  # only its mode was changed since
        return FileState("file", mode, before.content, before.size)
    if before.content in (after.content, state.content):  # only the mode changed, or the contents are restored already
        return FileState("file", mode, state.content, state.size)
    if max(state.size, before.size, after.size) > _MAX_MERGED_BYTES:
        raise ConflictError("it was changed since, and is too large to be merged")
    content = merged(objects.get(after.content), objects.get(state.content), objects.get(before.content))
    if content is None:
        raise ConflictError("the same lines were changed since")
    return FileState("file", mode, objects.put(content), len(content))


def _make_accessible(plan: PathPlan) -> FileEntry | None:
    """Return the entry of a path, if any; give a folder's owner the planned rights, needed to change its contents."""
    before, planned = plan.entry, plan.planned
    if before is None or planned is None or not before.kind == planned.kind == "folder":
        return before
    owner_rights = planned.mode & 0o700
    if owner_rights & ~before.mode and entry_at(plan.path) == before:
        Path(plan.path).chmod(before.mode | owner_rights)
        return entry_at(plan.path) or before
    return before


def _outcome(plan: PathPlan, conflict: str) -> RestoredFile:
    """Return the outcome for a file. `conflict` is the reason why its group of changes was not applied, or ""."""
    exists = os.path.lexists(plan.path)
    is_removed_as_planned = plan.planned is None and not exists  # by somebody else, if there was a conflict
    if conflict and not is_removed_as_planned:
        return RestoredFile(plan.path, "conflict", conflict)
    if plan.outcome.how == "removed" and exists:  # a folder that was not empty
        return RestoredFile(plan.path, "kept", "something else is in it")
    return plan.outcome


def _owner_of(path: str) -> tuple[int, int]:
    """Return the owner of the nearest existing folder around a path."""
    status = next(folder for folder in Path(path).parents if os.path.lexists(folder)).lstat()
    return status.st_uid, status.st_gid


def _nothing_undone(error: OSError) -> ToolError:
    reason = error.strerror or str(error)
    return ToolError(f"Nothing was undone: {reason} ({error.filename or 'checkpoints'}).", kind="resource_error")
