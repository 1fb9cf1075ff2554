"""The common beginning of file_list and grep_search: the file or folder to search, and the form of its paths.

Lists the files of a folder, nearest first, as the project's ignore rules have them.
"""

from __future__ import annotations

import heapq
import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError, ToolErrorKind, errno_name
from agentcli.tools.builtin.toolset import FileList
from agentcli.tools.observation import beside
from agentcli.tools.path_names import display_name, parse_name
from agentcli.tools.sandbox import Listing, SearchOutcome, names_in
from agentcli.tools.tool import ToolContext, ToolOutput


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


BRIEF_PATHS = 10
MOST_KEPT = 100_000  # paths in memory while only the first are wanted


async def run(given: FileList, context: ToolContext) -> ToolOutput:
    place = searchable(given.path, context)
    if not place.is_folder:
        raise ToolError(f"{given.path} is a file: use file_read.", kind="invalid_parameters")
    most = BRIEF_PATHS if "brief" in (given.output_level, context.level) else given.limit
    sandbox = context.workspace.sandbox

    async def look(glob: str) -> tuple[list[str], int, SearchOutcome]:
        found = NearestPaths(most, below=place.below, with_folders=not given.pattern, depth=given.depth)
        looked = await sandbox.search(msgspec.structs.replace(listing, pattern=glob), found.add)
        return (*found.result(place.prefix), looked)

    listing = Listing(place.path, relative_glob(given.pattern, place), given.include_ignored, place.base)
    paths, total, looked = await search_with_literal_brackets(
        listing.pattern, look, has_found=lambda result: result[1] > 0
    )
    notes = [f"[{total - len(paths)} more]"] if total > len(paths) else []
    if not total and listing.pattern and not listing.include_ignored:
        notes = await _ignored(listing, context)
    content = "\n".join([*(paths or ["No files."]), *notes, *remarks(looked)])
    structured: dict[str, Any] = {"paths": paths, "total": total}
    if looked.timed_out:
        structured["timed_out"] = True
    return ToolOutput(content, beside(content, lambda: structured), f"{total} path{'' if total == 1 else 's'}")


async def _ignored(listing: Listing, context: ToolContext) -> list[str]:
    """Return a note where the files asked for exist but are ignored by the project."""
    found: list[int] = []
    await context.workspace.sandbox.search(
        msgspec.structs.replace(listing, include_ignored=True), lambda names: found.append(names.count("\0"))
    )
    return [f"[ignored files match: {sum(found)}; include_ignored lists them]"] if found else []


# Names that follow one another and are of one folder, and the folder; ripgrep lists a folder without many breaks.
_FILES_OF_A_FOLDER = re.compile(r"(((?:[^\0]*/)?)[^/\0]*\0(?:\2[^/\0]*\0)*)")


class NearestPaths:
    """Files and the folders they are in, nearest first, then by name; folders end in a slash.

    Every path begins with `below`, the folder listed. `depth` counts from there; the folder's own files are at 1. Of
    more than `most` paths (0: all) only those are kept that may be among the first.
    """

    def __init__(self, most: int, *, below: str, with_folders: bool, depth: int | None) -> None:
        self._most = most
        self._below = below
        self._with_folders = with_folders
        self._most_slashes = below.count("/") + depth - 1 if depth else None
        self._folders: set[str] = set()  # that hold a file
        self._levels: defaultdict[int, list[str]] = defaultdict(list)  # names by their slashes; some may be forgotten
        self._files = 0
        self._kept = 0
        self._is_ascii = True

    def add(self, names: str) -> None:
        """Take a batch of names as a sandbox hands them over. They are told apart when they are shown."""
        self._is_ascii = self._is_ascii and names.isascii()
        folders, levels = self._folders, self._levels
        for of_a_folder, folder in _FILES_OF_A_FOLDER.findall(names):
            folders.add(folder)
            levels[folder.count("/")].append(of_a_folder)
        count = names.count("\0")
        if self._most_slashes is not None:
            for slashes in [slashes for slashes in levels if slashes > self._most_slashes]:
                count -= sum(of_a_folder.count("\0") for of_a_folder in levels.pop(slashes))
        self._files += count
        self._kept += count
        if self._most and self._kept > MOST_KEPT:
            self._forget_the_far()

    def result(self, prefix: str) -> tuple[list[str], int]:
        """The paths, `prefix` before each, and how many there are in all; to be asked once."""
        folders = self._folders_below() if self._with_folders else []
        for folder in folders:
            self._levels[folder.count("/") - 1].append(f"{folder}\0")
        paths: list[str] = []
        for _, level in sorted(self._levels.items()):
            names = names_in("".join(sorted(level)))  # in an order that leaves little to sort
            names.sort()
            paths += names
            if self._most and len(paths) >= self._most:
                del paths[self._most :]
                break
        if prefix:
            paths = [f"{parse_name(prefix)}{path}" for path in paths]
        if prefix or not self._is_ascii:
            paths = [display_name(path) for path in paths]
        return paths, self._files + len(folders)

    def _folders_below(self) -> list[str]:
        """All folders on the way to a file, but for the one listed and those too deep."""
        folders = set(self._folders)
        for folder in self._folders:
            while (folder := folder[: folder.rfind("/", 0, -1) + 1]) and folder not in folders:
                folders.add(folder)
        most, listed = self._most_slashes, len(self._below)
        return [f for f in folders if len(f) > listed and (most is None or f.count("/") <= most + 1)]

    def _forget_the_far(self) -> None:
        """Files deeper than enough others are not shown, nor those that come after enough others of their level."""
        self._kept = 0
        for slashes in sorted(self._levels):
            names = names_in("".join(self._levels.pop(slashes)))
            if self._kept < self._most:
                nearest = heapq.nsmallest(self._most, names)
                self._levels[slashes] = [f"{name}\0" for name in nearest]
                self._kept += len(nearest)
