"""Lists the commands in the background, reads what one has said since the last time, or ends it."""

from __future__ import annotations

import asyncio
from typing import Any

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import Jobs
from agentcli.tools.command import BackgroundJob
from agentcli.tools.observation import PAGE_BYTES
from agentcli.tools.sandbox import Jobs as SandboxJobs
from agentcli.tools.tool import ToolContext, ToolOutput

_LONGEST_COMMAND = 100  # characters


async def run(given: Jobs, context: ToolContext) -> ToolOutput:
    jobs = context.workspace.sandbox.jobs
    if given.action == "list":
        return _list(jobs)
    if not given.job_id:
        raise ToolError(
            f"Which job? To {given.action} one, give its job_id; list shows them.", kind="invalid_parameters"
        )
    return await (_read if given.action == "read" else _kill)(given.job_id, jobs)


def _list(jobs: SandboxJobs) -> ToolOutput:
    listed = jobs.list()
    running = sum(job.is_running for job in listed)
    content = "\n".join(map(_row, listed)) or "No command runs in the background."
    return ToolOutput(content, {"jobs": [_structured(job) for job in listed]}, f"{running} of {len(listed)} running")


async def _read(id: str, jobs: SandboxJobs) -> ToolOutput:
    new = await asyncio.to_thread(jobs.read, id, PAGE_BYTES)
    job = next(job for job in jobs.list() if job.id == id)
    lines = new.count("\n") + (bool(new) and not new.endswith("\n"))
    content = "\n".join([*([new.rstrip("\n")] if new.strip() else ["[nothing new]"]), f"[{_state(job)}]"])
    return ToolOutput(content, {**_structured(job), "output": new}, f"{lines} new line{'' if lines == 1 else 's'}")


async def _kill(id: str, jobs: SandboxJobs) -> ToolOutput:
    was_running = any(job.id == id and job.is_running for job in jobs.list())
    await jobs.stop(id)
    job = next(job for job in jobs.list() if job.id == id)
    if job.is_running:
        raise ToolError(f"{id} could not be ended: processes of it belong to somebody else.", kind="permission_denied")
    said = f"Ended {id}." if was_running else f"{id} had ended before: {_state(job)}."
    return ToolOutput(said, _structured(job), said.rstrip("."))


def _row(job: BackgroundJob) -> str:
    command = " ".join(job.command.split())
    shown = command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 1]}…"
    new = f" [{job.new_bytes:,} bytes of new output]" if job.new_bytes else ""
    return f"{job.id}: {_state(job)}: {shown}{new}"


def _state(job: BackgroundJob) -> str:
    put_back = f"put back {', '.join(job.reverts.put_back)}" if job.reverts.put_back else ""
    left = f"could not put back {', '.join(job.reverts.left_changed)}" if job.reverts.left_changed else ""
    more = f"more is in {', '.join(job.reverts.unguarded)} than can be put back" if job.reverts.unguarded else ""
    return ", ".join(filter(None, (_phase(job), job.stall, put_back, left, more)))


def _phase(job: BackgroundJob) -> str:
    if job.is_running:
        return "running"
    if job.timed_out:
        return "ended at its time limit"
    if job.exit_code is None:
        return "ended"
    return f"exit code {job.exit_code}" if job.exit_code >= 0 else f"ended by signal {-job.exit_code}"


def _structured(job: BackgroundJob) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "command": job.command,
        "is_running": job.is_running,
        "exit_code": job.exit_code,
        "timed_out": job.timed_out,
        "stall": job.stall,
        "output_file": str(job.output_file),
    }
