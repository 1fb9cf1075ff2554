"""Writes down what is about to be applied and which calls are under way, for the next start after a kill.

Changes that are applied come from a private folder (of a dry run, or of an undo). The plan in it says which; any start
finishes it. A call that is recorded has a note, for its session: what a start finishes for the call is added there.
"""

from __future__ import annotations

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

from agentcli.conversation.file_changes import FileState, stored_path
from agentcli.infra.changes.apply import LiveFiles, apply_groups
from agentcli.infra.changes.groups import ChangeGroup
from agentcli.infra.changes.state import ChangeSet, parents_of
from agentcli.infra.changes.writing import remove_tree
from agentcli.infra.sandbox.mounts.mount_points import NOTE as MOUNT_POINTS
from agentcli.infra.sandbox.mounts.mount_points import remove_noted
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary, Conflict

PLAN = "plan"


class CallNote(msgspec.Struct, frozen=True):
    """A call under way, as noted on disk; `finished` has the paths a later start dealt with, and when (ns)."""

    call_id: str
    before: dict[str, FileState | None] | None = None
    indexes: dict[str, str] = {}
    finished: dict[str, int] = {}

    @classmethod
    def read(cls, file: Path) -> Self:
        """Raises `OSError` and `msgspec.MsgspecError`."""
        return msgspec.json.decode(file.read_bytes(), type=cls)

    def write(self, file: Path) -> None:
        """Raises `OSError`."""
        make_private_folder(file.parent)
        replace_file(file, msgspec.json.encode(self), syncs=False)


class _Plan(msgspec.Struct):
    """The groups of changes that are applied, and the note of the call that they are recorded for."""

    note: str
    groups: list[ChangeGroup]


class PrivateFolder:
    """A folder of one dry run or undo, which says by a lock that it is in use."""

    def __init__(self, around: Path) -> None:
        """Raises `OSError`."""
        make_private_folder(around)
        made = Path(tempfile.mkdtemp(prefix="new-", dir=around.resolve()))
        self._lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name.replace("new-", "try-", 1)))

    def apply(
        self, groups: Sequence[ChangeGroup], *, note: Path | None = None, live: LiveFiles | None = None
    ) -> ApplyOutcome:
        """Apply changes whose contents are here, if need be at the next start. Raises `OSError` before it begins."""
        plan = msgspec.to_builtins(_Plan(str(note or ""), [*map(_without_others, groups)]))
        # Names that are no text are escaped, where msgspec refuses them.
        replace_file(self.path / PLAN, json.dumps(plan).encode())
        return apply_groups(groups, self.path.name, live=live)

    def close(self) -> None:
        """Remove it, the plan first, which is of no use without the contents; safe to call twice."""
        if self._lock >= 0:
            (self.path / PLAN).unlink(missing_ok=True)
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = -1


def finish_interrupted(around: Path) -> str:
    """Finish what killed sessions had begun to apply, discard the rest, and report it. Raises nothing."""
    finished: list[ApplyOutcome] = []
    remove_abandoned(around, lambda folder: finished.append(_finish(folder)))
    names = ", ".join(name for done in finished for name in done.names)
    said = [f"A session was killed while it applied changes; they are complete now: {names}."] if names else []
    said += [f"{conflict.name} was not kept: {conflict.why}." for done in finished for conflict in done.conflicts]
    return " ".join(said)


def remove_abandoned(around: Path, finish: Callable[[Path], None] | None = None) -> None:
    """Remove the private folders of processes that are gone; one with a plan only after `finish`. Raises nothing."""
    with contextlib.suppress(OSError):
        for entry in [*around.iterdir()]:
            with contextlib.suppress(OSError):
                _remove_abandoned(entry, finish)


def _remove_abandoned(entry: Path, finish: Callable[[Path], None] | None) -> None:
    """Raises `OSError`, also for the folder of a process that runs."""
    try:
        lock = os.open(entry / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        if entry.name.startswith("try-"):  # its removal was interrupted
            remove_tree(entry)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (entry / PLAN).exists():
            if finish is None:
                return
            finish(entry)
        remove_noted(entry / MOUNT_POINTS)
        remove_tree(entry)
    finally:
        os.close(lock)


def _finish(folder: Path) -> ApplyOutcome:
    """Finish what was interrupted. Raises nothing but `OSError`."""
    try:
        plan = msgspec.convert(json.loads((folder / PLAN).read_text()), _Plan)
    except ValueError:
        return ApplyOutcome(conflicts=(Conflict("What a session began to apply", "another version wrote its plan"),))
    done = apply_groups(plan.groups, folder.name, is_resumed=True)
    own = [group.changes for group in plan.groups if group.summary.name in done.names]
    paths = [stored_path(changes.at(path)) for changes in own for path in (*changes.before, *changes.after)]
    with contextlib.suppress(OSError, msgspec.MsgspecError):  # its session has forgotten it
        noted = CallNote.read(Path(plan.note))
        noted.finished.update(dict.fromkeys(paths, time.time_ns()))
        noted.write(Path(plan.note))
    (folder / PLAN).unlink()
    return done


def _without_others(group: ChangeGroup) -> ChangeGroup:
    """A group with the entries at its paths and of folders around them that came or went alone."""
    changes = group.changes
    around = {parent for path in group.paths for parent in parents_of(path)[1:]}
    paths = {*group.paths, *(one for one in around if (one in changes.before) != (one in changes.after))}
    before, after = ({path: one[path] for path in paths if path in one} for one in (changes.before, changes.after))
    summary = ChangeSummary(name=group.summary.name, kind=group.summary.kind, what=group.summary.what)
    return group._replace(summary=summary, changes=ChangeSet(changes.root, before, after, paths & changes.stale))
