"""Searches file contents with ripgrep, whose results come file by file in any order, and sorts them by path.

The order is that of `rg --sort=path`: by the names in the path, one after the other. The rows of a file may
come in several parts, which follow each other.
"""

from __future__ import annotations

import re
import sys
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
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
_LONG_ROW = re.compile(rf"^(\d+):(.{{{MAX_SHOWN_CHARS + 1},}})", re.MULTILINE)


async def run(arguments: GrepSearch, context: ToolContext) -> ToolOutput:
    target = searching.searchable(arguments.path, context)
    limit = searching.result_limit(arguments, context)

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
            found = Matches(limit, has_marks=arguments.context > 0, context=arguments.context, show=target.show)
            if (arguments.output_level or context.level) == "full":
                found.max_chars = sys.maxsize
        return found, await context.workspace.sandbox.search(query, found.add, context.all_grants)

    glob = searching.relative_glob(arguments.glob, target)
    found, outcome = await searching.search_literal_brackets(glob, search, has_found=lambda result: result[0].files > 0)
    return _format(found, outcome, arguments, target)


def _format(
    found: Matches | MatchedFiles, outcome: SearchOutcome, arguments: GrepSearch, target: searching.SearchTarget
) -> ToolOutput:
    first = found.first_matches()
    lines = first.lines or ["No matches."]
    if not first.lines and "$" in arguments.pattern:
        lines.append(r"[$ does not match before CRLF. Use \r?$ for files with such line ends.]")
    if first.left_out:
        lines.append(f"[{first.left_out} more]")
    if outcome.binary and arguments.output_mode == "content":
        names = ", ".join(target.show(path) for path in outcome.binary[:_MAX_BINARY_NAMES])
        more = len(outcome.binary) - _MAX_BINARY_NAMES
        names += f" and {more} more" if more > 0 else ""
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
    """A file with its rows, in parts as they came; `texts` are the parts for the model, if there is no limit."""

    order: bytes  # by which files are sorted
    path: str
    count: int = 0  # of matches
    rows: list[bytes] = []
    texts: list[str] = []


class Matches:
    """The first `limit` matches. Further ones are only counted, so that millions of them need no memory.

    With the limit 0 all are kept, and rows are formatted as they come, while ripgrep is still searching.
    """

    def __init__(self, limit: int, *, has_marks: bool, context: int, show: Callable[[bytes], str]) -> None:
        self.total = self.files = 0  # all matches, and the files that have them
        self.max_chars = MAX_SHOWN_CHARS
        self._limit, self._show = limit, show
        self._has_marks = has_marks  # True if some rows are context, which has another mark than matches
        self._context = context  # lines before and after a match
        self._kept: list[_File] = []  # with a limit: sorted, and only files with the first matches
        self._kept_matches = 0  # the matches in the kept files
        self._current_path: bytes | None = None  # the file that is being received
        self._current: _File | None = None  # the same, if it is kept

    def add(self, found: Sequence[FoundRows]) -> None:
        """Count the matches in a batch of rows, and keep the rows that may be among the first matches."""
        for path, rows in found:
            count = len(_MATCH_ROW.findall(rows)) if self._has_marks else rows.count(b"\n") + 1
            self.total += count
            if path != self._current_path:
                self.files += 1
                self._current_path, self._current = path, self._begin_file(path)
            if self._current is not None and self._limit:
                self._keep_rows(self._current, rows, count)
            elif self._current is not None:
                self._current.rows.append(rows)
                self._current.texts.append(self._format_rows(self._current.path, rows))

    def _begin_file(self, path: bytes) -> _File | None:
        """Return a new kept file; None if it comes after all kept ones, which have enough matches already."""
        order = _sort_key(path)
        if self._limit and self._kept_matches >= self._limit and order >= self._kept[-1].order:
            return None
        file = _File(order=order, path=self._show(path))
        if self._limit:
            insort(self._kept, file, key=attrgetter("order"))
        else:
            self._kept.append(file)  # sorted at the end
        return file

    def _keep_rows(self, file: _File, rows: bytes, count: int) -> None:
        """Add a part with `count` matches to a file, and drop the last kept files if the others fill the limit."""
        if file.count <= self._limit:  # not `<`: this part may have context of the last match shown
            # Without context, each row is a match; else `_read_marked` cuts the rows.
            if count > self._limit and not self._has_marks:
                rows = b"\n".join(rows.split(b"\n", self._limit)[: self._limit])
            file.rows.append(rows)
        file.count += count
        self._kept_matches += count
        while self._kept_matches - self._kept[-1].count >= self._limit:  # enough without the last one
            dropped = self._kept.pop()
            self._kept_matches -= dropped.count
            if dropped is self._current:
                self._current = None

    def first_matches(self) -> MatchList:
        if not self._limit:
            files = sorted(self._kept, key=attrgetter("order"))
            return MatchList(partial(self._entries, files), [text for file in files for text in file.texts], 0)
        entries: list[FoundLine] = []
        lines: list[str] = []
        for file in self._kept:
            more, rows = self._limit - len(entries), b"\n".join(file.rows)
            found, text = _read_marked(file.path, rows, self.max_chars, more, self._context)
            entries += found
            lines.append(text)
        return MatchList(lambda: entries, lines, self.total - len(entries))

    def _entries(self, files: Sequence[_File]) -> list[FoundLine]:
        parts = [(file.path, rows) for file in files for rows in file.rows]
        if self._has_marks:
            return [match for path, rows in parts for match in _read_marked(path, rows, self.max_chars)[0]]
        return [match for path, rows in parts for match in _read_unmarked(path, rows)]

    def _format_rows(self, path: str, rows: bytes) -> str:
        if self._has_marks:
            return _read_marked(path, rows, self.max_chars)[1]
        text = _decode(rows)
        if len(text) > self.max_chars:
            text = _LONG_ROW.sub(lambda row: f"{row[1]}:{cut_line(row[2], MAX_SHOWN_CHARS)}", text)
        return f"{path}:" + text.replace("\n", f"\n{path}:")


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


def _decode(rows: bytes) -> str:
    text = rows.decode(errors="replace")
    return text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text


def _read_unmarked(path: str, rows: bytes) -> list[FoundLine]:
    parts = (row.partition(":") for row in _decode(rows).split("\n"))
    return [FoundLine(path, int(number), line) for number, _, line in parts]


def _read_marked(
    path: str, rows: bytes, max_chars: int, limit: int | None = None, context: int = 0
) -> tuple[list[FoundLine], str]:
    """Read rows with the marks of `FoundRows`: return the matches, up to `limit`, and their text with its context."""
    matches: list[FoundLine] = []
    lines: list[str] = []
    last_match = 0  # the line number of the newest match
    for row in rows.decode(errors="replace").split("\n"):
        read = _ROW.fullmatch(row)
        assert read is not None, row
        number, mark, line = int(read[1]), read[2], read[3].removesuffix("\r")
        is_beyond = mark == ":" or (mark == "-" and number > last_match + context)  # the context of the newest match
        if len(matches) == limit and is_beyond:
            break
        if mark == ":":
            matches.append(FoundLine(path, number, line))
            last_match = number
        lines.append(f"{path}{mark}{number}{mark}{cut_line(line, max_chars)}")
    return matches, "\n".join(lines)
