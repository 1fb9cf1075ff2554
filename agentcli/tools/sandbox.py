"""Defines `Sandbox`, through which tools reach every file, search and command; they never open a path themselves.

A sandbox may be this machine, a container, or a machine elsewhere with a file system of its own. It combines three
small protocols: `Files`, `Commands` and `Boundary`. Take the narrowest one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

from agentcli.tools.command import BackgroundJob, Command, CommandResult, Profile
from agentcli.tools.dry_run import DryRun

Access = Literal["read", "write"]


class FileStatus(Struct, frozen=True):
    """Describes what exists at a path. `size` in bytes; `links` counts the names of a file: several for hard links."""

    kind: Literal["file", "folder", "other"]
    size: int
    links: int = 1


# A file and what was found in it, as the bytes they are: its path, and rows with a line end between them. A row is a
# line's number, a mark and the line: `:` for a match, `+` for a further line of the same match, `-` for context. Where
# matches are counted the one row is how many; where files are asked for there is none.
FoundRows = tuple[bytes, bytes]


def names_in(listed: str) -> list[str]:
    """The names of a batch that `Files.list` hands over."""
    return listed.split("\0")[:-1]


class Listing(Struct, frozen=True):
    """Selects files of a folder, as `rg --files` lists them: no symlinks and no empty folders.

    `--hidden`, `--no-require-git` and `--glob '!.git'` are meant with it: dotfiles are a project's configuration, and
    its `.gitignore` counts in a copy without a repository too.

    `pattern` is a glob as ripgrep reads it; empty means every file. Unlike ripgrep's own `--glob` it brings back no
    ignored files: `include_ignored` does. It is relative to the folder or to `base`, which holds the folder.
    """

    folder: Path
    pattern: str = ""
    include_ignored: bool = False
    base: Path | None = None


class Search(Struct, frozen=True):
    """A search, as ripgrep understands it. `where` is a file or a folder, inside `base` if that is given.

    The answers are those of `rg --hidden --no-require-git --glob '!.git'`. `glob` is ripgrep's own, relative to `base`
    or to `where`: a file that it names is searched even where an ignore rule leaves it out, as nothing else can name
    it. With `multiline` a match may span lines, and `.` is a line end too (`--multiline --multiline-dotall`). `$` also
    stands before CRLF (`--crlf`). Look-around and references back are PCRE2's.
    """

    where: Path
    pattern: str
    glob: str = ""
    type: str = ""
    ignore_case: bool = False
    multiline: bool = False
    context: int = 0
    mode: Literal["content", "files", "count"] = "content"
    base: Path | None = None


class Looked(Struct, frozen=True):
    """The outcome of a listing or a search. `timed_out`: it was ended early, and its results are incomplete.

    `unreadable` counts files and folders that could not be opened; `binary` are files that were not searched beyond
    their first NUL byte although there was a match. `problem` is why a file was not searched to its end, in ripgrep's
    words.
    """

    timed_out: bool = False
    unreadable: int = 0
    binary: tuple[bytes, ...] = ()
    problem: str = ""


class Files(Protocol):
    """The files of a workspace. Paths are judged after symlinks and `..` are resolved.

    The methods that are no coroutines block for as long as the disk takes: call them in a thread where that matters.
    """

    def validate_path(self, path: Path, access: Access) -> Path:
        """Return the real path. Raises `ToolError` (permission_denied) when it may not be read or written.

        That is so outside the workspace and for files that hold secrets, unless `Boundary.grant` made an exception.
        """
        ...

    def real_path(self, path: Path) -> Path:
        """Resolve a path, inside the workspace or not. Raises `ToolError` (invalid_parameters)."""
        ...

    def status(self, path: Path) -> FileStatus | None:
        """Look at a path that `validate_path` gave; None when nothing is there. Raises `OSError`."""
        ...

    def read(self, path: Path) -> BinaryIO:
        """Open a regular file for reading, at a path that `validate_path` gave.

        Raises `OSError`, also for anything that is no regular file, and where another path was put in its place.
        """
        ...

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a file: a reader sees the old or the new contents, never a part.

        Missing folders are made; mode and owner of an existing file stay. Raises `OSError`; then nothing has changed.
        """
        ...

    async def list(self, listing: Listing, take: Callable[[str], None]) -> Looked:
        """Hand over the names below the folder, relative to the base, in batches of text, a NUL behind each name.

        They are as `os.fsdecode` gives them and in no particular order. `take` is called in another thread, by one at
        a time; a cancelled call ends it. Raises `ToolError`.
        """
        ...

    async def search(self, search: Search, take: Callable[[Sequence[FoundRows]], None]) -> Looked:
        """Hand over what was found, paths relative to the base, files in no particular order.

        The rows of a file follow one another, in several parts where there are many. Files that hold secrets are left
        out, whether or not they match. `take` is called as for `list`. Raises `ToolError` with ripgrep's own words
        for a pattern or a glob that is none.
        """
        ...

    def secret_values(self, *, is_changed: bool = False, apart_from: Path | None = None) -> frozenset[str]:
        """Return the values in the workspace's secret files, except those of the file at the real path `apart_from`.

        New files are found after a second, or at once if the workspace `is_changed`. Blocks: call it in a thread.
        """
        ...


class Commands(Protocol):
    """Runs shell commands, to their end or as background jobs."""

    async def exec(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a command. At its time limit, or when the call is cancelled, it ends with all it has started.

        `on_output` gets the output as it comes (of much output a part), and lines in brackets that say what the
        command waits for. Once `detach` is set the command goes on as a background job, whose file holds its output
        from the beginning; so does a silent server that listens (`stall` says so), and what a command leaves running.
        """
        ...

    def why_no_trial(self) -> str:
        """Say why a command cannot be tried here; empty where it can. Probes the first time."""
        ...

    async def try_command(self, command: Command, *, on_output: Callable[[str], None] = lambda text: None) -> DryRun:
        """Run a command as `exec` does, on a stand-in of what it may write. Raises `ToolError`."""
        ...

    async def start_job(self, command: Command) -> BackgroundJob:
        """Start a command that outlives this call, until the session ends or its time is up."""
        ...

    def jobs(self) -> Sequence[BackgroundJob]:
        """All jobs of this session, oldest first."""
        ...

    def read_job(self, id: str, most_bytes: int) -> str:
        """Return a job's output since the last call, its middle cut out above the limit.

        Raises `ToolError` (not_found).
        """
        ...

    async def stop_job(self, id: str) -> None:
        """End a job with all its processes. Raises `ToolError` (not_found)."""
        ...

    async def aclose(self) -> None:
        """End every process that was left running; safe to call twice."""
        ...


class Boundary(Protocol):
    """The limits of a workspace of one or more folders, and the exceptions the person grants."""

    @property
    def roots(self) -> tuple[Path, ...]: ...

    @property
    def profile(self) -> Profile: ...

    @property
    def confines(self) -> bool:
        """True if the system itself keeps commands inside; else they are only asked about."""
        ...

    def knows(self, path: Path, access: Access) -> bool:
        """True if a real path was granted or is one of the sandbox's own, such as a job's output."""
        ...

    def is_write_protected(self, path: Path) -> bool:
        """True if git would execute the file at a real path in the workspace or obey its contents: hooks, settings."""
        ...

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        """The secret files of the workspace that a command could read; those that were granted do not count."""
        ...

    def program_of_git(self, folder: Path) -> str:
        """A setting by which git, started in a folder, may run a program even to read; empty where there is none.

        Settings of the repository alone: those of the person and the machine are theirs.
        """
        ...

    def grant(self, path: Path, access: Access) -> None:
        """Let one real path outside the workspace, or one that holds secrets, be used from now on, by commands too."""
        ...

    def revoke(self, path: Path, access: Access) -> None:
        """Take a grant back; nothing happens when there is none."""
        ...

    def grant_host(self, host: str) -> None:
        """Let commands reach a host from now on: `example.org`, `*.example.org`, with or without `:port`."""
        ...

    def revoke_host(self, host: str) -> None:
        """Take that back; nothing happens when there is no such grant."""
        ...

    def add_root(self, folder: Path) -> None:
        """Let one more folder be read and written from now on."""
        ...

    def warning(self) -> str:
        """Say why commands are confined less than they could be, and how to mend that; empty if there is nothing."""
        ...

    def told(self) -> tuple[str, ...]:
        """Describe the confinement of commands in lines for the person, with what it does not keep here."""
        ...


class Sandbox(Files, Commands, Boundary, Protocol):
    """A workspace: its files, its commands, and the boundary of both."""
