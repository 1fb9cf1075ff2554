"""Plans the mounts that keep names in a writable folder from being written."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Literal

from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours


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
