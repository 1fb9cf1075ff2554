"""Keeps track of background commands: their output, whether they run, and why one stalls."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from agentcli.errors import ToolError
from agentcli.infra.sandbox.processes.keeper_client import SWARMED, Process
from agentcli.infra.sandbox.processes.stall import MIN_QUIET_S, Stall, StallDetector
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import BackgroundJob
from agentcli.tools.text.terminal_lines import as_shown

_LOOK_EVERY_S = 2.0
_LAST_WORDS = 300  # bytes


@dataclass
class _Job:
    """`told` bytes of its file were read or shown already. What a command left behind has no exit code of its own."""

    command: str
    process: Process
    output_file: Path
    told: int = 0
    was_left: bool = False
    stall: Stall | None = None
    started: float = field(default_factory=time.time)
    stalls: StallDetector = field(init=False)

    def __post_init__(self) -> None:
        self.stalls = StallDetector(self.process.supervisor)

    @property
    def id(self) -> str:
        return self.output_file.stem

    def as_told(self) -> BackgroundJob:
        process, is_over = self.process, self.process.is_over()
        return BackgroundJob(
            self.id,
            process.pid,
            self.output_file,
            self.command,
            is_running=not is_over,
            exit_code=process.exit_code if is_over and not self.was_left else None,
            stall=self._why(is_over=is_over),
            timed_out=process.was_late,
            new_bytes=max(0, self._size() - self.told),
            reverts=process.launch.reverts,
        )

    def _why(self, *, is_over: bool) -> str:
        if self.process.was_swarm:
            return SWARMED
        return "" if is_over or self.stall is None else self.stall.text

    def _size(self) -> int:
        try:
            return self.output_file.stat().st_size
        except OSError:
            return 0

    def look(self) -> None:
        """Find out why it does not get on. Blocks for some milliseconds."""
        quiet_s, last_words = self._last_heard()
        found = self.stalls.find(quiet_s, last_words) if quiet_s >= MIN_QUIET_S - _LOOK_EVERY_S else None
        if found is None and self.stall is not None and self.stall.kind == "listens":
            return  # a server that answers somebody is one all the same
        self.stall = found

    def _last_heard(self) -> tuple[float, str]:
        try:
            with self.output_file.open("rb") as file:
                status = os.fstat(file.fileno())
                file.seek(max(0, status.st_size - _LAST_WORDS))
                last_words = file.read().decode(errors="replace")
            return time.time() - max(self.started, status.st_mtime), last_words
        except OSError:
            return time.time() - self.started, ""


class Jobs:
    """The jobs of one session; the files of their output are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[_Job] = []
        self._watching: asyncio.Task[None] | None = None

    def new_file(self, name: str) -> Path:
        """Make `NAME_1.log`, or the first that was not there: a session that is resumed keeps the files of before.

        A job is named after its file. Raises `OSError`.
        """
        make_private_folder(self._folder)
        for number in itertools.count(1):
            path = self._folder / f"{name}_{number}.log"
            with contextlib.suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
                return path
        raise AssertionError

    def add(
        self,
        command: str,
        process: Process,
        output_file: Path,
        *,
        told: int = 0,
        was_left: bool = False,
        stall: str = "",
    ) -> BackgroundJob:
        """List a command as a job from now on."""
        job = _Job(command, process, output_file, told, was_left, Stall("listens", stall) if stall else None)
        self._jobs.append(job)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return job.as_told()

    async def _watch(self) -> None:
        while running := [job for job in self._jobs if not job.process.is_over()]:
            for job in running:
                await asyncio.to_thread(job.look)
            await asyncio.sleep(_LOOK_EVERY_S)

    def list(self) -> Sequence[BackgroundJob]:
        return [job.as_told() for job in self._jobs]

    def read(self, id: str, most_bytes: int) -> str:
        """Return the output since the last call, its middle cut out above the limit. Raises `ToolError` (not_found)."""
        job = self._get(id)
        is_over = job.process.is_over()
        try:
            with job.output_file.open("rb") as file:
                text, job.told = _new_text(file, job.told, most_bytes, is_complete=is_over)
        except OSError as error:
            raise ToolError(f"The output of {id} cannot be read: {error.strerror}.", kind="resource_error") from error
        return as_shown(text)

    async def stop(self, id: str) -> None:
        """Raises `ToolError` for an id that no job has."""
        await self._get(id).process.end()

    async def end(self, id: str) -> None:
        """End what is not to be a job at all, and list it no more."""
        job = self._get(id)
        self._jobs.remove(job)
        await job.process.end()

    def _get(self, id: str) -> _Job:
        job = next((job for job in self._jobs if job.id == id), None)
        if job is None:
            known = ", ".join(job.id for job in self._jobs) or "none"
            raise ToolError(f"There is no job {id!r}; there is {known}.", kind="not_found")
        return job

    async def aclose(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None


def _new_text(file: BinaryIO, start: int, most_bytes: int, *, is_complete: bool) -> tuple[str, int]:
    """A file's text from `start` on, and where it ends: before a character of which only a part has come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end = os.fstat(file.fileno()).st_size
    file.seek(start)
    if end - start <= most_bytes:
        text = decoder.decode(file.read(end - start), final=is_complete)
        return text, end - len(decoder.getstate()[0])
    head = _whole_characters(file.read(most_bytes // 2))
    file.seek(end - most_bytes // 2)
    data = file.read(most_bytes // 2).lstrip(bytes(range(0x80, 0xC0)))
    tail = decoder.decode(data, final=is_complete)
    end -= len(decoder.getstate()[0])
    missing = end - start - len(head) - len(data)
    return f"{head.decode(errors='replace')}\n[{missing:,} bytes cut]\n{tail}", end


def _whole_characters(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return data[: len(data) - len(decoder.getstate()[0])]
