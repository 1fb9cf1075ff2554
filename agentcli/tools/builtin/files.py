"""Reads and writes whole files for the tools; every failure becomes an error that the model can act on."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import errno
import io
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from agentcli.errors import ToolError, errno_name, kind_of
from agentcli.tools.sandbox import Listing, names_in
from agentcli.tools.text.apply import changes_only_ascii
from agentcli.tools.text.encoding import LARGEST_EDITABLE, DecodedText, decode
from agentcli.tools.workspace import Workspace, display_name

MISSING = "ENOENT"  # the code of the error for a path where nothing is

HOW_TO_NAME_CHARSET = (
    "To change more, name its charset in the setting tools.charset, or convert the file first "
    "(bash: iconv -f … -t UTF-8)."
)

_MAX_SIMILAR_S = 1.0  # seconds for finding similar names
_MAX_SIMILAR_NAMES = 3

_WHAT_TO_DO = {
    errno.ENOSPC: "Free some space on the disk first (bash: df -h).",
    errno.EDQUOT: "Your quota on this disk is used up: free some space first (bash: du).",
    errno.EFBIG: "The system allows no file of this size here.",
    errno.EROFS: "The file system is read-only: write elsewhere, or ask the user to make this place writable.",
    errno.EIO: "The disk itself failed: check that the file is whole before you go on.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "Somebody is changing this path: look at it again with file_list.",
}

T = TypeVar("T")


@contextmanager
def opened(path: Path, workspace: Workspace) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and return it with its size in bytes. Raises `ToolError`, also for a failure to read it."""
    shown = workspace.shown(path)
    try:
        with workspace.sandbox.read(path) as file:
            yield file, _size_of(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ToolError(f"{shown} does not exist.", kind="not_found", code=MISSING) from error
    except IsADirectoryError as error:
        raise ToolError(
            f"{shown} is a directory: use file_list.", kind="invalid_parameters", code=errno_name(error)
        ) from error
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO):
            raise ToolError(f"{shown} is not a regular file.", kind="invalid_parameters") from error
        raise file_failure("read", shown, error) from error


def _size_of(file: BinaryIO) -> int:
    try:
        return os.fstat(file.fileno()).st_size  # a file of /proc has a size, but no end that can be sought
    except io.UnsupportedOperation:  # content in memory
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return size


def read_bytes(path: Path, workspace: Workspace) -> bytes:
    """Return the contents of a file that is to be changed. Raises `ToolError`."""
    with opened(path, workspace) as (file, size):
        if size > LARGEST_EDITABLE:
            raise ToolError(
                f"{workspace.shown(path)} is {size / 1e6:,.0f} MB, more than can be changed here: "
                "change it with bash (sed -i, a script).",
                kind="validation_error",
            )
        return file.read()


def decode_file(content: bytes, path: Path, workspace: Workspace) -> DecodedText:
    """Return a file's bytes as text. Raises `ToolError` for a binary file."""
    text = decode(content, workspace.settings.charset)
    if text is None:
        raise binary_file_error(workspace.shown(path), len(content))
    return text


def require_certain_encoding(before: DecodedText, after: str, shown: str) -> None:
    """Raise `ToolError` if a change adds or removes characters in a file whose encoding is not certain."""
    if not before.is_certain and not changes_only_ascii(before.text, after):
        raise unknown_encoding_error(before, shown)


def unknown_encoding_error(text: DecodedText, shown: str) -> ToolError:
    return ToolError(
        f"{shown} is not UTF-8, and its encoding is not certain (it was read as {text.encoding}), so only ASCII text "
        f"apart from its other characters can be changed. {HOW_TO_NAME_CHARSET}",
        kind="validation_error",
    )


def binary_file_error(shown: str, size: int) -> ToolError:
    return ToolError(
        f"{shown} is a binary file ({size:,} bytes): look at it with bash (file, xxd, strings).",
        kind="validation_error",
    )


def write_bytes(path: Path, content: bytes, workspace: Workspace) -> None:
    """Replace or create a file, all or nothing. Raises `ToolError`."""
    shown = workspace.shown(path)
    try:
        workspace.sandbox.write(path, content)
    except NotADirectoryError as error:
        # If somebody has changed the folders meanwhile, no file is found, and the path itself is named.
        parents = (parent for parent in reversed(path.parents) if workspace.look(parent).kind not in (None, "folder"))
        file = workspace.shown(next(parents, path))
        raise ToolError(
            f"Could not write {shown}: {file} is a file, not a folder. Choose another path.",
            kind="invalid_parameters",
            code=errno_name(error),
        ) from error
    except OSError as error:
        state = "" if error.errno == errno.EIO else " The file is as it was."
        raise file_failure("write", shown, error, state) from error


async def naming_similar(work: Awaitable[T], path: Path, workspace: Workspace) -> T:
    """Await `work`, and add similar file names to an error that the path does not exist."""
    try:
        return await work
    except ToolError as error:
        if error.code != MISSING:
            raise
        names = await _find_similar(path, workspace)
        advice = f" There is {', '.join(names)}." if names else ""
        raise ToolError(f"{error}{advice}", kind=error.kind, code=error.code) from error


async def _find_similar(path: Path, workspace: Workspace) -> list[str]:
    """Return the files with a similar name below the nearest folder, nearest first."""
    wanted = _as_sendable(path.name).lower()
    found: list[tuple[int, str]] = []

    def take(names: str) -> None:
        found.extend(
            (distance, display_name(name)) for name in names_in(names) if (distance := _distance(wanted, name))
        )

    def nearest_folder() -> Path:
        folder = path.parent
        while workspace.look(folder).kind != "folder":
            folder = folder.parent
        return workspace.usable_path(folder, "read")

    with contextlib.suppress(ToolError, OSError, TimeoutError):  # such as a folder outside the workspace
        folder = await asyncio.to_thread(nearest_folder)
        async with asyncio.timeout(_MAX_SIMILAR_S):
            await workspace.sandbox.search(Listing(folder), take)
    return [name for _, name in sorted(found)[:_MAX_SIMILAR_NAMES]]


def _distance(wanted: str, name: str) -> int:
    """Return 0 for a name unlike the one wanted, else a number that is lower for a more similar or nearer file."""
    parts = PurePosixPath(_as_sendable(name).lower())
    if parts.name == wanted:
        return len(parts.parts)
    is_similar = wanted in parts.name or parts.name in wanted
    return 100 + len(parts.parts) if is_similar and len(parts.parts) == 1 else 0


def _as_sendable(name: str) -> str:
    return os.fsencode(name).decode(errors="replace")


def file_failure(action: str, shown: str, error: OSError, state: str = "") -> ToolError:
    advice = _WHAT_TO_DO.get(error.errno or 0, "")
    message = f"Could not {action} {shown[:200]}: {error.strerror}.{' ' if advice else ''}{advice}{state}"
    return ToolError(message, kind=kind_of(error), code=errno_name(error))


# Syntax errors in a file that was just written, so that the model need not find out by a run

LARGEST = 200_000  # bytes; parsing takes about 5 ms for each 10,000
IS_INVALID = "Note: this is no valid"
_LONGEST_LINE = 200  # characters
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".py": (f"Python {sys.version_info.major}.{sys.version_info.minor}", ast.parse),
    ".json": ("JSON", json.loads),
    ".toml": ("TOML", tomllib.loads),
}


def syntax_note(path: Path, content: bytes) -> str:
    """A sentence on the first thing that does not parse; empty where all does, or where nobody here can tell."""
    name, read = _READERS.get(path.suffix, ("", None))
    if read is None or not content.strip() or len(content) > LARGEST:
        return ""
    try:
        text = content.decode("utf-8-sig")
        with warnings.catch_warnings(action="ignore"):
            read(text)
    except SyntaxError as error:
        lines = text.splitlines()[(error.lineno or 0) - 1 : error.lineno]
        line = f"\n{lines[0][:_LONGEST_LINE]}" if lines else ""
        return f"{IS_INVALID} {name}: line {error.lineno}: {error.msg}.{line}"
    except UnicodeDecodeError:  # another encoding, which the file may name
        return ""
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{IS_INVALID} {name}: {error}."
    return ""
