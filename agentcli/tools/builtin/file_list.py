"""Lists the files of a folder, nearest first, as the project's ignore rules have them."""

from __future__ import annotations

import heapq
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import FileList
from agentcli.tools.builtin.searching import relative_glob, remarks, searchable
from agentcli.tools.sandbox import Listing
from agentcli.tools.tool import ToolContext, ToolOutput

BRIEF_PATHS = 10
MOST_KEPT = 100_000  # paths in memory while only the first are wanted


async def run(given: FileList, context: ToolContext) -> ToolOutput:
    place = searchable(given.path, context)
    if not place.is_folder:
        raise ToolError(f"{given.path} is a file: use file_read.", kind="invalid_parameters")
    most = BRIEF_PATHS if "brief" in (given.output_level, context.level) else given.limit
    found = NearestPaths(most, below=place.below, with_folders=not given.pattern, depth=given.depth)
    listing = Listing(place.path, relative_glob(given.pattern, place), given.include_ignored, place.base)
    looked = await context.workspace.sandbox.list(listing, found.add)
    paths, total = found.result(place.prefix)
    notes = [f"[{total - len(paths)} more]"] if total > len(paths) else []
    if not total and listing.pattern and not listing.include_ignored:
        notes = await _ignored(listing, context)
    content = "\n".join([*(paths or ["No files."]), *notes, *remarks(looked)])
    structured: dict[str, Any] = {"paths": paths, "total": total}
    if looked.timed_out:
        structured["timed_out"] = True
    return ToolOutput(content, structured, f"{total} path{'' if total == 1 else 's'}")


async def _ignored(listing: Listing, context: ToolContext) -> list[str]:
    """What to say to somebody who asked for files by a name that the project ignores."""
    names: list[str] = []
    await context.workspace.sandbox.list(replace(listing, include_ignored=True), names.extend)
    return [f"[ignored files match: {len(names)}; include_ignored lists them]"] if names else []


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
        self._groups: defaultdict[str, list[str]] = defaultdict(list)  # files by their folders; some may be forgotten
        self._files = 0
        self._kept = 0
        self._is_ascii = True

    def add(self, names: Sequence[str]) -> None:
        groups = self._groups
        if self._most_slashes is not None:
            for folder in {name.rpartition("/")[0] for name in names}:
                groups[folder]  # it may itself be near enough
            names = [name for name in names if name.count("/") <= self._most_slashes]
        for name in names:
            groups[name.rpartition("/")[0]].append(name)
        self._files += len(names)
        self._kept += len(names)
        self._is_ascii = self._is_ascii and "".join(names).isascii()
        if self._most and self._kept > MOST_KEPT:
            self._forget_the_far()

    def result(self, prefix: str) -> tuple[list[str], int]:
        """The paths, `prefix` before each, and how many there are in all; to be asked once.

        Bytes of a name that are no UTF-8 become U+FFFD.
        """
        groups = self._groups
        folder_paths = self._folder_paths() if self._with_folders else ()
        for path in folder_paths:
            groups[path[:-1].rpartition("/")[0]].append(path)
        paths: list[str] = []
        for _, folder in sorted([(_slashes_in(folder), f"{folder}/") for folder in groups]):
            group = groups[folder[:-1]]
            group.sort()
            paths += group
            if self._most and len(paths) >= self._most:
                del paths[self._most :]
                break
        if not self._is_ascii:
            paths = [os.fsencode(path).decode(errors="replace") for path in paths]
        if prefix:
            paths = [f"{prefix}{path}" for path in paths]
        return paths, self._files + len(folder_paths)

    def _folder_paths(self) -> list[str]:
        """All folders on the way to a file, but for the one listed and those too deep."""
        folders = set(self._groups)
        for folder in self._groups:
            while (folder := folder.rpartition("/")[0]) and folder not in folders:
                folders.add(folder)
        most = self._most_slashes
        below = (f"{folder}/" for folder in folders if folder and (most is None or folder.count("/") <= most))
        return [path for path in below if len(path) > len(self._below)]

    def _forget_the_far(self) -> None:
        """Files deeper than enough others are not shown, nor those that come after enough others of their folder."""
        by_depth = sorted((_slashes_in(folder), folder) for folder in self._groups)
        nearer = deepest = 0
        for slashes, folder in by_depth:
            if nearer >= self._most and slashes > deepest:
                self._groups[folder] = []
                continue
            deepest = slashes
            nearer += len(self._groups[folder])
            if len(self._groups[folder]) > self._most:
                self._groups[folder] = heapq.nsmallest(self._most, self._groups[folder])
        self._kept = sum(map(len, self._groups.values()))


def _slashes_in(folder: str) -> int:
    """How many slashes the paths of a folder's files have."""
    return folder.count("/") + 1 if folder else 0
