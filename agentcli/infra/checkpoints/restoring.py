"""Takes changes of files back on the disk: planned as a whole, then each file put in its place at once."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentcli.agent.interfaces import RestoredFile, RestoredHow
from agentcli.conversation.file_changes import FileChange, FileState, real_path, stored_path
from agentcli.errors import ToolError
from agentcli.infra.checkpoints.objects import Objects
from agentcli.infra.checkpoints.states import kind_of, state_at
from agentcli.infra.checkpoints.taking_back import Wanted, wanted_state
from agentcli.infra.sandbox.trial.keep_plan import write_plan
from agentcli.infra.sandbox.trial.live_files import LiveFiles
from agentcli.infra.sandbox.trial.tree_changes import pieces_of
from agentcli.infra.sandbox.trial.tree_entries import Entry, Touched, copy_attributes, entry_at, open_content
from agentcli.infra.sandbox.trial.tree_keeping import keep_pieces
from agentcli.infra.sandbox.trial.try_folders import PrivateFolder

_FOLDER_MODE = 0o755  # of folders around a file that are gone and were never taken down
_MOST_LOOKS = 3


class Restoration:
    """Implements `Restoration` of the agent's interfaces. `files` are in the order of their paths."""

    def __init__(self, wanted: Sequence[Wanted], entries: dict[str, Entry], objects: Objects, scratch: Path) -> None:
        self._wanted = wanted
        self._entries = entries
        self._objects = objects
        self._scratch = scratch
        self.files = tuple(RestoredFile(one.path, _word_of(one), one.conflict) for one in wanted)
        self.changes = tuple(
            FileChange(stored_path(one.path), one.now, one.then) for one in wanted if one.now != one.then
        )

    async def carry_out(self) -> Sequence[RestoredFile]:
        """The files as they were dealt with; one that something else changes meanwhile is a conflict.

        What is begun is finished, also by the next start. Raises `ToolError` where nothing can be done.
        """
        task = asyncio.ensure_future(asyncio.to_thread(self._carry_out))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise

    def _carry_out(self) -> Sequence[RestoredFile]:
        changing = [one for one in self._wanted if one.now != one.then]
        if not changing:
            return self.files
        try:
            private = PrivateFolder(self._scratch)
        except OSError as error:
            raise _nothing_done(error) from error
        try:
            area = _common_folder([one.path for one in changing])
            self._open_folders(changing)
            touched = self._touched(area, changing, private.path.resolve())
            pieces = [
                piece._replace(root="")  # nothing of it is a whole folder that could be moved
                for piece in pieces_of(area, touched, name_of=lambda path: path, budget=[0])
            ]
            write_plan(private.path, pieces)
            live = LiveFiles("end it, then take this back again", spares_databases=False)
            kept = keep_pieces(pieces, private.path.name, live=live)
        except OSError as error:
            raise _nothing_done(error) from error
        finally:
            private.close()
        paths = {piece.change.name: [f"{area}/{path}" for path in piece.paths] for piece in pieces}
        why = {path: conflict.why for conflict in kept.conflicts for path in paths[conflict.name]}
        return [_as_found(f, one, why.get(f.path, "")) for f, one in zip(self.files, self._wanted, strict=True)]

    def _open_folders(self, changing: Sequence[Wanted]) -> None:
        """Let the owner into folders that are to be open again, before anything in them is changed."""
        for one in changing:
            before, then = self._entries.get(one.path), one.then
            if before is None or then is None or not before.kind == then.kind == "folder":
                continue
            if then.mode & ~before.mode & 0o700 and entry_at(one.path) == before:
                Path(one.path).chmod(before.mode | (then.mode & 0o700))
                if (opened := entry_at(one.path)) is not None:
                    self._entries[one.path] = opened

    def _touched(self, area: str, changing: Sequence[Wanted], scratch: Path) -> Touched:
        """What is to change as what a command would have left."""
        touched = Touched()
        for number, one in enumerate(changing):
            path = one.path.removeprefix(f"{area}/")
            if (before := self._entries.get(one.path)) is not None:
                touched.before[path] = before
            if one.then is not None:
                touched.after[path] = self._made(one, before, scratch / f"file-{number}")
        for path in [*touched.after]:
            self._add_folders_around(path, area, touched)
        return touched

    def _made(self, one: Wanted, before: Entry | None, file: Path) -> Entry:
        """An entry as it is to become, its contents in a file of its own."""
        then = one.then
        assert then is not None
        target = ""
        if then.kind == "file":
            self._objects.copy(then.content, file)
            if before is not None and before.kind == "file":
                with open_content(before) as source, file.open("rb") as made:
                    copy_attributes(source, made.fileno())
        elif then.kind == "link":
            target = real_path(then.content)
        owner = before.owner if before is not None else _owner_of(one.path)
        identity = (0, then.size, time.time_ns(), 0, then.mode, *owner)
        return Entry(then.kind, identity, then.mode, then.size, owner, target, str(file))

    def _add_folders_around(self, path: str, area: str, touched: Touched) -> None:
        """Those that are gone are made again, also where they were gone before."""
        while (path := path.rpartition("/")[0]) and path not in touched.after:
            if os.path.lexists(f"{area}/{path}") and path not in touched.before:
                return
            state = FileState("folder", _FOLDER_MODE)
            touched.after[path] = self._made(Wanted(f"{area}/{path}", None, state), None, Path())


def plan_restoration(changes: Sequence[FileChange], objects: Objects, *, scratch: Path, largest: int) -> Restoration:
    """How to take back changes, in the order they were made. `scratch` is where files are made ready.

    Raises `ToolError` where the present state cannot be taken down.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(real_path(change.path), []).append(change)
    entries: dict[str, Entry] = {}
    wanted = []
    try:
        for path, own in sorted(by_path.items()):
            if _is_behind_link(path) and own[-1].after is not None:
                wanted.append(Wanted(path, None, None, conflict="a symbolic link leads to it now"))
                continue
            is_held = any(
                state is not None and state.content for change in own for state in (change.before, change.after)
            )
            now = _look(path, objects, entries, largest=sys.maxsize if is_held else largest)
            wanted.append(wanted_state(path, now, own, objects))
    except OSError as error:
        raise _nothing_done(error) from error
    return Restoration(_with_full_folders(wanted), entries, objects, scratch)


def _look(path: str, objects: Objects, entries: dict[str, Entry], *, largest: int) -> FileState | None:
    """The state of a path, and the entry that it was taken from; nothing is there where a link leads to it."""
    if _is_behind_link(path):
        return None
    for _ in range(_MOST_LOOKS):
        before = entry_at(path)
        state = state_at(path, objects, largest=largest)
        if entry_at(path) == before:
            break
    if before is not None:
        entries[path] = before
    return state


def _is_behind_link(path: str) -> bool:
    around = Path(path).parent
    return around.resolve() != around


def _as_found(file: RestoredFile, wanted: Wanted, why: str) -> RestoredFile:
    """What became of a file, by what is there now: a folder may have got new contents meanwhile.

    `why` is what stood against the change that it was part of, which may have been done in part.
    """
    if why and not (wanted.then is None and not os.path.lexists(file.path)):
        return RestoredFile(file.path, "conflict", why)
    if file.how in ("conflict", "kept"):
        return file
    try:
        kind = kind_of(os.lstat(file.path))
    except OSError:
        kind = None
    if wanted.then is None and kind is not None:
        return RestoredFile(file.path, "kept", "something else is in it" if kind == "folder" else "it was made anew")
    if wanted.then is not None and kind != wanted.then.kind:
        return RestoredFile(file.path, "conflict", "something else is there now")
    return file


def _with_full_folders(wanted: Sequence[Wanted]) -> list[Wanted]:
    """Folders that were to go stay where something else is in them; the innermost are looked at first."""
    going = {one.path for one in wanted if one.then is None}
    staying = set()
    for one in sorted(wanted, key=lambda one: -one.path.count("/")):
        is_going = one.now is not None and one.now.kind == "folder" and one.then is None
        if is_going and any(path not in going for path in _paths_in(one.path)):
            staying.add(one.path)
            going.discard(one.path)
    return [Wanted(one.path, one.now, one.now) if one.path in staying else one for one in wanted]


def _paths_in(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder)]
    except OSError:
        return []


def _word_of(one: Wanted) -> RestoredHow:
    if one.conflict:
        return "conflict"
    if one.then == one.now:
        return "kept"
    if one.then is None:
        return "removed"
    return "merged" if one.is_merged else "restored"


def _common_folder(paths: Sequence[str]) -> str:
    """The innermost folder around all of them that is there. Raises `OSError` where a link leads to it by now."""
    folder = Path(os.path.commonpath([Path(path).parent for path in paths]))
    while not folder.is_dir():
        folder = folder.parent
    if folder.resolve() != folder:
        raise OSError(errno.ELOOP, "a symbolic link is on the way", str(folder))
    return str(folder)


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
