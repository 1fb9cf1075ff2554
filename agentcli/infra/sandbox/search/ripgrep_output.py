"""Parses ripgrep's output, in pieces of any size, into files and the rows found in them."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from agentcli.patterns import lazy_pattern
from agentcli.tools.sandbox import FoundRows

T = TypeVar("T")


class Reader(Generic[T]):
    """Reads pieces by `feed`, and the rest by `end`; results go to `take`, without `./` except by `NameReader`."""

    def __init__(self, take: Callable[[T], None]) -> None:
        self.binary: set[bytes] = set()  # files that were searched only up to a NUL byte
        self._take = take
        self._unfinished: list[bytes] = []  # pieces of an incomplete line or name

    def feed(self, piece: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Read the rest."""

    def _take_complete(self, piece: bytes, end_mark: bytes = b"\n") -> bytes:
        """Return the complete lines or names so far, up to the last end mark, and keep the rest."""
        end = piece.rfind(end_mark) + 1
        if not end:
            self._unfinished.append(piece)
            return b""
        data = b"".join((*self._unfinished, piece[:end]))
        self._unfinished = [piece[end:]]
        return data


class NameReader(Reader[str]):
    """Parses `--null`: names, each followed by a NUL, which `take` gets as they are, decoded as by `os.fsdecode`."""

    def feed(self, piece: bytes) -> None:
        if names := self._take_complete(piece, b"\0"):
            self._take(names.decode(errors="surrogateescape"))


_COUNT = lazy_pattern(rb"\./([^\0]*)\0(\d+)\n")  # a path and its count


class CountReader(Reader[Sequence[FoundRows]]):
    """Parses `--count --null`: a path, NUL, the count, a line end."""

    _rest = b""  # an incomplete last record

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece
        end = data.find(b"\n", data.rfind(b"\0")) + 1 if b"\0" in data else 0  # a path may contain a line end
        self._rest = data[end:]
        if end:
            self._take(_COUNT.findall(data[:end]))


# Messages after the rows of a file in which a NUL byte was found, and in place of rows that have one.
_STOPPED = b": WARNING: stopped searching binary file after match (found "
_MATCHES = b": binary file matches (found "
_FILE = lazy_pattern(rb"\./([^\0]*)\0([^\n]+(?:\n[^\n]+)*)\n\n")  # a path and its rows, up to the next path
_END_OF_STOPPED = lazy_pattern(rb'%s"[^\n]*" byte around offset \d+\)\n\n(?=\./)' % re.escape(_STOPPED))


class RowReader(Reader[Sequence[FoundRows]]):
    """Parses `--heading --null --line-number`: `./` and a path, NUL, rows that begin with a digit, an empty line."""

    _path: bytes | None = None  # the file to which the next rows belong; None if a path comes next

    def feed(self, piece: bytes) -> None:
        data = self._take_complete(piece)
        if self._path is not None and data.startswith(b"\n"):  # the empty line after the rows of the previous piece
            self._path, data = None, data[1:]
        if data:
            self._read(data)

    def end(self) -> None:
        """Read the rest: a file whose name has a line end in it, or the message about a single binary file."""
        rest = b"".join(self._unfinished)
        head, nul, rows = rest.partition(b"\0")
        if nul and b"\n" in rows:
            path = self._name_in(head)
            if rows := self._without_message(path, rows[: rows.rfind(b"\n")]):  # without the last line end
                self._take([(path, rows)])
        elif _MATCHES in rest:
            self.binary.add(rest[2 : rest.rindex(_MATCHES)])  # the path between `./` and the message

    def _read(self, data: bytes) -> None:
        """Read whole lines: `PATH NUL ROWS` and an empty line for each file. They may end in the middle of a file."""
        found: list[FoundRows] = []
        has_message = _STOPPED in data or _MATCHES in data
        if not has_message:
            data = self._read_usual(data, found)
        *ended, last = data.split(b"\n\n")
        path_start = b""  # the start of a path that has empty lines in it
        for part in ended:
            if self._path is None:
                head, nul, rows = (path_start + part).partition(b"\0")
                if not nul:  # the path goes on in the next part
                    path_start = head + b"\n\n"
                    continue
                path, path_start = self._name_in(head), b""
            else:
                path, rows, self._path = self._path, part, None
            # A message repeats the path; if that has a line end in it, the rows may end with the message's first lines.
            if has_message or b"\n" in path:
                rows = self._without_message(path, rows)
            if rows:
                found.append((path, rows))
        self._read_unfinished(path_start, last, found)
        if found:
            self._take(found)

    def _read_usual(self, data: bytes, found: list[FoundRows]) -> bytes:
        """Parse complete files with ordinary paths, several times faster than `_read`; return the rest."""
        if self._path is not None:
            rows, separator, following = data.partition(b"\n\n")
            if not separator:
                return data
            found.append((self._path, rows))
            self._path, data = None, following
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        parts = _FILE.split(data[:end])  # in turn: the text between two files (usually none), a path, its rows
        *between, rest = parts[::3]
        paths = parts[1::3]
        # If a path has a line end in it, its rows may end with the first lines of a message.
        if any(between) or b"\n" in b"".join(paths):
            return data
        found += zip(paths, parts[2::3], strict=True)
        return rest + data[end:]

    def _read_unfinished(self, path_start: bytes, last: bytes, found: list[FoundRows]) -> None:
        """Read the rows so far of an unfinished file; keep its path and rows for later if they cannot be told apart."""
        if self._path is None:
            head, nul, rows = (path_start + last).partition(b"\0")
            # A message repeats the path. If that has a line end in it, the message is read only as a whole.
            if not nul or b"\n" in head:
                self._unfinished.insert(0, path_start + last)
                return
            self._path = head[2:]  # without `./`
        else:
            rows = last
        if rows := self._without_message(self._path, rows[:-1]):  # without the last line end
            found.append((self._path, rows))

    def _name_in(self, head: bytes) -> bytes:
        """Return a file's name, without the end of another file's message that may precede it.

        A message repeats the file's name, and is split at any blank line in that.
        """
        message = _END_OF_STOPPED.search(head) if b"\n" in head else None
        return head[message.end() + 2 :] if message else head[2:]  # without `./`

    def _without_message(self, path: bytes, rows: bytes) -> bytes:
        """Cut off ripgrep's message that a file is binary, which begins with `./`, and add the file to `binary`."""
        if rows.startswith(b"./"):
            end = 0
        elif (end := rows.find(b"\n./")) < 0:
            return rows
        self.binary.add(path)
        return rows[:end]


class JsonReader(Reader[Sequence[FoundRows]]):
    """Parses `--json`, the only format that shows where a match of several lines ends."""

    def __init__(self, take: Callable[[Sequence[FoundRows]], None]) -> None:
        super().__init__(take)
        self._rows: list[tuple[int, bytes]] = []  # of the current file, with their byte offsets

    def feed(self, piece: bytes) -> None:
        found: list[FoundRows] = []
        # A line is `{"type":"match","data":{"path":{"text":"./a.py"},"lines":{"text":"x = 1\n"}, …}}`.
        for line in self._take_complete(piece).split(b"\n"):
            if line.startswith(b'{"type":"'):
                message = msgspec.json.decode(line)
                self._read_message(message["type"], message["data"], found)
        if found:
            self._take(found)

    def _read_message(self, kind: str, data: Mapping[str, Any], found: list[FoundRows]) -> None:
        """Keep the rows of a message; the message `end` makes those of its file a result."""
        if kind in ("match", "context"):
            self._rows.append((data["absolute_offset"], _rows(data, b":" if kind == "match" else b"-")))
        elif kind == "end":
            path, nul = _raw(data["path"])[2:], data["binary_offset"]
            rows = [row for offset, row in self._rows if nul is None or offset < nul]  # only those before a NUL byte
            if nul is not None and self._rows:
                self.binary.add(path)
            self._rows = []
            if rows:
                found.append((path, b"\n".join(rows)))


def _rows(data: Mapping[str, Any], mark: bytes) -> bytes:
    """Return rows for the lines of a match or of its context; the lines after the first one are marked by `+`."""
    first, *further = _raw(data["lines"]).removesuffix(b"\n").split(b"\n")
    number = data["line_number"] or 0
    further_rows = (b"%d+%b" % (n, line) for n, line in enumerate(further, number + 1))
    return b"\n".join((b"%d%b%b" % (number, mark, first), *further_rows))


def _raw(text: Mapping[str, str]) -> bytes:
    """Return the bytes of a path or of lines: `{"text": …}`, or `{"bytes": …}` in base64 if they are not UTF-8."""
    return text["text"].encode() if "text" in text else base64.b64decode(text["bytes"])
