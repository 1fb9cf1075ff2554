"""Reading and writing whole files for the tools: errors the model can act on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.tools.text_edit import DecodedText, decode
from agentcli.tools.tool import Workspace

LARGEST_FILE = 50 * 1024 * 1024  # bytes; larger ones are for grep_search and bash


def read_bytes(path: Path, workspace: Workspace) -> bytes:
    """A file's contents. Raises `ToolError` that says what to do instead."""
    shown = workspace.shown(path)
    try:
        status = workspace.sandbox.status(path)
        if status is None:
            raise ToolError(f"{shown} does not exist.{_similar(path)}", kind="not_found")
        if status.kind == "folder":
            raise ToolError(f"{shown} is a directory: use file_list.", kind="invalid_parameters")
        if status.kind != "file":
            raise ToolError(f"{shown} is not a regular file.", kind="invalid_parameters")
        if status.size > LARGEST_FILE:
            raise ToolError(
                f"{shown} is {status.size / 1e6:,.0f} MB: search it with grep_search, or read a part with bash "
                "(sed -n '1,200p').",
                kind="resource_error",
            )
        with workspace.sandbox.read(path) as file:
            return file.read()
    except OSError as error:
        raise ToolError(f"Could not read {shown}: {error.strerror}.", kind=_kind(error)) from error


def is_there(path: Path, workspace: Workspace) -> bool:
    """Whether there is a file or folder. Raises `ToolError` when the system does not tell: no permission, too long."""
    try:
        return workspace.sandbox.status(path) is not None
    except OSError as error:
        shown = workspace.shown(path)
        raise ToolError(f"Could not look for {shown[:200]}: {error.strerror}.", kind=_kind(error)) from error


def read_text(path: Path, workspace: Workspace) -> tuple[bytes, DecodedText]:
    """A text file's bytes and text. Raises `ToolError` for a binary file."""
    content = read_bytes(path, workspace)
    return content, as_text(content, workspace.shown(path))


def as_text(content: bytes, shown: str) -> DecodedText:
    """A file's bytes as text. Raises `ToolError` for a binary file."""
    text = decode(content)
    if text is None:
        raise ToolError(
            f"{shown} is a binary file ({len(content):,} bytes): look at it with bash (file, xxd, strings).",
            kind="validation_error",
        )
    return text


def require_same(now: bytes, then: bytes, shown: str) -> None:
    """Raises `ToolError` when a file is not what it was when a person judged a change of it."""
    if now != then:
        raise ToolError(f"{shown} has changed since it was approved: read it again.", kind="validation_error")


def write_bytes(path: Path, content: bytes, workspace: Workspace) -> None:
    """Replace or create a file, all or nothing. Raises `ToolError`."""
    try:
        workspace.sandbox.write(path, content)
    except OSError as error:
        raise ToolError(
            f"Could not write {workspace.shown(path)}: {error.strerror}; the file is as it was.", kind=_kind(error)
        ) from error


def _kind(error: OSError) -> ToolErrorKind:
    return "permission_denied" if isinstance(error, PermissionError) else "resource_error"


def _similar(path: Path) -> str:
    """A hint at names like the one that is missing."""
    with contextlib.suppress(OSError):
        wanted = path.name.lower()
        names = [os.fsencode(entry.name).decode(errors="replace") for entry in os.scandir(path.parent)]
        close = [name for name in names if wanted in name.lower() or name.lower() in wanted][:3]
        if close:
            return f" There is {', '.join(sorted(close))}."
    return ""
