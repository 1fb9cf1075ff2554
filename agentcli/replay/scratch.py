"""Copies a workspace, and puts files in the copy back to how checkpoints know them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from agentcli.conversation.file_changes import FileChange, FileState, real_path
from agentcli.errors import UserError
from agentcli.infra.sandbox.trial.caches import is_cache
from agentcli.infra.sandbox.trial.tree_copy import remove_tree


class Scratch(Struct, frozen=True):
    """A copy at `copy` of the workspace `root`; `content` gives what a file held, by its id (raises `OSError`)."""

    root: Path
    copy: Path
    content: Callable[[str], bytes]

    def fill(self, excluded: Sequence[str], own: Iterable[Path]) -> None:
        """Copy the workspace, without caches, what checkpoints exclude, and agentcli's `own` folders."""
        kept_out = {str(path) for path in own}

        def left_out(folder: str, names: list[str]) -> set[str]:
            return {
                name
                for name in names
                if f"{folder}/{name}" in kept_out
                or is_cache(name, is_folder=Path(folder, name).is_dir())
                or any(fnmatch(name, glob) for glob in excluded)
                or not os.access(f"{folder}/{name}", os.R_OK, follow_symlinks=False)
                or _is_special(f"{folder}/{name}")
            }

        try:
            shutil.copytree(self.root, self.copy, symlinks=True, ignore=left_out)
        except (OSError, shutil.Error) as error:
            raise UserError(f"{self.root} could not be copied: {error}.") from error

    def put_back(self, changes: Iterable[FileChange]) -> None:
        """Have each path as its first change found it."""
        first: dict[str, FileState | None] = {}
        for change in changes:
            first.setdefault(change.path, change.before)
        self._set(first)

    def apply(self, changes: Iterable[FileChange]) -> None:
        """Have each path as its last change left it."""
        self._set({change.path: change.after for change in changes})

    def _set(self, states: dict[str, FileState | None]) -> None:
        """Folders are made before what is in them, and removed after it."""
        inside = {path: state for path, state in states.items() if Path(real_path(path)).is_relative_to(self.root)}
        for path in sorted(inside, reverse=True):
            if inside[path] is None:
                _remove(self._place(path))
        for path in sorted(inside):
            if (state := inside[path]) is not None:
                self._make(self._place(path), state, path)

    def _place(self, path: str) -> Path:
        return self.copy / Path(real_path(path)).relative_to(self.root)

    def _make(self, place: Path, state: FileState, path: str) -> None:
        try:
            if state.kind == "file" and not state.content:
                return  # too large to have been kept: it stays as it is now
            place.parent.mkdir(parents=True, exist_ok=True)
            if state.kind == "folder":
                place.mkdir(exist_ok=True)
            elif state.kind == "file":
                content = self.content(state.content)
                _remove(place)
                place.write_bytes(content)
            elif state.kind == "link":
                _remove(place)
                place.symlink_to(real_path(state.content))
                return
            place.chmod(state.mode)
        except OSError as error:
            why = error.strerror or str(error)
            raise UserError(f"What {path} held is not in the checkpoints any more ({why}).") from error


def _remove(place: Path) -> None:
    with suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            place.rmdir() if not any(place.iterdir()) else remove_tree(place)
        else:
            place.unlink(missing_ok=True)


def _is_special(path: str) -> bool:
    place = Path(path)
    return not (place.is_symlink() or place.is_file() or place.is_dir())
