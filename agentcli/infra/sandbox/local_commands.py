"""Runs commands on this machine, within the session's confinement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.infra.sandbox.protection import created_config
from agentcli.infra.sandbox.session_confinement import SessionConfinement
from agentcli.tools.command import BackgroundJob, Command, CommandResult
from agentcli.tools.sandbox import Commands

if TYPE_CHECKING:
    from agentcli.infra.sandbox.trial.try_run import TryRuns
    from agentcli.tools.trial import Trial


class LocalCommands:
    """Implements `Commands`. `environment` holds no credentials; the person's own commands get `own_environment`."""

    def __init__(
        self,
        confinement: SessionConfinement,
        *,
        environment: Mapping[str, str],
        own_environment: Mapping[str, str],
        job_folder: Path,
    ) -> None:
        self._confinement = confinement
        self._job_folder = job_folder
        self._search_path = environment.get("PATH", "")
        self._shell = Shell(environment, job_folder, launch=confinement.launch, own_environment=own_environment)

    async def exec(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        if not command.is_own:
            await self._confinement.make_ready()
        limits = self._confinement.limits
        is_watched = (command.profile or limits.profile) == "workspace-write" and not command.is_own
        before = created_config.watched(self._confinement.roots) if is_watched else {}
        result = await self._shell.exec(command, on_output=on_output, detach=detach)
        made = created_config.made_or_changed(before)
        return replace(result, made=tuple(made)) if made else result

    def why_no_trial(self) -> str:
        return self._tries.why_not()

    async def try_command(self, command: Command, *, on_output: Callable[[str], None] = lambda text: None) -> Trial:
        await self._confinement.make_ready()
        return await self._tries.try_command(command, on_output=on_output)

    @cached_property
    def _tries(self) -> TryRuns:
        """Imported late: it takes some milliseconds, and most sessions try nothing."""
        tries: TryRuns = import_module("agentcli.infra.sandbox.trial.try_run").TryRuns(
            self._shell,
            lambda: self._confinement.confinement,
            self._confinement.bounds,
            folder=self._confinement.limits.tries or self._job_folder / "tries",
            search_path=self._search_path,
        )
        return tries

    async def start_job(self, command: Command) -> BackgroundJob:
        await self._confinement.make_ready()
        return await self._shell.start_job(command)

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._shell.jobs()

    def read_job(self, id: str, most_bytes: int) -> str:
        return self._shell.read_job(id, most_bytes)

    async def stop_job(self, id: str) -> None:
        await self._shell.stop_job(id)

    async def aclose(self) -> None:
        await self._shell.aclose()
        if "_tries" in vars(self):
            await asyncio.to_thread(self._tries.close)


if TYPE_CHECKING:
    _: type[Commands] = LocalCommands
