"""Defines `Sandbox`, through which tools reach every file, search and command; they never open a path themselves.

A sandbox may be this machine, a container, or a machine elsewhere with a file system of its own. It has eight members,
described in docs/sandbox-backends.md, and what crosses it is plain data. What a person grants is kept outside of it: a
`Grants` comes with each look at a path, with each search and with each command.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.command import NO_GRANTS, BackgroundJob, Command, CommandResult, Grants, Profile

# What a path is looked at for: to read it, to change it, or to start git in it.
Use = Literal["read", "write", "git"]


class PathStatus(Struct, frozen=True, kw_only=True):
    """A path with links and `..` resolved, and what is there.

    `place` decides if tools may use it. A path that is `granted`, or is the sandbox's own such as a job's output, may
    be used. A `secret` one may not, because it may hold secrets or a rule says so. Others are `inside` the workspace or
    `outside`.

    `kind` is None where nothing is, and where the system does not say, for the reason in `errno`. `size` in bytes;
    `links` counts the names of a file. Looked at to write, it `is_auto_executed` if git or a trusted command would run
    it or obey its contents. Looked at for git, `git_program` is a setting of the repository by which git, started
    there, may run a program even to read; empty where there is none, or where the sandbox holds that program.
    """

    real: Path
    place: Literal["granted", "secret", "inside", "outside"]
    kind: Literal["file", "folder", "other"] | None = None
    size: int = 0
    links: int = 1
    errno: int = 0
    is_auto_executed: bool = False
    git_program: str = ""

    @property
    def is_usable(self) -> bool:
        return self.place in ("granted", "inside")

    @property
    def is_there(self) -> bool:
        """Raises `OSError` where the system does not say."""
        if self.errno:
            raise OSError(self.errno, os.strerror(self.errno))
        return self.kind is not None


class Listing(Struct, frozen=True):
    """Selects files of a folder, as `rg --files --hidden --no-require-git --glob '!.git'` lists them.

    That is without symlinks and empty folders. `pattern` is a glob as ripgrep reads it, from the folder or from `base`,
    which holds the folder; empty means every file. Unlike ripgrep's own `--glob` it brings back no ignored files:
    `include_ignored` does.

    The sandbox hands over the names from the base on in batches of text, a NUL behind each name (`names_in`), as
    `os.fsdecode` gives them and in no particular order.
    """

    folder: Path
    pattern: str = ""
    include_ignored: bool = False
    base: Path | None = None


def names_in(batch: str) -> list[str]:
    """Return the names in a batch of a listing."""
    return batch.split("\0")[:-1]


class SearchOptions(Struct, frozen=True, kw_only=True):
    """With `multiline` a match may span lines, and `.` matches line ends. `type` is one of ripgrep's types of files."""

    ignore_case: bool = False
    multiline: bool = False
    type: str = ""


class Search(Struct, frozen=True):
    """A search of `where`, a file or a folder, inside `base` if that is given; as ripgrep understands it.

    The answers are those of `rg --hidden --no-require-git --glob '!.git'`. `glob` is ripgrep's own, relative to `base`
    or to `where`: a file that it names is searched even where an ignore rule leaves it out, as nothing else can name
    it. Look-around and references back are PCRE2's.

    The sandbox hands over sequences of `FoundRows`, files in no particular order; the rows of a file follow one
    another, in several parts where there are many. Files that hold secrets are left out unless they were granted,
    whether or not they match.
    """

    where: Path
    pattern: str
    glob: str = ""
    options: SearchOptions = SearchOptions()
    context: int = 0
    mode: Literal["content", "files", "count"] = "content"
    base: Path | None = None


# A file and what was found in it, as the bytes they are: its path from the base on, and rows with a line end between
# them. A row is a line's number, a mark and the line: `:` for a match, `+` for a further line of the same match, `-`
# for context. Where matches are counted the one row is how many; where files are asked for there is none.
FoundRows = tuple[bytes, bytes]


class SearchOutcome(Struct, frozen=True):
    """The outcome of a listing or a search. `timed_out`: it was ended early, and its results are incomplete.

    `unreadable` counts files and folders that could not be opened; `binary` are files that were not searched beyond
    their first NUL byte although there was a match. `problem` is why a file was not searched to its end, in ripgrep's
    words.
    """

    timed_out: bool = False
    unreadable: int = 0
    binary: tuple[bytes, ...] = ()
    problem: str = ""


class SandboxFacts(Protocol):
    """Describes a sandbox as it is now, under some grants. What takes time is found out when it is asked for."""

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folders of the workspace, granted ones last."""

    @property
    def profile(self) -> Profile: ...

    @property
    def confines(self) -> bool:
        """True if the system itself keeps commands inside; else they are only asked about."""

    @property
    def dry_run_problem(self) -> str:
        """The reason why a command cannot run as a dry run here; empty where it can. Probes the first time."""

    @property
    def warning(self) -> str:
        """The reason why commands are confined less than they could be, and how to mend that; empty if all is well."""

    @property
    def description(self) -> tuple[str, ...]:
        """The confinement of commands in lines for the person, with what it does not keep here."""

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        """Find the secret files of the workspace that a command could read; those that were granted do not count."""

    def secret_values(self, *, is_changed: bool = False, apart_from: Path | None = None) -> frozenset[str]:
        """Read the values in the workspace's secret files, except those of the file at the real path `apart_from`.

        New files are found after a second, or at once if the workspace `is_changed`. Blocks: call it in a thread.
        """


class Jobs(Protocol):
    """The commands of a session that go on in the background."""

    def list(self) -> Sequence[BackgroundJob]:
        """Describe every job, ended ones too, oldest first."""

    def read(self, id: str, most_bytes: int) -> str:
        """Return a job's output since the last call, its middle cut out above the limit. Raises `ToolError`."""

    async def stop(self, id: str) -> None:
        """End a job with all its processes. Raises `ToolError` (not_found)."""


class Sandbox(Protocol):
    """A workspace: its files, its commands, and the limits of both.

    The methods that are no coroutines block for as long as the disk takes: call them in a thread where that matters.
    """

    @property
    def jobs(self) -> Jobs: ...

    def facts(self, grants: Grants = NO_GRANTS) -> SandboxFacts: ...

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        """Resolve a path and look at what is there. Raises `ToolError` (invalid_parameters) for one without an end."""

    def read(self, path: Path) -> BinaryIO:
        """Open a regular file for reading, at a real path that `look` gave.

        Raises `OSError`, also for anything that is no regular file, and where another path was put in its place.
        """

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a file at a real path: a reader sees the old or the new contents, never a part.

        Missing folders are made; mode and owner of an existing file stay. Raises `OSError`; then nothing has changed.
        """

    async def search(
        self, query: Listing | Search, take: Callable[[Any], None], grants: Grants = NO_GRANTS
    ) -> SearchOutcome:
        """Give `take` what was found as it comes: in another thread, one at a time; a cancelled call ends it.

        Raises `ToolError`, with ripgrep's own words for a pattern or a glob that is none.
        """

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a command. At its time limit, or when the call is cancelled, it ends with all it has started.

        `on_output` gets the output as it comes (of much output a part), and lines in brackets that say what the
        command waits for. Once `detach` is set the command goes on as a job, whose file holds its output from the
        beginning: at once if it was set before. So do a silent server that listens (`stall` says so), and what a
        command leaves running. Of a dry run that goes on, the result has `later`. Raises `ToolError`.
        """

    async def aclose(self) -> None:
        """End every process that was left running; safe to call twice."""


def find_rg() -> str:
    """Return the path of this installation's `rg`, else of the machine's. Raises `ToolError` (dependency_error)."""
    from shutil import which

    found = which("rg", path=Path(sys.executable).parent) or which("rg")
    if not found:
        raise ToolError("ripgrep is missing: reinstall agentcli, or install ripgrep.", kind="dependency_error")
    return found
