"""Plans the mounts of commands: which secrets are hidden, and which names cannot be written.

A cover is mounted over a secret file. It is as long and as old as the file, and nobody can read it. Git looks at the
length and the time of a file before it reads it (`core.checkStat`, which is `minimal` for commands), so for git a
secret file in the repository, such as one of its tests, is unchanged, and everything else can be committed.
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
NOTHING = "/dev/null"  # a device, on a mount without devices, so it cannot be read either
_KEPT_FOR_S = 24 * 3_600  # a cover that is mounted stays mounted when its name is removed


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
    """Resolve a path with two system calls, where `os.path.realpath` needs one for each part of it."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return RealPath(real_path(descriptor), stat.S_ISDIR(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)


def is_real(path: str) -> bool:
    """Return True if something is at this very path, with no symlink on the way."""
    place = find_place(path)
    return place is not None and place.path == path


def is_inside(path: str, folder: str) -> bool:
    """Return True if a normal absolute path is `folder` or leads below it."""
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def kind_of(path: str) -> Literal["nothing", "link", "folder", "file"]:
    """Return the kind of what is there; devices, pipes and sockets count as files."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    if stat.S_ISLNK(mode):
        return "link"
    return "folder" if stat.S_ISDIR(mode) else "file"


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
    """Return the paths of this network namespace's unix sockets (proc_net(5)).

    Commands could connect to them although everything around them is read-only.
    """
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
    """Return the real paths of the folders that every command gets empty and for itself."""
    return tuple(dict.fromkeys(place.path for place in find_places(_PRIVATE) if place.is_folder))


def is_private(path: str) -> bool:
    """Return True if a command sees something of its own there instead of what is on the disk."""
    return any(is_inside(path, folder) for folder in (*private_folders(), "/dev", "/proc"))


class SecretCovers:
    """Makes covers: files with nothing in them, of no size on the disk, in a folder that all sessions may share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                if time.time() - path.lstat().st_ctime > _KEPT_FOR_S:
                    path.unlink()

    def over(self, path: str) -> str:
        """Return the path of what to mount over a file; `NOTHING` where that is no file, or there is no room."""
        with contextlib.suppress(OSError, OverflowError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                return self._cover_like(status)
        return NOTHING

    def _cover_like(self, status: os.stat_result) -> str:
        mode = status.st_mode & stat.S_IXUSR  # git would see that this changed
        path = self._folder / f"{status.st_size}-{status.st_mtime_ns}-{mode}"
        if not path.exists():
            self._folder.mkdir(mode=0o700, exist_ok=True)
            new = path.with_name(f".{os.urandom(6).hex()}")
            with new.open("xb") as file:
                file.truncate(status.st_size)
                os.utime(file.fileno(), ns=(status.st_mtime_ns, status.st_mtime_ns))
                os.fchmod(file.fileno(), mode)
            new.rename(path)
        return str(path)


@dataclass(kw_only=True)
class Protection:
    """The paths that are kept from being written: absolute ones, none twice in a list.

    `writable` folders are mounted on themselves, because a mount point cannot be renamed, removed or replaced; the
    others lie inside these. What is missing becomes read-only too, once there is something to mount on: a folder, or a
    file with the content that means the same as no file. `problems` are sentences for the person about names that
    could not be protected, or only by refusing more.
    """

    writable: list[str] = field(default_factory=list)
    read_only: list[str] = field(default_factory=list)
    missing_folders: list[str] = field(default_factory=list)
    missing_files: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def protect(self, folder: str, name: str) -> None:
        """Let `name`, relative to a folder, not be written, made or replaced, nor the folders on the way renamed."""
        parts = [part for part in name.split("/") if part not in {"", "."}]
        path = f"{folder}/{parts[0]}"
        for part in parts[1:]:
            if kind_of(path) != "folder":
                break
            _add(self.writable, path)
            path = f"{path}/{part}"
        match kind_of(path):
            case "link":
                self.problems.append(f"{path} is a symbolic link, which a command can replace.")
                target = os.path.realpath(path)
                if is_inside(target, folder) and target != folder and kind_of(target) != "nothing":
                    _add(self.read_only, target)
            case kind if kind == "nothing" or is_mount_point_of_ours(path):
                _add(self.missing_folders, path)
            case _:
                _add(self.read_only, path)

    def add(self, other: Protection) -> None:
        for name in ("writable", "read_only", "missing_folders", "problems"):
            for path in getattr(other, name):
                _add(getattr(self, name), path)
        self.missing_files |= other.missing_files


def _add(paths: list[str], path: str) -> None:
    if path not in paths:
        paths.append(path)
