"""Reverts what commands change of auto-executed files where nothing could keep them from it.

Landlock grants whole folders: a command that may write the workspace may write its git hooks as well. So the states of
all protected places are taken before the first of the commands that run at the same time, and what differs is reverted
each time one has ended.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import astuple

from agentcli.conversation.file_changes import FileState
from agentcli.infra.changes.state import entry_at, names_in
from agentcli.infra.sandbox.git.folders import NO_CONFIGURATION
from agentcli.infra.sandbox.mounts.mount_points import COMMON_FOLDER_IS_HERE, PROTECTED, SessionNote
from agentcli.infra.sandbox.mounts.protect_plan import Protection, is_inside
from agentcli.infra.sandbox.protection.git_settings import adds_only_remotes
from agentcli.infra.sandbox.protection.held_folders import (
    Contents,
    HeldFolder,
    HeldFolders,
    above,
    blob_id,
    by_descriptor,
    change_mode,
    make,
    name_of,
    path_of,
    place_of,
    state_in,
    unlock,
)
from agentcli.safety.paths.judge import is_read_only_name
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.tools.command import Reverts

MAX_ENTRIES = 20_000
MAX_ENTRIES_OF_ONE = 5_000  # of a single place, so that one repository leaves room for the others
MAX_BYTES = 16_000_000
MAX_DEPTH = 200  # folders

_UNKNOWN = FileState("file", 0)  # something was there, for whose state there was no room
_EXECUTABLE = 0o7111
_NOTHING = (COMMON_FOLDER_IS_HERE, NO_CONFIGURATION)  # what a mount point that is a file holds
_LARGEST_NOTHING = max(map(len, _NOTHING))
# Settings and hooks (githooks(5)) come first: programs obey them at once. Then folders of them.
_FIRST = (
    re.compile(
        r"(?:settings|config|tasks|launch|mcp|hooks|extensions)(?:[.-].*)?|.+\.toml|[a-z]+(?:-[a-z]+)+|update",
        re.IGNORECASE,
    ),
    re.compile(r"hooks|commands|agents|plugins|rules|skills", re.IGNORECASE),
)


class ProtectedSnapshot:
    """The protected places of one workspace while commands run.

    `aside` is where a command's version of a reverted file goes. The snapshot is written beside `note`, where there is
    one: whoever finds it there after a kill reverts by it.
    """

    def __init__(self, aside: Path | str, note: SessionNote | None = None) -> None:
        self._asides: Sequence[str] = (os.path.realpath(aside),)  # then the roots
        self._file = note.path.with_name(PROTECTED) if note is not None else None
        self._held = HeldFolders()
        self._before: dict[str, FileState | None] = {}  # None where nothing may be made
        self._contents = Contents()
        self._entries, self._room = MAX_ENTRIES, MAX_BYTES
        self._running: list[Sequence[str]] = []  # what each command that runs was granted
        self._left_out: set[str] = set()
        self._stamps: dict[str, tuple[int, ...]] = {}  # of files whose states are not known
        self._reported: set[str] = set()  # of those that are left out

    @contextmanager
    def during(self, protection: Protection, *, roots: Sequence[Path], granted: Sequence[Path]) -> Iterator[Reverts]:
        """Yield a record that in the end names what was reverted, and what could not be.

        What was `granted` to the command may be changed by it, and stays so.
        """
        report, mine = Reverts(), [*map(str, granted)]
        self._asides = (self._asides[0], *map(str, roots))
        self._take(protection)
        report.unguarded += sorted(self._left_out - self._reported)
        self._reported |= self._left_out
        self._running.append(mine)
        self._write()
        try:
            yield report
        finally:
            self._running.remove(mine)
            for path in mine:
                self._take_again(path)
            self._end(report)

    def retry(self) -> Reverts:
        """Revert what could not be after the last command, before the next is planned by what is there."""
        report = Reverts()
        if self._before and not self._running:
            self._end(report)
        return report

    def unguarded_folders(self, protection: Protection) -> list[str]:
        """The folders in which there is more than can be reverted: what commands change there stays."""
        self._take(protection)
        self._forget_all_but(())
        return sorted(self._left_out)

    def accept(self, path: str, content: bytes) -> None:
        """Take what the person agreed to for what was before, whatever commands put beside it or in its place."""
        way = [path]
        while way[0] not in self._before and self._before.get(above(way[0])) is None:
            if way[0] == "/":
                return
            way.insert(0, above(way[0]))
        for each in way:
            kind, mode = ("file", 0o644) if each == path else ("folder", 0o755)
            known, now = self._before.get(each), None
            with suppress(OSError):
                now = self._held.state(each, Contents(), 0)
            if known is not None and known.kind == kind:
                mode = known.mode
            elif now is not None and now.kind == kind:  # no command makes a new one executable
                mode = now.mode & ~_EXECUTABLE if each == path else now.mode | stat.S_IRWXU
            self._before[each] = FileState("folder", mode)
        self._before[path] = FileState("file", mode, self._contents.put_bytes(content), len(content))
        self._write()

    @contextmanager
    def accepting(self, plan: Callable[[], Protection]) -> Iterator[None]:
        """Accept whatever changes meanwhile: a command runs that the person let out of the sandbox."""
        self._forget_all_but(self._revert(Reverts()))
        self._retire_note()  # what the person allowed is not to be reverted, even if that lets more stay
        try:
            yield
        finally:
            if self._running:
                self._take(plan())
            self._write()

    def close(self) -> bool:
        """Revert what is left; False where the next start has to try again, by the note."""
        self.retry()
        return not self._before

    def _end(self, report: Reverts) -> None:
        failed = self._revert(report)
        if not self._running:
            self._forget_all_but(failed)
        self._write()

    @property
    def _granted(self) -> list[str]:
        return [path for command in self._running for path in command]

    def _take(self, protection: Protection) -> None:
        """Take down what is not known yet."""
        missing = (*protection.missing_folders, *protection.missing_files)
        around = map(above, (*protection.read_only, *missing))
        for path in sorted({*self._asides[1:], *protection.writable, *around}):
            self._held.hold(path)
        for path in protection.read_only:
            self._take_place(path, MAX_ENTRIES_OF_ONE)
        for path in missing:
            with suppress(PermissionError):  # what is kept from us is kept from commands
                if path not in self._before and _is_nothing(self._held.state(path, Contents(), _LARGEST_NOTHING)):
                    self._before[path] = None

    def _take_place(self, path: str, entries: int) -> int:
        """Take down a place and what is in it, up to so many entries; how many are left."""
        if path in self._before:  # what is there by now a command may have made
            return entries
        names: Sequence[str] = ()
        try:
            state = self._held.state(path, self._contents, self._room)
            if state is not None and state.kind == "folder":
                with self._held.opened(path) as folder:
                    names = names_in(by_descriptor(folder))
        except OSError:
            state = _UNKNOWN
        is_beyond_limits = min(entries, self._entries) <= 0 or path.count("/") > MAX_DEPTH
        if state is not None and (is_beyond_limits or not state.is_stored):
            self._left_out.add(above(path))
            self._before[path] = _UNKNOWN
            if not is_beyond_limits:
                self._stamps[path] = self._stamp(path)
            return entries
        self._before[path] = state
        self._entries -= 1
        self._room -= state.size if state is not None else 0
        entries -= 1
        for name in sorted(names, key=_rank):
            entries = self._take_place(f"{path}/{name}", entries)
        return entries

    def _take_again(self, path: str) -> None:
        """Take down as it is now what was granted, with the outermost thing around it that was missing."""
        way = [path[:end] for end in range(1, len(path)) if path[end] == "/"]
        top = next((each for each in way if each in self._before and self._before[each] is None), path)
        known = [each for each in self._before if is_inside(each, top)]
        if known or above(top) in self._before:
            for each in known:
                del self._before[each]
            self._take_place(top, MAX_ENTRIES_OF_ONE)

    def _revert(self, report: Reverts) -> list[str]:
        """Make everything what it was before; gives the paths at which that failed."""
        failed: list[str] = []
        for step, paths in ((self._find, self._held), (self._compare, self._before)):
            for path in sorted(paths):
                try:
                    step(path, report)
                except OSError as error:
                    failed.append(path)
                    report.left_changed.append(f"{path} ({error.strerror})")
        return failed

    def _find(self, path: str, report: Reverts) -> None:
        """Find a held folder, and bring it back where something else could pass for it now."""
        held, name = self._held[path], name_of(path)
        held.let_in()
        if held.is_removed():  # what is there instead is compared like the old one
            self._held.drop(path)
            now = self._held.state(path, Contents(), 0)
            if now is not None and now.kind == "link":
                with self._held.opened(above(path)) as folder:
                    self._move_aside(folder, name, report)
        elif is_read_only_name(name) and not held.is_in_place(name):
            with suppress(FileNotFoundError, NotADirectoryError), self._held.opened(above(path)) as folder:
                if place_of(os.fstat(folder)) == held.around:  # else it went with the folder around it
                    self._move_aside(folder, name, report)
                    os.rename(held.by_path(f"../{held.name}"), name, dst_dir_fd=folder)
                    _add(report, path)

    def _compare(self, path: str, report: Reverts) -> None:
        name, want, granted = name_of(path), self._before[path], self._granted
        if any(is_inside(path, each) for each in granted):
            return
        if want == _UNKNOWN:
            stamp = self._stamp(path) if path in self._stamps else ()
            if stamp != self._stamps.get(path, ()):
                self._stamps[path] = stamp
                report.left_changed.append(f"{path} (there was no room to keep a copy of it)")
            return
        # Without the folder around it, or with a link in its place, nothing obeys what is there.
        with suppress(FileNotFoundError, NotADirectoryError), self._held.opened(above(path)) as folder:
            contents = Contents()
            largest = want.size if want is not None else _LARGEST_NOTHING
            now = state_in(folder, name, contents, MAX_BYTES if name == "config" else largest)
            if want is not None and now is not None and want.kind == now.kind == "folder":
                if now.mode != want.mode:
                    change_mode(folder, name, want.mode)
                    _add(report, path_of(folder, name))
                with self._held.opened(path) as inside:
                    for extra in names_in(by_descriptor(inside)):
                        below = f"{path}/{extra}"
                        if below not in self._before and not any(is_inside(each, below) for each in granted):
                            self._move_aside(inside, extra, report)
            elif now != want and not (
                _is_nothing(now) if want is None else self._is_harmless(name, now, want, contents)
            ):
                self._move_aside(folder, name, report)
                if want is not None:
                    make(folder, name, want, self._contents.kept.get(want.content, b""))
                    _add(report, path_of(folder, name))

    def _stamp(self, path: str) -> tuple[int, ...]:
        """The stamp of a file; empty where none can be seen."""
        with suppress(OSError), self._held.opened(above(path)) as folder:
            entry = entry_at(name_of(path), folder=folder)
            return entry.stamp if entry is not None else ()
        return ()

    def _is_harmless(self, name: str, now: FileState | None, want: FileState, contents: Contents) -> bool:
        """True for a git configuration in which no more changed than `git push -u` and `git remote add` write."""
        if name != "config" or now is None or not (now.kind == want.kind == "file" and now.mode == want.mode):
            return False
        return now.is_stored and adds_only_remotes(self._contents.kept[want.content], contents.kept[now.content])

    def _move_aside(self, folder: int, name: str, report: Reverts) -> None:
        """Move what is there, on the same disk, to a name at which nothing obeys it: it may be the only copy."""
        if not unlock(folder, name):
            return
        with suppress(OSError):  # then it goes into a root
            make_private_folder(Path(self._asides[0]))
        for around in self._asides:
            aside = f"{around}/agentcli-put-aside-{secrets.token_hex(4)}"
            try:
                with self._held.opened(around) as outer:
                    os.mkdir(name_of(aside), 0o700, dir_fd=outer)
                    try:
                        with self._held.opened(aside) as inner:
                            os.rename(name, name.lstrip(".") or "_", src_dir_fd=folder, dst_dir_fd=inner)
                    except OSError:
                        os.rmdir(name_of(aside), dir_fd=outer)
                        raise
            except OSError:
                if around == self._asides[-1]:
                    raise
            else:
                _add(report, path_of(folder, name), f" (what stood there is in {aside})")
                return

    def _forget_all_but(self, failed: Sequence[str]) -> None:
        self._before = {p: state for p, state in self._before.items() if any(is_inside(p, top) for top in failed)}
        kept = {state.content for state in self._before.values() if state is not None}
        self._contents.kept = {id: content for id, content in self._contents.kept.items() if id in kept}
        self._entries = MAX_ENTRIES - len(self._before)
        self._room = MAX_BYTES - sum(map(len, self._contents.kept.values()))
        if not self._before:
            self._held.drop(*self._held)

    def _write(self) -> None:
        """Keep the note true. Where the disk takes none, commands run all the same."""
        can_be_written = any(is_inside(str(self._file), path) for path in (*self._asides[1:], *self._granted))
        if not self._before or can_be_written:  # there is nothing to revert, or commands could write what is to be
            self._retire_note()
        elif self._file is not None:
            with suppress(OSError):
                self._write_to(self._file, Reverts())

    def _retire_note(self) -> None:
        """Nothing is to be reverted while no command runs: what changes now, the person changed."""
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()

    def _write_to(self, file: Path, report: Reverts) -> None:
        note = {
            "asides": self._asides,
            "granted": self._granted,
            "held": {path: held[1:] for path, held in self._held.items()},
            "before": {path: astuple(state) if state else None for path, state in self._before.items()},
            "contents": {id: content.decode("latin-1") for id, content in self._contents.kept.items()},
            "report": report.put_back,
        }
        text = json.dumps(note)  # names that are no text are escaped, where msgspec refuses them
        replace_file(file, text.encode(), syncs=False)

    def revert_by(self, file: Path) -> Reverts:
        """Revert by the note of a killed session, in which stays what is to be tried again, and the report."""
        try:
            note = json.loads(file.read_text())
        except (FileNotFoundError, ValueError):  # none, or the machine went down before it was whole
            return Reverts()
        self._asides, self._running = note["asides"], [note["granted"]]
        self._before = {path: FileState(*state) if state else None for path, state in note["before"].items()}
        self._contents.kept = {id: text.encode("latin-1") for id, text in note["contents"].items()}
        held = {
            path: HeldFolder(-1, tuple(place), tuple(around), mode)
            for path, (place, around, mode) in note["held"].items()
        }
        self._held.hold_again(held, self._asides[1:], (*self._before, *held))
        report = Reverts(note["report"])
        self._forget_all_but(self._revert(report))
        self._write_to(file, report)
        return report


def _rank(name: str) -> tuple[int, str]:
    return next((number for number, first in enumerate(_FIRST) if first.fullmatch(name)), len(_FIRST)), name


def _is_nothing(state: FileState | None) -> bool:
    # The content of a link is the path it leads to, which may look like an id.
    return state is None or (state.kind == "file" and state.content in map(blob_id, _NOTHING))


def _add(report: Reverts, path: str, where: str = "") -> None:
    """Report a path, unless it or something around it was."""
    reported = {each.partition(" (what stood")[0] for each in report.put_back}
    if where or not any(is_inside(path, each) for each in reported):
        report.put_back.append(f"{path}{where}")
