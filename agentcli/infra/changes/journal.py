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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from agentcli.conversation.file_changes import FileState, stored_path
from agentcli.infra.changes.apply import LiveFiles, apply_groups
from agentcli.infra.changes.groups import ChangeGroup
from agentcli.infra.changes.state import ChangeSet, FileEntry, parents_of
from agentcli.infra.changes.writing import remove_tree
from agentcli.infra.sandbox.mounts.mount_points import NOTE as MOUNT_POINTS
from agentcli.infra.sandbox.mounts.mount_points import remove_noted
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary

PLAN = "plan"


class CallNote(msgspec.Struct, frozen=True):
    """A call under way, as it is noted on disk: the states before it, or the indexes of the folders.

    `finished` says which paths a later start has dealt with for it, and when (nanoseconds since 1970).
    """

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
        file.write_bytes(msgspec.json.encode(self))


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
        """Apply changes whose contents are here; after a kill the next start finishes them.

        `note` is that of the call they are recorded for. Raises `OSError` before it begins.
        """
        rows = [
            {
                "change": {name: getattr(group.summary, name) for name in ("name", "kind", "what")},
                "area": group.changes.root,
                "paths": group.paths,
                "root": group.moved_root,
                "before": _restricted(group.changes.before, group.paths),
                "after": _restricted(group.changes.after, group.paths),
                "stale": [path for path in group.paths if path in group.changes.stale],
                "note": str(note or ""),
            }
            for group in groups
        ]
        # Names that are no text are escaped, where msgspec refuses them.
        replace_file(self.path / PLAN, json.dumps(rows).encode())
        return apply_groups(groups, self.path.name, live=live)

    def close(self) -> None:
        """Remove it; safe to call twice."""
        if self._lock >= 0:
            remove_tree(self.path)
            os.close(self._lock)
            self._lock = -1


def abandoned_folders(folder: Path, *, spares: str = "") -> Iterator[Path]:
    """The private folders of processes that are gone, each removed after it was looked at. Raises nothing.

    Those of others that run now are not among them, nor those in which a file that `spares` names is.
    """
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            try:
                lock = os.open(entry / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if entry.name.startswith("try-"):  # its removal was interrupted
                    remove_tree(entry)
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if spares and (entry / spares).exists():
                    continue
                yield entry
                remove_noted(entry / MOUNT_POINTS)
                remove_tree(entry)
            finally:
                os.close(lock)


def finish_interrupted(tries: Path) -> str:
    """Finish what killed sessions had begun to apply, discard the rest, and report it. Raises nothing."""
    finished = [done for folder in abandoned_folders(tries) if (done := _finish(folder)) is not None]
    names = [name for done in finished for name in done.names]
    conflicts = [conflict for done in finished for conflict in done.conflicts]
    said = []
    if names:
        said.append(f"A session was killed while it applied changes; they are complete now: {', '.join(names)}.")
    said += [f"{conflict.name} was not kept: {conflict.why}." for conflict in conflicts]
    return " ".join(said)


def _finish(folder: Path) -> ApplyOutcome | None:
    """Finish what was interrupted; None where nothing was. Raises nothing."""
    try:
        rows = json.loads((folder / PLAN).read_text())
    except (OSError, ValueError):
        return None
    done = apply_groups([_group(row) for row in rows], folder.name, is_resumed=True)
    for note in {row.get("note") for row in rows} - {None, ""}:
        own = (row for row in rows if row["note"] == note and row["change"]["name"] in done.names)
        paths = [f"{row['area']}/{path}" for row in own for path in (*row["after"], *row["paths"])]
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # its session has forgotten it
            noted = CallNote.read(file := Path(note))
            noted.finished.update(dict.fromkeys(map(stored_path, paths), time.time_ns()))
            replace_file(file, msgspec.json.encode(noted))
    (folder / PLAN).unlink(missing_ok=True)
    return done


def _restricted(entries: dict[str, FileEntry], paths: Sequence[str]) -> dict[str, FileEntry]:
    """The entries at these paths, and of the folders around them."""
    around = {parent for path in paths for parent in parents_of(path)[1:]}
    return {path: entries[path] for path in (*sorted(around), *paths) if path in entries}


def _group(row: dict[str, Any]) -> ChangeGroup:
    changes = ChangeSet(row["area"], _entries(row["before"]), _entries(row["after"]), {*row["stale"]})
    return ChangeGroup(ChangeSummary(**row["change"]), changes, tuple(row["paths"]), row["root"])


def _entries(rows: dict[str, list[Any]]) -> dict[str, FileEntry]:
    return msgspec.convert(rows, dict[str, FileEntry])
