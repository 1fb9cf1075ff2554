"""Plans how changes of files are taken back, merged with what else became of the files since.

Each path is followed backwards through its changes. A file that is still as a change left it becomes what it was
before; one that was changed since is merged, line by line; what cannot be merged is a conflict and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentcli.conversation.file_changes import FileChange, FileState
from agentcli.infra.checkpoints.objects import Objects
from agentcli.tools.text.merge import merged

_LARGEST_MERGED = 10_000_000  # bytes


class Wanted(msgspec.Struct, frozen=True):
    """What a path is now, what it is to become, and whether that is a merge. `conflict` says why it stays as it is."""

    path: str
    now: FileState | None
    then: FileState | None
    is_merged: bool = False
    conflict: str = ""


def wanted_state(path: str, now: FileState | None, changes: Sequence[FileChange], objects: Objects) -> Wanted:
    """What a path becomes when its changes, oldest first, are taken back."""
    state, is_merged = now, False
    for change in reversed(changes):
        try:
            before = _without(state, change, objects)
        except _ConflictError as conflict:
            return Wanted(path, now, now, conflict=str(conflict))
        except OSError as error:
            return Wanted(path, now, now, conflict=f"what it held is not kept any more ({error.strerror or error})")
        is_merged = is_merged or before not in (state, change.before)
        state = before
    if state != now and now is not None and not now.is_kept:
        return Wanted(path, now, now, conflict=f"it is too large to be kept ({now.size:,} bytes), or cannot be read")
    return Wanted(path, now, state, is_merged and state != now)


class _ConflictError(Exception):  # it says why
    pass


def _without(state: FileState | None, change: FileChange, objects: Objects) -> FileState | None:
    """A state without a change. Raises `_ConflictError`, `OSError`."""
    before, after = change.before, change.after
    if _is_same(state, before) or _is_same(state, after):
        state = before
    elif state is None:
        return None  # it was removed since, and stays so
    elif before is None:
        if state.kind == "folder":
            return None  # goes where nothing else is in it
        raise _ConflictError("it was changed since")
    elif after is None:
        raise _ConflictError("something else is there now")
    elif not state.kind == before.kind == after.kind or state.kind != "file":
        if state.kind == before.kind == "folder":
            return state
        raise _ConflictError("it was changed since")
    else:
        state = _merged_file(state, before, after, objects)
    if state is not None and not state.is_kept:
        raise _ConflictError(f"what it held was not kept: it is too large ({state.size:,} bytes), or could not be read")
    return state


def _is_same(one: FileState | None, other: FileState | None) -> bool:
    """True where both are known to be the same: of contents that are not kept nobody knows."""
    return one == other and (one is None or one.is_kept)


def _merged_file(state: FileState, before: FileState, after: FileState, objects: Objects) -> FileState:
    mode = before.mode if state.mode == after.mode else state.mode
    if not (state.is_kept and before.is_kept and after.is_kept):
        raise _ConflictError("it is too large to be kept, or could not be read")
    if state.content == after.content:
        return FileState("file", mode, before.content, before.size)
    if before.content in (after.content, state.content):
        return FileState("file", mode, state.content, state.size)
    if max(state.size, before.size, after.size) > _LARGEST_MERGED:
        raise _ConflictError("it was changed since, and is too large to be merged")
    content = merged(objects.get(after.content), objects.get(state.content), objects.get(before.content))
    if content is None:
        raise _ConflictError("the same lines were changed since")
    return FileState("file", mode, objects.put_bytes(content), len(content))
