"""Where tools touch the machine: every file, search and command of theirs goes through one small protocol.

A sandbox may be this machine, a container or a machine elsewhere with a file system of its own: tools never open a
path themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from msgspec import Struct

Access = Literal["read", "write"]

# read-only: nothing is written; workspace-write: the workspace and temporary files; the last confines nothing.
Profile = Literal["read-only", "workspace-write", "danger-full-access"]


class FileStatus(Struct, frozen=True):
    """What there is at a path. `size` in bytes; `links` counts the names a file has, several for hard links."""

    kind: Literal["file", "folder", "other"]
    size: int
    links: int = 1


class Listing(Struct, frozen=True):
    """Which files of a folder to list: as `rg --files` has them, hidden ones too, ignored ones only when asked for.

    `pattern` is a glob as ripgrep reads it; empty means every file.
    """

    folder: Path
    pattern: str = ""
    include_ignored: bool = False


class Search(Struct, frozen=True):
    """What to look for, as ripgrep understands it; `where` is a file or a folder."""

    where: Path
    pattern: str
    glob: str = ""
    type: str = ""
    ignore_case: bool = False
    multiline: bool = False
    context: int = 0


class BackgroundJob(Struct, frozen=True):
    """A command left running; its output grows in `output_file`. `is_running` is as it was when this was asked.

    `exit_code` is None while it runs, and after a signal negative. `stall` says why it does not get on, where known.
    """

    id: str
    pid: int
    output_file: Path
    command: str = ""
    is_running: bool = True
    exit_code: int | None = None
    stall: str = ""


class CommandResult(Struct, frozen=True):
    """What a command did. `exit_code` is negative for a signal, None when it had to be killed or goes on as a `job`.

    `output` holds both streams in the order they came, its middle cut out above the limit asked for; `cut_bytes` says
    how much is missing, and `output_file` then holds all of it. `stall` says what it waited for, where known.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    cwd: Path | None = None
    cut_bytes: int = 0
    output_file: Path | None = None
    job: BackgroundJob | None = None
    stall: str = ""


class Sandbox(Protocol):
    """A workspace of one or more folders. Paths are judged after symlinks and `..` are resolved.

    `confines` is whether the system itself keeps commands inside; where it is False they are only asked about.
    The methods that are no coroutines block for as long as the disk takes: call them in a thread where that matters.
    """

    @property
    def roots(self) -> tuple[Path, ...]: ...

    @property
    def profile(self) -> Profile: ...

    @property
    def confines(self) -> bool: ...

    def validate_path(self, path: Path, access: Access) -> Path:
        """The real path. Raises `ToolError` (permission_denied) when it may not be read or written.

        That is so outside the workspace and for files that hold secrets, unless `grant` made an exception.
        """
        ...

    def grant(self, path: Path, access: Access) -> None:
        """Let one real path outside the workspace, or one that holds secrets, be used from now on, by commands too."""
        ...

    def revoke(self, path: Path, access: Access) -> None:
        """Take a grant back; nothing happens when there is none."""
        ...

    def status(self, path: Path) -> FileStatus | None:
        """What there is at a path that `validate_path` gave; None when there is nothing. Raises `OSError`."""
        ...

    def read(self, path: Path) -> BinaryIO:
        """A regular file, open for reading, at a path that `validate_path` gave.

        Raises `OSError`, also for anything that is no regular file, and where another path was put in its place.
        """
        ...

    def write(self, path: Path, content: bytes) -> None:
        """Create or replace a file: a reader sees the old or the new contents, never a part.

        Missing folders are made; mode and owner of an existing file stay. Raises `OSError`; then nothing has changed.
        """
        ...

    def list(self, listing: Listing) -> AsyncGenerator[bytes, None]:
        """The names below the folder, relative to it, as the bytes they are, in no particular order.

        Raises `ToolError`.
        """
        ...

    def search(self, search: Search) -> AsyncGenerator[bytes, None]:
        """Ripgrep's JSON messages, one a line, sorted by path; paths relative to the folder searched.

        Raises `ToolError` with ripgrep's own words for a bad pattern.
        """
        ...

    async def exec(
        self,
        command: str,
        *,
        cwd: Path,
        timeout_s: float,
        on_output: Callable[[str], None] = lambda text: None,
        most_bytes: int = 30_000,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a shell command without input. When it outlives `timeout_s` it is ended with all its children.

        A cancelled call ends them too. Once `detach` is set the command goes on as a background job, whose output
        file begins with what `output` holds.
        """
        ...

    async def start_job(self, command: str, *, cwd: Path, timeout_s: float | None = None) -> BackgroundJob:
        """Start a shell command that goes on after this call, and ends with the session or after `timeout_s`."""
        ...

    def jobs(self) -> Sequence[BackgroundJob]:
        """All jobs of this session, oldest first."""
        ...

    def read_job(self, id: str, most_bytes: int) -> str:
        """What a job has written since this was last asked, its middle cut out above the limit.

        Raises `ToolError` (not_found).
        """
        ...

    async def stop_job(self, id: str) -> None:
        """End a job with all its processes. Raises `ToolError` (not_found)."""
        ...

    def add_root(self, folder: Path) -> None:
        """Let one more folder be read and written from now on."""
        ...

    async def aclose(self) -> None:
        """End every process that was left running; safe to call twice."""
        ...
