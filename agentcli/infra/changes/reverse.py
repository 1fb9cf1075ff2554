"""Takes changes of files back, merged with what else became of the files since.

Each path is followed backwards through its changes. A file that is still as a change left it becomes what it was
before; one that was changed since is merged, line by line; what cannot be merged is a conflict and stays as it is. What
comes of that is applied as if a command had made it.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from agentcli.agent.interfaces import RestoredFile, RestoredHow
from agentcli.conversation.file_changes import FileChange, FileState, real_path, stored_path
from agentcli.errors import ToolError
from agentcli.infra.changes.apply import LiveFiles
from agentcli.infra.changes.groups import group_changes
from agentcli.infra.changes.journal import PrivateFolder
from agentcli.infra.changes.state import ChangeSet, FileEntry, Objects, entry_at, state_at
from agentcli.infra.changes.writing import ConflictError, copy_attributes
from agentcli.tools.text.merge import merged

_FOLDER_MODE = 0o755  # of folders around a file that are gone and were never taken down
_LARGEST_MERGED = 10_000_000  # bytes
_MAX_LOOKS = 3

Finish = Callable[[Callable[[], Sequence[RestoredFile]]], Awaitable[Sequence[RestoredFile]]]


class PathPlan(msgspec.Struct, frozen=True):
    """A path as it is `now`, taken from `entry`, and as it is to become; `conflict` says why it stays as it is."""

    path: str
    now: FileState | None
    then: FileState | None
    is_merged: bool = False
    conflict: str = ""
    entry: FileEntry | None = None

    @property
    def outcome(self) -> RestoredFile:
        how: RestoredHow = "merged" if self.is_merged else "restored"
        if self.conflict or self.then == self.now:
            how = "conflict" if self.conflict else "kept"
        elif self.then is None:
            how = "removed"
        return RestoredFile(self.path, how, self.conflict)


class PlannedRestoration:
    """Implements `Restoration`; `finish` runs something in a thread to its end, whatever becomes of the caller."""

    def __init__(self, plans: Sequence[PathPlan], objects: Objects, scratch: Path, finish: Finish) -> None:
        self._plans, self._objects, self._scratch, self._finish = plans, objects, scratch, finish
        self._changing = [plan for plan in plans if plan.now != plan.then]
        self.files = tuple(plan.outcome for plan in plans)
        self.changes = tuple(FileChange(stored_path(plan.path), plan.now, plan.then) for plan in self._changing)

    async def carry_out(self) -> Sequence[RestoredFile]:
        """Return the files as they were dealt with, each whole or a conflict, also after a kill. Raises `ToolError`."""
        return await self._finish(self._carry_out)

    def _carry_out(self) -> Sequence[RestoredFile]:
        if not self._changing:
            return self.files
        live = LiveFiles("end it, then take this back again", spares_databases=False)
        try:
            with closing(PrivateFolder(self._scratch)) as private:
                changes = self._change_set(private.path.resolve())
                groups = group_changes(changes, name_of=lambda path: path, budget=[0])
                groups = [group._replace(moved_root="") for group in groups]  # its files are not in one folder yet
                done = private.apply(groups, live=live)
        except OSError as error:
            raise _nothing_done(error) from error
        paths = {group.summary.name: [changes.at(path) for path in group.paths] for group in groups}
        why = {path: conflict.why for conflict in done.conflicts for path in paths[conflict.name]}
        return [_outcome(plan, why.get(plan.path, "")) for plan in self._plans]

    def _change_set(self, scratch: Path) -> ChangeSet:
        """The plans as a command would have left them. Raises `OSError`."""
        root = _common_folder([plan.path for plan in self._changing])
        changes = ChangeSet(root)
        for number, plan in enumerate(self._changing):
            path = plan.path.removeprefix(f"{root}/")
            if (before := _opened_to_owner(plan)) is not None:
                changes.before[path] = before
            if plan.then is not None:
                changes.after[path] = self._made(plan.path, plan.then, before, scratch / f"file-{number}")
        for path in [*changes.after]:  # the folders around it that are gone are made again
            while (path := path.rpartition("/")[0]) and path not in changes.after:
                whole = changes.at(path)
                if os.path.lexists(whole) and path not in changes.before:
                    break
                changes.after[path] = self._made(whole, FileState("folder", _FOLDER_MODE), None, scratch)
        return changes

    def _made(self, path: str, then: FileState, before: FileEntry | None, file: Path) -> FileEntry:
        """An entry as it is to become, its contents in a file of its own."""
        if then.kind == "file":
            file.write_bytes(self._objects.get(then.content))
            if before is not None and before.kind == "file":
                with before.open() as source, file.open("rb") as made:
                    copy_attributes(source.fileno(), made.fileno())
        owner = before.owner if before is not None else _owner_of(path)
        stamp = (0, then.size, time.time_ns(), 0, then.mode, *owner)
        target = real_path(then.content) if then.kind == "link" else ""
        return FileEntry(then.kind, stamp, then.mode, then.size, owner, target=target, source=str(file))


def plan_restoration(
    changes: Sequence[FileChange], objects: Objects, *, scratch: Path, largest: int, finish: Finish
) -> PlannedRestoration:
    """Plan how changes, in the order they were made, are taken back. Raises `ToolError`."""
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(real_path(change.path), []).append(change)
    try:
        plans = [_plan(path, own, objects, largest=largest) for path, own in sorted(by_path.items())]
    except OSError as error:
        raise _nothing_done(error) from error
    going = {plan.path for plan in plans if plan.then is None}
    for number in reversed(range(len(plans))):  # what is in a folder comes before the folder
        plan = plans[number]
        is_going = plan.now is not None and plan.now.kind == "folder" and plan.then is None
        if is_going and any(path not in going for path in _paths_in(plan.path)):  # something else is in it
            plans[number] = PathPlan(plan.path, plan.now, plan.now)
            going.discard(plan.path)
    return PlannedRestoration(plans, objects, scratch, finish)


def _plan(path: str, changes: Sequence[FileChange], objects: Objects, *, largest: int) -> PathPlan:
    """Follow one path back through its changes, which are in the order they were made. Raises `OSError`."""
    is_behind_link = Path(path).parent.resolve() != Path(path).parent
    if is_behind_link and changes[-1].after is not None:
        return PathPlan(path, None, None, conflict="a symbolic link leads to it now")
    entry = now = None
    # What was kept once is read again, whatever the limit is by now.
    largest = max(largest, *(state.size for change in changes for state in (change.before, change.after) if state))
    for _ in range(0 if is_behind_link else _MAX_LOOKS):
        entry = entry_at(path)
        now = state_at(path, objects, largest=largest)
        if entry_at(path) == entry:
            break
    state, is_merged = now, False
    for change in reversed(changes):
        try:
            before = _without(state, change, objects)
        except ConflictError as error:
            return PathPlan(path, now, now, conflict=str(error.strerror))
        except OSError as error:
            return PathPlan(path, now, now, conflict=f"what it held is not kept any more ({error.strerror or error})")
        is_merged = is_merged or before not in (state, change.before)
        state = before
    if state != now and now is not None and not now.is_stored:
        return PathPlan(path, now, now, conflict=f"it is too large to be kept ({now.size:,} bytes), or cannot be read")
    return PathPlan(path, now, state, is_merged and state != now, entry=entry)


def _without(state: FileState | None, change: FileChange, objects: Objects) -> FileState | None:
    """A state without a change. Raises `OSError`."""
    before, after = change.before, change.after
    if _is_same(state, before) or _is_same(state, after):
        state = before
    elif state is None:
        return None  # it was removed since, and stays so
    elif before is None:
        if state.kind == "folder":
            return None  # goes where nothing else is in it
        raise ConflictError("it was changed since")
    elif after is None:
        raise ConflictError("something else is there now")
    elif not state.kind == before.kind == after.kind or state.kind != "file":
        if state.kind == before.kind == "folder":
            return state
        raise ConflictError("it was changed since")
    else:
        state = _merged_file(state, before, after, objects)
    if state is not None and not state.is_stored:
        raise ConflictError(f"what it held was not kept: it is too large ({state.size:,} bytes), or could not be read")
    return state


def _is_same(one: FileState | None, other: FileState | None) -> bool:
    """True where both are known to be the same: of contents that are not kept nobody knows."""
    return one == other and (one is None or one.is_stored)


def _merged_file(state: FileState, before: FileState, after: FileState, objects: Objects) -> FileState:
    mode = before.mode if state.mode == after.mode else state.mode
    if not (state.is_stored and before.is_stored and after.is_stored):
        raise ConflictError("it is too large to be kept, or could not be read")
    if state.content == after.content:
        return FileState("file", mode, before.content, before.size)
    if before.content in (after.content, state.content):
        return FileState("file", mode, state.content, state.size)
    if max(state.size, before.size, after.size) > _LARGEST_MERGED:
        raise ConflictError("it was changed since, and is too large to be merged")
    content = merged(objects.get(after.content), objects.get(state.content), objects.get(before.content))
    if content is None:
        raise ConflictError("the same lines were changed since")
    return FileState("file", mode, objects.put_bytes(content), len(content))


def _opened_to_owner(plan: PathPlan) -> FileEntry | None:
    """Let the owner into a folder that is to be open again, before anything in it is changed; gives its entry."""
    before, then = plan.entry, plan.then
    if before is None or then is None or not before.kind == then.kind == "folder":
        return before
    if then.mode & ~before.mode & 0o700 and entry_at(plan.path) == before:
        Path(plan.path).chmod(before.mode | (then.mode & 0o700))
        return entry_at(plan.path) or before
    return before


def _outcome(plan: PathPlan, why: str) -> RestoredFile:
    """Return the outcome for a file. `why` says why its group of changes was not applied as a whole, if it was not."""
    is_there = os.path.lexists(plan.path)
    if why and (plan.then is not None or is_there):
        return RestoredFile(plan.path, "conflict", why)
    if plan.outcome.how == "removed" and is_there:
        return RestoredFile(plan.path, "kept", "something else is in it")
    return plan.outcome


def _paths_in(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder)]
    except OSError:
        return []


def _common_folder(paths: Sequence[str]) -> str:
    """The innermost folder around all of them that is there. Raises `OSError` where a link leads to it by now."""
    folder = Path(os.path.commonpath([Path(path).parent for path in paths]))
    while not folder.is_dir():
        folder = folder.parent
    if folder.resolve() != folder:
        raise OSError(errno.ELOOP, "a symbolic link is on the way", str(folder))
    return str(folder).rstrip("/")


def _owner_of(path: str) -> tuple[int, int]:
    """Whose the nearest folder around a path is."""
    around = Path(path).parent
    while not os.path.lexists(around):
        around = around.parent
    status = around.lstat()
    return status.st_uid, status.st_gid


def _nothing_done(error: OSError) -> ToolError:
    reason = error.strerror or str(error)
    return ToolError(f"Nothing was taken back: {reason} ({error.filename or 'checkpoints'}).", kind="resource_error")
