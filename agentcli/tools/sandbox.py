"""Defines `Sandbox`, through which tools reach every file, search and command; they never open a path themselves.

A sandbox may be this machine, a container, or a remote machine with its own file system. Its eight members are
described in docs/sandbox-backends.md; they exchange plain data only. It does not store what a person grants: each look
at a path, each search and each command comes with its `Grants`.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.command import NO_GRANTS, BackgroundJob, Command, CommandResult, Grants, Profile

if TYPE_CHECKING:
    from agentcli.safety.commands.records import GitSetup  # a start does without the analysis of commands

# What a path is looked at for: to read it, to change it, to start git in it, or to find the remotes of git in it.
Use = Literal["read", "write", "git", "remotes"]


class PathStatus(Struct, frozen=True, kw_only=True):
    """A path with links and `..` resolved, and the kind of thing at it."""

    real: Path
    # "granted" is also a file of the sandbox's own, such as a job's output. "secret" may not be used, because it may
    # contain secrets or a rule says so. All other paths are "inside" the workspace, and may be used, or "outside".
    place: Literal["granted", "secret", "inside", "outside"]
    kind: Literal["file", "folder", "other"] | None = None  # None: nothing is there, or the system refuses to tell
    size: int = 0  # bytes
    links: int = 1  # the number of names that the file has
    errno: int = 0  # the reason why the system refuses to tell the kind
    is_auto_executed: bool = False  # for the use "write": git or a trusted command would run the file or obey it
    # For the uses of git. For "git", only its `program` is set: a setting of the repository by which git may run one
    # even to read; empty if there is none, or if the sandbox confines that program.
    git: "GitSetup | None" = None

    @property
    def is_usable(self) -> bool:
        return self.place in ("granted", "inside")

    @property
    def is_there(self) -> bool:
        """Raises `OSError` if the system refuses to tell."""
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))
        return self.kind is not None


class Listing(Struct, frozen=True):
    """Selects files of a folder, as `rg --files --hidden --no-require-git --glob '!.git'` lists them.

    Symlinks and empty folders are left out. `pattern` is one of ripgrep's globs, relative to the folder or to `base`,
    which contains the folder; empty means every file. Unlike ripgrep's own `--glob`, it does not include ignored files:
    `include_ignored` does.

    The sandbox returns names relative to the base in batches of text, with a NUL after each name (`names_in`), decoded
    by `os.fsdecode` and in no particular order.
    """

    folder: Path
    pattern: str = ""
    include_ignored: bool = False
    base: Path | None = None


def names_in(batch: str) -> list[str]:
    """Return the names in a batch of a listing."""
    return batch.split("\0")[:-1]


class SearchOptions(Struct, frozen=True, kw_only=True):
    """With `multiline` a match may span lines, and `.` matches line ends. `type` is one of ripgrep's file types."""

    ignore_case: bool = False
    multiline: bool = False
    type: str = ""


class Search(Struct, frozen=True):
    """A search of `where`, a file or a folder, inside `base` if that is given; as ripgrep understands it.

    The results are those of `rg --hidden --no-require-git --glob '!.git'`. `glob` is ripgrep's own, relative to `base`
    or to `where`: a file that it names is searched even if an ignore rule excludes it, because there is no other way to
    name it. Patterns with look-around or backreferences are PCRE2's.

    The sandbox returns sequences of `FoundRows`, with files in no particular order; the rows of one file follow each
    other, in several parts if there are many. Files with secrets are left out unless they were granted, whether or not
    they match.
    """

    where: Path
    pattern: str
    glob: str = ""
    options: SearchOptions = SearchOptions()
    context: int = 0
    mode: Literal["content", "files", "count"] = "content"
    base: Path | None = None


# A file's path relative to the base, and its rows, both as bytes, with a line end between two rows. A row is a line
# number, a mark and the line: `:` for each line of a match, `-` for context. In the mode "count", the only row is the
# number of matches; in the mode "files" there are no rows.
FoundRows = tuple[bytes, bytes]


class SearchOutcome(Struct, frozen=True):
    """The outcome of a listing or a search."""

    timed_out: bool = False  # the results are incomplete
    unreadable: int = 0  # the number of files and folders that could not be opened
    binary: tuple[bytes, ...] = ()  # files with a match, which were searched only up to their first NUL byte
    problem: str = ""  # ripgrep's reason why a file was not searched to its end


class SandboxFacts(Protocol):
    """Describes a sandbox as it is now, under some grants. Slow facts are determined when they are first read."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of the workspace, granted ones last."""

    @property
    def profile(self) -> Profile: ...

    @property
    def confines(self) -> bool:
        """True if the system itself keeps commands inside; otherwise they only lead to a question."""

    @property
    def dry_run_problem(self) -> str:
        """The reason why this sandbox has no dry runs; empty if it has. The first access tests it."""

    @property
    def warning(self) -> str:
        """The reason why commands are confined less than they could be, and how to fix that; empty if all is well."""

    @property
    def description(self) -> tuple[str, ...]:
        """The confinement of commands in lines for the person, including its gaps on this machine."""

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        """Find the secret files of the workspace that a command could read, except those that were granted."""

    def secret_values(self, *, apart_from: Path | None = None) -> frozenset[str]:
        """Read the values in the workspace's secret files, except those of the file at the real path `apart_from`.

        New files are found at once. Blocks: call it in a thread.
        """


class Jobs(Protocol):
    """The commands of a session that run in the background."""

    def list(self) -> Sequence[BackgroundJob]:
        """Describe every job, including ended ones, oldest first."""

    def read(self, id: str, max_bytes: int) -> str:
        """Return a job's output since the last call, its middle cut out above the limit. Raises `ToolError`."""

    async def stop(self, id: str) -> None:
        """End a job with all its processes. Raises `ToolError` (not_found)."""


class Sandbox(Protocol):
    """A workspace: its files, its commands, and the limits of both.

    The methods that are not coroutines block while the disk works: call them in a thread where that matters.
    """

    @property
    def jobs(self) -> Jobs: ...

    def facts(self, grants: Grants = NO_GRANTS) -> SandboxFacts:
        """Describe the limits of commands that have these grants, for permissions and for display."""

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        """Resolve a path and look at its target. Raises `ToolError` (invalid_parameters) if its links form a loop."""

    def read(self, path: Path) -> BinaryIO:
        """Open a regular file for reading, at a real path that `look` gave.

        Raises `OSError`, also for anything that is not a regular file, and if another path has taken its place.
        """

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a file at a real path: a reader sees the old or the new contents, never a part.

        Missing folders are made; mode and owner of an existing file stay. Raises `OSError`; then nothing has changed.
        """

    async def search(
        self, query: Listing | Search, take: Callable[[Any], None], grants: Grants = NO_GRANTS
    ) -> SearchOutcome:
        """Pass results to `take` as they come, in another thread, one at a time. Cancelling the call ends it.

        Raises `ToolError`, with ripgrep's own message for an invalid pattern or glob.
        """

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a command. At its time limit, or if the call is cancelled, it is ended with everything it has started.

        `on_output` gets the output as it arrives (a part of it if there is much), and lines in brackets that say what
        the command waits for. Once `detach` is set, even before the call, the command continues as a job, whose file
        has all of its output. A silent server that listens becomes a job, too (`stall` says so), as do processes that
        a command leaves running. For a dry run that continues, the result has `later`. Raises `ToolError`.
        """

    async def aclose(self) -> None:
        """End every process that is still running; may be called twice."""


def find_rg() -> str:
    """Return the path of this installation's `rg`, else of the machine's. Raises `ToolError` (dependency_error)."""
    from shutil import which

    found = which("rg", path=Path(sys.executable).parent) or which("rg")
    if not found:
        raise ToolError("ripgrep is missing: reinstall agentcli, or install ripgrep.", kind="dependency_error")
    return found
