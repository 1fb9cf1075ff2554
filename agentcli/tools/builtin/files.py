"""Reading and writing whole files for the tools: errors the model can act on, writes that are all or nothing."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.tools.text_edit import DecodedText, decode

LARGEST_FILE = 50 * 1024 * 1024  # bytes; larger ones are for grep_search and bash


def read_bytes(path: Path, shown: str) -> bytes:
    """A file's contents. Raises `ToolError` that says what to do instead."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ToolError(f"{shown} is a directory: use file_list.", kind="invalid_parameters")
        if not stat.S_ISREG(status.st_mode):
            raise ToolError(f"{shown} is not a regular file.", kind="invalid_parameters")
        if status.st_size > LARGEST_FILE:
            raise ToolError(
                f"{shown} is {status.st_size / 1e6:,.0f} MB: search it with grep_search, or read a part with bash "
                "(sed -n '1,200p').",
                kind="resource_error",
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ToolError(f"{shown} does not exist.{_similar(path)}", kind="not_found") from error
    except OSError as error:
        raise ToolError(f"Could not read {shown}: {error.strerror}.", kind=_kind(error)) from error


def is_there(path: Path, shown: str) -> bool:
    """Whether there is a file or folder. Raises `ToolError` when the system does not tell: no permission, too long."""
    try:
        return path.exists()
    except OSError as error:
        raise ToolError(f"Could not look for {shown[:200]}: {error.strerror}.", kind=_kind(error)) from error


def read_text(path: Path, shown: str) -> tuple[bytes, DecodedText]:
    """A text file's bytes and text. Raises `ToolError` for a binary file."""
    content = read_bytes(path, shown)
    return content, as_text(content, shown)


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


def write_bytes(path: Path, content: bytes, shown: str) -> None:
    """Replace or create a file so that a reader sees the old or the new contents, never a part.

    Mode and owner of an existing file stay; one with several hard links, or whose owner or folder is not ours, is
    written in place. Raises `ToolError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        status = path.stat() if path.exists() else None
        if status is not None and (
            status.st_nlink > 1 or not os.access(path.parent, os.W_OK) or os.geteuid() not in (0, status.st_uid)
        ):
            _overwrite(path, content)
        else:
            _replace(path, content, status)
    except OSError as error:
        raise ToolError(
            f"Could not write {shown}: {error.strerror}; the file is as it was.", kind=_kind(error)
        ) from error


def _overwrite(path: Path, content: bytes) -> None:
    """Write in place; when that fails half way, put back what was there, for which the room is still taken."""
    before = path.read_bytes()
    try:
        _fill(path, content)
    except OSError:
        _fill(path, before)
        raise


def _fill(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def _replace(path: Path, content: bytes, status: os.stat_result | None) -> None:
    if status is not None and not os.access(path, os.W_OK):
        raise PermissionError(13, "the file is read-only")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if status is None:
                mask = os.umask(0)
                os.umask(mask)
                os.fchmod(descriptor, 0o666 & ~mask)
            else:
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))  # after the owner, which clears setuid
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


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
