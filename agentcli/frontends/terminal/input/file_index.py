"""Finds files by a few letters of their path, in large projects while the person types."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.tools.ripgrep import find_rg

ListFiles = Callable[[], AsyncGenerator[Sequence[str], None]]  # paths of files, in batches as they are found

MOST_PATHS = 500_000
LONGEST_QUERY = 200  # characters
FRESH_S = 10.0  # a new mention looks again at files that were listed longer ago
FIRST_LISTING_S = 1.0  # that a query waits for the first listing
LISTING_TIME_LIMIT_S = 60.0
MOST_COMPARED = 50_000  # paths, for one that is like a name
_BLOCK_PATHS = 1_500  # searched between two looks at the event loop: a millisecond or two


class FileIndex:
    """The paths of a project's files and folders, listed at the first query; folders end in a slash."""

    def __init__(self, list_files: ListFiles, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._list_files = list_files
        self._clock = clock
        self._blocks: list[str] | None = None  # paths ordered by length, each ending in a newline
        self._narrowed: tuple[str, list[str]] | None = None  # a query, and the blocks that hold all its matches
        self._listing: asyncio.Task[None] | None = None
        self._listed_at = float("-inf")
        self._query = ""
        self._searches = 0

    async def match(self, query: str, limit: int = 12, *, is_wanted: Callable[[], bool] = lambda: True) -> list[str]:
        """The best matches, best first. Small letters match capitals too; a slash matches nothing else.

        A name that begins with the query comes before one that holds it, then a path that holds it, then a path with
        its letters in this order; shorter paths first. An empty query, or a folder's path, gives the folder's contents.
        Gives nothing when a later query was asked meanwhile, or `is_wanted` says no.
        """
        self._searches += 1
        search = self._searches
        if not query or not (query.startswith(self._query) or self._query.startswith(query)):
            self._narrowed = None
            self._refresh_when_old()
        self._query = query
        if self._blocks is None:
            self._refresh_when_old()
            await self._first_listing()
        if self._blocks is None or len(query) > LONGEST_QUERY or "\n" in query:
            return []
        pattern = _Pattern(query)

        def goes_on() -> bool:
            return search == self._searches and is_wanted()

        if (not query or query.endswith("/")) and (children := await self._children(pattern, limit, goes_on)):
            return children
        return await self._best(pattern, limit, goes_on)

    def paths_like(self, name: str) -> list[str]:
        """Listed paths whose last part has nearly the letters of `name`; none in a very large project."""
        blocks = self._blocks or []
        if len(blocks) * _BLOCK_PATHS > MOST_COMPARED:
            return []
        letters = set(name.lower())
        return [path for block in blocks for path in block.splitlines() if _is_like(path, name, letters)]

    async def aclose(self) -> None:
        if self._listing is not None and not self._listing.done():
            self._listing.cancel()
            await asyncio.wait([self._listing])

    async def _children(self, pattern: _Pattern, limit: int, goes_on: Callable[[], bool]) -> list[str]:
        children: list[str] = []
        for block in self._blocks or ():
            if not goes_on():
                return []
            children = heapq.nsmallest(limit, [*children, *pattern.children_in(block)], key=_as_listed)
            await asyncio.sleep(0)
        return children

    async def _best(self, pattern: _Pattern, limit: int, goes_on: Callable[[], bool]) -> list[str]:
        """Paths come in order of length, so that once the best tier is full nothing better can follow."""
        all_blocks = self._blocks or []
        blocks = all_blocks
        if self._narrowed is not None and pattern.query.startswith(self._narrowed[0]):
            blocks = self._narrowed[1]
        tiers: tuple[list[str], ...] = ([], [], [], [])
        matching: list[str] = []
        searched = 0
        for block in blocks:
            if not goes_on():
                return []
            searched += 1
            if found := pattern.matches_in(block):
                matching.append("\n".join(found) + "\n")
                _sort_into(tiers, found, pattern, limit)
                if len(tiers[0]) >= limit:
                    break
            await asyncio.sleep(0)
        if goes_on() and self._blocks is all_blocks:
            self._narrowed = (pattern.query, matching + blocks[searched:])
        return [path for tier in tiers for path in tier][:limit]

    def _refresh_when_old(self) -> None:
        is_listing = self._listing is not None and not self._listing.done()
        if not is_listing and self._clock() - self._listed_at > FRESH_S:
            self._listing = asyncio.get_running_loop().create_task(self._list())

    async def _list(self) -> None:
        gathered = _Gathered()
        try:
            async with asyncio.timeout(LISTING_TIME_LIMIT_S), aclosing(self._list_files()) as batches:
                async for batch in batches:
                    gathered.add(batch)
                    if gathered.count >= MOST_PATHS:
                        break
        except (OSError, ToolError, TimeoutError):
            pass  # offer the paths found so far; completion is no reason to disturb the person
        self._blocks = await gathered.blocks()
        self._narrowed = None
        self._listed_at = self._clock()

    async def _first_listing(self) -> None:
        if self._listing is not None:
            await asyncio.wait([self._listing], timeout=FIRST_LISTING_S)


async def ripgrep_files(root: Path) -> AsyncGenerator[list[str], None]:
    """The files below `root` that no ignore rule hides, relative to it. Raises `ToolError` without ripgrep."""
    argv = [find_rg(), "--no-config", "--no-messages", "--no-require-git", "--files", "--hidden", "--null"]
    process = await asyncio.create_subprocess_exec(
        *argv,
        "--glob=!.git",
        cwd=root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        rest = b""
        while chunk := await process.stdout.read(65_536):
            *names, rest = (rest + chunk).split(b"\0")
            yield _showable(names)
    finally:
        if process.returncode is None:
            process.kill()
        while await process.stdout.read(65_536):  # until the pipe is empty `wait` does not return
            pass
        await process.wait()


MOST_LISTED = 10_000  # names of a folder outside the project


def leads_out(query: str) -> bool:
    """True if a typed path begins at the root, at home or above the project."""
    return query in ("~", "..") or query.startswith(("/", "~/", "../"))


def paths_elsewhere(query: str, root: Path, home: Path, limit: int = 12) -> list[str]:
    """The names in a typed folder that contain the typed name, those that begin with it first.

    Paths begin as they are typed, folders end in a slash. Hidden names come when a dot is typed.
    """
    if query in ("~", ".."):
        return [f"{query}/"]
    typed, _, name = query.rpartition("/")
    folder = home / typed[2:] if query.startswith("~/") else root / f"{typed}/"
    ignores_case = not any(letter.isupper() for letter in name)
    found: list[tuple[bool, tuple[bool, str], str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in itertools.islice(entries, MOST_LISTED):
                compared = entry.name.lower() if ignores_case else entry.name
                if name not in compared or entry.name.startswith(".") > name.startswith("."):
                    continue
                path = f"{typed}/{entry.name}" + ("/" if Path(entry).is_dir() else "")
                if path != query and _is_showable(path):
                    found.append((not compared.startswith(name), _as_listed(path), path))
    except OSError:
        pass  # no folder, or none that can be read: nothing to offer
    return [path for _, _, path in heapq.nsmallest(limit, found)]


# A name with a quotation mark cannot be written as a mention, and one with control characters not be shown.
_NOT_SHOWABLE = re.compile('[\x01-\x1f\x7f-\x9f"\ufffd]')


def _is_showable(path: str) -> bool:
    return not _NOT_SHOWABLE.search(os.fsencode(path).decode(errors="replace"))


def _showable(names: list[bytes]) -> list[str]:
    text = b"\0".join(names).decode(errors="replace")
    paths = text.split("\0") if text else []
    if _NOT_SHOWABLE.search(text):
        return [path for path in paths if not _NOT_SHOWABLE.search(path)]
    return paths


class _Gathered:
    """Paths by length while they are listed, with the folders they are in."""

    def __init__(self) -> None:
        self.count = 0
        self._by_length: dict[int, list[str]] = {}
        self._folders: set[str] = set()

    def add(self, files: Sequence[str]) -> None:
        self._add_all(files)
        for folder in {path.rpartition("/")[0] for path in files} - self._folders:
            while folder and folder not in self._folders:
                self._folders.add(folder)
                self._add_all((f"{folder}/",))
                folder = folder.rpartition("/")[0]

    def _add_all(self, paths: Iterable[str]) -> None:
        by_length = self._by_length
        for path in paths:
            by_length.setdefault(len(path), []).append(path)
            self.count += 1

    async def blocks(self) -> list[str]:
        blocks: list[str] = []
        held: list[str] = []
        for length in sorted(self._by_length):
            held += sorted(self._by_length.pop(length))
            while len(held) >= _BLOCK_PATHS:
                blocks.append("\n".join(held[:_BLOCK_PATHS]) + "\n")
                del held[:_BLOCK_PATHS]
                await asyncio.sleep(0)
        return [*blocks, "\n".join(held) + "\n"] if held else blocks


class _Pattern:
    """A compiled query. Its expressions match every line of a block, with a group for those that fit."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.ignores_case = not any(letter.isupper() for letter in query)
        # Letters stand for themselves, which `re` looks for fastest; the second branch takes lines that do not match.
        in_order = "".join(rf"[^{letter}\n]*{letter}" for letter in map(re.escape, query))
        self._letters = re.compile(rf"({in_order})[^\n]*\n|[^\n]*\n")
        self._children = re.compile(rf"({re.escape(query)}[^/\n]+)/?\n|[^\n]*\n")
        self._folders = re.compile("(?:^|/)" + "[^/]*/".join(map(re.escape, query.split("/"))))

    def matches_in(self, block: str) -> list[str]:
        return self._lines(self._letters, block)

    def children_in(self, block: str) -> list[str]:
        return self._lines(self._children, block)

    def _lines(self, expression: re.Pattern[str], block: str) -> list[str]:
        found = expression.findall(block.lower() if self.ignores_case else block)
        return [path for path, match in zip(block.split("\n"), found, strict=False) if match] if any(found) else []

    def tier(self, path: str) -> int:
        """The rank of a match: 0 is best. Of a query with slashes, each part can be the beginning of a name."""
        query = self.query
        if self.ignores_case:
            path = path.lower()
        if "/" in query:
            if path.startswith(query) or f"/{query}" in path:
                return 0
            return 1 if self._folders.search(path) else 2 if query in path else 3
        name = path.rfind("/", 0, -1) + 1
        if path.startswith(query, name):
            return 0
        return 3 if query not in path else 1 if path.find(query, name) >= 0 else 2


def _is_like(path: str, name: str, letters: set[str]) -> bool:
    last = path.rstrip("/").rpartition("/")[2]
    stem = last if "." in name else last.partition(".")[0] or last
    return abs(len(stem) - len(name)) <= 2 and len(letters ^ set(stem.lower())) <= 3


def _sort_into(tiers: Sequence[list[str]], paths: list[str], pattern: _Pattern, limit: int) -> None:
    for path in paths:
        if path != pattern.query:
            tier = tiers[pattern.tier(path)]
            if len(tier) < limit:
                tier.append(path)


def _as_listed(path: str) -> tuple[bool, str]:
    """The order of names in a folder, hidden ones last."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    return name.startswith("."), name
