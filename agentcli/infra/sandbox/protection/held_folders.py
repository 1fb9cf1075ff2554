"""Accesses files through open folders, so that links and folders that appear later cannot lead elsewhere."""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from posixpath import basename, dirname
from typing import NamedTuple

from agentcli.infra.changes.state import entry_at, names_in
from agentcli.infra.changes.writing import write_all, write_atomically
from agentcli.infra.sandbox.mount_points import is_mount_point

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class KeptState(NamedTuple):
    """The state of a path."""

    kind: str  # "file", "folder" or "link"
    mode: int
    content: str = ""  # of a file, one character for each byte, or the target of a link
    is_kept: bool = True  # False if there was no room for a file's content; then `content` is its stamp


class HeldFolder(NamedTuple):
    """An open folder."""

    descriptor: int
    identity: tuple[int, int]  # its device and inode
    parent: tuple[int, int]  # those of the folder around it
    mode: int  # the mode that it had when it was opened

    def restore_access(self) -> None:
        """Restore the permissions of the folder's owner that a command removed."""
        mode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)
        if missing := self.mode & ~mode & stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{self.descriptor}", mode | missing)  # noqa: PTH101  # fchmod takes no O_PATH


class HeldFolders(dict[str, HeldFolder]):
    """Open folders by the paths at which they were opened. The methods raise `OSError`."""

    def reopen(self, path: str, before: HeldFolder, known_paths: Collection[str], found_at: str = "") -> None:
        """Hold a folder again that a killed process held at `path`, if it is the same one; else do nothing.

        `found_at` is where its inode was found, if it was moved. `known_paths` are all recorded and held paths.
        """
        with suppress(OSError):
            now = self.open_at(found_at or path)
            is_same = False
            with suppress(OSError):  # the folder cannot be listed
                # Another folder may have got its inode, so a folder found by inode must contain a known path.
                names = {basename(each) for each in known_paths if dirname(each) == path}
                has_known_entry = not found_at or not names.isdisjoint(names_in(f"/proc/self/fd/{now.descriptor}"))
                is_same = now.identity == before.identity and has_known_entry
            if is_same:
                self[path] = before._replace(descriptor=now.descriptor)
                self[path].restore_access()
            else:
                os.close(now.descriptor)

    def open_at(self, path: str) -> HeldFolder:
        with self.open_parent(path) as (folder, name):
            descriptor = os.open(name or ".", _FOLDER, dir_fd=folder)
            status, parent = os.fstat(descriptor), os.fstat(folder)
            return HeldFolder(descriptor, identity_of(status), identity_of(parent), stat.S_IMODE(status.st_mode))

    def release(self, *paths: str) -> None:
        for path in paths:
            os.close(self.pop(path).descriptor)

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """Yield a descriptor of a folder, opened from the nearest held folder at or above it, following no links."""
        anchor = path
        while anchor not in self and anchor != "/":
            anchor = dirname(anchor)
        folder = os.dup(self[anchor].descriptor) if anchor in self else os.open("/", _FOLDER)
        try:
            for part in filter(None, path[len(anchor) :].split("/")):
                outer, folder = folder, os.open(part, _FOLDER, dir_fd=folder)
                os.close(outer)
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def open_parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of a path's parent folder, and the path's last name."""
        with self.open_folder(dirname(path)) as folder:
            yield folder, basename(path)

    def paths_in(self, path: str) -> Sequence[str]:
        with self.open_folder(path) as folder:
            return [f"{path}/{name}" for name in names_in(f"/proc/self/fd/{folder}")]

    def state_at(self, path: str, max_bytes: int = 0) -> KeptState | None:
        """Return the state of a path, with contents up to `max_bytes`; None for nothing, a mount point, or a device."""
        with self.open_parent(path) as (folder, name):
            entry = entry_at(name, folder=folder)
            if entry is None or entry.kind == "other":
                return None
            if entry.kind == "folder" and is_mount_point(f"/proc/self/fd/{folder}/{name}"):
                return None
            if entry.kind != "file":
                return KeptState(entry.kind, entry.mode, entry.target)
            if entry.size <= max_bytes:
                with suppress(PermissionError), os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb", 0) as file:
                    return KeptState("file", entry.mode, file.read(entry.size).decode("latin-1"))
            return KeptState("file", entry.mode, str(entry.stamp), is_kept=False)  # the stamp shows later changes

    def set_mode(self, path: str, mode: int) -> None:
        """Change the mode of a folder, without following a link."""
        with self.open_parent(path) as (folder, name):
            descriptor = os.open(name, _FOLDER, dir_fd=folder)
            try:
                os.chmod(f"/proc/self/fd/{descriptor}", mode)  # noqa: PTH101  # fchmod takes no O_PATH
            finally:
                os.close(descriptor)

    def create(self, path: str, state: KeptState) -> None:
        """Create a file, folder or link with this state at a free path. A file appears with its whole content."""

        def fill(descriptor: int) -> None:
            write_all(descriptor, state.content.encode("latin-1"))
            os.fchmod(descriptor, state.mode)

        with self.open_parent(path) as (folder, name):
            match state.kind:
                case "folder":
                    os.mkdir(name, dir_fd=folder)
                    self.set_mode(path, state.mode)
                case "link":
                    os.symlink(state.content, name, dir_fd=folder)
                case "file":
                    write_atomically(folder, name, fill)

    def move_into_new_folder(self, new_folder: str, path: str) -> None:
        """Create a folder, and move the entry at a path into it, under a name that no program looks for."""
        with self.open_parent(path) as (source, name), self.open_parent(new_folder) as (parent, new_name):
            os.mkdir(new_name, 0o700, dir_fd=parent)
            try:
                with self.open_folder(new_folder) as target:
                    os.rename(name, name.lstrip(".") or "_", src_dir_fd=source, dst_dir_fd=target)
            except OSError:
                os.rmdir(new_name, dir_fd=parent)
                raise


def identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
