"""Commands in the background."""

from __future__ import annotations

import asyncio

from agentcli.agent.commands.command import Command, CommandHost, Outcome
from agentcli.errors import ToolError, UserError
from agentcli.tools.command import BackgroundJob


async def _tasks(host: CommandHost, argument: str) -> Outcome:
    jobs = host.session.runtime.calls.workspace.sandbox.jobs()
    return "\n".join(map(_row, jobs)) or "No command runs in the background."


def _row(job: BackgroundJob) -> str:
    why = f" ({job.stall})" if job.stall else ""
    return f"  {job.id:<7} {'runs ' if job.is_running else 'ended'}  {' '.join(job.command.split())}{why}"


async def _stop(host: CommandHost, which: str) -> Outcome:
    sandbox = host.session.runtime.calls.workspace.sandbox
    running = [job.id for job in sandbox.jobs() if job.is_running]
    if which:
        running = [f"job_{which}" if which.isdecimal() else which]
    if not running:
        return "No command runs in the background."
    try:
        await asyncio.gather(*map(sandbox.stop_job, running))
    except ToolError as error:
        raise UserError(str(error)) from error
    return f"Ended {', '.join(running)}."


JOB_COMMANDS = (
    Command("tasks", "list the commands in the background", _tasks, aliases=("bashes", "ps", "shells")),
    Command("stop", "end a command in the background, or all of them", _stop, "[JOB]"),
)
