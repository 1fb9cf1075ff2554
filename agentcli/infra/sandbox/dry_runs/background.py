"""Lets the command of a dry run go on as a job; its changes can be looked at when it has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.tools.command import Command, CommandResult

_POLL_S = 0.25


@dataclass(frozen=True)
class Detaching:
    """The `sign` that sends a command to the background, and what to do with the result that names its job."""

    sign: asyncio.Event
    report: Callable[[CommandResult], None]

    async def end_of(
        self, command: Command, result: CommandResult, shell: Shell, *, too_much: asyncio.Task[str]
    ) -> CommandResult:
        """Report a command that became a job, and return its end. If `too_much` ends the wait, the job still runs."""
        assert result.job is not None
        self.report(result)
        id = result.job.id
        try:
            while not too_much.done():
                job = next(job for job in shell.list() if job.id == id)
                if job.outcome is not None:
                    output = await asyncio.to_thread(shell.read, id, command.most_bytes)
                    code, is_late = job.outcome.exit_code, job.outcome.timed_out
                    return replace(result, output=output, exit_code=code, timed_out=is_late, job=None)
                await asyncio.sleep(_POLL_S)
        except asyncio.CancelledError:
            await asyncio.shield(shell.end(id))
            raise
        return result


class BackgroundRuns:
    """The dry runs of a session, each in a task of its own, so that it can outlive the call that made it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[CommandResult]] = set()

    async def start(
        self, run: Callable[[Detaching | None], Awaitable[CommandResult]], detach: asyncio.Event | None
    ) -> CommandResult:
        """Run a command and return its result.

        If `detach` is set meanwhile, return at once a result that names the job; its `later` is the result at the end.
        """
        if detach is None:
            return await run(None)
        detached: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        # `detach` is the person's wish. The run itself also sets `sign`, if the command takes too much of the machine.
        sign = asyncio.Event()
        waiting = asyncio.ensure_future(detach.wait())
        waiting.add_done_callback(lambda _: sign.set())
        running = asyncio.ensure_future(run(Detaching(sign, detached.set_result)))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.wait((running, detached), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            if not running.cancelled() and running.exception() is None:  # the run had ended before it was cancelled
                await _discard(running.result())
            raise
        finally:
            waiting.cancel()
        return replace(detached.result(), later=running) if detached.done() else await running

    async def cancel(self) -> None:
        """End the commands that still run, and discard what they did."""
        running = [*self._running]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _discard(result: CommandResult) -> None:
    if result.dry_run is not None:
        await result.dry_run.discard()
