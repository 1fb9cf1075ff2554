"""The common beginning of file_list and grep_search: the file or folder to search, and the form of its paths."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind, errno_name
from agentcli.tools.path_names import display_name, parse_name
from agentcli.tools.sandbox import SearchOutcome
from agentcli.tools.tool import ToolContext


class Target(Struct, frozen=True):
    """A real path to look at, and the folder that paths found there are relative to: the working directory or `path`.

    `prefix` stands before such a path when it is shown; empty for the working directory. `below` is the way from the
    base to the folder, with a slash behind it; empty for the base itself.
    """

    path: Path
    is_folder: bool
    base: Path
    prefix: str
    below: str

    def show(self, path: bytes) -> str:
        """A path from the base on as the model writes it."""
        return display_name(parse_name(self.prefix) + os.fsdecode(path))


def searchable(path: str, context: ToolContext) -> Target:
    """A file or folder to look at. Raises `ToolError` when there is none."""
    workspace = context.workspace
    found = context.readable(path)
    status = workspace.look(found)
    try:
        if not status.is_there:
            raise ToolError(f"{path} does not exist.", kind="not_found", code="ENOENT")
    except OSError as error:
        kind: ToolErrorKind = "permission_denied" if isinstance(error, PermissionError) else "not_found"
        raise ToolError(f"{path} cannot be searched: {error.strerror}.", kind=kind, code=errno_name(error)) from error
    if status.kind == "other":
        raise ToolError(f"{path} is not a regular file.", kind="invalid_parameters")
    is_folder = status.kind == "folder"
    base, prefix = workspace.real_cwd, ""
    if not found.is_relative_to(base):
        base = found if is_folder else found.parent
        prefix = f"{workspace.shown(base)}/"
    below = str(found.relative_to(base))
    return Target(found, is_folder, base, prefix, "" if below == "." else f"{below}/")


def relative_glob(glob: str | None, place: Target) -> str:
    """A glob as the search takes it: `./` does not count, an absolute one starts at the base."""
    sign, glob = ("!", glob[1:]) if glob and glob.startswith("!") else ("", glob or "")
    if place.base.parent != place.base:
        glob = re.sub(f"^{re.escape(str(place.base))}/+", "/", glob)
    return sign + glob.removeprefix("./")


T = TypeVar("T")


async def search_with_literal_brackets(
    glob: str, look: Callable[[str], Awaitable[T]], *, has_found: Callable[[T], bool]
) -> T:
    """Look with a glob in which `[slug]` may be a folder's own name, as in routes of web frameworks.

    Brackets of folders are tried as names first, and those of a file's name at last, where they find nothing as a class
    of characters.
    """
    ways = (glob,) if glob.startswith("!") else tuple(dict.fromkeys((_escape_folders(glob), glob, _escape(glob))))
    failures: list[ToolError] = []
    results: dict[str, T] = {}
    for way in ways:
        try:
            if has_found(result := await look(way)):
                return result
            results[way] = result
        except ToolError as error:  # `[user-id]` is no range
            failures.append(error)
    if glob not in results:
        raise failures[0]
    return results[glob]


def _escape_folders(glob: str) -> str:
    folders, slash, name = glob.rpartition("/")
    return f"{_escape(folders)}{slash}{name}"


def _escape(glob: str) -> str:
    """The same with all brackets literal, but those that are already."""
    return re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", glob)


def remarks(looked: SearchOutcome) -> list[str]:
    """Describe the parts that a result does not cover, a line each."""
    lines = []
    if looked.unreadable:
        what = "file or folder" if looked.unreadable == 1 else "files or folders"
        lines.append(f"[{looked.unreadable} {what} could not be read]")
    if looked.problem:
        lines.append(f"[not searched to its end: {looked.problem}]")
    if looked.timed_out:
        lines.append("[stopped after 60 s: there may be more; narrow it with path, glob or type]")
    return lines
