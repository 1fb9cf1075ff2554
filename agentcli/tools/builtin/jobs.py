"""Lists the commands in the background, reads what one has said since the last time, or ends it."""

from __future__ import annotations

import asyncio
from typing import Any

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import Jobs
from agentcli.tools.builtin.bash import count_lines
from agentcli.tools.command import BackgroundJob
from agentcli.tools.observation import PAGE_BYTES
from agentcli.tools.sandbox import Jobs as SandboxJobs
from agentcli.tools.tool import ToolContext, ToolOutput

_LONGEST_COMMAND = 100  # characters


async def run(given: Jobs, context: ToolContext) -> ToolOutput:
    jobs, id = context.workspace.sandbox.jobs, given.job_id
    if given.action == "list":
        listed = jobs.list()
        running = sum(job.is_running for job in listed)
        content = "\n".join(map(_row, listed)) or "No command runs in the background."
        return ToolOutput(content, {"jobs": list(map(_structured, listed))}, f"{running} of {len(listed)} running")
    if not id:
        raise ToolError(
            f"Which job? To {given.action} one, give its job_id; list shows them.", kind="invalid_parameters"
        )
    if given.action == "read":
        new = await asyncio.to_thread(jobs.read, id, PAGE_BYTES)
        job = _find(id, jobs)
        content = "\n".join((new.rstrip("\n") if new.strip() else "[nothing new]", f"[{_state(job)}]"))
        return ToolOutput(content, {**_structured(job), "output": new}, count_lines(new, "new ") or "0 new lines")
    was_running = any(job.id == id and job.is_running for job in jobs.list())
    await jobs.stop(id)
    job = _find(id, jobs)
    if job.is_running:
        raise ToolError(f"{id} could not be ended: processes of it belong to somebody else.", kind="permission_denied")
    said = f"Ended {id}." if was_running else f"{id} had ended before: {_state(job)}."
    return ToolOutput(said, _structured(job), said.rstrip("."))


def _find(id: str, jobs: SandboxJobs) -> BackgroundJob:
    return next(job for job in jobs.list() if job.id == id)


def _row(job: BackgroundJob) -> str:
    command = " ".join(job.command.split())
    shown = command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 1]}…"
    new = f" [{job.new_bytes:,} bytes of new output]" if job.new_bytes else ""
    return f"{job.id}: {_state(job)}: {shown}{new}"


def _state(job: BackgroundJob) -> str:
    if job.is_running:
        phase = "running"
    elif job.timed_out:
        phase = "ended at its time limit"
    elif job.exit_code is None:
        phase = "ended"
    else:
        phase = f"exit code {job.exit_code}" if job.exit_code >= 0 else f"ended by signal {-job.exit_code}"
    return ", ".join(filter(None, (phase, job.stall, *job.reverts.notes())))


def _structured(job: BackgroundJob) -> dict[str, Any]:
    shown = ("command", "is_running", "exit_code", "timed_out", "stall")
    return {"job_id": job.id, **{name: getattr(job, name) for name in shown}, "output_file": str(job.output_file)}
