"""What file_list and grep_search begin with: the file or folder that is meant."""

from __future__ import annotations

from pathlib import Path

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.tools.tool import ToolContext


def searchable(path: str, context: ToolContext) -> tuple[Path, bool]:
    """A file or folder to search, and whether it is a folder. Raises `ToolError` when there is none."""
    found = context.workspace.readable(path)
    try:
        status = context.workspace.sandbox.status(found)
    except OSError as error:
        kind: ToolErrorKind = "permission_denied" if isinstance(error, PermissionError) else "not_found"
        raise ToolError(f"{path} cannot be searched: {error.strerror}.", kind=kind) from error
    if status is None:
        raise ToolError(f"{path} does not exist.", kind="not_found")
    if status.kind == "other":
        raise ToolError(f"{path} is not a regular file.", kind="invalid_parameters")
    return found, status.kind == "folder"
