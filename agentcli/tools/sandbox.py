"""Where tools touch the machine: files inside a workspace, commands in a process group of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct


class BackgroundJob(Struct, frozen=True):
    """A command left running; its output grows in `output_file`. `is_running` is as it was when this was asked."""

    id: str
    pid: int
    output_file: Path
    command: str = ""
    is_running: bool = True


class CommandResult(Struct, frozen=True):
    """What a command did. `exit_code` is negative for a signal, None when it had to be killed or goes on as a `job`.

    `output` holds both streams in the order they came, its middle cut out above the limit asked for; `cut_bytes` says
    how much is missing. `cwd` is the directory the shell ended in.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    cwd: Path | None = None
    cut_bytes: int = 0
    job: BackgroundJob | None = None


class Sandbox(Protocol):
    """A workspace of one or more folders. Paths are judged after symlinks and `..` are resolved."""

    @property
    def roots(self) -> tuple[Path, ...]: ...

    def readable(self, path: Path) -> Path:
        """The real path. Raises `ToolError` (permission_denied) when it may not be read."""
        ...

    def writable(self, path: Path) -> Path:
        """The real path. Raises `ToolError` (permission_denied) when it may not be written."""
        ...

    async def run_shell(
        self,
        command: str,
        *,
        cwd: Path,
        timeout_s: float,
        on_output: Callable[[str], None],
        most_bytes: int,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a shell command without input. When it outlives `timeout_s` its whole process group is ended.

        A cancelled call ends the group too. Once `detach` is set the command goes on as a background job, whose output
        file begins with what `output` holds.
        """
        ...

    async def run_program(self, argv: Sequence[str], *, cwd: Path, timeout_s: float) -> tuple[int, bytes, bytes]:
        """Run a program of our own (search, listing): exit code, stdout, stderr.

        Raises `ToolError` (timeout, dependency_error).
        """
        ...

    async def start_job(self, command: str, *, cwd: Path) -> BackgroundJob:
        """Start a shell command that goes on after this call and ends with the session."""
        ...

    def jobs(self) -> Sequence[BackgroundJob]:
        """All jobs of this session, oldest first."""
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
