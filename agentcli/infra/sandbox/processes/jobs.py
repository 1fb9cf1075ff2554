"""Keeps track of the commands of a session that go on in the background."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.errors import ToolError
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import BackgroundJob

if TYPE_CHECKING:
    from agentcli.infra.sandbox.processes.run import Run


class JobTable:
    """Implements `Jobs` for one session; the files of their output are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[Run] = []

    def new_file(self, name: str) -> Path:
        """Make `NAME_1.log`, or the first that was not there; a job is named after its file. Raises `OSError`."""
        make_private_folder(self._folder)
        for number in itertools.count(1):
            path = self._folder / f"{name}_{number}.log"
            with contextlib.suppress(FileExistsError):
                path.touch(0o600, exist_ok=False)
                return path
        raise AssertionError

    def add(self, run: Run) -> None:
        """List a command as a job from now on."""
        self._runs.append(run)

    def list(self) -> Sequence[BackgroundJob]:
        return [run.listed() for run in self._runs]

    def read(self, id: str, most_bytes: int) -> str:
        """Return the output since the last call, its middle cut out above the limit. Raises `ToolError` (not_found)."""
        return self._get(id).read_new(most_bytes)

    async def stop(self, id: str) -> None:
        """Raises `ToolError` for an id that no job has."""
        await self._get(id).process.end()

    async def end(self, id: str) -> None:
        """End what is not to be a job at all, and list it no more."""
        run = self._get(id)
        self._runs.remove(run)
        await run.stop_watching()
        await run.process.end()

    def _get(self, id: str) -> Run:
        run = next((run for run in self._runs if run.id == id), None)
        if run is None:
            known = ", ".join(run.id for run in self._runs) or "none"
            raise ToolError(f"There is no job {id!r}; there is {known}.", kind="not_found")
        return run

    async def aclose(self) -> None:
        for run in self._runs:
            await run.stop_watching()
