"""Runs shell commands, in the foreground or as jobs; retries those whose confinement could not be set up."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import MOST_PLANS
from agentcli.infra.sandbox.processes.foreground import Foreground, not_started
from agentcli.infra.sandbox.processes.jobs import Jobs, new_file
from agentcli.infra.sandbox.processes.keeper_client import readable
from agentcli.infra.sandbox.processes.launching import Launcher, Running, Starter, unconfined
from agentcli.infra.sandbox.processes.output import CommandOutput
from agentcli.tools.command import BackgroundJob, Command, CommandResult

# The shell tells that it has begun, where it ended and what it left running. The pipe is named by path, because a
# command may use every short descriptor itself. The command stands on the same line, so that line numbers in its errors
# are right.
_BEGUN = "{{ printf . >/dev/fd/{fd}; }} 2>/dev/null; "
_REPORT = _BEGUN + "trap '{{ {{ pwd -P; jobs -rp; }} >/dev/fd/{fd}; }} 2>/dev/null' EXIT; "


class Shell:
    """Runs commands for a sandbox. `environment` is what they see, credentials taken out already; the person's own
    commands see `own_environment`.

    `launch` confines them. The output of jobs is kept in `job_folder`; of other commands what is too long for a
    result, in `data_folder`.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        job_folder: Path,
        *,
        launch: Launcher = unconfined,
        data_folder: Path | None = None,
        own_environment: Mapping[str, str] | None = None,
    ) -> None:
        self._starter = Starter(environment, launch, own_environment)
        self._jobs = Jobs(job_folder)
        self._data_folder = data_folder or job_folder

    async def exec(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
        launch: Launcher | None = None,
    ) -> CommandResult:
        """Run a command; `launch` confines it in place of the usual one."""
        for _ in range(MOST_PLANS):
            output = CommandOutput(command.most_bytes, on_output, lambda: new_file(self._data_folder, "output"))
            foreground = await self._start(command, output, on_output, launch)
            try:
                async with asyncio.timeout(command.timeout_s):
                    goes_on = await foreground.wait(detach)
                goes_on = goes_on or await foreground.left_something()
            except TimeoutError:
                return await asyncio.shield(foreground.end())
            except asyncio.CancelledError:
                await asyncio.shield(foreground.end())
                raise
            result = await asyncio.shield(self._to_background(foreground) if goes_on else foreground.close())
            if not foreground.was_refused:
                return result
        raise _refused(result.output)

    async def _start(
        self, command: Command, output: CommandOutput, on_output: Callable[[str], None], launch: Launcher | None
    ) -> Foreground:
        report, report_write = _pipe_above(9)
        pipe, pipe_write = os.pipe()
        try:
            running = await self._starter.start(
                command,
                before=_REPORT.format(fd=report_write),
                output=pipe_write,
                pass_fds=(report_write,),
                launcher=launch,
            )
        except BaseException as error:
            os.close(report)
            os.close(pipe)
            if isinstance(error, OSError | ValueError):
                raise not_started("the shell", error) from error
            raise
        finally:
            os.close(report_write)
            os.close(pipe_write)
        return Foreground(running, output, pipe, report, on_output, is_watched=not command.terminal)

    async def _to_background(self, foreground: Foreground) -> CommandResult:
        try:
            id, path = self._jobs.next_file()
        except OSError as error:
            await foreground.end()
            raise not_started("the job", error) from error
        return await foreground.go_on(id, path, self._jobs)

    async def start_job(self, command: Command) -> BackgroundJob:
        try:
            id, path = self._jobs.next_file()
            for _ in range(MOST_PLANS):
                running = await self._start_job(command, path)
                if running is not None:
                    return self._jobs.keep(id, running, path)
            raise _refused(path.read_text(errors="replace"))
        except (OSError, ValueError) as error:
            raise not_started("the job", error) from error

    async def _start_job(self, command: Command, path: Path) -> Running | None:
        """None where its confinement could not be set up; why is in the file then. Raises `OSError`, `ValueError`."""
        begun, begun_write = _pipe_above(9)
        try:
            try:
                with path.open("ab") as file:
                    file.truncate(0)
                    running = await self._starter.start(
                        command,
                        before=_BEGUN.format(fd=begun_write),
                        output=file.fileno(),
                        pass_fds=(begun_write,),
                        is_job=True,
                    )
            finally:
                os.close(begun_write)
            try:
                await readable(begun)
            except asyncio.CancelledError:
                await asyncio.shield(running.end())
                raise
            if os.read(begun, 1) or not running.refusal:
                return running
            await running.process.wait_until_gone()
            said = await asyncio.to_thread(path.read_bytes)
            return None if said.startswith(running.refusal.encode()) else running
        finally:
            os.close(begun)

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._jobs.list()

    def read_job(self, id: str, most_bytes: int) -> str:
        return self._jobs.read(id, most_bytes)

    async def stop_job(self, id: str) -> None:
        await self._jobs.stop(id)

    async def aclose(self) -> None:
        await self._jobs.aclose()
        await asyncio.gather(*(running.end() for running in self._starter.still_running()))
        await self._starter.aclose()


def _pipe_above(lowest: int) -> tuple[int, int]:
    """A pipe whose ends have descriptors above `lowest`, out of the way of `exec 3>file` and the like."""
    ends = os.pipe()
    try:
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, lowest + 1) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return read, write


def _refused(said: str) -> ToolError:
    return ToolError(f"The sandbox could not be set up: {said.strip()}", kind="resource_error")
