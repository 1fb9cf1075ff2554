"""Records the changes that a session's tool calls make to files.

The files that a call names are recorded before and after it. For a call that may change any file, the whole workspace
is recorded. Changes between two calls are taken to be the person's. Notes on disk list the calls under way, so that the
changes of a killed process are found when the session is opened again.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from agentcli.conversation.entries import FileChange, FilesChanged, FileState, stored_path, system_path
from agentcli.errors import ToolError
from agentcli.infra.changes.folder_index import Difference, FolderIndex, FolderTooLarge, SnapshotLimits, index_name
from agentcli.infra.changes.journal import CallNote, PrivateFolder
from agentcli.infra.changes.reverse import PlannedRestoration, plan_restoration
from agentcli.infra.changes.state import Objects, state_at
from agentcli.settings.files import make_private_folder

_HEARTBEAT_S = 0.5  # between two updates of a note's time
_END_TIMEOUT_NS = 1_500_000_000  # the commands of a killed process end within this time
_MAX_NAMED = 100  # left-out paths in a report

T = TypeVar("T")


class Mark(msgspec.Struct, kw_only=True):
    """A call under way, and the file of the note about it."""

    call_id: str
    note: Path
    before: dict[str, FileState | None] | None = None  # of the files it names; None if it may change any file
    unreported: dict[str, Difference] = {}  # its changes that were not returned yet, by path
    left_out: tuple[str, ...] = ()  # paths not covered when it began, as `PATH: why`


class Recorder(msgspec.Struct, eq=False, kw_only=True, dict=True):
    """Implements `Checkpoints` for the real paths of `roots`. `aclose` removes the `private` folder."""

    folder: Path
    roots: Callable[[], Sequence[Path]]
    session_id: str
    scratch: Path  # has the private folders in which undo prepares files
    private: PrivateFolder | None = None
    limits: SnapshotLimits = SnapshotLimits()

    def __post_init__(self) -> None:
        self.objects = Objects(self.folder)
        self._notes = self.folder / "under_way" / self.session_id
        self._indexes: list[FolderIndex] | None = None  # None until they are first needed
        self._open_marks: list[Mark] = []  # of calls under way that may change any file, the latest last
        # States of files after calls that named them, by path, since the indexes were last refreshed.
        self._edited: dict[str, FileState | None] = {}
        self._problem = ""  # why the workspace cannot be recorded, which no later call tries again
        self._heartbeat: asyncio.Task[None] | None = None  # shows in open notes until when their calls have run
        self._thread_lock = asyncio.Lock()  # held while a thread works
        self._note_numbers = itertools.count(1)

    async def begin(self, call_id: str, paths: Sequence[Path] | None) -> Mark:
        mark = Mark(call_id=call_id, note=self._notes / f"{os.getpid()}-{next(self._note_numbers):06}.json")
        try:
            await self._in_thread(lambda: self._begin(mark, paths))
        except BaseException:  # nobody will call `end`
            with contextlib.suppress(ToolError):
                await self.forget(mark)
            raise
        if self._open_marks and (self._heartbeat is None or self._heartbeat.done()):
            self._heartbeat = asyncio.create_task(self._send_heartbeats())
        return mark

    async def end(self, mark: Mark) -> FilesChanged | None:
        return await self._in_thread(lambda: self._end(mark))

    async def forget(self, mark: Mark | None) -> None:
        await self._in_thread(lambda: self._forget(mark))

    async def changes_in_progress(self) -> Sequence[FilesChanged]:
        return await self._in_thread(self._changes_in_progress)

    async def interrupted(self, logged: Mapping[str, float]) -> Sequence[FilesChanged]:
        return await self._in_thread(lambda: [*self._interrupted(logged)])

    def content(self, id: str) -> bytes:
        return self.objects.get(id)

    async def restoration(self, changes: Sequence[FileChange]) -> PlannedRestoration:
        plan = partial(plan_restoration, changes, self.objects, scratch=self.scratch, in_thread=self._in_thread)
        return await self._in_thread(partial(plan, max_bytes=self.limits.max_file_bytes))

    async def aclose(self) -> None:
        """End the heartbeat, and remove the private folder after work under way is done."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self.private is not None:
            await self._in_thread(self.private.close)

    def files_scanned(self) -> int:
        return sum(index.files_scanned for index in self._indexes or ())

    async def _send_heartbeats(self) -> None:
        """Touch the notes of calls under way, so that after a kill their times show which changes came later."""
        while self._open_marks:
            for mark in self._open_marks:
                with contextlib.suppress(OSError):  # the note was just removed
                    os.utime(mark.note)
            await asyncio.sleep(_HEARTBEAT_S)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run work in a thread, in order and to its end, even if the caller is cancelled. Raises `ToolError`."""

        async def in_order() -> T:
            async with self._thread_lock:
                try:
                    return await asyncio.to_thread(work)
                except (OSError, ValueError) as error:  # a ValueError is a name that cannot be stored
                    reason = getattr(error, "strerror", None) or error
                    raise ToolError(
                        f"The state of the files could not be stored in {self.objects.folder}: {reason}.",
                        kind="resource_error",
                    ) from error

        task = asyncio.create_task(in_order())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with contextlib.suppress(ToolError):
                await task
            raise

    def _begin(self, mark: Mark, paths: Sequence[Path] | None) -> None:
        """Record the files that a call names, or the whole workspace without `paths`, and write the call's note."""
        self.objects.make()
        if paths is not None:
            mark.before = {path: self._state(path) for path in _with_missing_folders(map(str, paths))}
            CallNote(mark.call_id, {stored_path(path): state for path, state in mark.before.items()}).write(mark.note)
        elif self._attribute_changes():  # changes until now are not those of this call
            mark.left_out = self._uncovered_paths()
            CallNote(mark.call_id, None, self._keep_index_files(mark.note)).write(mark.note)
            self._open_marks.append(mark)

    def _end(self, mark: Mark) -> FilesChanged | None:
        """Return the changes of a call: in the files that it named, or else in the whole workspace."""
        if mark.before is not None:
            now = {path: self._state(path) for path in mark.before}
            self._edited |= now  # reported here, so the next refresh must not attribute them to another call
            changes = _as_changes({path: (before, now[path]) for path, before in mark.before.items()})
            return FilesChanged(mark.call_id, changes) if changes else None
        try:
            if self._attribute_changes(mark):
                return self._take_unreported(mark)
        finally:
            self._open_marks = [other for other in self._open_marks if other is not mark]
        return FilesChanged(mark.call_id, (), is_exact=False, left_out=(f"everything: {self._problem}",))

    def _changes_in_progress(self) -> list[FilesChanged]:
        if not self._open_marks or not self._attribute_changes():
            return []
        return [changed for mark in self._open_marks if (changed := self._take_unreported(mark)) is not None]

    def _take_unreported(self, mark: Mark) -> FilesChanged | None:
        """Return the unreported changes of a call, which count as reported from now on; None if there are none."""
        changes, mark.unreported = _as_changes(mark.unreported), {}
        left_out = tuple(dict.fromkeys((*mark.left_out, *self._uncovered_paths())))
        return FilesChanged(mark.call_id, changes, is_exact=False, left_out=left_out) if changes else None

    def _uncovered_paths(self) -> tuple[str, ...]:
        left_out = [
            (f"{each.root}/{path}", why) for each in self._all_indexes() for path, why in each.state.left_out.items()
        ]
        more = (f"{len(left_out) - _MAX_NAMED} more paths",) if len(left_out) > _MAX_NAMED else ()
        return (*(f"{stored_path(path)}: {why}" for path, why in sorted(left_out)[:_MAX_NAMED]), *more)

    def _attribute_changes(self, mark: Mark | None = None) -> bool:
        """Refresh the indexes, and attribute the changes to `mark`, else to the latest open call, else to the person.

        A file that another open call, such as a background job, has changed before is attributed to that call.
        Return False if an index cannot be refreshed; later calls do not try it again.
        """
        mark = mark or next(reversed(self._open_marks), None)
        edited, self._edited = self._edited, {}  # by path: its state after a call that named it
        for index in self._all_indexes() if not self._problem else ():
            try:
                differences = index.refresh()
            except (FolderTooLarge, ToolError) as error:
                self._problem = str(error)
                break
            for relative_path, (before, now) in differences.items():
                path = f"{index.root}/{relative_path}"
                before = edited.get(path, before)  # edits that another call reported are not this call's
                changed_by = next((other for other in self._open_marks if path in other.unreported), mark)
                if changed_by is not None and before != now:
                    before_first, _ = changed_by.unreported.get(path, (before, now))  # before the first of its changes
                    changed_by.unreported[path] = before_first, now
        return not self._problem

    def _all_indexes(self) -> list[FolderIndex]:
        if self._indexes is None:
            roots = [str(root) for root in self.roots()]
            outermost = [root for root in roots if not any(root.startswith(f"{other}/") for other in roots)]
            folder = self.objects.folder / "indexes"
            self._indexes = [self._new_index(root, folder / index_name(root)) for root in dict.fromkeys(outermost)]
        return self._indexes

    def _new_index(self, root: str, file: Path) -> FolderIndex:
        return FolderIndex(Path(root), file, self.objects, self.limits, writable=self.roots())

    def _interrupted(self, logged: Mapping[str, float]) -> Iterator[FilesChanged]:
        """Yield changes by killed calls that the log lacks; `logged` has when it got those of a call (Unix time)."""
        for file in sorted(self._notes.glob("*.json")):  # the oldest first
            try:
                note, last_ns = CallNote.read(file), file.stat().st_mtime_ns
            except (OSError, msgspec.MsgspecError):  # the kill came while the note was written, before the call began
                continue
            # The log has these changes already. A newer note with this id is another call's: models may reuse an id.
            if logged.get(note.call_id, 0.0) * 1e9 >= last_ns:
                continue
            differences = {path: (state, self._state(path)) for path, state in _by_system_path(note.before or {})}
            for root, name in _by_system_path(note.indexes):
                index = self._new_index(root, self._notes / name)
                with contextlib.suppress(FolderTooLarge):
                    since_call_began = index.refresh(saves=False)
                    differences |= {f"{root}/{path}": difference for path, difference in since_call_began.items()}
            if changes := _as_changes(dict(_own_differences(differences, last_ns + _END_TIMEOUT_NS, note.finished))):
                yield FilesChanged(note.call_id, changes, is_exact=note.before is not None)

    def _keep_index_files(self, note: Path) -> dict[str, str]:
        """Keep the roots' index files for `_interrupted`, and return the kept files' names, by root."""
        names = {}
        make_private_folder(self._notes)
        for number, index in enumerate(self._all_indexes()):
            names[stored_path(index.root)] = name = f"{note.stem}-{number}.index"
            try:  # a link keeps the file's content, because the next refresh puts a new file in its place
                os.link(index.file, self._notes / name)
            except OSError:  # a disk without hard links
                shutil.copyfile(index.file, self._notes / name)
        return names

    def _forget(self, mark: Mark | None) -> None:
        """Remove the note and the kept index files of a call, or of all calls of the session if `mark` is None."""
        self._open_marks = [other for other in self._open_marks if other is not mark]
        for file in self._notes.glob(f"{mark.note.stem}*" if mark else "*"):
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other calls are under way
            self._notes.rmdir()

    def _state(self, path: str) -> FileState | None:
        return state_at(path, self.objects, max_bytes=self.limits.max_file_bytes)


def _by_system_path(stored: Mapping[str, T]) -> list[tuple[str, T]]:
    return [(system_path(path), value) for path, value in stored.items()]


def _own_differences(
    differences: dict[str, Difference], end_ns: int, finished: Mapping[str, int]
) -> Iterator[tuple[str, Difference]]:
    """Yield a call's differences, by path, without those that others made after it ended at `end_ns`.

    If a later start of agentcli applied the change of a path, the time of that in `finished` counts as the end. The
    times of folders and removed files do not show when they changed, so all their differences are included.
    """
    for path, (before, now) in differences.items():
        try:
            changed_ns = os.lstat(path).st_ctime_ns if now is not None and now.kind != "folder" else 0
        except OSError:
            changed_ns = 0
        if changed_ns <= finished.get(stored_path(path), end_ns):
            yield path, (before, now)
        elif before is not None and now is not None:
            # Somebody changed the file later. Its state after the call is unknown, so the result has no content.
            yield path, (before, FileState("file", now.mode))


def _as_changes(differences: Mapping[str, Difference]) -> tuple[FileChange, ...]:
    by_path = sorted(differences.items())
    return tuple(FileChange(stored_path(path), before, now) for path, (before, now) in by_path if before != now)


def _with_missing_folders(paths: Iterable[str]) -> list[str]:
    """Return the paths and the missing folders around them, each once; nothing in a `.git`, which undo leaves alone."""
    paths_and_folders: dict[str, None] = {}
    for path in paths:
        if ".git" not in path.split("/"):
            missing = itertools.takewhile(lambda folder: not os.path.lexists(folder), Path(path).parents)
            paths_and_folders |= dict.fromkeys(reversed([path, *map(str, missing)]))  # outer folders first
    return [*paths_and_folders]
