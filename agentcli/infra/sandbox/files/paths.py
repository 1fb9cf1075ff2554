"""Decides which paths of this machine tools may use, by where they lead: symlinks and `..` are resolved."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.tools.sandbox import Access


class WorkspacePaths:
    """The folders of a workspace, a folder that may only be read, and the exceptions a person granted.

    `is_secret` says of a real path that it is kept from everybody, but for those exceptions.
    """

    def __init__(self, roots: Sequence[Path], readable: Path, *, is_secret: Callable[[Path], bool]) -> None:
        self.is_secret = is_secret
        self.roots = tuple(root.resolve() for root in roots)
        self._readable = readable.resolve()
        self._granted: dict[tuple[Path, Access], int] = {}  # how many hold the grant: calls may overlap

    def real(self, path: Path) -> Path:
        """Resolve a path. Raises `ToolError` (invalid_parameters)."""
        try:
            real = path.resolve()
            leads_nowhere = _is_link_or_beyond_a_loop(real)
        except (OSError, RuntimeError, ValueError) as error:  # a loop of symlinks; a NUL or a lone surrogate
            raise _unresolved(path) from error
        if leads_nowhere:
            raise _unresolved(path)
        return real

    def validate(self, path: Path, access: Access) -> Path:
        """The real path. Raises `ToolError` (permission_denied)."""
        real = self.real(path)
        if self.knows(real, access):
            return real
        if self.is_secret(real):
            raise ToolError(
                f"{path} is kept from tools (it may hold secrets, or a rule says so): the user has to grant it.",
                kind="permission_denied",
            )
        if not _is_in_one(real, self.roots):
            where = ", ".join(map(str, self.roots))
            done = "written" if access == "write" else "read"
            raise ToolError(
                f"{path} is outside the workspace ({where}) and may not be {done}.", kind="permission_denied"
            )
        return real

    def knows(self, real: Path, access: Access) -> bool:
        """True if it was granted, or may be read because it is the program's own."""
        if (real, access) in self._granted or (access == "read" and (real, "write") in self._granted):
            return True
        return access == "read" and _is_in_one(real, (self._readable,))

    def granted(self, access: Access) -> tuple[Path, ...]:
        return tuple(path for path, its in self._granted if its == access)

    def grant(self, path: Path, access: Access) -> None:
        self._granted[path, access] = self._granted.get((path, access), 0) + 1

    def revoke(self, path: Path, access: Access) -> None:
        left = self._granted.get((path, access), 0) - 1
        if left > 0:
            self._granted[path, access] = left
        else:
            self._granted.pop((path, access), None)

    def add_root(self, folder: Path) -> None:
        self.roots = (*self.roots, folder.resolve())


def _unresolved(path: Path) -> ToolError:
    return ToolError(f"{str(path)!r} cannot be resolved.", kind="invalid_parameters")


def _is_link_or_beyond_a_loop(real: Path) -> bool:
    """True for what Python 3.13 leaves of a loop of symlinks, which earlier versions refuse to resolve."""
    try:
        return stat.S_ISLNK(os.lstat(real).st_mode)  # half the time of `Path.lstat`
    except OSError as error:
        return error.errno == errno.ELOOP


def _is_in_one(path: Path, folders: Sequence[Path]) -> bool:
    """As `Path.is_relative_to`, which would take a tenth of the time of an edit."""
    text = str(path)
    return any(text == (folder := str(root)) or text.startswith(f"{folder.rstrip('/')}/") for root in folders)
