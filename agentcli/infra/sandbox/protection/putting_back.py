"""Restores what commands changed of what git and editors obey, from a copy that was taken before.

What stood in the way is moved aside, never deleted: it may be the only copy of something, and the person may have
written it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from agentcli.infra.sandbox.confinement import Told
from agentcli.infra.sandbox.git.config import Setting, read_configuration
from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours
from agentcli.infra.sandbox.protection.pinned_folders import Entry, PinnedFolders
from agentcli.infra.sandbox.protection.protected_copy import MOST_BYTES, ProtectedCopy
from agentcli.safety.paths.protected import is_read_only_name


class PuttingBack:
    def __init__(self, copy: ProtectedCopy, asides: Sequence[Path], granted: Sequence[Path], told: Told) -> None:
        self._copy = copy
        self._asides = asides
        self._granted = granted
        self._told = told
        self._pinned = PinnedFolders(copy.held, unlocks=True)
        self._where: dict[Path, Path] = {}  # of the held folders, where each is by now
        self._failed: list[Path] = []

    def run(self) -> list[Path]:
        """Return those that are to be tried again."""
        with self._pinned:
            for path in sorted(self._copy.modes):
                self._try(self._let_in, path)
            for path in sorted(self._copy.places):
                self._try(self._find, path)
            for paths, step in ((self._copy.entries, self._restore), (self._copy.missing, self._clear)):
                for path in sorted(paths):
                    if not any(path.is_relative_to(granted) for granted in self._granted):
                        self._try(step, path)
        return self._failed

    def _try(self, step: Callable[[Path], bool], path: Path) -> None:
        """Go on with the rest after one that fails."""
        try:
            if step(path) and not any(told.startswith(f"{path} (") for told in self._told.put_back):
                self._told.put_back.append(str(path))
        except OSError as error:
            self._failed.append(path)
            self._told.left_changed.append(f"{self._now(path)} ({error.strerror})")

    def _let_in(self, path: Path) -> bool:
        try:
            return self._pinned.let_in(path, self._copy.modes[path])
        except OSError:  # what is in it will fail too, if it matters
            return False

    def _find(self, path: Path) -> bool:
        """Find a folder that is held, and bring it back where something else could pass for it now."""
        descriptor = self._copy.held.get(path, -1)
        place, around = self._copy.places[path]
        now = Path(f"/proc/self/fd/{descriptor}").readlink() if descriptor >= 0 else None
        if now is None or self._pinned.place(now) != place:
            self._pinned.forget(path)  # it was deleted; what is there instead is compared like the old one
            entry = self._pinned.look(path, 0)
            if entry is not None and stat.S_ISLNK(entry.mode):
                self._move_away(path)
        elif now == path or not is_read_only_name(path.name) or self._pinned.place(path.parent) != around:
            self._where[path] = now  # also where a folder above was renamed
        else:
            self._move_away(path)
            self._pinned.move(now, path)
            return True
        return False

    def _now(self, path: Path) -> Path:
        """The place of a path below a held folder."""
        held = next((above for above in path.parents if above in self._where), None)
        return path if held is None else self._where[held] / path.relative_to(held)

    def _is_reached(self, path: Path) -> bool:
        """False for what was in a folder that is gone, or that a link stands for."""
        try:
            self._pinned.open(path.parent)
        except PermissionError:
            raise
        except OSError:
            return False
        return True

    def _restore(self, path: Path) -> bool:
        if not self._is_reached(path):
            return False
        entry = self._copy.entries[path]
        now = self._pinned.look(path, MOST_BYTES if not entry.stamp else 0)
        if now is not None and stat.S_ISDIR(entry.mode) and stat.S_ISDIR(now.mode):
            for extra in [name for name in self._pinned.names(path) if name not in self._copy.names[path]]:
                self._move_away(path / extra)
        elif now == entry or (path.name == "config" and _starts_the_same(now, entry)):
            return False
        elif entry.stamp:
            self._told.left_changed.append(f"{self._now(path)} (of which there was no room to keep a copy)")
            return False
        elif (
            now is None or now.stamp or now.content != entry.content or stat.S_IFMT(now.mode) != stat.S_IFMT(entry.mode)
        ):
            self._move_away(path)
            self._pinned.make(path, entry)
            return True
        if now.mode == entry.mode:
            return False
        self._pinned.set_mode(path, entry)
        return True

    def _clear(self, path: Path) -> bool:
        if self._pinned.place(path) is None or is_mount_point_of_ours(str(self._now(path))):
            return False
        as_no_file, now = self._copy.missing[path], self._pinned.look(path, MOST_BYTES)
        if now is None or now.stamp or now.content != as_no_file:
            self._move_away(path)
        return False

    def _move_away(self, path: Path) -> None:
        """Move it, on the same disk, to a name that nothing looks for, where nothing obeys it."""
        if self._pinned.place(path) is not None:
            with suppress(OSError):  # then it goes to another
                self._asides[0].mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = self._pinned.move_aside(path, self._asides)
            self._told.put_back.append(f"{self._now(path)} (what stood there is in {aside})")


# Nothing in these means more to git, ssh or a shell than it says; a branch may have a sign of its own.
_WHO = r"(?:\w[\w.+%-]*(?::[\w.+%-]*)?@)?"
_HOST = r"[^\W_][\w.-]*"
_REMOTE_ADDRESS = re.compile(
    rf"(?:https?|ssh|git)://{_WHO}{_HOST}(?::\d+)?(?:/[\w.~+%@,=/-]*)?|\w[\w.+-]*@{_HOST}:[\w.~/][\w.~+%@,=/-]*",
    re.ASCII,
)
_FETCHED = re.compile(r"\+?refs/[\w.*/-]+:refs/(?:remotes|tags)/[\w.*/-]+")
_NAME = re.compile(r"\w[\w./@#+-]*")


def _starts_the_same(now: Entry | None, before: Entry) -> bool:
    """True for a git configuration in which no more changed than `git push -u` and `git remote add` write."""
    if now is None or now.mode != before.mode or not stat.S_ISREG(now.mode) or b"\0" in now.content:
        return False
    mine, its = (read_configuration(os.fsdecode(entry.content)) for entry in (before, now))
    remotes = {setting.subsection for setting in mine.settings if setting.section == "remote"}
    added = {setting.subsection for setting in its.settings if setting.section == "remote"} - remotes
    return not its.is_refused and _telling(mine.settings, added) == _telling(its.settings, added)


def _telling(settings: Sequence[Setting], added: set[str]) -> list[Setting]:
    """Those that could start a program, or lead elsewhere what the person pushes or fetches; not of `added` remotes."""
    # The name of one without an address is its address.
    remotes = {setting.subsection for setting in settings if (setting.section, setting.key) == ("remote", "url")}

    def is_new(name: str) -> bool:
        return name in added and _NAME.fullmatch(name) is not None

    def is_harmless(setting: Setting) -> bool:
        match setting:
            case Setting("user", "", "name" | "email"):
                return True
            case Setting("branch", name, "merge" | "rebase" | "description"):
                return _NAME.fullmatch(name) is not None
            case Setting("branch", name, "remote" | "pushremote", value):
                return _NAME.fullmatch(name) is not None and (value == "." or value in remotes)
            case Setting("remote", name, "fetch", str(value)):
                return is_new(name) and _FETCHED.fullmatch(value) is not None
            case Setting("remote", name, "url", str(value)):
                return is_new(name) and _REMOTE_ADDRESS.fullmatch(value) is not None
        return False

    return [setting for setting in settings if not is_harmless(setting)]
