"""Searches file contents with ripgrep; gathers its answers, file by file in any order, in the order of their paths.

The order is that of `rg --sort=path`: by the names of folders and files, one after the other.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from operator import attrgetter
from typing import Any

from msgspec import Struct

from agentcli.tools.builtin.searching import Target, relative_glob, remarks, search_with_literal_brackets, searchable
from agentcli.tools.builtin.toolset import GrepSearch
from agentcli.tools.observation import beside, cut_line
from agentcli.tools.sandbox import FoundRows, Search, SearchOutcome
from agentcli.tools.tool import ToolContext, ToolOutput

BRIEF_MATCHES = 10
LONGEST_MATCH = 500  # characters of a line that the model is shown
_NAMED_BINARIES = 3

Show = Callable[[bytes], str]

_ROW = re.compile(r"(\d+)([:+-])(.*)", re.DOTALL)
_MATCH_ROW = re.compile(rb"^\d+:", re.MULTILINE)
_LONG_ROW = re.compile(rf"^(\d+):(.{{{LONGEST_MATCH + 1},}})", re.MULTILINE)


async def run(given: GrepSearch, context: ToolContext) -> ToolOutput:
    place = searchable(given.path, context)
    most = BRIEF_MATCHES if "brief" in (given.output_level, context.level) else given.limit
    workspace = context.workspace

    async def look(glob: str) -> tuple[Matches | MatchedFiles, SearchOutcome]:
        search = Search(
            place.path,
            given.pattern,
            glob,
            type=given.type or "",
            ignore_case=given.ignore_case,
            multiline=given.multiline,
            context=given.context,
            mode=given.output_mode,
            base=place.base,
        )
        found = _collector(given, place, most=most)
        return found, await workspace.sandbox.search(search, found.add, context.all_grants)

    found, looked = await search_with_literal_brackets(
        relative_glob(given.glob, place), look, has_found=lambda result: result[0].files > 0
    )
    return _output(found, looked, given, place)


def _collector(given: GrepSearch, place: Target, *, most: int) -> Matches | MatchedFiles:
    if given.output_mode != "content":
        return MatchedFiles(most, are_counted=given.output_mode == "count", show=place.show)
    has_marks = given.multiline or given.context > 0
    return Matches(most, has_marks=has_marks, context=given.context, show=place.show)


def _output(found: Matches | MatchedFiles, looked: SearchOutcome, given: GrepSearch, place: Target) -> ToolOutput:
    collected = found.collected()
    lines = collected.lines or ["No matches."]
    if not collected.lines and "$" in given.pattern:
        lines.append(r"[before CRLF, $ does not match: use \r?$ where files may have such line ends]")
    if collected.left_out:
        lines.append(f"[{collected.left_out} more]")
    if looked.binary and given.output_mode == "content":
        lines.append(_binary_note([place.show(path) for path in looked.binary]))
    content = "\n".join([*lines, *remarks(looked)])

    def structured() -> dict[str, Any]:
        answer = {"matches": collected.entries(), "total": found.total}
        return {**answer, "timed_out": True} if looked.timed_out else answer

    matches = f"{found.total} match{'' if found.total == 1 else 'es'} in "
    files = f"{found.files} file{'' if found.files == 1 else 's'}"
    summary = files if given.output_mode == "files" else matches + files
    return ToolOutput(content, beside(content, structured), summary)


def _binary_note(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED_BINARIES} more" if len(paths) > _NAMED_BINARIES else ""
    return f"[matches, but is binary: not shown from its first NUL byte on: {', '.join(paths[:_NAMED_BINARIES])}{more}]"


class Match(Struct, gc=False):
    """One of possibly very many: it has nothing that the garbage collector would have to look at."""

    path: str
    line: int
    text: str


class FoundFile(Struct, gc=False):
    path: str


class CountedFile(FoundFile, gc=False):
    count: int


class MatchList(Struct, frozen=True):
    """The entries to show: for programs (made on demand), for the model, and the number of entries left out."""

    entries: Callable[[], Sequence[Match | FoundFile]]
    lines: list[str]
    left_out: int


class _Part(Struct, gc=False):
    """Rows of one file."""

    order: bytes
    path: str
    rows: bytes
    text: str


@dataclass
class _File:
    order: bytes
    path: bytes
    count: int = 0
    parts: list[bytes] = field(default_factory=list)


class Matches:
    """The first `most` matches; the others are counted and forgotten, so that millions of them take no room.

    With 0 all are kept. Then rows become text as they come, while ripgrep is still searching.
    """

    def __init__(self, most: int, *, has_marks: bool, context: int, show: Show) -> None:
        self.total = self.files = 0
        self._most = most
        self._has_marks = has_marks
        self._context = context
        self._show = show
        self._parts: list[_Part] = []  # where all are wanted
        self._kept: list[_File] = []  # sorted; no more than the first matches are in
        self._kept_matches = 0
        self._last_path: bytes | None = None
        self._last: _File | None = None  # the file of that path, where it is kept

    def add(self, found: Sequence[FoundRows]) -> None:
        for path, rows in found:
            count = len(_MATCH_ROW.findall(rows)) if self._has_marks else rows.count(b"\n") + 1
            self.total += count
            if path != self._last_path:
                self.files += 1
                self._last_path, self._last = path, self._begin(path) if self._most else None
            if self._last is not None:
                self._keep(self._last, rows, count)
            elif not self._most:
                shown = self._show(path)
                text = _read_marked(shown, rows)[1] if self._has_marks else _text(shown, rows)
                self._parts.append(_Part(_order(path), shown, rows, text))

    def _begin(self, path: bytes) -> _File | None:
        order = _order(path)
        if self._kept_matches >= self._most and order >= self._kept[-1].order:
            return None
        insort(self._kept, file := _File(order, path), key=attrgetter("order"))
        return file

    def _keep(self, file: _File, rows: bytes, count: int) -> None:
        if file.count <= self._most:  # the context of the last match may be in the next part
            is_too_long = count > self._most and not self._has_marks
            file.parts.append(b"\n".join(rows.split(b"\n", self._most)[: self._most]) if is_too_long else rows)
        file.count += count
        self._kept_matches += count
        while self._kept_matches - self._kept[-1].count >= self._most:
            dropped = self._kept.pop()
            self._kept_matches -= dropped.count
            if dropped is self._last:
                self._last = None

    def _entries(self, parts: Sequence[_Part]) -> list[Match]:
        if self._has_marks:
            return [match for part in parts for match in _read_marked(part.path, part.rows)[0]]
        return [match for part in parts for match in _matches(part.path, part.rows)]

    def collected(self) -> MatchList:
        if not self._most:
            parts = sorted(self._parts, key=attrgetter("order"))
            return MatchList(partial(self._entries, parts), [part.text for part in parts], 0)
        entries: list[Match] = []
        lines: list[str] = []
        for file in self._kept:
            rows, path = b"\n".join(file.parts), self._show(file.path)
            wanted = self._most - len(entries)
            if self._has_marks:
                matches, text = _read_marked(path, rows, wanted, self._context)
            else:
                rows = b"\n".join(rows.split(b"\n", wanted)[:wanted])
                matches, text = _matches(path, rows), _text(path, rows)
            entries += matches
            lines.append(text)
        return MatchList(lambda: entries, lines, self.total - len(entries))


class MatchedFiles:
    """Files with a match; with how many where those are counted. `most` 0 means all."""

    def __init__(self, most: int, *, are_counted: bool, show: Show) -> None:
        self.total = self.files = 0
        self._most = most
        self._are_counted = are_counted
        self._show = show
        self._found: list[FoundRows] = []

    def add(self, found: Sequence[FoundRows]) -> None:
        self._found += found
        self.files += len(found)
        self.total += sum(int(rows) for _, rows in found) if self._are_counted else len(found)

    def collected(self) -> MatchList:
        if self._most:
            first = nsmallest(self._most, self._found, key=_order_of)
        else:
            first = sorted(self._found, key=_order_of)
        shown = [(self._show(path), rows) for path, rows in first]
        left_out = self.files - len(shown)
        if not self._are_counted:
            return MatchList(lambda: [FoundFile(path) for path, _ in shown], [path for path, _ in shown], left_out)
        counts = [(path, int(rows)) for path, rows in shown]
        lines = [f"{path}:{count}" for path, count in counts]
        return MatchList(lambda: [CountedFile(path, count) for path, count in counts], lines, left_out)


def _order_of(file: FoundRows) -> bytes:
    return _order(file[0])


def _order(path: bytes) -> bytes:
    return path.replace(b"/", b"\0")


def _decoded(rows: bytes) -> str:
    text = rows.decode(errors="replace")
    return text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text


def _matches(path: str, rows: bytes) -> list[Match]:
    """Rows of which each is a match."""
    matches: list[Match] = []
    for row in _decoded(rows).split("\n"):
        number, _, line = row.partition(":")
        matches.append(Match(path, int(number), line))
    return matches


def _text(path: str, rows: bytes) -> str:
    """The same as text."""
    text = _decoded(rows)
    if len(text) > LONGEST_MATCH:
        text = _LONG_ROW.sub(lambda row: f"{row[1]}:{cut_line(row[2], LONGEST_MATCH)}", text)
    return f"{path}:" + text.replace("\n", f"\n{path}:")


def _read_marked(path: str, rows: bytes, most: int | None = None, context: int = 0) -> tuple[list[Match], str]:
    """Entries and text of rows that may be context or go on with a match; up to the context of the last one wanted."""
    matches: list[Match] = []
    lines: list[str] = []
    last = 0
    for row in rows.decode(errors="replace").split("\n"):
        read = _ROW.fullmatch(row)
        assert read is not None, row
        number, mark, line = int(read[1]), read[2], read[3].removesuffix("\r")
        if most is not None and len(matches) == most and (mark == ":" or (mark == "-" and number > last + context)):
            break
        if mark == ":":
            matches.append(Match(path, number, line))
        elif mark == "+":
            matches[-1].text += f"\n{line}"
        if mark != "-":
            last, mark = number, ":"
        lines.append(f"{path}{mark}{number}{mark}{cut_line(line, LONGEST_MATCH)}")
    return matches, "\n".join(lines)
