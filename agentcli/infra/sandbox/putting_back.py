"""Puts back what a command changed of what git and editors obey, where nothing could keep it from doing so.

Landlock grants whole folders: a command that may write the workspace may write its git hooks as well. So a copy is kept
while a command runs, and compared when nothing of it is left. What the command put where nothing may be is moved out of
the way, never deleted: it may be the only copy of something.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from agentcli.infra.sandbox.git_config import Setting, read_configuration
from agentcli.infra.sandbox.mount_points import is_mount_point_of_ours
from agentcli.infra.sandbox.protection import Protection

MOST_ENTRIES = 2_000
MOST_BYTES = 8_000_000


class _Entry(Struct, frozen=True):
    """A file with its contents, a symlink with its target, or a folder, which has no content of its own."""

    mode: int
    content: bytes = b""


class Copy:
    """What a command may not change, as it was before. `left_out` are those there was no room to keep."""

    def __init__(self, protection: Protection) -> None:
        self.held: dict[Path, int] = {}  # folders on the way, each with a descriptor of what it is
        self.entries: dict[Path, _Entry] = {}
        self.names: defaultdict[Path, set[str]] = defaultdict(set)  # of the folders among them
        self.missing: dict[Path, bytes | None] = {}  # with a content that means the same as no file
        self.left_out: list[Path] = []
        self._room = MOST_BYTES
        for path in map(Path, protection.writable):
            with suppress(OSError):
                self.held[path] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        for path in map(Path, protection.read_only):
            self._keep(path)
        for path in map(Path, (*protection.missing_folders, *protection.missing_files)):
            if not os.path.lexists(path):
                self.missing[path] = protection.missing_files.get(str(path))

    def _keep(self, path: Path) -> None:
        entry = _look(path, self._room) if len(self.entries) < MOST_ENTRIES else None
        if entry is None:
            self.left_out.append(path)
            return
        self._room -= len(entry.content)
        self.entries[path] = entry
        if stat.S_ISDIR(entry.mode):
            for child in sorted(path.iterdir()):
                self.names[path].add(child.name)
                self._keep(child)

    def forget(self, granted: Iterable[Path]) -> None:
        """Let these be changed: a person's yes to another command, which ran meanwhile, was about them."""
        for path in granted:
            for kept in (self.entries, self.missing):
                for inside in [each for each in kept if each.is_relative_to(path)]:
                    del kept[inside]

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held.clear()


@contextmanager
def put_back_afterwards(copy: Copy, asides: Sequence[Path]) -> Iterator[list[str]]:
    """Give a list that in the end tells what was put back: paths, and where what stood there is now.

    That is in the first of `asides` on the same disk. A path that could not be put back is told with the reason.
    """
    told: list[str] = []
    try:
        yield told
    finally:
        _PuttingBack(copy, asides, told).run()
        copy.close()


class _PuttingBack:
    def __init__(self, copy: Copy, asides: Sequence[Path], told: list[str]) -> None:
        self._copy = copy
        self._asides = asides
        self._told = told

    def run(self) -> None:
        for paths, step in (
            (sorted(self._copy.held), self._hold),
            (sorted(self._copy.entries), self._restore),
            (sorted(self._copy.missing), self._clear),
        ):
            for path in paths:
                self._try(step, path)

    def _try(self, step: Callable[[Path], bool], path: Path) -> None:
        """One that fails leaves the rest to be done. Where the folder around it was moved or removed, nothing is."""
        try:
            if _is_folder(path.parent) and step(path) and not any(told.startswith(str(path)) for told in self._told):
                self._told.append(str(path))
        except OSError as error:
            self._told.append(f"{path} (which could not be put back: {error.strerror})")

    def _hold(self, path: Path) -> bool:
        """A folder that was moved or replaced comes back as it is by now; one that was removed is made anew."""
        descriptor = self._copy.held[path]
        if _is_same(path, descriptor):
            return False
        self._move_away(path)
        now = Path(f"/proc/self/fd/{descriptor}").readlink()
        if _is_same(now, descriptor):
            now.rename(path)
        else:
            path.mkdir()
        return True

    def _restore(self, path: Path) -> bool:
        entry, now = self._copy.entries[path], _look(path, MOST_BYTES)
        if not stat.S_ISDIR(entry.mode):
            is_changed = now != entry and not (path.name == "config" and _starts_the_same(now, entry))
            if is_changed:
                self._write(path, entry)
            return is_changed
        if is_changed := now is None or not stat.S_ISDIR(now.mode):
            self._move_away(path)
            path.mkdir()
        for extra in [child for child in path.iterdir() if child.name not in self._copy.names[path]]:
            self._move_away(extra)
        if now is None or now.mode != entry.mode:
            path.chmod(stat.S_IMODE(entry.mode))
            is_changed = True
        return is_changed

    def _write(self, path: Path, entry: _Entry) -> None:
        if _is_folder(path):
            self._move_away(path)
        draft = path.with_name(f".agentcli-{secrets.token_hex(8)}")
        if stat.S_ISLNK(entry.mode):
            draft.symlink_to(os.fsdecode(entry.content))
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(entry.content)
                os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))
        draft.replace(path)

    def _clear(self, path: Path) -> bool:
        if not os.path.lexists(path) or is_mount_point_of_ours(str(path)):
            return False
        as_no_file, now = self._copy.missing[path], _look(path, MOST_BYTES)
        if now is not None and now.content == as_no_file:
            return False
        self._move_away(path)
        return False

    def _move_away(self, path: Path) -> None:
        """Out of the reach of what would obey it, under a name that nothing looks for."""
        if not os.path.lexists(path):
            return
        for folder in self._asides:
            aside = Path(tempfile.mkdtemp(prefix="agentcli-put-aside-", dir=folder))
            try:
                path.rename(aside / (path.name.lstrip(".") or "_"))
            except OSError as error:
                aside.rmdir()
                if error.errno != errno.EXDEV or folder == self._asides[-1]:
                    raise
            else:
                self._told.append(f"{path} (what stood there is in {aside})")
                return


def _look(path: Path, room: int) -> _Entry | None:
    """What is there; None for nothing, for what has no contents of its own, and for more than there is room for."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return _Entry(status.st_mode, os.fsencode(path.readlink()))
        if stat.S_ISDIR(status.st_mode):
            return _Entry(status.st_mode)
        if not stat.S_ISREG(status.st_mode) or status.st_size > room:
            return None
        return _Entry(status.st_mode, path.read_bytes())
    except OSError:
        return None


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


# What `git push -u`, `git remote add` and the like write: nothing of it starts a program or leads to other settings.
_HARMLESS_SECTION = re.compile(r"user|init|branch|remote")
_HARMLESS_KEY = re.compile(r"name|email|defaultbranch|url|pushurl|fetch|remote|merge|rebase|pushremote|description")
_RUNS_A_HELPER = re.compile(r"ext::", re.IGNORECASE)


def _starts_the_same(now: _Entry | None, before: _Entry) -> bool:
    """True for a git configuration in which only names of branches, remotes and people changed."""
    if now is None or now.mode != before.mode or not stat.S_ISREG(now.mode):
        return False
    mine, its = (read_configuration(os.fsdecode(entry.content)) for entry in (before, now))
    return not its.is_refused and _telling(mine.settings) == _telling(its.settings)


def _telling(settings: Iterable[Setting]) -> list[Setting]:
    return [
        setting
        for setting in settings
        if not _HARMLESS_SECTION.fullmatch(setting.section)
        or not _HARMLESS_KEY.fullmatch(setting.key)
        or _RUNS_A_HELPER.match(setting.value or "")
    ]
