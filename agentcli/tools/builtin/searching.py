"""Runs file_list, and defines what it shares with grep_search: folders, globs, notes on omissions."""

import os
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agentcli.errors import ToolError, ToolErrorKind, errno_name
from agentcli.tools.builtin.toolset import FileList, GrepSearch
from agentcli.tools.observation import lazy_if_large
from agentcli.tools.sandbox import Listing, SearchOutcome, names_in
from agentcli.tools.tool import OutputLevel, ToolContext, ToolOutput
from agentcli.tools.workspace import display_name, parse_name

_RESULTS: dict[OutputLevel, int] = {"brief": 10, "standard": 100, "full": 0}  # of a search or list; 0 for all

T = TypeVar("T")


class SearchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The file or folder to search."""

    path: Path  # its real path
    is_folder: bool
    base: Path  # found paths are relative to it: the working directory, or the folder itself if that is elsewhere
    prefix: str  # written before each path; empty if the base is the working directory
    below: str  # the path from the base to the folder, ending in a slash; empty for the base itself

    def show(self, path: bytes) -> str:
        """Return a path relative to the base as the model writes it."""
        return display_name(parse_name(self.prefix) + os.fsdecode(path))


def search_target(path: str, context: ToolContext) -> SearchTarget:
    """Return the file or folder at a path. Raises `ToolError` if there is none, or it is something else."""
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
    base, prefix = workspace.real_cwd, ""  # paths are shown relative to it, with the prefix if it is another folder
    if not found.is_relative_to(base):
        base = found if is_folder else found.parent
        prefix = f"{workspace.shown(base)}/"
    below = str(found.relative_to(base))
    below = "" if below == "." else f"{below}/"
    return SearchTarget(path=found, is_folder=is_folder, base=base, prefix=prefix, below=below)


def result_limit(arguments: FileList | GrepSearch, context: ToolContext) -> int:
    """Return the number of results that a call shows; 0 for all."""
    level = arguments.output_level or context.level
    return _RESULTS[level] if level == "brief" or arguments.limit is None else arguments.limit


def relative_glob(glob: str | None, target: SearchTarget) -> str:
    """Return a glob as the search takes it: without a leading `./`, and an absolute one relative to the base."""
    negation = "!" if glob and glob.startswith("!") else ""  # stays in front
    glob = (glob or "").removeprefix(negation)
    if target.base != Path("/"):
        glob = re.sub(f"^{re.escape(str(target.base))}/+", "/", glob)
    return negation + glob.removeprefix("./")


async def search_literal_brackets(
    glob: str, search: Callable[[str], Awaitable[T]], *, has_found: Callable[[T], bool]
) -> T:
    """Search with a glob in which `[slug]` may be a folder's own name, as in routes of web frameworks.

    The first form of the glob that finds anything is used: with literal brackets in folders, as it is, or with all
    brackets literal. Raises `ToolError` if the glob itself is wrong and no other form finds anything.
    """
    folders, slash, name = glob.rpartition("/")
    forms = [f"{_escape_brackets(folders)}{slash}{name}", glob, _escape_brackets(glob)]
    failures: list[ToolError] = []
    results: dict[str, T] = {}
    for form in [glob] if glob.startswith("!") else dict.fromkeys(forms):  # equal forms are tried only once
        try:
            if has_found(result := await search(form)):
                return result
            results[form] = result
        except ToolError as error:  # `[user-id]` is not a valid range of characters
            failures.append(error)
    if glob not in results:
        raise failures[0]
    return results[glob]


def _escape_brackets(glob: str) -> str:
    return re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", glob)


def describe_gaps(outcome: SearchOutcome) -> list[str]:
    """Return a line for each part that a search did not cover."""
    lines = []
    if outcome.unreadable:
        what = "file or folder" if outcome.unreadable == 1 else "files or folders"
        lines.append(f"[{outcome.unreadable} {what} could not be read]")
    if outcome.problem:
        lines.append(f"[a file was not searched to its end: {outcome.problem}]")
    if outcome.timed_out:
        lines.append("[stopped after 60 s, so there may be more. Narrow it with path, glob or type.]")
    return lines


async def run(arguments: FileList, context: ToolContext) -> ToolOutput:
    """List the files of a folder, nearest first, with notes on what was left out. Raises `ToolError`."""
    target, sandbox = search_target(arguments.path, context), context.workspace.sandbox
    if not target.is_folder:
        raise ToolError(f"{arguments.path} is a file: use file_read.", kind="invalid_parameters")
    limit = result_limit(arguments, context)
    listing = Listing(target.path, relative_glob(arguments.pattern, target), arguments.include_ignored, target.base)

    # Called for each form of the pattern until one finds something, each time with a new collector of the paths.
    async def search(glob: str) -> tuple[list[str], int, SearchOutcome]:
        found = NearestPaths(limit, below=target.below, with_folders=not arguments.pattern, depth=arguments.depth)
        outcome = await sandbox.search(msgspec.structs.replace(listing, pattern=glob), found.add)
        return (*found.result(target.prefix), outcome)

    paths, total, outcome = await search_literal_brackets(listing.pattern, search, has_found=lambda found: found[1] > 0)
    notes = [f"[{total - len(paths)} more]"] if total > len(paths) else []
    # Without this note, the model would take ignored files for files that do not exist.
    if not total and listing.pattern and not listing.include_ignored:
        batches: list[str] = []
        await sandbox.search(msgspec.structs.replace(listing, include_ignored=True), batches.append)
        count = sum(batch.count("\0") for batch in batches)
        notes = [f"[ignored files that match: {count}. To list them, set include_ignored.]"] if count else []
    content = "\n".join([*(paths or ["No files."]), *notes, *describe_gaps(outcome)])
    structured: dict[str, Any] = {"paths": paths, "total": total, **({"timed_out": True} if outcome.timed_out else {})}
    return ToolOutput(content, lazy_if_large(content, lambda: structured), f"{total} path{'' if total == 1 else 's'}")


# Consecutive names in one folder (group 1), and the folder (group 2); ripgrep lists most files of a folder together.
_FILES_OF_A_FOLDER = re.compile(r"(((?:[^\0]*/)?)[^/\0]*\0(?:\2[^/\0]*\0)*)")


class NearestPaths:
    """Files and the folders they are in, nearest first, then by name; folders end in a slash."""

    def __init__(self, limit: int, *, below: str, with_folders: bool, depth: int | None) -> None:
        self._limit = limit  # the number of paths in the result (0: all)
        self._below = below  # the folder that is listed, with which every path begins
        self._with_folders = with_folders
        # A name with more slashes is not listed. The listed folder's own files have the depth 1.
        self._max_slashes = below.count("/") + depth - 1 if depth else None
        self._folders: set[str] = set()  # the folders that hold a file
        self._batches_by_slashes = defaultdict[int, list[str]](list)  # by the slashes in each name
        self._files = 0  # all files, shown or not

    def add(self, names: str) -> None:
        """Take a batch of names as a sandbox gives them. They are split only at the end, which is faster."""
        folders, levels = self._folders, self._batches_by_slashes
        for batch, folder in _FILES_OF_A_FOLDER.findall(names):
            folders.add(folder)
            levels[folder.count("/")].append(batch)
        count = names.count("\0")
        if self._max_slashes is not None:  # drop names that are too deep
            for slashes in [slashes for slashes in levels if slashes > self._max_slashes]:
                count -= sum(batch.count("\0") for batch in levels.pop(slashes))
        self._files += count

    def result(self, prefix: str) -> tuple[list[str], int]:
        """Return the paths, each with `prefix` before it, and the total number of paths. May be called only once."""
        folders = self._folders_below() if self._with_folders else []
        for folder in folders:
            self._batches_by_slashes[folder.count("/") - 1].append(f"{folder}\0")  # 1: for the slash at its end
        paths: list[str] = []
        for _, level in sorted(self._batches_by_slashes.items()):
            names = names_in("".join(sorted(level)))  # sorted batches make the second sort fast
            names.sort()
            paths += names
            if self._limit and len(paths) >= self._limit:
                del paths[self._limit :]
                break
        paths = [display_name(f"{parse_name(prefix)}{path}") for path in paths]
        return paths, self._files + len(folders)

    def _folders_below(self) -> list[str]:
        """Return all folders that contain a file at any depth, except the listed folder and those that are too deep."""
        folders = set(self._folders)
        for folder in self._folders:
            # `folder` becomes its parent, `a/` of `a/b/`. If that is known, so are all further parents.
            while (folder := folder[: folder.rfind("/", 0, -1) + 1]) and folder not in folders:
                folders.add(folder)
        below = [folder for folder in folders if len(folder) > len(self._below)]
        max_slashes = self._max_slashes  # of a file's name; that of a folder has one more, at its end
        return below if max_slashes is None else [each for each in below if each.count("/") <= max_slashes + 1]
