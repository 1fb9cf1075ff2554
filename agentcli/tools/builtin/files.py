"""Creates, replaces and edits files; encoding and line endings stay. A file is written whole or not at all.

Other tools, too, use the first part to read and write whole files. It turns failures into errors that a model can use.
"""

import ast
import asyncio
import errno
import io
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError, errno_name, kind_of
from agentcli.tools.builtin.toolset import Edit, FileEdit, FileWrite
from agentcli.tools.observation import diff_counts
from agentcli.tools.sandbox import Listing, names_in
from agentcli.tools.text.apply import apply_edits, changes_only_ascii
from agentcli.tools.text.diff import bounded_diff, unified_diff, with_hunks
from agentcli.tools.text.encoding import BOM, DecodedText, decode, require_encodable, without_surrogates
from agentcli.tools.tool import ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace, display_name

MISSING = "ENOENT"  # the error code for a path that does not exist

HOW_TO_NAME_CHARSET = (
    "To see and change all of it, name its charset in the setting tools.charset, or convert the file first "
    "(bash: iconv -f … -t UTF-8)."
)

MAX_EDITABLE_BYTES = 50 * 1024 * 1024  # an edit holds the file in memory several times

_ADVICE = {
    errno.ENOSPC: "Free some space on the disk first (bash: df -h).",
    errno.EDQUOT: "Your quota on this disk is used up: free some space first (bash: du).",
    errno.EFBIG: "The system allows no file of this size here.",
    errno.EROFS: "The file system is read-only: write elsewhere, or ask the user to make this place writable.",
    errno.EIO: "The disk itself failed: check that the file is whole before you go on.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ENOTDIR: "A part of the path is a file: choose another path.",
    errno.ELOOP: "Somebody is changing this path: look at it again with file_list.",
}

T = TypeVar("T")


@contextmanager
def opened(path: Path, workspace: Workspace) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and return it with its size in bytes. Raises `ToolError`, also if reading it fails."""
    shown = workspace.shown(path)
    try:
        with workspace.sandbox.read(path) as file:
            yield file, _size_of(file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ToolError(f"{shown} does not exist.", kind="not_found", code=MISSING) from error
    except IsADirectoryError as error:
        message = f"{shown} is a directory: use file_list."
        raise ToolError(message, kind="invalid_parameters", code=errno_name(error)) from error
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO):  # a socket, or anything else that is not a regular file
            raise ToolError(f"{shown} is not a regular file.", kind="invalid_parameters") from error
        raise file_failure("read", shown, error) from error


def _size_of(file: BinaryIO) -> int:
    """Return the size in bytes of a file, or of content in memory, which has no descriptor."""
    try:
        return os.fstat(file.fileno()).st_size  # files in /proc cannot seek to their end
    except io.UnsupportedOperation:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return size


def read_bytes(path: Path, workspace: Workspace) -> bytes:
    """Return the contents of a file that is to be changed. Raises `ToolError`."""
    with opened(path, workspace) as (file, size):
        if size > MAX_EDITABLE_BYTES:
            message = f"{workspace.shown(path)} is {size / 1e6:,.0f} MB, more than can be changed here"
            raise ToolError(f"{message}: change it with bash (sed -i, a script).", kind="validation_error")
        return file.read()


def require_certain_encoding(before: DecodedText, after: str, shown: str) -> None:
    """Raise `ToolError` if a change affects non-ASCII characters in a file of uncertain encoding."""
    if not before.is_certain and not changes_only_ascii(before.text, after):
        raise unknown_encoding_error(before, shown)


def unknown_encoding_error(text: DecodedText, shown: str) -> ToolError:
    return ToolError(
        f"{shown} is not UTF-8, and its encoding is not certain (it was read as {text.encoding}), so only its ASCII "
        f"characters can be changed. {HOW_TO_NAME_CHARSET}",
        kind="validation_error",
    )


def binary_file_error(shown: str, size: int) -> ToolError:
    message = f"{shown} is a binary file ({size:,} bytes): look at it with bash (file, xxd, strings)."
    return ToolError(message, kind="validation_error")


def write_bytes(path: Path, content: bytes, workspace: Workspace) -> None:
    """Replace or create a file, all or nothing. Raises `ToolError`."""
    shown = workspace.shown(path)
    try:
        workspace.sandbox.write(path, content)
    except OSError as error:
        state = "" if error.errno == errno.EIO else " The file is as it was."  # after EIO nobody knows
        raise file_failure("write", shown, error, state) from error


async def with_similar_names(work: Awaitable[T], path: Path, workspace: Workspace) -> T:
    """Await `work`, and add similar file names to an error that the path does not exist."""
    try:
        return await work
    except ToolError as error:
        if error.code != MISSING:
            raise
        names = ", ".join(await _find_similar(path, workspace))
        message = f"{error} There is {names}." if names else str(error)
        raise ToolError(message, kind=error.kind, code=error.code) from error


async def _find_similar(path: Path, workspace: Workspace) -> list[str]:
    """Return up to three files with that name, in any folder or case, to suggest for a missing one; nearest first."""
    found: list[str] = []

    def take(names: str) -> None:
        found.extend(name for name in names_in(names) if name.rpartition("/")[2].lower() == path.name.lower())

    with suppress(ToolError, OSError):  # also `TimeoutError`, which is an `OSError`
        async with asyncio.timeout(1.0):
            await workspace.sandbox.search(Listing(workspace.real_cwd), take)
    return [display_name(name) for name in sorted(found, key=lambda name: (name.count("/"), name))[:3]]


def file_failure(action: str, shown: str, error: OSError, state: str = "") -> ToolError:
    """Return the error of an action on a file, with advice; `state` is a sentence on what has become of the file."""
    advice = f" {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    message = f"Could not {action} {shown[:200]}: {error.strerror}.{advice}{state}"
    return ToolError(message, kind=kind_of(error), code=errno_name(error))


# Syntax errors in a new file, reported at once so that the model need not run it

MAX_CHECKED_BYTES = 200_000  # bytes; parsing takes about 5 ms for each 10,000
INVALID_NOTE = "Note: this is not valid"
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".py": (f"Python {sys.version_info.major}.{sys.version_info.minor}", ast.parse),
    ".json": ("JSON", json.loads),
    ".toml": ("TOML", tomllib.loads),
}


def syntax_note(path: Path, content: bytes) -> str:
    """Return a sentence on the first error in a Python, JSON or TOML file; empty if there is none, and for others."""
    name, read = _READERS.get(path.suffix, ("", None))
    if read is None or not content.strip() or len(content) > MAX_CHECKED_BYTES:
        return ""
    try:
        text = content.decode("utf-8-sig")
        with warnings.catch_warnings(action="ignore"):
            read(text)
    except SyntaxError as error:
        lines = text.splitlines()[(error.lineno or 0) - 1 : error.lineno]  # none if the error is after the last line
        line = f"\n{lines[0][:200]}" if lines else ""
        return f"{INVALID_NOTE} {name}: line {error.lineno}: {error.msg}.{line}"
    except UnicodeDecodeError:  # Python code may name another encoding in its first lines
        return ""
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{INVALID_NOTE} {name}: {error}."
    return ""


class PartialWrite(FileWrite, frozen=True):
    """A replacement with only some of its hunks applied."""

    hunks: tuple[int, ...] = ()


class PartialEdit(FileEdit, frozen=True):
    """An edit with only some of its hunks applied."""

    hunks: tuple[int, ...] = ()


class NewContent(Struct, frozen=True):
    """The new contents of a file: its bytes, the diff, and notes for the model."""

    content: bytes
    diff: str
    notes: tuple[str, ...]


async def run(arguments: FileWrite | FileEdit, context: ToolContext) -> ToolOutput:
    path = context.writable(arguments.path)
    return await with_similar_names(asyncio.to_thread(_write, arguments, path, context), path, context.workspace)


async def preview(arguments: FileWrite | FileEdit, context: ToolContext) -> str:
    """Return the diff that the call would make. Raises `ToolError` if the call would fail."""
    path = context.writable(arguments.path)
    return await with_similar_names(asyncio.to_thread(_preview, arguments, path, context), path, context.workspace)


async def narrow(arguments: FileWrite | FileEdit, context: ToolContext, hunks: Sequence[int]) -> FileWrite | FileEdit:
    """Return arguments that apply only some hunks of the diff, by their index."""
    if isinstance(arguments, FileWrite):
        return PartialWrite(arguments.path, arguments.content, hunks=tuple(hunks))
    return PartialEdit(path=arguments.path, edits=_edits_of(arguments), hunks=tuple(hunks))


def _preview(arguments: FileWrite | FileEdit, path: Path, context: ToolContext) -> str:
    """Return the diff, and record the file's contents, so that only contents that the person has seen are changed."""
    before = _read_before(arguments, path, context.workspace) or b""
    change = _new_content(arguments, before, path, context.workspace)
    context.workspace.files.approve(context.call_id, path, before)
    return change.diff


def _write(arguments: FileWrite | FileEdit, path: Path, context: ToolContext) -> ToolOutput:
    files, shown = context.workspace.files, context.workspace.shown(path)
    old_content = _read_before(arguments, path, context.workspace)
    before = old_content or b""
    files.require_as_approved(context.call_id, path, before)
    change = _new_content(arguments, before, path, context.workspace)
    write_bytes(path, change.content, context.workspace)
    notes = [note for note in (*change.notes, syntax_note(path, change.content)) if note]
    diff = bounded_diff(change.diff)
    if isinstance(arguments, FileWrite):
        files.record(path, change.content)
        content = " ".join([f"{'Created' if old_content is None else 'Replaced'} {shown}.", *notes])
    else:
        files.record_change(path, before, change.content)
        content = "\n".join([diff.rstrip("\n"), *notes]) if notes else diff
    return ToolOutput(content, {"path": shown, "diff": diff}, diff_counts(diff))


def _read_before(arguments: FileWrite | FileEdit, path: Path, workspace: Workspace) -> bytes | None:
    """Return the bytes that would be changed; None for a new file. Raises `ToolError` if they must not be changed."""
    try:
        if isinstance(arguments, FileWrite) and not workspace.look(path).is_there:
            return None
    except OSError as error:  # unknown: no permission, or a name that is too long
        raise file_failure("look for", workspace.shown(path), error) from error
    content = read_bytes(path, workspace)
    if isinstance(arguments, FileWrite):
        workspace.files.require_current(path, content)
    return content


def _new_content(arguments: FileWrite | FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    """Return the file's new contents. A notebook is changed as the text of its cells. Raises `ToolError`."""
    is_json = isinstance(arguments, FileWrite) and arguments.content.lstrip().startswith("{")
    if path.suffix != ".ipynb" or is_json:  # JSON: a whole notebook, not the text of its cells
        return _new_text(arguments, before, path, workspace)
    from agentcli.tools.text.notebooks import EMPTY_NOTEBOOK, cells_as_text, notebook_from_text

    notebook = before if before.strip() else EMPTY_NOTEBOOK
    if (cells := cells_as_text(notebook)) is None:
        return _new_text(arguments, before, path, workspace)
    change = _new_text(arguments, cells.encode(), path, workspace)
    try:
        is_unchanged = change.content == cells.encode() and before.strip()  # an empty file becomes a notebook
        content = before if is_unchanged else notebook_from_text(change.content.decode(), notebook)
        return replace(change, content=content)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{workspace.shown(path)} would be no notebook: {error}.", kind="validation_error") from error


def _new_text(arguments: FileWrite | FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    """Return a text file's new contents. A replaced file keeps its encoding, and CRLF if all its lines end so.

    Notes tell the model what was kept. Raises `ToolError` if characters would be garbled or lost.
    """
    if isinstance(arguments, FileEdit):
        return _edit_file(arguments, before, path, workspace)
    require_encodable(arguments.content, "content")
    shown = workspace.shown(path)
    old = decode(before, workspace.settings.charset) or DecodedText("", "utf-8")  # a binary file is replaced whole
    text, preserved = arguments.content, []
    if old.bom or old.encoding != "utf-8":
        text = text.removeprefix(BOM)  # `encoded` adds the file's own
    if old.bom or (old.encoding != "utf-8" and not (before.isascii() and text.isascii())):
        preserved.append(f"{old.encoding}{' with its byte order mark' if old.bom else ''}")
    all_ends, crlf_ends = old.text.count("\n"), old.text.count("\r\n")
    if 0 < crlf_ends == all_ends and "\n" in text:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        preserved.append("CRLF line ends")
    require_certain_encoding(old, text, shown)
    if text.count("\ufffd") > old.text.count("\ufffd") and without_surrogates(old.text) != old.text:
        message = f"{shown} has bytes that are no characters. They are shown as U+FFFD, which must not replace them"
        raise ToolError(f"{message}: change other lines with file_edit.", kind="validation_error")
    notes = [f"[The file {'keeps' if before else 'has'} {' and '.join(preserved)}.]"] if preserved else []
    if 0 < crlf_ends < all_ends:
        notes.append("[It had LF and CRLF line ends; now it has those of content.]")
    if isinstance(arguments, PartialWrite):  # the person chose some of the hunks
        text = with_hunks(old.text, text, arguments.hunks)
    return NewContent(old.encoded(text), unified_diff(shown, old.text, text), tuple(notes))


def _edit_file(arguments: FileEdit, before: bytes, path: Path, workspace: Workspace) -> NewContent:
    """Return a text file's new contents after the edits of a call, or after the hunks that the person chose."""
    shown, old, edits = workspace.shown(path), decode(before, workspace.settings.charset), _edits_of(arguments)
    if old is None:
        raise binary_file_error(shown, len(before))
    # Characters that the text lacks cannot match; this error explains that they may have been misread.
    if not old.is_certain:
        known, written = without_surrogates(old.text), "".join(edit.old_string + edit.new_string for edit in edits)
        if any(not char.isascii() and char not in known for char in set(written)):
            raise unknown_encoding_error(old, shown)
    new, notes = apply_edits(old, edits)
    require_certain_encoding(old, new.text, shown)
    text = with_hunks(old.text, new.text, arguments.hunks) if isinstance(arguments, PartialEdit) else new.text
    return NewContent(new.encoded(text), unified_diff(shown, old.text, text), notes)


def _edits_of(arguments: FileEdit) -> tuple[Edit, ...]:
    """Return the edits of a call, which may give a single one without `edits`. Raises `ToolError`."""
    if arguments.edits:
        if arguments.old_string or arguments.new_string:
            message = "file_edit takes old_string and new_string, or edits, not both: put this one into edits, too."
            raise ToolError(message, kind="invalid_parameters")
        return arguments.edits
    if arguments.old_string is None or arguments.new_string is None:
        raise ToolError("file_edit needs old_string and new_string, or edits.", kind="invalid_parameters")
    return (Edit(arguments.old_string, arguments.new_string, arguments.replace_all),)
