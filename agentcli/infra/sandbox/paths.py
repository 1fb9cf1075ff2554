"""Which paths of this machine tools may use: judged where they lead, after symlinks and `..` are resolved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.tools.sandbox import Access


class WorkspacePaths:
    """The folders of a workspace, folders that may only be read, and the exceptions a person granted."""

    def __init__(self, roots: Sequence[Path], readable_roots: Sequence[Path]) -> None:
        self.roots = tuple(root.resolve() for root in roots)
        self._readable = tuple(root.resolve() for root in readable_roots)
        self._granted: set[tuple[Path, Access]] = set()

    def validate(self, path: Path, access: Access) -> Path:
        """The real path. Raises `ToolError` (permission_denied)."""
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of symlinks; a NUL or a lone surrogate
            raise ToolError(f"{str(path)!r} cannot be resolved.", kind="invalid_parameters") from error
        if (real, access) in self._granted:
            return real
        roots = self.roots if access == "write" else (*self.roots, *self._readable)
        if not any(real.is_relative_to(root) for root in roots):
            where = ", ".join(map(str, self.roots))
            done = "written" if access == "write" else "read"
            raise ToolError(
                f"{path} is outside the workspace ({where}) and may not be {done}.", kind="permission_denied"
            )
        return real

    def grant(self, path: Path, access: Access) -> None:
        self._granted.add((path, access))

    def revoke(self, path: Path, access: Access) -> None:
        self._granted.discard((path, access))

    def add_root(self, folder: Path) -> None:
        self.roots = (*self.roots, folder.resolve())
