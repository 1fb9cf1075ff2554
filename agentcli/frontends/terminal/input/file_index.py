"""Finds files by a few letters of their path, in large projects while the person types."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.settings.short_program import run_short_program
from agentcli.tools.ripgrep import find_rg

MAX_LISTED_BYTES = 64 * 1024 * 1024  # of paths
MAX_QUERY_CHARS = 200
FRESH_S = 10.0  # a new mention looks again at files that were listed longer ago
FIRST_LISTING_S = 1.0  # that a query waits for the first listing
LISTING_TIME_LIMIT_S = 60.0
MAX_ENTRIES = 10_000  # of a folder outside the project
_BLOCK_PATHS = 1_500  # searched between two looks at the event loop: a millisecond or two

Rank = tuple[int, tuple[int, str]]  # the tier, 0 for the best; the place among the paths of a tier


class FileIndex:
    """The paths of a project's files and folders, listed at the first query; folders end in a slash."""

    def __init__(
        self, list_files: Callable[[], Awaitable[Sequence[str]]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._list_files = list_files
        self._clock = clock
        self._blocks: list[str] | None = None  # paths ordered by length, each ending in a newline
        self._listing: asyncio.Task[None] | None = None
        self._listed_at = float("-inf")
        self._query = ""
        self._searches = 0

    async def match(self, query: str, limit: int = 12, *, is_wanted: Callable[[], bool] = lambda: True) -> list[str]:
        """The best matches, best first; nothing when a later query was asked meanwhile, or `is_wanted` says no.

        A name that begins with the query precedes one that holds it, then a path that holds it, then one with its
        letters in order; shorter paths first. An empty query, or a folder's path, gives the folder's contents.
        """
        self._searches += 1
        search = self._searches
        is_new = not query or not (query.startswith(self._query) or self._query.startswith(query))
        self._query = query
        if is_new or self._blocks is None:
            is_listing = self._listing is not None and not self._listing.done()
            if not is_listing and self._clock() - self._listed_at > FRESH_S:
                self._listing = asyncio.get_running_loop().create_task(self._list())
        if self._blocks is None and self._listing is not None:
            await asyncio.wait([self._listing], timeout=FIRST_LISTING_S)
        if len(query) > MAX_QUERY_CHARS or "\n" in query:
            return []
        pattern = _Pattern(query)
        searched = [pattern.entries, pattern.matches] if not query or query.endswith("/") else [pattern.matches]
        for ranked in searched:
            best: list[tuple[Rank, str]] = []
            for block in self._blocks or ():
                if search != self._searches or not is_wanted():
                    return []
                best = heapq.nsmallest(limit, [*best, *ranked(block)])
                if len(best) == limit and best[-1][0][0] == 0:
                    break  # the paths of the blocks that follow are longer
                await asyncio.sleep(0)
            if best:
                return [path for _, path in best]
        return []

    async def aclose(self) -> None:
        if self._listing is not None and not self._listing.done():
            self._listing.cancel()
            await asyncio.wait([self._listing])

    async def _list(self) -> None:
        try:
            files = await self._list_files()
        except (OSError, ToolError):
            files = ()  # completion is no reason to disturb the person
        self._blocks = await asyncio.to_thread(_blocks, files)
        self._listed_at = self._clock()


async def ripgrep_files(root: Path) -> Sequence[str]:
    """List the files below `root` that no ignore rule hides, relative to it. Raises `ToolError` and `OSError`."""
    argv = [find_rg(), "--no-config", "--no-messages", "--no-require-git", "--files", "--hidden", "--null"]
    end = await run_short_program(
        [*argv, "--glob=!.git"], timeout_s=LISTING_TIME_LIMIT_S, max_bytes=MAX_LISTED_BYTES, cwd=root
    )
    return await asyncio.to_thread(_split_names, end.stdout)


def leads_out(query: str) -> bool:
    """True if a typed path begins at the root, at home or above the project."""
    return query in ("~", "..") or query.startswith(("/", "~/", "../"))


def paths_elsewhere(query: str, root: Path, home: Path, limit: int = 12) -> list[str]:
    """The names in a typed folder that contain the typed name, prefixes first; hidden ones come when a dot is typed."""
    if query in ("~", ".."):
        return [f"{query}/"]
    typed, _, name = query.rpartition("/")
    folder = home / typed[2:] if query.startswith("~/") else root / f"{typed}/"
    ignores_case = name == name.lower()
    found: list[tuple[bool, tuple[int, str], str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MAX_ENTRIES):
                compared = entry.name.lower() if ignores_case else entry.name
                if name not in compared or entry.name.startswith(".") > name.startswith("."):
                    continue
                path = f"{typed}/{entry.name}" + ("/" if Path(entry).is_dir() else "")
                if path != query and not _UNSHOWABLE.search(os.fsencode(path).decode(errors="replace")):
                    found.append((not compared.startswith(name), _listed_place(path), path))
    except OSError:
        pass  # no folder, or none that can be read: nothing to offer
    return [path for _, _, path in heapq.nsmallest(limit, found)]


# A name with a quotation mark cannot be written as a mention, and one with control characters not be shown.
_UNSHOWABLE = re.compile('[\x01-\x1f\x7f-\x9f"\ufffd]')


def _split_names(listed: bytes) -> Sequence[str]:
    names = listed.decode(errors="replace").split("\0")[:-1]
    return [name for name in names if not _UNSHOWABLE.search(name)]


def _blocks(files: Sequence[str]) -> list[str]:
    """The files and their folders in order of length."""
    folders: set[str] = set()
    for folder in {path.rpartition("/")[0] for path in files}:
        while folder and f"{folder}/" not in folders:
            folders.add(f"{folder}/")
            folder = folder.rpartition("/")[0]
    by_length: defaultdict[int, list[str]] = defaultdict(list)  # sorting all at once would hold up the event loop
    for path in itertools.chain(files, folders):
        by_length[len(path)].append(path)
    paths = [path for length in sorted(by_length) for path in sorted(by_length[length])]
    return ["\n".join(paths[at : at + _BLOCK_PATHS]) + "\n" for at in range(0, len(paths), _BLOCK_PATHS)]


class _Pattern:
    """A compiled query. Its expressions match every line of a block, with a group for those that fit."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._ignores_case = query == query.lower()
        # Letters stand for themselves, which `re` looks for fastest; the second branch takes lines that do not match.
        in_order = "".join(rf"[^{letter}\n]*{letter}" for letter in map(re.escape, query))
        self._letters = re.compile(rf"({in_order})[^\n]*\n|[^\n]*\n")
        self._entries = re.compile(rf"({re.escape(query)}[^/\n]+)/?\n|[^\n]*\n")
        self._folders = re.compile("(?:^|/)" + "[^/]*/".join(map(re.escape, query.split("/"))))

    def entries(self, block: str) -> Iterator[tuple[Rank, str]]:
        """The contents of the folder that the query names."""
        return (((1, _listed_place(path)), path) for path in self._lines(self._entries, block))

    def matches(self, block: str) -> Iterator[tuple[Rank, str]]:
        lines = self._lines(self._letters, block)
        return (((self._tier(path), (len(path), path)), path) for path in lines if path != self._query)

    def _lines(self, expression: re.Pattern[str], block: str) -> list[str]:
        found = expression.findall(block.lower() if self._ignores_case else block)
        return [path for path, match in zip(block.split("\n"), found, strict=False) if match] if any(found) else []

    def _tier(self, path: str) -> int:
        """Of a query with slashes, each part can be the beginning of a name."""
        query = self._query
        if self._ignores_case:
            path = path.lower()
        if "/" in query:
            if path.startswith(query) or f"/{query}" in path:
                return 0
            return 1 if self._folders.search(path) else 2 if query in path else 3
        name = path.rfind("/", 0, -1) + 1
        if path.startswith(query, name):
            return 0
        return 3 if query not in path else 1 if path.find(query, name) >= 0 else 2


def _listed_place(path: str) -> tuple[int, str]:
    """The order of names in a folder, hidden ones last."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    return int(name.startswith(".")), name
