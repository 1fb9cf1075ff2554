"""Searches file contents with ripgrep, whose results come file by file in any order, and sorts them by path.

The order is that of `rg --sort=path`: by the names in the path, one after the other. The rows of a file may
come in several parts, which follow each other.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

from msgspec import Struct

from agentcli.tools.builtin import searching
from agentcli.tools.builtin.toolset import GrepSearch
from agentcli.tools.observation import cut_line, lazy_if_large
from agentcli.tools.sandbox import FoundRows, Search, SearchOptions, SearchOutcome
from agentcli.tools.tool import ToolContext, ToolOutput

MAX_SHOWN_CHARS = 500  # of a line, unless the level is full
_MAX_BINARY_NAMES = 3

# Rows as `FoundRows` describes them.
_ROW = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)
_MATCH_ROW = re.compile(rb"^\d+:", re.MULTILINE)


async def run(arguments: GrepSearch, context: ToolContext) -> ToolOutput:
    """Search a file or folder and return the first matches for the model. Raises `ToolError`."""
    target = searching.search_target(arguments.path, context)
    limit = searching.result_limit(arguments, context)

    # Called for each form of the glob until one finds something, each time with a new collector of the results.
    async def search(glob: str) -> tuple[Matches | MatchedFiles, SearchOutcome]:
        mode, ignore_case = arguments.output_mode, arguments.ignore_case
        options = SearchOptions(ignore_case=ignore_case, multiline=arguments.multiline, type=arguments.type or "")
        query = Search(
            target.path,
            arguments.pattern,
            glob,
            options=options,
            context=arguments.context,
            mode=mode,
            base=target.base,
        )
        found: Matches | MatchedFiles = MatchedFiles(limit, are_counted=mode == "count", show=target.show)
        if mode == "content":
            found = Matches(limit, context=arguments.context, show=target.show)
            if (arguments.output_level or context.level) == "full":
                found.max_chars = sys.maxsize
        return found, await context.workspace.sandbox.search(query, found.add, context.all_grants)

    glob = searching.relative_glob(arguments.glob, target)  # its brackets may be part of a folder's name
    found, outcome = await searching.search_literal_brackets(glob, search, has_found=lambda result: result[0].files > 0)
    return await asyncio.to_thread(_format, found, outcome, arguments, target)


def _format(
    found: Matches | MatchedFiles, outcome: SearchOutcome, arguments: GrepSearch, target: searching.SearchTarget
) -> ToolOutput:
    """Return the first matches by path, as text with notes on what was left out, and as structured data."""
    first = found.first_matches()
    lines = first.lines or ["No matches."]
    if not first.lines and "$" in arguments.pattern:
        lines.append(r"[$ does not match before CRLF. Use \r?$ for files with such line ends.]")
    if first.left_out:
        lines.append(f"[{first.left_out} more]")
    if outcome.binary and arguments.output_mode == "content":
        names = ", ".join(target.show(path) for path in outcome.binary[:_MAX_BINARY_NAMES])
        names += ", …" if len(outcome.binary) > _MAX_BINARY_NAMES else ""
        lines.append(f"[binary files that match, but are not shown after the first NUL byte: {names}]")
    content = "\n".join([*lines, *searching.describe_gaps(outcome)])

    def structured() -> dict[str, Any]:
        answer = {"matches": first.entries(), "total": found.total}
        return {**answer, "timed_out": True} if outcome.timed_out else answer

    files = f"{found.files} file{'' if found.files == 1 else 's'}"
    matches = f"{found.total} match{'' if found.total == 1 else 'es'} in {files}"
    summary = files if arguments.output_mode == "files" else matches
    return ToolOutput(content, lazy_if_large(content, structured), summary)


class FoundLine(Struct, gc=False):
    """A match. There may be millions, so the garbage collector does not track them."""

    path: str
    line: int
    text: str


class MatchList(Struct, frozen=True):
    """The matches to show: for programs (made on demand), for the model, and the number of matches left out."""

    entries: Callable[[], Sequence[FoundLine | dict[str, Any]]]
    lines: list[str]
    left_out: int


class _File(Struct, kw_only=True):
    """A file with its rows, in parts as they came."""

    order: bytes  # by which files are sorted
    path: bytes
    count: int = 0  # of matches
    rows: list[bytes] = []


class Matches:
    """The first `limit` matches (0: all). Further ones are only counted, so that millions of them need no memory."""

    def __init__(self, limit: int, *, context: int, show: Callable[[bytes], str]) -> None:
        self.total = self.files = 0  # all matches, and the files that have them
        self.max_chars = MAX_SHOWN_CHARS
        self._limit, self._show = limit or sys.maxsize, show
        self._context = context  # lines before and after a match
        self._kept: list[_File] = []  # the files that may have the first matches
        self._kept_matches = 0  # the matches in the kept files
        self._current: _File | None = None  # the file that is being received

    def add(self, found: Sequence[FoundRows]) -> None:
        """Count the matches in a batch of rows, and keep the rows that may be among the first matches."""
        for path, rows in found:
            if self._current is None or path != self._current.path:
                self.files += 1
                self._current = _File(order=_sort_key(path), path=path)
                self._kept.append(self._current)
            if self._current.count <= self._limit:  # not `<`: this part may have context of the last match shown
                self._current.rows.append(rows)
            count = len(_MATCH_ROW.findall(rows))
            self._current.count += count
            self._kept_matches += count
            self.total += count
        if self._kept_matches > 2 * self._limit:  # not at each match too many, because dropping sorts the files
            self._drop_last_files()

    def _drop_last_files(self) -> None:
        """Sort the kept files, and drop those behind the first `limit` matches."""
        self._kept.sort(key=attrgetter("order"))
        counts = accumulate(file.count for file in self._kept)
        needed = next((number for number, count in enumerate(counts, 1) if count >= self._limit), len(self._kept))
        del self._kept[needed:]
        self._kept_matches = sum(file.count for file in self._kept)

    def first_matches(self) -> MatchList:
        self._drop_last_files()
        lines = [
            f"{path}{mark}{number}{mark}{cut_line(line, self.max_chars)}" for path, number, mark, line in self._rows()
        ]
        return MatchList(self._entries, lines, max(self.total - self._limit, 0))

    def _entries(self) -> list[FoundLine]:
        return [FoundLine(path, number, line) for path, number, mark, line in self._rows() if mark == ":"]

    def _rows(self) -> Iterator[tuple[str, int, str, str]]:
        """Yield path, line number, mark and text of the rows of the first matches and their context."""
        limit = self._limit
        for file in self._kept:
            path = self._show(file.path)
            for number, mark, line in _read_rows(file.rows, limit, self._context):
                yield path, number, mark, line
            limit -= file.count


class MatchedFiles:
    """The first `limit` files with a match (0: all), each with its number of matches if they `are_counted`."""

    def __init__(self, limit: int, *, are_counted: bool, show: Callable[[bytes], str]) -> None:
        self.total = self.files = 0  # the matches (the files, unless these `are_counted`), and the files with a match
        self._limit, self._show, self._are_counted = limit, show, are_counted
        self._found: list[FoundRows] = []

    def add(self, found: Sequence[FoundRows]) -> None:
        self._found += found
        self.files += len(found)
        self.total += sum(int(rows) for _, rows in found) if self._are_counted else len(found)

    def first_matches(self) -> MatchList:
        first = nsmallest(self._limit or len(self._found), self._found, key=lambda file: _sort_key(file[0]))
        rows = [(self._show(path), count) for path, count in first]
        lines = [f"{path}:{int(count)}" if self._are_counted else path for path, count in rows]
        return MatchList(partial(self._entries, rows), lines, self.files - len(rows))

    def _entries(self, rows: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        return [{"path": path, **({"count": int(count)} if self._are_counted else {})} for path, count in rows]


def _sort_key(path: bytes) -> bytes:
    return path.replace(b"/", b"\0")  # so that `a/b` comes before `a.b`


def _read_rows(parts: Sequence[bytes], limit: int, context: int) -> Iterator[tuple[int, str, str]]:
    """Yield line number, mark and text of a file's rows, up to the match number `limit` with its context."""
    matches = last_match = 0  # `last_match`: the line number of the newest match
    for row in chain.from_iterable(part.decode(errors="replace").split("\n") for part in parts):
        read = _ROW.fullmatch(row)
        assert read is not None, row
        number, mark = int(read[1]), read[2]
        if matches == limit and (mark == ":" or number > last_match + context):  # not the context of the newest match
            return
        if mark == ":":
            matches, last_match = matches + 1, number
        yield number, mark, read[3].removesuffix("\r")
