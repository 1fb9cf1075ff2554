"""Reverts the changes that commands made to auto-executed files, if the backend cannot prevent them.

Landlock grants whole folders: a command that may write the workspace may write its git hooks as well. The states of all
protected paths are therefore recorded before the first of the commands that run at the same time, and each time one
has ended, every difference is reverted. Contents are kept in memory, because commands could change a store on the disk.
Jobs may move folders and put links in their places, so folders are held open, and paths are reached from these. After a
kill the keeper reverts, or else the next start of agentcli.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import heapify, heappop, heappush
from pathlib import Path
from posixpath import basename, dirname

from agentcli.infra.sandbox.confinement import Protection, is_inside
from agentcli.infra.sandbox.mount_points import LIST_NAME, PROTECTED, CleanupNote, locked, real_path, remove_listed
from agentcli.infra.sandbox.protection.held_folders import HeldFolder, HeldFolders, KeptState, identity_of
from agentcli.infra.sandbox.scan import Scan
from agentcli.safety.paths.judge import is_read_only_name
from agentcli.settings.files import replace_file
from agentcli.tools.command import Reverts

MAX_ENTRIES = 10_000
MAX_BYTES = 16_000_000  # of contents
_MAX_DEPTH = 200  # folders
_PATIENCE_S = 15.0  # the keeper of a killed session takes no longer to end its commands

_GONE = {errno.ENOENT, errno.ENOTDIR}  # ENOTDIR also means that a link has replaced a folder
_EXECUTABLE = 0o7111  # with the set-user-ID, set-group-ID and sticky bits
_NOT_RECORDED = KeptState("file", 0, is_kept=False)  # of a path beyond the limits, whatever is there


class ProtectedSnapshot:
    """The protected paths of one workspace while commands run.

    Before a path is restored, what a command put there is moved to the folder `aside`. The snapshot is saved beside the
    session's cleanup note, if there is one, so that changes can be reverted after a kill too.
    """

    def __init__(self, aside: Path | str, note: CleanupNote | None = None) -> None:
        self._aside = os.path.realpath(aside)
        self._roots: Sequence[str] = ()  # set by `reverting`; what is on another disk is moved into one of them
        self._file = note.path.with_name(PROTECTED) if note is not None else None  # where it is saved
        self._held = HeldFolders()  # the folders around protected paths
        self._recorded: dict[str, KeptState | None] = {}  # the states to restore; None for paths that did not exist
        self._free_bytes = MAX_BYTES  # the room for contents of further files
        self._running: list[Sequence[str]] = []  # the granted paths of each command that runs
        self._left_out: set[str] = set()  # folders with files whose contents are not kept
        self._reported: set[str] = set()  # folders in `_left_out` that a report has named

    @contextmanager
    def reverting(self, protection: Protection, *, roots: Sequence[Path], granted: Sequence[Path]) -> Iterator[Reverts]:
        """Revert a command's changes outside `granted` paths when the context is left; the report is complete then."""
        report, grants = Reverts(), [*map(str, granted)]
        self._roots = [*map(str, roots)]
        self._record(protection)
        report.unwatched += sorted(self._left_out - self._reported)
        self._reported |= self._left_out
        self._running.append(grants)
        self._save()
        try:
            yield report
        finally:
            self._running.remove(grants)
            for path in grants:
                self._accept_granted(path)
            self._revert_and_save(report)

    def close(self) -> bool:
        """Revert the remaining changes; return False if the next start must try again with the saved snapshot."""
        if self._recorded and not self._running:
            self._revert_and_save(Reverts())
        return not self._recorded

    def accept_write(self, path: str, content: bytes) -> None:
        """From now on, revert a file to the content that the person approved; still move other new files aside."""
        new_folders = self._new_folders_around(path)
        if new_folders is not None:  # else no folder around it is recorded, so nothing there is reverted
            self._recorded |= {folder: self._acceptable_state(folder, "folder") for folder in new_folders}
            state = self._acceptable_state(path, "file")
            self._recorded[path] = state._replace(content=content.decode("latin-1"), is_kept=True)
        self._save()

    @contextmanager
    def accepting(self, plan: Callable[[], Protection]) -> Iterator[None]:
        """Accept all changes while the context is open, for a command that the person allowed outside the sandbox."""
        # Earlier changes of confined commands are still reverted; if that fails, it is tried again later.
        self._forget_all_but(self._revert(Reverts()))
        self._remove_saved()  # so that after a kill no change is reverted that the person may have allowed
        try:
            yield
        finally:
            if self._running:  # confined commands: their changes from now on are reverted
                self._record(plan())
            self._save()

    def revert_from(self, file: Path) -> Reverts:
        """Revert what a killed session changed, by its snapshot in `file`; save what failed and the report there."""
        try:
            saved = json.loads(file.read_text())
            self._aside, *self._roots = saved["asides"]
            self._running = [saved["granted"]]
            self._recorded = {path: state and KeptState(*state) for path, state in saved["before"].items()}
            held = {  # with -1 as the descriptor, because they are not open in this process
                path: HeldFolder(-1, tuple(identity), tuple(parent), mode)
                for path, (_, identity, parent, mode) in saved["held"].items()
            }
        except (FileNotFoundError, ValueError, KeyError):  # missing, incomplete, or from another version
            return Reverts()
        known_paths = (*self._recorded, *held)
        for path, before in held.items():
            self._held.reopen(path, before, known_paths)
        # Commands may have moved folders: those that are not at their old paths are searched in the roots by inode.
        missing = {before.identity[1]: path for path, before in held.items() if path not in self._held}
        for root in self._roots if missing else ():
            for found_at, folder in Scan().folders(root).items():
                inode, _ = folder.stamp
                if path := missing.get(inode, ""):
                    self._held.reopen(path, held[path], known_paths, found_at)
        report = Reverts(saved["report"])
        self._forget_all_but(self._revert(report))
        self._save_to(file, report.reverted)
        return report

    def _revert_and_save(self, report: Reverts) -> None:
        failed = self._revert(report)
        if not self._running:
            self._forget_all_but(failed)
        self._save()

    @property
    def _granted(self) -> list[str]:
        return [path for command in self._running for path in command]

    def _record(self, protection: Protection) -> None:
        """Record the paths that are not recorded yet, and hold the folders around them."""
        paths = (*protection.read_only, *protection.missing_folders, *protection.missing_files)
        for path in sorted({*self._roots, *protection.writable, *map(dirname, paths)}):
            if path not in self._held:
                with suppress(OSError):
                    self._held[path] = self._held.open_at(path)
        self._record_paths(paths)

    def _record_paths(self, paths: Sequence[str]) -> None:
        """Record paths and everything below them, within the limits."""
        # Paths by rank: the rank of the folder around, plus the number in that folder. The first entries of all folders
        # come before later ones, so that a single folder cannot use up the limits.
        waiting = [(0, path) for path in paths]
        heapify(waiting)
        while waiting:
            rank, path = heappop(waiting)
            if path in self._recorded:  # already recorded; a command may have changed it since then
                continue
            children: Sequence[str] = ()
            try:
                state = self._held.state_at(path, self._free_bytes)
                if state is not None and (len(self._recorded) >= MAX_ENTRIES or path.count("/") > _MAX_DEPTH):
                    state = _NOT_RECORDED
                elif state is not None and state.kind == "folder":
                    children = self._held.paths_in(path)
            except OSError as error:
                state = None if error.errno in _GONE else _NOT_RECORDED
            self._recorded[path] = state
            if state is not None:
                self._free_bytes -= len(state.content)
                if not state.is_kept:
                    self._left_out.add(dirname(path))
            # Short names first, because settings have short names, and generated files long ones with numbers.
            for number, child in enumerate(sorted(children, key=len), rank + 1):
                heappush(waiting, (number, child))

    def _accept_granted(self, path: str) -> None:
        """Accept what a command did at a path that was granted to it: record the new state, and new folders around."""
        # `_record_paths` skips recorded paths, so those at and below this one are taken out first.
        recorded = {each for each in self._recorded if is_inside(each, path)}
        self._recorded = {each: state for each, state in self._recorded.items() if each not in recorded}
        self._record_paths([*recorded])
        new_folders = self._new_folders_around(path)
        if new_folders is not None:  # else no folder around it is recorded, so nothing there is reverted
            self._record_paths([path])
            self._recorded |= {folder: self._acceptable_state(folder, "folder") for folder in new_folders}

    def _new_folders_around(self, path: str) -> list[str] | None:
        """Return the unrecorded folders between a recorded one and a path; None if no recorded one is around it."""
        new_paths = [path]  # the path and the new folders around it, the outermost first
        while new_paths[0] not in self._recorded and self._recorded.get(dirname(new_paths[0])) is None:
            if new_paths[0] == "/":
                return None
            new_paths.insert(0, dirname(new_paths[0]))
        return new_paths[:-1]

    def _acceptable_state(self, path: str, kind: str) -> KeptState:
        """Return the recorded state of a file or folder or, if none of that kind is recorded, a new one for it."""
        state = self._recorded.get(path)
        if state is not None and state.kind == kind:
            return state
        with suppress(OSError):
            state = self._held.state_at(path)
        mode = state.mode if state is not None and state.kind == kind else 0o755
        # A command may have set this mode: it must not make a new file executable, or a folder inaccessible.
        return KeptState(kind, mode & ~_EXECUTABLE if kind == "file" else mode | stat.S_IRWXU)

    def _revert(self, report: Reverts) -> list[str]:
        """Restore all recorded paths that differ; return those that could not be restored."""
        failed: list[str] = []
        for step, paths in ((self._restore_folder, self._held), (self._restore_if_changed, self._recorded)):
            for path in sorted(paths):  # outer paths first
                try:
                    step(path, report)
                except OSError as error:
                    if error.errno not in _GONE:  # without the folder around it, no program finds the path
                        failed.append(path)
                        report.not_reverted.append(f"{path} ({error.strerror})")
        return failed

    def _restore_folder(self, path: str, report: Reverts) -> None:
        """Move a held folder back to its path if a command moved it away; release one that was removed."""
        held = self._held[path]
        held.restore_access()
        folder_now = f"/proc/self/fd/{held.descriptor}"
        name_now = basename(os.readlink(folder_now))  # noqa: PTH115
        is_removed = name_now.endswith(" (deleted)")  # the kernel adds this; a real name may end so, too
        with suppress(FileNotFoundError):
            is_removed = is_removed and identity_of(os.lstat(f"{folder_now}/../{name_now}")) != held.identity
        if is_removed:
            self._held.release(path)
        with self._held.open_parent(path) as (folder, name):
            if is_removed:  # what was in it is restored by `_restore_if_changed`, also in a new folder at the path
                replacement = self._held.state_at(path)
                if replacement is not None and replacement.kind == "link":  # files would be restored at its target
                    self._move_aside(path, report)
                return
            is_moved = name_now != name or identity_of(os.stat(f"{folder_now}/..")) != held.parent  # noqa: PTH116
            # Only protected names are restored, and not for a folder that moved together with the one around it.
            if is_moved and is_read_only_name(name) and identity_of(os.fstat(folder)) == held.parent:
                self._move_aside(path, report)
                os.rename(f"{folder_now}/../{name_now}", name, dst_dir_fd=folder)
                _add_to_report(report, path)

    def _restore_if_changed(self, path: str, report: Reverts) -> None:
        """Restore a recorded path if it has changed, unless the change was granted."""
        recorded, granted = self._recorded[path], self._granted
        if recorded == _NOT_RECORDED or any(is_inside(path, each) for each in granted):
            return  # its state is unknown, or a running command was allowed to change it
        if recorded is not None and not recorded.is_kept:
            now = self._held.state_at(path, -1)  # -1: with the file's stamp instead of its content, as in `recorded`
            if now != recorded:
                self._recorded[path] = now  # so that this change is reported only once
                report.not_reverted.append(f"{path} (there was no room to keep a copy of it)")
            return
        now = self._held.state_at(path, MAX_BYTES)
        if recorded is not None and now is not None and recorded.kind == now.kind == "folder":
            if now.mode != recorded.mode:
                self._held.set_mode(path, recorded.mode)
                _add_to_report(report, path)
            for below in self._held.paths_in(path):  # what is new in a protected folder might be executed
                if below not in self._recorded and not any(is_inside(each, below) for each in granted):
                    self._move_aside(below, report)
        elif now != recorded:
            self._move_aside(path, report)
            if recorded is not None:
                self._held.create(path, recorded)
                _add_to_report(report, path)

    def _move_aside(self, path: str, report: Reverts) -> None:
        """Move a path to a name under which no program executes it, instead of deleting it: it may be the only copy."""
        now = self._held.state_at(path)
        if now is None:
            return
        if now.kind == "folder":  # a folder without permissions could not be moved
            self._held.set_mode(path, now.mode | stat.S_IRWXU)
        folders = (self._aside, *self._roots)
        for folder in folders:
            aside = f"{folder}/agentcli-put-aside-{secrets.token_hex(4)}"
            try:
                self._held.move_into_new_folder(aside, path)
            except OSError:  # it is on another disk, or cannot be written: then the path is moved into a root
                if folder == folders[-1]:
                    raise
            else:
                _add_to_report(report, path, f" (what stood there is in {aside})")
                return

    def _forget_all_but(self, failed: Sequence[str]) -> None:
        """Forget the recorded states, except those at and below the `failed` paths."""
        self._recorded = {p: state for p, state in self._recorded.items() if any(is_inside(p, top) for top in failed)}
        self._free_bytes = MAX_BYTES - sum(len(state.content) for state in self._recorded.values() if state is not None)
        if not self._recorded:
            self._held.release(*self._held)

    def _save(self) -> None:
        """Save the snapshot for after a kill, or remove the saved one. On a full disk commands run without it."""
        is_exposed = any(is_inside(str(self._file), path) for path in (*self._roots, *self._granted))
        if not self._recorded or is_exposed:  # there is nothing to revert, or commands could write the saved file
            self._remove_saved()
        elif self._file is not None:
            with suppress(OSError):
                self._save_to(self._file)

    def _remove_saved(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()

    def _save_to(self, file: Path, report: Sequence[str] = ()) -> None:
        states = {"held": self._held, "before": self._recorded, "granted": self._granted, "report": report}
        # The standard library escapes lone surrogates in names; msgspec rejects them.
        replace_file(file, json.dumps({"asides": (self._aside, *self._roots), **states}).encode(), syncs=False)


def _add_to_report(report: Reverts, path: str, remark: str = "") -> None:
    """Add a restored path to the report; without a remark only if it and the folders around it are not in it yet."""
    reported = {each.partition(" (what stood")[0] for each in report.reverted}
    if remark or not any(is_inside(path, each) for each in reported):
        report.reverted.append(f"{path}{remark}")


def clean_up_killed_sessions(notes_folder: Path) -> Reverts:
    """Revert the changes of killed sessions, once their keepers have ended their commands. Raises nothing."""
    reverts = Reverts()
    for folder in sorted(notes_folder.glob("*")):
        with suppress(OSError), locked(folder):
            if any(folder.iterdir()):  # an empty folder belongs to a session that is just starting
                with locked(folder / LIST_NAME, _PATIENCE_S):
                    reverts.add(found := _clean_up_session(folder))
                    if not found.not_reverted:
                        shutil.rmtree(folder, ignore_errors=True)
    return reverts


def main() -> None:
    """Clean up as the keeper of a killed session; the argument is the descriptor of its `CleanupNote`."""
    folder = Path(real_path(int(sys.argv[1]))).parent
    if _clean_up_session(folder) == Reverts():  # otherwise the next start has something to report
        shutil.rmtree(folder, ignore_errors=True)


def _clean_up_session(folder: Path) -> Reverts:
    remove_listed(folder / LIST_NAME)
    return ProtectedSnapshot("/").revert_from(folder / PROTECTED)
