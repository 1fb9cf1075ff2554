"""Records what calls do to files, for one session.

What a call is going to change is taken down before and after it: the files it names, or, where nobody can tell, all of
the workspace. What changed between two calls was the person's doing. A note on disk says which calls are under way, so
that those of a killed process are accounted for when the session is opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from agentcli.conversation.file_changes import FileChange, FilesChanged, FileState, real_path, stored_path
from agentcli.errors import ToolError
from agentcli.infra.changes.journal import CallNote, PrivateFolder
from agentcli.infra.changes.objects import Objects
from agentcli.infra.changes.reverse import PlannedRestoration, plan_restoration
from agentcli.infra.changes.state import state_at
from agentcli.infra.checkpoints.folder_index import Difference, FolderIndex
from agentcli.infra.checkpoints.listing import SnapshotLimits, TooManyFiles
from agentcli.settings.files import make_private_folder

_BEAT_S = 0.5
_AFTERLIFE_NS = 1_500_000_000  # within which the processes of one that was killed are gone, too
_MAX_NAMED = 100  # paths that are left out

T = TypeVar("T")


@dataclass(kw_only=True)
class Mark:
    """A call that is under way. Without `before` it may change anything; `found` is what it has changed so far."""

    call_id: str
    note: Path
    before: dict[str, FileState | None] | None = None
    found: dict[str, Difference] = field(default_factory=dict)
    earlier_notes: list[Path] = field(default_factory=list)
    left_out: tuple[str, ...] = ()
    problem: str = ""


class Recorder:
    """Implements `Checkpoints`. `roots` gives the folders of the workspace, as real paths.

    `scratch` is where files are made ready before they take their places. A `private` folder is where `folder` is in,
    and goes with the recorder.
    """

    def __init__(
        self,
        folder: Path,
        roots: Callable[[], Sequence[Path]],
        session_id: str,
        *,
        scratch: Path,
        private: PrivateFolder | None = None,
        limits: SnapshotLimits = SnapshotLimits(),  # noqa: B008  # frozen
    ) -> None:
        self.objects = Objects(folder)
        self._scratch = scratch
        self._private = private
        self._notes = folder / "under_way" / session_id
        self._find_roots = roots
        self._limits = limits
        self._indexes: list[FolderIndex] | None = None
        self._open: list[Mark] = []
        self._too_many = ""
        self._beating: asyncio.Task[None] | None = None
        self._order = asyncio.Lock()
        self._numbers = itertools.count(1)

    async def begin(self, call_id: str, paths: Sequence[Path] | None) -> Mark:
        mark = await self._in_thread(lambda: self._begin(call_id, paths))
        if self._open and (self._beating is None or self._beating.done()):
            self._beating = asyncio.create_task(self._beat())
        return mark

    async def end(self, mark: Mark) -> FilesChanged | None:
        return await self._in_thread(lambda: self._end(mark))

    async def forget(self, mark: Mark | None) -> None:
        notes = (*mark.earlier_notes, mark.note) if mark else self._notes.glob("*.json")
        await self._in_thread(lambda: self._forget(*notes))

    async def under_way(self) -> Sequence[FilesChanged]:
        return await self._in_thread(self._under_way)

    async def interrupted(self, told: Mapping[str, float]) -> Sequence[FilesChanged]:
        return await self._in_thread(lambda: self._interrupted(told))

    def content(self, id: str) -> bytes:
        return self.objects.get(id)

    async def restoration(self, changes: Sequence[FileChange]) -> PlannedRestoration:
        return await self._in_thread(lambda: self._restoration(changes))

    async def aclose(self) -> None:
        """Wait for what is under way."""
        if self._beating is not None:
            self._beating.cancel()
        await self._in_thread(lambda: self._private.close() if self._private is not None else None)

    def files_scanned(self) -> int:
        return sum(index.files_scanned for index in self._indexes or ())

    async def _beat(self) -> None:
        """Touch the notes of what is under way: what changes after a process has died was not its doing."""
        while self._open:
            for mark in self._open:
                with contextlib.suppress(OSError):
                    os.utime(mark.note)
            await asyncio.sleep(_BEAT_S)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """One after another, also while the caller is cancelled: what began has to end. Raises `ToolError`."""

        async def in_order() -> T:
            async with self._order:
                try:
                    return await asyncio.to_thread(work)
                except (OSError, ValueError) as error:  # ValueError: a name that cannot be written down
                    why = getattr(error, "strerror", None) or error
                    message = f"The state of the files could not be kept in {self.objects.folder}: {why}."
                    raise ToolError(message, kind="resource_error") from error

        task = asyncio.create_task(in_order())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(ToolError):
                await task
            raise

    def _restoration(self, changes: Sequence[FileChange]) -> PlannedRestoration:
        largest = self._limits.max_file_bytes
        return plan_restoration(changes, self.objects, scratch=self._scratch, largest=largest, finish=self._in_thread)

    def _begin(self, call_id: str, paths: Sequence[Path] | None) -> Mark:
        self.objects.make()
        mark = Mark(call_id=call_id, note=self._new_note())
        if paths is not None:
            mark.before = {path: self._state(path) for path in _with_missing_folders(map(str, paths))}
            CallNote(call_id, {stored_path(path): state for path, state in mark.before.items()}).write(mark.note)
            return mark
        try:
            self._attribute(self._open[-1] if self._open else None)
        except (TooManyFiles, ToolError) as error:
            mark.problem = str(error)
            return mark
        mark.left_out = self._skipped_paths()
        CallNote(call_id, None, self._linked_indexes(mark.note)).write(mark.note)
        self._open.append(mark)
        return mark

    def _end(self, mark: Mark) -> FilesChanged | None:
        if mark.before is not None:
            found = {path: (before, self._state(path)) for path, before in mark.before.items()}
            for path, index in itertools.product(found, self._indexes or ()):
                if path.startswith(f"{index.root}/"):
                    index.note(path.removeprefix(f"{index.root}/"))
            return FilesChanged(mark.call_id, changes) if (changes := _as_changes(found)) else None
        if not mark.problem:
            try:
                self._attribute(mark)
            except TooManyFiles as error:
                mark.problem = str(error)
            finally:
                self._open.remove(mark)
        if mark.problem:
            return FilesChanged(mark.call_id, (), is_exact=False, left_out=(f"everything: {mark.problem}",))
        return self._new_changes(mark)

    def _under_way(self) -> list[FilesChanged]:
        if not self._open:
            return []
        self._attribute(self._open[-1])
        found = [one for mark in self._open if (one := self._new_changes(mark)) is not None]
        for mark in self._open:  # from here on it is accounted for anew; the earlier note counts until that is stored
            mark.earlier_notes.append(mark.note)
            mark.note = self._new_note()
            CallNote(mark.call_id, None, self._linked_indexes(mark.note)).write(mark.note)
        return found

    def _new_changes(self, mark: Mark) -> FilesChanged | None:
        """The changes of a call since they were asked for last."""
        changes, mark.found = _as_changes(mark.found), {}
        left_out = tuple(dict.fromkeys((*mark.left_out, *self._skipped_paths())))
        return FilesChanged(mark.call_id, changes, is_exact=False, left_out=left_out) if changes else None

    def _skipped_paths(self) -> tuple[str, ...]:
        """The paths that are not looked at now, as `PATH: why`."""
        found = [(f"{index.root}/{path}", why) for index in self._every_index() for path, why in index.left_out.items()]
        more = (f"{len(found) - _MAX_NAMED} more paths",) if len(found) > _MAX_NAMED else ()
        return (*(f"{stored_path(path)}: {why}" for path, why in sorted(found)[:_MAX_NAMED]), *more)

    def _attribute(self, mark: Mark | None) -> None:
        """Bring the indexes up to date; what is new in them was done by a call, or by the person.

        A file that a job has changed before is still its doing, whatever else runs beside it.
        """
        if self._too_many:  # it is not looked for at each command again
            raise TooManyFiles(self._too_many)
        for index in self._every_index():
            try:
                found = index.refresh()
            except TooManyFiles as error:
                self._too_many = str(error)
                raise
            for path, (before, now) in found.items():
                whole = f"{index.root}/{path}"
                owner = next((other for other in self._open if whole in other.found), mark)
                if owner is not None:
                    owner.found[whole] = (owner.found.get(whole, (before, now))[0], now)

    def _every_index(self) -> list[FolderIndex]:
        if self._indexes is None:
            roots = [str(root) for root in self._find_roots()]
            outermost = [root for root in roots if not any(root.startswith(f"{other}/") for other in roots)]
            self._indexes = [self._index(root) for root in dict.fromkeys(outermost)]
        return self._indexes

    def _index(self, root: str, file: Path | None = None) -> FolderIndex:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        file = file or self.objects.folder / "indexes" / name
        return FolderIndex(Path(root), file, self.objects, self._limits, writable=self._find_roots())

    def _interrupted(self, told: Mapping[str, float]) -> list[FilesChanged]:
        """The changes to files that calls named, then those in the folders of the others.

        Whatever was changed later than shortly after the last sign of life was changed by somebody else.
        """
        notes: list[tuple[CallNote, int]] = []
        alive_ns: dict[str, int] = {}
        for file in sorted(self._notes.glob("*.json"), key=_number):  # the oldest first
            # One that cannot be read was being written: the call had not begun.
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                notes.append((note := CallNote.read(file), last_ns := file.stat().st_mtime_ns))
                alive_ns[note.call_id] = max(alive_ns.get(note.call_id, 0), last_ns)
        found: dict[str, FilesChanged] = {}
        for note, last_ns in notes:
            # A model may use an id again; an earlier note of a call began before this one.
            if told.get(note.call_id, 0.0) * 1e9 >= last_ns or note.call_id in found:
                continue
            differences: dict[str, Difference] = {}
            for path, before in (note.before or {}).items():
                differences[real_path(path)] = (before, self._state(real_path(path)))
            for root, name in note.indexes.items():
                index = self._index(real_path(root), self._notes / name)
                with contextlib.suppress(TooManyFiles):
                    differences |= {f"{index.root}/{path}": both for path, both in index.refresh().items()}
            own = dict(_without_later(differences, alive_ns[note.call_id] + _AFTERLIFE_NS, note.finished))
            if changes := _as_changes(own):
                found[note.call_id] = FilesChanged(note.call_id, changes, is_exact=note.before is not None)
        return [*found.values()]

    def _linked_indexes(self, note: Path) -> dict[str, str]:
        """Keep the indexes as they are now, by a second name; the next state of each is a new file."""
        names = {}
        make_private_folder(self._notes)
        for number, index in enumerate(self._every_index()):
            name = f"{note.stem}-{number}.index"
            try:
                os.link(index.file, self._notes / name)
            except FileNotFoundError:  # another program has removed it
                continue
            except OSError:  # a disk without hard links
                shutil.copyfile(index.file, self._notes / name)
            names[stored_path(index.root)] = name
        return names

    def _new_note(self) -> Path:
        return self._notes / f"{os.getpid()}-{next(self._numbers)}.json"

    def _forget(self, *notes: Path) -> None:
        for note in notes:
            for file in (note, *self._notes.glob(f"{note.stem}-*.index")):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others are under way
            self._notes.rmdir()

    def _state(self, path: str) -> FileState | None:
        return state_at(path, self.objects, largest=self._limits.max_file_bytes)


def _number(note: Path) -> tuple[int, ...]:
    return tuple(map(int, note.stem.split("-")))


def _without_later(
    found: dict[str, Difference], time_ns: int, finished: Mapping[str, int]
) -> Iterator[tuple[str, Difference]]:
    """The differences without what came later; what a file held before somebody else changed it nobody knows.

    `finished` are later times of some paths.
    """
    for path, (before, now) in found.items():
        try:
            changed_ns = os.lstat(path).st_ctime_ns if now is not None and now.kind != "folder" else 0
        except OSError:
            changed_ns = 0
        if changed_ns <= finished.get(stored_path(path), time_ns):
            yield path, (before, now)
        elif before is not None and now is not None:
            yield path, (before, FileState("file", now.mode))


def _as_changes(found: Mapping[str, Difference]) -> tuple[FileChange, ...]:
    return tuple(
        FileChange(stored_path(path), before, now) for path, (before, now) in sorted(found.items()) if before != now
    )


def _with_missing_folders(paths: Iterator[str]) -> Iterator[str]:
    """The paths and the folders around them that are not there yet, each once; nothing inside a repository's own."""
    seen = set()
    for path in paths:
        if ".git" in path.split("/"):
            continue
        around = [path]
        while (folder := str(Path(around[-1]).parent)) not in seen and not os.path.lexists(folder):
            around.append(folder)
        for one in reversed(around):
            if one not in seen:
                seen.add(one)
                yield one
