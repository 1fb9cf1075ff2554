"""Puts back what commands changed of what git and editors obey, where nothing could keep them from doing so.

Landlock grants whole folders: a command that may write the workspace may write its git hooks as well. So a copy is
taken before the first of the commands that run at the same time, and compared each time one has ended. What stood in
the way is moved aside, never deleted: it may be the only copy of something, and the person may have written it.
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
from agentcli.tools.path_kinds import KEPT_NAMES

MOST_ENTRIES = 20_000
MOST_OF_ONE = 5_000  # of a single folder, so that one repository leaves room for the others
MOST_BYTES = 16_000_000

_Place = tuple[int, int]  # device and inode


class _Entry(Struct, frozen=True):
    """A file with its contents, a symlink with its target, or a folder, which has no content of its own.

    Of a file for which there was no room only `stamp` is known: it can be seen to have changed.
    """

    mode: int
    content: bytes = b""
    stamp: tuple[int, ...] = ()


class Guard:
    """Guards one workspace while commands run. `aside` is where what stood in the way goes, made when it is needed."""

    def __init__(self, aside: Path) -> None:
        self._aside = aside
        self._copy: _Copy | None = None
        self._running: list[tuple[Path, ...]] = []  # what each command that runs was granted

    @contextmanager
    def during(self, protection: Protection, *, roots: Sequence[Path], granted: Sequence[Path]) -> Iterator[list[str]]:
        """Give a list that in the end tells what was put back: paths, and where what stood there is now.

        What was `granted` to the command may be changed by it, and stays so.
        """
        self._copy = self._copy or _Copy()
        self._copy.take(protection)
        mine = tuple(granted)
        self._running.append(mine)
        told: list[str] = []
        try:
            yield told
        finally:
            self._running.remove(mine)
            self._copy.take_again(mine)
            self._put_back(roots, told)
            if not self._running:
                self._copy.close()
                self._copy = None

    def accept(self, path: Path) -> None:
        """Keep a path as it is now: the person agreed to what was done there."""
        if self._copy is not None:
            self._copy.take_again((path,))

    @contextmanager
    def accepting(self, plan: Callable[[], Protection], roots: Sequence[Path]) -> Iterator[None]:
        """Keep whatever changes meanwhile: a command runs that the person let out of the sandbox."""
        if self._copy is not None:
            self._put_back(roots, [])
        try:
            yield
        finally:
            if self._copy is not None:
                self._copy.close()
                self._copy = _Copy()
                self._copy.take(plan())

    def _put_back(self, roots: Sequence[Path], told: list[str]) -> None:
        assert self._copy is not None
        granted = [path for paths in self._running for path in paths]
        _PuttingBack(self._copy, (self._aside, *roots), granted, told).run()


class _Copy:
    """What commands may not change, as it was before them. `left_out` are those there was no room to keep."""

    def __init__(self) -> None:
        self.held: dict[Path, int] = {}  # folders that stay writable, each with a descriptor of what it is
        self.parents: dict[Path, _Place | None] = {}  # of those, the folder that each is in
        self.entries: dict[Path, _Entry] = {}
        self.names: defaultdict[Path, set[str]] = defaultdict(set)  # of the folders among them
        self.missing: dict[Path, bytes | None] = {}  # with a content that means the same as no file
        self.left_out: list[Path] = []
        self._room = MOST_BYTES

    def take(self, protection: Protection) -> None:
        """Keep what is not known yet."""
        for path in map(Path, protection.writable):
            if path not in self.held:
                with suppress(OSError):
                    self.held[path] = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    self.parents[path] = _place(path.parent)
        for path in map(Path, protection.read_only):
            if path not in self.entries and path not in self.missing:
                self._keep(path, len(self.entries) + MOST_OF_ONE)
        for path in map(Path, (*protection.missing_folders, *protection.missing_files)):
            if path not in self.entries and not os.path.lexists(path):
                self.missing[path] = protection.missing_files.get(str(path))

    def _keep(self, path: Path, most: int) -> None:
        if len(self.entries) >= min(most, MOST_ENTRIES) or (entry := _look(path, self._room)) is None:
            self.left_out.append(path)
            return
        self._room -= len(entry.content)
        self.entries[path] = entry
        if stat.S_ISDIR(entry.mode):
            for child in sorted(path.iterdir()):
                self.names[path].add(child.name)
                self._keep(child, most)

    def take_again(self, paths: Iterable[Path]) -> None:
        """Keep as it is now what of these was kept before, what is in them, and the nearest thing around them."""
        for path in paths:
            known = {each for each in (*self.entries, *self.missing) if each.is_relative_to(path)}
            known |= {each for each in path.parents if each in self.missing}
            if path.parent in self.names:
                known.add(path)
            tops = [each for each in known if not known.intersection(each.parents)]
            for each in known:
                self.entries.pop(each, None)
                self.missing.pop(each, None)
                self.names.pop(each, None)
            for top in tops:
                is_there = os.path.lexists(top)
                if top.parent in self.names:
                    (self.names[top.parent].add if is_there else self.names[top.parent].discard)(top.name)
                if is_there:
                    self._keep(top, len(self.entries) + MOST_OF_ONE)
                else:
                    self.missing[top] = None

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held.clear()


class _PuttingBack:
    def __init__(self, copy: _Copy, asides: Sequence[Path], granted: Sequence[Path], told: list[str]) -> None:
        self._copy = copy
        self._asides = asides
        self._granted = granted
        self._told = told
        self._where: dict[Path, Path | None] = {}  # of the held folders, where each is by now

    def run(self) -> None:
        for path in sorted(self._copy.held):
            self._where[path] = None
            self._try(self._find, path)
        for paths, step in ((self._copy.entries, self._restore), (self._copy.missing, self._clear)):
            for path in sorted(paths):
                if not any(path.is_relative_to(granted) for granted in self._granted):
                    self._try(step, path)

    def _try(self, step: Callable[[Path], bool], path: Path) -> None:
        """One that fails leaves the rest to be done."""
        try:
            if step(path) and not any(told.startswith(f"{path} (") for told in self._told):
                self._told.append(str(path))
        except OSError as error:
            self._told.append(f"{path} (which could not be put back: {error.strerror})")

    def _find(self, path: Path) -> bool:
        """Find a folder that is held, and bring it back where something else could pass for it now."""
        descriptor = self._copy.held[path]
        now = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not _is_same(now, descriptor):  # it was deleted; what is there instead is compared like the old one
            self._where[path] = path if _is_folder(path) else None
            if path.is_symlink():
                self._move_away(path)
        elif now == path or path.name not in KEPT_NAMES or _place(path.parent) != self._copy.parents[path]:
            self._where[path] = now  # also where a folder above was renamed
        else:
            self._move_away(path)
            now.rename(path)
            self._where[path] = path
            return True
        return False

    def _now(self, path: Path) -> Path | None:
        """Where a path below a held folder is; None where that folder is gone."""
        held = next((above for above in path.parents if above in self._where), None)
        if held is None:
            return path
        where = self._where[held]
        return where / path.relative_to(held) if where is not None else None

    def _restore(self, known: Path) -> bool:
        entry, path = self._copy.entries[known], self._now(known)
        if path is None or not _is_folder(path.parent):
            return False
        now = _look(path, MOST_BYTES if not entry.stamp else 0)
        if now is not None and stat.S_ISDIR(entry.mode) and stat.S_ISDIR(now.mode):
            for extra in [child for child in path.iterdir() if child.name not in self._copy.names[known]]:
                self._move_away(extra)
        elif now == entry or (path.name == "config" and _starts_the_same(now, entry)):
            return False
        elif entry.stamp:
            self._told.append(f"{path} (which changed, and was too large to keep a copy of)")
            return False
        elif now is None or now.content != entry.content or stat.S_IFMT(now.mode) != stat.S_IFMT(entry.mode):
            self._move_away(path)
            _make(path, entry)
            return True
        if now.mode == entry.mode:
            return False
        path.chmod(stat.S_IMODE(entry.mode))
        return True

    def _clear(self, known: Path) -> bool:
        path = self._now(known)
        if path is None or not os.path.lexists(path) or is_mount_point_of_ours(str(path)):
            return False
        as_no_file, now = self._copy.missing[known], _look(path, MOST_BYTES)
        if now is None or now.content != as_no_file:
            self._move_away(path)
        return False

    def _move_away(self, path: Path) -> None:
        """Out of the reach of what would obey it, under a name that nothing looks for; on the same disk."""
        if not os.path.lexists(path):
            return
        self._asides[0].mkdir(parents=True, exist_ok=True, mode=0o700)
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


def _make(path: Path, entry: _Entry) -> None:
    if stat.S_ISDIR(entry.mode):
        path.mkdir()
        path.chmod(stat.S_IMODE(entry.mode))
        return
    draft = path.with_name(f".agentcli-{secrets.token_hex(8)}")
    if stat.S_ISLNK(entry.mode):
        draft.symlink_to(os.fsdecode(entry.content))
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            file.write(entry.content)
            os.fchmod(file.fileno(), stat.S_IMODE(entry.mode))
    draft.replace(path)


def _look(path: Path, room: int) -> _Entry | None:
    """What is there; None for nothing, and for what has no contents of its own."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return _Entry(status.st_mode, os.fsencode(path.readlink()))
        if stat.S_ISDIR(status.st_mode):
            return _Entry(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > room:
            return _Entry(status.st_mode, b"", (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return _Entry(status.st_mode, path.read_bytes())
    except OSError:
        return None


def _place(path: Path) -> _Place | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_same(path: Path, descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return _place(path) == (status.st_dev, status.st_ino)


_REMOTE_ADDRESS = re.compile(r"(?:https?|ssh|git)://[^/]|[\w.-]+@[\w.-]+:", re.IGNORECASE)


def _starts_the_same(now: _Entry | None, before: _Entry) -> bool:
    """True for a git configuration in which no more changed than `git push -u` and `git remote add` write."""
    if now is None or now.mode != before.mode or not stat.S_ISREG(now.mode):
        return False
    mine, its = (read_configuration(os.fsdecode(entry.content)) for entry in (before, now))
    remotes = {setting.subsection for setting in mine.settings if setting.section == "remote"}
    added = {setting.subsection for setting in its.settings if setting.section == "remote"} - remotes
    return not its.is_refused and _telling(mine.settings, added) == _telling(its.settings, added)


def _telling(settings: Sequence[Setting], added: set[str]) -> list[Setting]:
    """Those that could start a program, or lead elsewhere what the person pushes or fetches; not of `added` remotes."""
    remotes = {setting.subsection for setting in settings if setting.section == "remote"}

    def is_harmless(setting: Setting) -> bool:
        match setting:
            case Setting("user", "", "name" | "email") | Setting("branch", _, "merge" | "rebase" | "description"):
                return True
            case Setting("branch", _, "remote" | "pushremote", value):
                return value == "." or value in remotes
            case Setting("remote", name, "fetch"):
                return name in added
            case Setting("remote", name, "url", str(value)):
                return name in added and _REMOTE_ADDRESS.match(value) is not None
        return False

    return [setting for setting in settings if not is_harmless(setting)]
