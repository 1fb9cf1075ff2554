"""Lists and searches files with ripgrep, which ships with agentcli.

What is done is what `rg` does with the options below; nothing is read from its configuration file. Hidden files are
listed and searched, as configuration and CI are, a repository's own folder never; `.gitignore` counts without a
repository too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from agentcli.errors import ToolError
from agentcli.infra.sandbox.search.ripgrep_output import CountReader, JsonReader, NameReader, Reader, RowReader
from agentcli.tools.ripgrep import find_rg
from agentcli.tools.sandbox import FoundRows, Listing, Search, SearchOutcome, names_in

TIME_LIMIT_S = 60.0

_ALWAYS = ("--no-config", "--no-ignore-messages", "--no-require-git", "--hidden")
_NOT_THE_REPOSITORY = "--glob=!.git"  # behind all other globs, as the last that matches counts
_UNREADABLE = b"(os error "  # how ripgrep ends what it says about a file that it cannot open
_LINE_END_HINT = re.compile(r"(?s)\n\nConsider enabling multiline mode.*")


async def list_files(listing: Listing, environment: Mapping[str, str], take: Callable[[str], None]) -> SearchOutcome:
    """List files as `Listing` says."""
    pattern = listing.pattern
    if "\0" in pattern or _SURROGATE.search(pattern):
        raise ToolError(f"{pattern!r} is no glob.", kind="invalid_parameters")
    if not pattern:
        return await _list(listing, [], environment, take)
    if listing.include_ignored or pattern.startswith("!"):
        return await _list(listing, _glob_options(pattern, listing.folder, listing.base), environment, take)
    name = pattern.removeprefix("**/")
    if name and not any(sign in name for sign in "/:") and not name.startswith(("!", "include:")):
        # A glob for names alone can be a file type, for which ignore rules hold.
        return await _list(listing, [f"--type-add=wanted:{name}", "--type=wanted"], environment, take)
    # Any other brings back ignored files: what is asked for is what both listings have.
    options = _glob_options(pattern, listing.folder, listing.base)
    wanted: set[str] = set()
    await _list(listing, options, environment, lambda names: wanted.update(names_in(names)))

    def take_matching(names: str) -> None:
        take("".join([f"{name}\0" for name in names_in(names) if name in wanted]))

    return await _list(listing, [], environment, take_matching)


async def _list(
    listing: Listing, options: Sequence[str], environment: Mapping[str, str], take: Callable[[str], None]
) -> SearchOutcome:
    arguments = ["--files", "--null", *options, _NOT_THE_REPOSITORY]
    arguments += ["--no-ignore"] if listing.include_ignored else []
    below = _below(listing.folder, listing.base)
    arguments += ["--", below] if below else []
    return await _run(arguments, listing.base or listing.folder, environment, NameReader(take))


async def search(
    search: Search,
    environment: Mapping[str, str],
    take: Callable[[Sequence[FoundRows]], None],
    *,
    are_secret: Callable[[Sequence[bytes]], Collection[bytes]],
) -> SearchOutcome:
    """Search files as `Search` says. `are_secret` is given the files with a match, as paths from the base, in batches.

    It is not told how many were left out: who sees that number change with the pattern learns what is in the file.
    """

    def take_others(found: Sequence[FoundRows]) -> None:
        secret = are_secret([path for path, _ in found])
        take([rows for rows in found if rows[0] not in secret] if secret else found)

    looked = await _search(search, environment, take_others)
    secret = are_secret(looked.binary)
    return msgspec.structs.replace(looked, binary=tuple(path for path in looked.binary if path not in secret))


async def _search(
    search: Search, environment: Mapping[str, str], take: Callable[[Sequence[FoundRows]], None]
) -> SearchOutcome:
    """Search with ripgrep's own syntax, and again with PCRE2's where ripgrep suggests that."""
    base = search.base or (search.where if search.where.is_dir() else search.where.parent)
    where = ["--", f"./{_below(search.where, base)}"]
    options = [f"--regexp={search.pattern}", *_search_options(search), *where]
    try:
        return await _run(options, base, environment, _reader(search, take))
    except ToolError as error:
        if "--pcre2" not in str(error):
            raise
    return await _run(["--pcre2", *options], base, environment, _reader(search, take))


def _reader(search: Search, take: Callable[[Sequence[FoundRows]], None]) -> Reader[Any]:
    match search.mode:
        case "files":
            return NameReader(lambda names: take([(os.fsencode(name)[2:], b"") for name in names_in(names)]))
        case "count":
            return CountReader(take)
    return JsonReader(take) if search.multiline else RowReader(take)


_FORMATS = {
    "files": ("--files-with-matches", "--null"),
    "count": ("--count", "--null", "--with-filename"),
    "content": ("--heading", "--null", "--with-filename", "--line-number", "--color=never", "--no-context-separator"),
}


def _search_options(search: Search) -> list[str]:
    options = [*(("--json",) if search.multiline and search.mode == "content" else _FORMATS[search.mode])]
    options += ["--ignore-case"] if search.ignore_case else []
    options += ["--multiline", "--multiline-dotall"] if search.multiline else []
    options += [f"--type={search.type}"] if search.type else []
    options += [f"--context={search.context}"] if search.context and search.mode == "content" else []
    return [*options, *_glob_options(search.glob, search.where, search.base), _NOT_THE_REPOSITORY]


def _glob_options(glob: str, where: Path, base: Path | None) -> list[str]:
    """The glob from the base on, and where it is about folders from where the search begins."""
    if not glob:
        return []
    sign, glob = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    options = [f"--glob={sign}{glob}"]
    below = _ESCAPED.sub(r"\\\g<0>", _below(where, base))
    if below and "/" in glob.removeprefix("**/").rstrip("/"):
        options.append(f"--glob={sign}{below}/{glob.removeprefix('/')}")
    return options


_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"[*?\[\]{}\\,!# ]")


def _below(where: Path, base: Path | None) -> str:
    """The path relative to the base; empty for the base itself."""
    way = str(where.relative_to(base)) if base is not None else ""
    return "" if way == "." else way


async def _run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], reader: Reader[Any]
) -> SearchOutcome:
    """Raises `ToolError` with ripgrep's own words for a bad pattern."""
    is_empty = True

    def take(piece: bytes) -> None:
        nonlocal is_empty
        is_empty = False
        reader.feed(piece)

    argv = [find_rg(), *_ALWAYS, *arguments]
    try:
        ended = await stream_output(argv, cwd=folder, environment=environment, take=take, time_limit_s=TIME_LIMIT_S)
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise ToolError(
                "The pattern or the glob is too long for the system: give shorter ones, in several calls.",
                kind="invalid_parameters",
            ) from error
        raise ToolError(f"Could not start ripgrep: {error.strerror}.", kind="resource_error") from error
    except ValueError as error:
        raise ToolError(f"Could not start ripgrep: {error}.", kind="invalid_parameters") from error
    reader.end()
    unreadable = ended.errors.count(_UNREADABLE)
    if not ended.timed_out and (ended.exit_code < 0 or (ended.exit_code == 2 and is_empty and not unreadable)):
        raise _error_of(ended.exit_code, ended.errors)
    return SearchOutcome(ended.timed_out, unreadable, tuple(sorted(reader.binary)), _other_problem(ended.errors))


def _other_problem(errors: bytes) -> str:
    """The first message that is not about a file which cannot be opened."""
    lines = (line for line in errors.splitlines() if line.strip() and _UNREADABLE not in line)
    return next(lines, b"").decode(errors="replace").strip().removeprefix("rg: ").removeprefix("./")[:300]


def _error_of(exit_code: int, errors: bytes) -> ToolError:
    if exit_code < 0:
        return ToolError(f"ripgrep was ended by signal {-exit_code}.", kind="resource_error")
    said = errors.decode(errors="replace").strip().removeprefix("rg: ")[:1_000]
    if "unrecognized file type" in said:
        said += " (`rg --type-list` lists them; or use glob)"
    return ToolError(_LINE_END_HINT.sub(": set multiline to match line ends", said), kind="invalid_parameters")


PIPE_BYTES = 1024 * 1024  # so that the program need not wait while its output is looked at
PIECE_BYTES = 256 * 1024  # handed over at a time, or a little more: looking at many small pieces costs more

ERROR_BYTES = 1024 * 1024


class Ended(NamedTuple):
    """The end of a program: its exit code, the start of its stderr, whether its time was up."""

    exit_code: int
    errors: bytes
    timed_out: bool


async def stream_output(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    take: Callable[[bytes], None],
    time_limit_s: float,
) -> Ended:
    """Run a program, giving `take` its output in a thread; no process is left. Raises `OSError`, `ValueError`."""
    program = _Program(argv, cwd, environment)
    work = asyncio.ensure_future(asyncio.to_thread(program.read_to_the_end, take))
    try:
        done, _ = await asyncio.wait([work], timeout=time_limit_s)
        if not done:
            program.kill()
        exit_code, errors = await asyncio.shield(work)
    finally:
        if not work.done():
            program.kill()
            await _over(work)
            work.exception()  # what killing it leads to is nobody's concern
    return Ended(exit_code, errors, timed_out=not done)


async def _over(work: asyncio.Future[Any]) -> None:
    """Wait until a thread has ended, also when somebody cancels once more: until then it hands over output."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _Program:
    """A process that one thread reads and waits for, and another may kill."""

    def __init__(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._argv, self._cwd, self._environment = argv, cwd, environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_killed = False

    def kill(self) -> None:
        with self._lock:
            self._is_killed = True
            if self._process is not None:
                self._process.kill()

    def read_to_the_end(self, take: Callable[[bytes], None]) -> tuple[int, bytes]:
        with tempfile.TemporaryFile() as errors:  # a pipe would have to be read at the same time
            with _batch_scheduling():
                exit_code = self._run(take, errors)
            errors.seek(0)
            return exit_code, errors.read(ERROR_BYTES)

    def _run(self, take: Callable[[bytes], None], errors: IO[bytes]) -> int:
        if self._is_killed:  # before a thread was free
            return -signal.SIGKILL
        process = subprocess.Popen(
            self._argv,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            start_new_session=True,
        )
        with self._lock:
            self._process = process
            if self._is_killed:
                process.kill()
        assert process.stdout is not None
        try:
            with process.stdout:
                _read(process.stdout.fileno(), take)
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
        return process.returncode


@contextlib.contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Keep this thread and the program from waking one another all the time, which slows a listing by a tenth."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):  # only Linux has it, and a sandbox around us may forbid it
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, *before)


def _read(output: int, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError, AttributeError):  # a person may have no room left; only Linux has it
        fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    pieces: list[bytes] = []
    size = 0
    while piece := os.read(output, PIPE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            take(b"".join(pieces))
            pieces, size = [], 0
    if pieces:
        take(b"".join(pieces))
