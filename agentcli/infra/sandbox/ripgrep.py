"""Lists and searches files with ripgrep, which ships with agentcli.

Its configuration file is not read. Hidden files are included, because configuration and CI are hidden files, but never
a repository's own folder. `.gitignore` also applies outside repositories.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from agentcli.errors import ToolError
from agentcli.patterns import lazy_pattern
from agentcli.tools.sandbox import FoundRows, Listing, Search, SearchOutcome, find_rg, names_in

T = TypeVar("T")

TIME_LIMIT_S = 60.0

_ALWAYS = ("--no-config", "--no-ignore-messages", "--no-require-git", "--hidden")
_NOT_THE_REPOSITORY = "--glob=!.git"  # after all other globs, because the last one that matches wins
_UNREADABLE = b"(os error "  # near the end of ripgrep's message about a file that it cannot open
_LINE_END_HINT = re.compile(r"(?s)\n\nConsider enabling multiline mode.*")
_ESCAPED = re.compile(r"[*?\[\]{}\\,!# ]")

_PIPE_BYTES = 1024 * 1024  # large, so that the program need not wait while its output is parsed
_PIECE_BYTES = 256 * 1024  # parsed at a time, because many small pieces take longer
_ERROR_BYTES = 1024 * 1024

_COUNT = lazy_pattern(rb"\./([^\0]*)\0(\d+)\n")  # a path and its count
_BINARY = b": binary file matches (found "  # follows the path of a single file that has a NUL byte

_FORMATS = {
    "files": ("--files-with-matches", "--null"),
    "count": ("--count", "--null", "--with-filename"),
    "content": ("--heading", "--null", "--with-filename", "--line-number", "--color=never", "--no-context-separator"),
}


class Reader(Generic[T]):
    """Parses output in pieces of any size by `feed`, and the rest by `end`; the results go to `take`."""

    def __init__(self, take: Callable[[T], None]) -> None:
        self.binary: set[bytes] = set()  # files that were searched only up to a NUL byte
        self._take = take
        self._rest = b""  # the incomplete end of the pieces so far

    def feed(self, piece: bytes) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Read the rest."""


class NameReader(Reader[str]):
    """Parses `--null`: names, each followed by a NUL, which `take` gets as they are, decoded as by `os.fsdecode`."""

    def feed(self, piece: bytes) -> None:
        names, nul, self._rest = (self._rest + piece).rpartition(b"\0")
        if nul:
            self._take((names + nul).decode(errors="surrogateescape"))


class CountReader(Reader[Sequence[FoundRows]]):
    """Parses `--count --null`: `./`, a path, NUL, the count, a line end."""

    def feed(self, piece: bytes) -> None:
        data = self._rest + piece
        end = data.find(b"\n", data.rfind(b"\0")) + 1 if b"\0" in data else 0  # a path may contain a line end
        self._rest = data[end:]
        if end:
            self._take(_COUNT.findall(data[:end]))


class RowReader(Reader[Sequence[FoundRows]]):
    """Parses `--heading --null --line-number`: `./`, a path, NUL and rows, with an empty line between two files.

    Each row begins with a digit. A message that the file is binary may follow the rows: it begins with `./`.
    """

    _path_start = b""  # what came before an empty line that is part of a path

    def __init__(self, take: Callable[[Sequence[FoundRows]], None]) -> None:
        super().__init__(take)
        self._unfinished: list[bytes] = []  # pieces of a long row, joined once at its end

    def feed(self, piece: bytes) -> None:
        """Parse the complete files, and of the last, unfinished one the complete rows."""
        self._unfinished.append(piece)
        if b"\n" not in piece:
            return
        *files, last = self._joined().split(b"\n\n")
        path, nul, rows = last.partition(b"\0")
        complete_rows, newline, unfinished_row = rows.rpartition(b"\n")
        # A path with a line end may be repeated in a message, which must not be cut: such a file waits for its end.
        is_plain_path = path.startswith(b"./") and b"\n" not in path
        if newline and is_plain_path:
            files.append(path + nul + complete_rows)
            # The rest gets the same path, and the line end, which may be the first half of an empty line.
            last = path + nul + newline + unfinished_row
        self._rest = last
        self._read(files)

    def end(self) -> None:
        self._read([self._joined()])

    def _joined(self) -> bytes:
        data = b"".join((self._rest, *self._unfinished))
        self._unfinished = []
        return data

    def _read(self, files: Sequence[bytes]) -> None:
        """Pass on the rows of files, each given as the text between two empty lines, and collect binary files."""
        found: list[FoundRows] = []
        for file in files:
            path, nul, rows = (self._path_start + file).partition(b"\0")
            self._path_start = b""
            if not path.startswith(b"./"):  # the end of a message that repeats a path with an empty line
                continue
            if not nul and _BINARY not in path:  # the empty line was in the path, which goes on in the next text
                self._path_start = path + b"\n\n"
                continue
            rows, message_start, _ = rows.partition(b"\n./")
            if message_start:
                self.binary.add(path[2:])
            elif not nul:  # there is only the message, which begins with the path
                self.binary.add(path[2 : path.rindex(_BINARY)])
            if rows := rows.strip(b"\n"):
                found.append((path[2:], rows))
        if found:
            self._take(found)


async def list_files(listing: Listing, environment: Mapping[str, str], take: Callable[[str], None]) -> SearchOutcome:
    """List files as `Listing` describes, and give `take` batches of names, each followed by a NUL."""
    pattern = listing.pattern
    if not pattern:
        return await _list(listing, [], environment, take)
    if listing.include_ignored or pattern.startswith("!"):
        return await _list(listing, _glob_options(pattern, listing.folder, listing.base), environment, take)
    name = pattern.removeprefix("**/")
    if name and not any(sign in name for sign in "/:") and not name.startswith(("!", "include:")):
        # A glob for names alone can be a file type (where `:` and `include:` are special), so ignored files stay out.
        return await _list(listing, [f"--type-add=wanted:{name}", "--type=wanted"], environment, take)
    # Any other glob makes ripgrep list ignored files too, so the result is the files that both listings have.
    options = _glob_options(pattern, listing.folder, listing.base)
    wanted: set[str] = set()
    await _list(listing, options, environment, lambda names: wanted.update(names_in(names)))

    def take_matching(names: str) -> None:
        take("".join([f"{name}\0" for name in names_in(names) if name in wanted]))

    return await _list(listing, [], environment, take_matching)


async def _list(
    listing: Listing, options: Sequence[str], environment: Mapping[str, str], take: Callable[[str], None]
) -> SearchOutcome:
    below = _path_below(listing.folder, listing.base)
    arguments = [
        *("--files", "--null", *options, _NOT_THE_REPOSITORY),
        *(("--no-ignore",) if listing.include_ignored else ()),
        *(("--", below) if below else ()),
    ]
    return await _run(arguments, listing.base or listing.folder, environment, NameReader(take))


async def search(
    query: Search,
    environment: Mapping[str, str],
    take: Callable[[Sequence[FoundRows]], None],
    *,
    secrets_among: Callable[[Sequence[bytes]], Collection[bytes]],
) -> SearchOutcome:
    """Search files as `Search` describes, without the secret ones, which `secrets_among` finds among some paths.

    Their number is not reported, because its change from pattern to pattern would reveal what is in the files.
    """

    def take_plain(found: Sequence[FoundRows]) -> None:
        secret = secrets_among([path for path, _ in found])
        take([(path, rows) for path, rows in found if path not in secret] if secret else found)

    outcome = await _search(query, environment, take_plain)
    secret = secrets_among(outcome.binary)
    return msgspec.structs.replace(outcome, binary=tuple(path for path in outcome.binary if path not in secret))


async def _search(
    query: Search, environment: Mapping[str, str], take: Callable[[Sequence[FoundRows]], None]
) -> SearchOutcome:
    """Search with ripgrep's own syntax, and again with PCRE2's if ripgrep suggests that."""
    base = query.base or (query.where if query.where.is_dir() else query.where.parent)
    options = [f"--regexp={query.pattern}", *_search_options(query), "--", f"./{_path_below(query.where, base)}"]
    try:
        return await _run(options, base, environment, _reader(query, take))
    except ToolError as error:
        if "--pcre2" not in str(error):
            raise
    return await _run(["--pcre2", *options], base, environment, _reader(query, take))


def _reader(query: Search, take: Callable[[Sequence[FoundRows]], None]) -> Reader[Any]:
    match query.mode:
        case "files":
            return NameReader(lambda names: take([(os.fsencode(name)[2:], b"") for name in names_in(names)]))  # no `./`
        case "count":
            return CountReader(take)
    return RowReader(take)


def _search_options(query: Search) -> list[str]:
    options = query.options
    return [
        *_FORMATS[query.mode],
        *(("--ignore-case",) if options.ignore_case else ()),
        *(("--multiline", "--multiline-dotall") if options.multiline else ()),
        *((f"--type={options.type}",) if options.type else ()),
        *((f"--context={query.context}",) if query.context and query.mode == "content" else ()),
        *_glob_options(query.glob, query.where, query.base),
        _NOT_THE_REPOSITORY,
    ]


def _glob_options(glob: str, where: Path, base: Path | None) -> list[str]:
    """Return the `--glob` options for a glob, relative to `base` and, if it names folders, also to `where`."""
    if not glob:
        return []
    negation, glob = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    options = [f"--glob={negation}{glob}"]
    below = _ESCAPED.sub(r"\\\g<0>", _path_below(where, base))  # a path, which is not a pattern
    if below and "/" in glob.removeprefix("**/").rstrip("/"):
        options.append(f"--glob={negation}{below}/{glob.removeprefix('/')}")
    return options


def _path_below(where: Path, base: Path | None) -> str:
    return str(where.relative_to(base)) if base is not None and where != base else ""


async def _run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], reader: Reader[Any]
) -> SearchOutcome:
    """Run ripgrep in a folder, and let `reader` read its output. Raises `ToolError`, also for an invalid pattern."""
    try:
        ended = await stream_output([find_rg(), *_ALWAYS, *arguments], folder, environment, reader.feed, TIME_LIMIT_S)
    except OSError as error:
        if error.errno == errno.E2BIG:
            message = "The pattern or the glob is too long for the system: give shorter ones, in several calls."
            raise ToolError(message, kind="invalid_parameters") from error
        raise ToolError(f"Could not start ripgrep: {error.strerror}.", kind="resource_error") from error
    except ValueError as error:
        raise ToolError(f"Could not start ripgrep: {error}.", kind="invalid_parameters") from error
    reader.end()
    unreadable = ended.errors.count(_UNREADABLE)
    # Exit code 2 is also that of a search in which single files could not be read.
    has_failed = ended.exit_code < 0 or (ended.exit_code == 2 and not ended.output_bytes and not unreadable)
    if has_failed and not ended.timed_out:
        raise _error_of(ended.exit_code, ended.errors)
    # Files that cannot be opened are only counted.
    problems = (line for line in ended.errors.splitlines() if line.strip() and _UNREADABLE not in line)
    problem = next(problems, b"").decode(errors="replace").strip().removeprefix("rg: ").removeprefix("./")[:300]
    return SearchOutcome(ended.timed_out, unreadable, tuple(sorted(reader.binary)), problem)


def _error_of(exit_code: int, errors: bytes) -> ToolError:
    if exit_code < 0:
        return ToolError(f"ripgrep was ended by signal {-exit_code}.", kind="resource_error")
    message = errors.decode(errors="replace").strip().removeprefix("rg: ")[:1_000]
    if "unrecognized file type" in message:
        message += " (`rg --type-list` lists them; or use glob)"
    return ToolError(_LINE_END_HINT.sub(": set multiline to match line ends", message), kind="invalid_parameters")


class Ended(NamedTuple):
    """The end of a program."""

    exit_code: int  # negative for a signal
    output_bytes: int  # the size of its output
    errors: bytes  # the start of its stderr
    timed_out: bool


async def stream_output(
    argv: Sequence[str], cwd: Path, environment: Mapping[str, str], take: Callable[[bytes], None], time_limit_s: float
) -> Ended:
    """Run a program to its end, and give `take` its output in a thread. Raises `OSError`, `ValueError`."""
    with (
        tempfile.TemporaryFile() as errors,  # a pipe would have to be read at the same time
        Popen(  # noqa: ASYNC220  # starting it takes a millisecond
            argv, cwd=cwd, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=errors, start_new_session=True
        ) as process,
    ):
        reading = asyncio.ensure_future(asyncio.to_thread(_read_to_the_end, process, take))
        try:
            done, _ = await asyncio.wait([reading], timeout=time_limit_s)
            if not done:
                process.kill()
            output_bytes = await asyncio.shield(reading)
        finally:
            process.kill()
            while not reading.done():  # even if cancelled again, because the thread still calls `take`
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([reading])
            reading.exception()  # asyncio would log an error that nobody retrieves
        errors.seek(0)
        return Ended(process.returncode, output_bytes, errors.read(_ERROR_BYTES), timed_out=not done)


def _read_to_the_end(process: Popen[bytes], take: Callable[[bytes], None]) -> int:
    """Pass all output of a program to `take`, and wait for its end; return the output's size in bytes."""
    assert process.stdout is not None
    with contextlib.suppress(OSError, AttributeError):  # the user's limit for pipes is reached; only Linux has it
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    total = 0
    while piece := process.stdout.read(_PIECE_BYTES):
        take(piece)
        total += len(piece)
    process.wait()
    return total
