"""Plans which secrets to hide and which exceptions to show again, as steps in mount order, and makes covers for them.

A cover is mounted over a secret file: as long and as old as the file, and readable for nobody. git looks at the length
and the time of a file before it reads it (`core.checkStat`, which is `minimal` for commands): a secret file that is in
the repository, as those of tests are, is unchanged for it, and everything else can be committed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours, real_path

_PRIVATE = ("/run", "/tmp", "/var/tmp")  # noqa: S108  # where they are, not what is in them


NOTHING = "/dev/null"  # a device, on a mount without devices: it cannot be read either

_KEPT_FOR_S = 24 * 3_600  # what is mounted stays mounted when its name goes


class RealPath(NamedTuple):
    """Something that exists, by its real path."""

    path: str
    is_folder: bool


class HideStep(NamedTuple):
    """`hide` a file, `hide folder` entirely, `hide around` what further steps show in it, `show` again."""

    what: Literal["hide", "hide folder", "hide around", "show"]
    path: str


def find_places(paths: Iterable[Path | str]) -> list[RealPath]:
    """Return the `paths` that exist and can be reached, with their symlinks resolved."""
    return [place for path in paths if (place := find_place(str(path))) is not None]


def find_place(path: str) -> RealPath | None:
    """Two system calls, where `os.path.realpath` needs one for each part of the path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return RealPath(real_path(descriptor), stat.S_ISDIR(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)


def is_real(path: str) -> bool:
    """True if something is at this very path, with no symlink on the way."""
    place = find_place(path)
    return place is not None and place.path == path


def plan_hiding(masked: Iterable[RealPath], shown: Iterable[RealPath], reachable: Iterable[str] = ()) -> list[HideStep]:
    """Plan what to hide and what to show: the longest path above a file wins. `reachable` folders are mounted later."""
    is_hidden = dict.fromkeys(masked, True) | dict.fromkeys(shown, False)
    steps: list[tuple[RealPath, bool]] = []
    for place in sorted(is_hidden, key=lambda place: (place.path.count("/"), place.path)):
        around = [hidden for before, hidden in steps if is_inside(place.path, before.path)]
        if is_hidden[place] != (around[-1] if around else False):
            steps.append((place, is_hidden[place]))
    exceptions = [*(place.path for place, hidden in steps if not hidden), *reachable]
    return [HideStep(_how_to_hide(place, exceptions) if hidden else "show", place.path) for place, hidden in steps]


def _how_to_hide(place: RealPath, exceptions: Sequence[str]) -> Literal["hide", "hide folder", "hide around"]:
    if not place.is_folder:
        return "hide"
    return "hide around" if any(is_inside(path, place.path) for path in exceptions) else "hide folder"


def listening_sockets() -> list[str]:
    """Paths of this network namespace's unix sockets (proc_net(5)): a mount does not keep commands from connecting."""
    try:
        with open("/proc/net/unix", "rb") as file:  # noqa: PTH123  # pathlib costs as much again as reading it
            lines = file.read().decode(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return sorted(filter(_is_socket, {line[line.index(" /") + 1 :] for line in lines if " /" in line}))


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116  # a Path takes longer
    return False


@cache
def private_folders() -> tuple[str, ...]:
    """The folders that every command gets empty and its own, and those of the kernel: real paths."""
    return tuple(dict.fromkeys(place.path for place in find_places(_PRIVATE) if place.is_folder))


def is_private(path: str) -> bool:
    """True if a command sees something of its own there instead of what is on the disk."""
    return any(is_inside(path, folder) for folder in (*private_folders(), "/dev", "/proc"))


class SecretCovers:
    """Files with nothing in them, of no size on the disk, in `folder`, which all sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_tidy = False

    def over(self, path: str) -> str:
        """The path of what to mount over the file at `path`; `NOTHING` where that is no file, or there is no room."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._like(status)
        return NOTHING

    def _like(self, status: os.stat_result) -> str:
        """Raises `OSError`."""
        mode = status.st_mode & stat.S_IXUSR  # git would see that this changed
        path = self._folder / f"{status.st_size}-{status.st_mtime_ns}-{mode}"
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._tidy_up()
            made = path.with_name(f".{os.urandom(6).hex()}")
            descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, status.st_size)
                os.utime(descriptor, ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            made.rename(path)
        return str(path)

    def _tidy_up(self) -> None:
        if self._is_tidy:
            return
        self._is_tidy = True
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if time.time() - path.lstat().st_ctime > _KEPT_FOR_S:
                    path.unlink()


@dataclass(kw_only=True)
class Protection:
    """Absolute paths, without duplicates within a list; those of the others are inside those of the first."""

    writable: list[str] = field(default_factory=list)
    """Mounted on themselves: a mount point cannot be renamed, removed or replaced."""
    read_only: list[str] = field(default_factory=list)
    missing_folders: list[str] = field(default_factory=list)
    """Read-only as well, once there is something to mount on."""
    missing_files: dict[str, bytes] = field(default_factory=dict)
    """The same for what has to be a file; with the content that means the same as no file."""
    problems: list[str] = field(default_factory=list)
    """Names that could not be protected, or only by refusing more: a sentence each, for the person."""

    def protect(self, folder: str, name: str) -> None:
        """Let `name`, relative to a folder, not be written, made or replaced, nor the folders on the way renamed."""
        path = folder
        parts = [part for part in name.split("/") if part not in {"", "."}]
        for part in parts[:-1]:
            path = f"{path}/{part}"
            match kind_of(path):
                case "folder":
                    _add(self.writable, path)
                case _:
                    break
        else:
            path = f"{path}/{parts[-1]}"
        match kind_of(path):
            case "nothing":
                _add(self.missing_folders, path)
            case "link":
                self.problems.append(f"{path} is a symbolic link, which a command can replace.")
                target = os.path.realpath(path)
                if is_inside(target, folder) and target != folder and kind_of(target) != "nothing":
                    _add(self.read_only, target)
            case _ if is_mount_point_of_ours(path):
                _add(self.missing_folders, path)
            case _:
                _add(self.read_only, path)

    def add(self, other: Protection) -> None:
        for name in ("writable", "read_only", "missing_folders", "problems"):
            for path in getattr(other, name):
                _add(getattr(self, name), path)
        self.missing_files |= other.missing_files


def is_inside(path: str, folder: str) -> bool:
    """True if a normal absolute path is `folder` or leads below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def kind_of(path: str) -> Literal["nothing", "link", "folder", "file"]:
    """The kind of what is there; devices, pipes and sockets are files too."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file"


def _add(paths: list[str], path: str) -> None:
    if path not in paths:
        paths.append(path)
