"""Commands that go on in the background: where their output goes, whether they run, ending them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.infra.sandbox.processes import end_group, group_is_alive
from agentcli.tools.observation import cut_middle
from agentcli.tools.sandbox import BackgroundJob


@dataclass
class _Job:
    id: str
    command: str
    process: subprocess.Popen[bytes]
    output_file: Path
    has_ended: bool = False
    read_bytes: int = 0

    def is_running(self) -> bool:
        """Whether anything of it runs. Once it has ended it is never looked at again: its number may be another's."""
        self.has_ended = self.has_ended or (self.process.poll() is not None and not group_is_alive(self.process.pid))
        return not self.has_ended


class Jobs:
    """The jobs of one session; the files of their output are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: list[_Job] = []

    def start(self, command: str, spawn: Callable[[int], subprocess.Popen[bytes]]) -> BackgroundJob:
        """Start a command that writes to the job's file, whose descriptor `spawn` gets.

        Raises `OSError` or `ValueError`.
        """
        id, path = self._next()
        with path.open("wb") as file:
            return self._keep(_Job(id, command, spawn(file.fileno()), path))

    def adopt(self, process: subprocess.Popen[bytes], command: str, output: bytes) -> BackgroundJob:
        """Let a running command go on as a job; what it writes to its pipe from now on follows `output` in the file."""
        id, path = self._next()
        path.write_bytes(output)
        _copy_to(path, process)
        return self._keep(_Job(id, command, process, path))

    def _next(self) -> tuple[str, Path]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        id = f"job_{len(self._jobs) + 1}"
        return id, self._folder / f"{id}.log"

    def _keep(self, job: _Job) -> BackgroundJob:
        self._jobs.append(job)
        return _told(job)

    def list(self) -> Sequence[BackgroundJob]:
        return [_told(job) for job in self._jobs]

    def read(self, id: str, most_bytes: int) -> str:
        """What came since the last time, its middle cut out above the limit. Raises `ToolError` for an unknown id."""
        job = self._get(id)
        with job.output_file.open("rb") as file:
            file.seek(job.read_bytes)
            new = file.read()
        job.read_bytes += len(new)
        return cut_middle(new.decode(errors="replace"), most_bytes)

    async def stop(self, id: str) -> None:
        """Raises `ToolError` for an id that no job has."""
        await _end(self._get(id))

    def _get(self, id: str) -> _Job:
        job = next((job for job in self._jobs if job.id == id), None)
        if job is None:
            known = ", ".join(job.id for job in self._jobs) or "none"
            raise ToolError(f"There is no job {id!r}; there is {known}.", kind="not_found")
        return job

    async def aclose(self) -> None:
        jobs, self._jobs = self._jobs, []
        await asyncio.gather(*map(_end, jobs))
        for job in jobs:
            _close_pipe(job.process)


async def _end(job: _Job) -> None:
    if job.is_running():
        await end_group(job.process)


def _told(job: _Job) -> BackgroundJob:
    return BackgroundJob(job.id, job.process.pid, job.output_file, job.command, job.is_running())


def available(pipe: int) -> bytes | None:
    """What can be read now: None when there is nothing yet, empty at the end."""
    try:
        return os.read(pipe, 65_536)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _copy_to(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Append to a file what a process writes to its pipe, until the last one that holds the pipe has ended."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()

    def copy() -> None:
        data = available(pipe)
        if data is None:
            return
        if not data:
            _close_pipe(process)
            return
        with contextlib.suppress(OSError), path.open("ab") as file:  # a full disk costs output, not the job
            file.write(data)

    asyncio.get_running_loop().add_reader(pipe, copy)


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None and not process.stdout.closed:
        asyncio.get_running_loop().remove_reader(process.stdout.fileno())
        process.stdout.close()
