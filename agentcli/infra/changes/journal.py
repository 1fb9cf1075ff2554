"""Keeps notes on disk about changes that are being applied and calls under way, so that the next start can finish them.

Changes are applied from the private folder of a dry run or an undo. A plan in that folder lists them, and after a kill
the next start of agentcli finishes them. Each recorded call has a note, a file in a folder of its session; a start adds
the changes that it finished.
"""

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from agentcli.conversation.entries import FileState, stored_path
from agentcli.infra.changes.apply import LiveFiles, apply_groups
from agentcli.infra.changes.groups import ChangeGroup
from agentcli.infra.changes.state import ChangeSet, parents_of
from agentcli.infra.changes.writing import remove_tree
from agentcli.infra.sandbox import mount_points
from agentcli.settings.files import make_private_folder, replace_file, replace_private_file
from agentcli.tools.command import ApplyOutcome, ChangeSummary, Conflict

PLAN = "plan"


class CallNote(msgspec.Struct, frozen=True):
    """The note of a call. Both methods raise `OSError`, `read` also `msgspec.MsgspecError`."""

    call_id: str
    before: dict[str, FileState | None] | None = None  # the states of the files that the call names, by path
    indexes: dict[str, str] = {}  # if the call names no files: the name of the kept index file, by root
    finished: dict[str, int] = {}  # by path, when a later start applied it, in Unix nanoseconds

    @classmethod
    def read(cls, file: Path) -> Self:
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def write(self, file: Path) -> None:
        replace_private_file(file, msgspec.json.encode(self), syncs=False)


class _Plan(msgspec.Struct):
    note: str  # the file of the call's note, "" for an undo
    groups: list[ChangeGroup]


class PrivateFolder:
    """The folder of a dry run or an undo, locked while it is in use. The constructor raises `OSError`."""

    def __init__(self, parent: Path) -> None:
        make_private_folder(parent)
        folder = Path(tempfile.mkdtemp(prefix="new-", dir=parent.resolve()))
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # A folder named `try-…` may be removed by other processes unless it is locked.
        self.path = folder.rename(folder.with_name(folder.name.replace("new-", "try-", 1)))

    def apply(
        self, groups: Sequence[ChangeGroup], *, note: Path | None = None, live: LiveFiles | None = None
    ) -> ApplyOutcome:
        """Apply changes whose contents are in this folder; after a kill the next start finishes them.

        `note` is the file with the note of their call. Raises `OSError` if the plan cannot be written; then
        nothing was changed. The outcome lists later failures.
        """
        plan = msgspec.to_builtins(_Plan(str(note or ""), [*map(_for_plan, groups)]))
        replace_file(self.path / PLAN, json.dumps(plan).encode())  # msgspec rejects names that are not UTF-8
        return apply_groups(groups, self.path.name, live=live)

    def close(self) -> None:
        """Remove the folder; the plan first, because it needs the contents. May be called twice."""
        if self._lock >= 0:  # -1: it is closed
            (self.path / PLAN).unlink(missing_ok=True)
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = -1


def finish_interrupted(parent: Path) -> str:
    """Finish the changes that killed sessions were applying, discard the rest, and return a report. Raises nothing."""
    outcomes: list[ApplyOutcome] = []
    remove_abandoned(parent, lambda folder: outcomes.append(_finish(folder)))
    names = ", ".join(name for outcome in outcomes for name in outcome.names)
    report = [f"A session was killed while it applied changes; they are complete now: {names}."] if names else []
    for outcome in outcomes:
        report += [f"{conflict.name} was not applied: {conflict.why}." for conflict in outcome.conflicts]
    return " ".join(report)


def remove_abandoned(parent: Path, finish: Callable[[Path], None] | None = None) -> None:
    """Remove the private folders of ended processes; one with a plan only after `finish` applied it. Raises nothing."""
    with contextlib.suppress(OSError):
        for entry in [*parent.iterdir()]:
            with contextlib.suppress(OSError):
                _remove_abandoned(entry, finish)


def _remove_abandoned(entry: Path, finish: Callable[[Path], None] | None) -> None:
    """Remove one folder. Raises `OSError`, also while its process runs."""
    try:
        lock = os.open(entry / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if entry.name.startswith("try-"):  # an interrupted removal; `new-` is a folder that is just being made
            remove_tree(entry)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError while its process runs
        if (entry / PLAN).exists():
            if finish is None:  # a caller that can finish the plan removes the folder later
                return
            finish(entry)
        mount_points.remove_listed(entry / mount_points.LIST_NAME)
        remove_tree(entry)
    finally:
        os.close(lock)


def _finish(folder: Path) -> ApplyOutcome:
    """Apply the plan in a private folder again, and add the applied paths to the note of its call."""
    try:
        plan = msgspec.convert(json.loads((folder / PLAN).read_text()), _Plan)
    except ValueError:
        return ApplyOutcome(conflicts=(Conflict("What a session began to apply", "another version wrote its plan"),))
    outcome = apply_groups(plan.groups, folder.name, is_resumed=True)
    applied = [group.changes for group in plan.groups if group.summary.name in outcome.names]
    paths = [stored_path(changes.at(path)) for changes in applied for path in (*changes.before, *changes.after)]
    with contextlib.suppress(OSError, msgspec.MsgspecError):  # an undo has no note, or its session has removed it
        note = CallNote.read(Path(plan.note))
        note.finished.update(dict.fromkeys(paths, time.time_ns()))
        note.write(Path(plan.note))
    (folder / PLAN).unlink()
    return outcome


def _for_plan(group: ChangeGroup) -> ChangeGroup:
    """Return a group in the form that is stored: without diffs, and without the other groups' entries in `changes`.

    Folders around its paths that were made or removed are included, because they are made or removed with it.
    """
    changes = group.changes
    parents = {parent for path in group.paths for parent in parents_of(path)[1:]}
    paths = {*group.paths, *(path for path in parents if (path in changes.before) != (path in changes.after))}
    # This runs for each group, so it must not go through all changes of the command.
    before = {path: changes.before[path] for path in paths if path in changes.before}
    after = {path: changes.after[path] for path in paths if path in changes.after}
    own_changes = ChangeSet(root=changes.root, before=before, after=after, stale=paths & changes.stale)
    summary = ChangeSummary(name=group.summary.name, kind=group.summary.kind, what=group.summary.what)
    return group._replace(summary=summary, changes=own_changes)
