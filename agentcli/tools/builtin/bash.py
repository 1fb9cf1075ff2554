"""Runs a shell command; the directory it ends in is where the next one starts. Lists, reads and ends jobs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.safety.paths.judge import is_read_only_name, is_secret
from agentcli.tools.builtin.toolset import Bash, JobsCall
from agentcli.tools.command import BackgroundJob, Command, CommandResult, Profile
from agentcli.tools.observation import PAGE_BYTES, cut_middle
from agentcli.tools.path_names import display_name
from agentcli.tools.sandbox import Jobs, PathStatus, Use
from agentcli.tools.tool import DryRunReport, ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace

_LONGEST_COMMAND = 100  # characters of a job's command that are shown
_MOST_BYTES = {"brief": 1_800, "standard": PAGE_BYTES, "full": 1_000_000}  # full is shown page by page
LONGEST_TIMEOUT_MS = 3_600_000
_USUAL_TIMEOUT_MS = Bash("").timeout_ms  # a job that is given this has no limit but the session's end


def _command(given: Bash, start: Path, context: ToolContext) -> Command:
    terms, grants = context.terms, context.all_grants
    if terms.dry_run == "narrow":
        grants = replace(grants, hosts=terms.grants.hosts)
    most_bytes, limit_s = _MOST_BYTES[given.output_level or context.level], _limit_s(given)
    profile: Profile | None = "read-only" if terms.only_reads else None
    profile = "danger-full-access" if given.unconfined else profile
    return Command(given.command, start, limit_s, most_bytes, profile=profile, grants=grants, dry_run=terms.dry_run)


def _start_of(given: Bash, context: ToolContext) -> tuple[Path, str]:
    """The folder that a command starts in, and a note if the one the shell stood in is gone. Raises `ToolError`."""
    if not given.command.strip():
        raise ToolError("The command is empty.", kind="invalid_parameters")
    if "\0" in given.command:
        raise ToolError("The command holds a NUL character.", kind="invalid_parameters")
    workspace = context.workspace
    start = workspace.readable(given.cwd, context.grants) if given.cwd else (workspace.shell_cwd or workspace.cwd)
    if workspace.look(start).kind == "folder":
        return start, ""
    if given.cwd:
        raise ToolError(f"{given.cwd} is not a directory.", kind="not_found", code="ENOTDIR")
    workspace.shell_cwd = None
    return workspace.cwd, f"[{workspace.shown(start)} is gone: started in {workspace.shown(workspace.real_cwd)}]"


async def run_own(command: str, context: ToolContext, *, terminal: str = "") -> ToolOutput:
    """Run the person's own command, which nothing confines; in a `terminal`, named by its path, it can ask them."""
    return await _run(Bash(command, LONGEST_TIMEOUT_MS, unconfined=True), context, is_own=True, terminal=terminal)


async def run(given: Bash | JobsCall, context: ToolContext) -> ToolOutput:
    return await (_run(given, context) if isinstance(given, Bash) else _jobs(given, context))


async def _run(given: Bash, context: ToolContext, *, is_own: bool = False, terminal: str = "") -> ToolOutput:
    workspace = context.workspace
    start, lost = _start_of(given, context)
    command = _command(given, start, context)
    if given.background:
        limit_s = None if given.timeout_ms == _USUAL_TIMEOUT_MS else command.timeout_s
        (detach := asyncio.Event()).set()
        job = (await workspace.sandbox.run(replace(command, timeout_s=limit_s), detach=detach)).job
        assert job is not None, "it is detached or refused"
        return _started(job, "Started", context)
    if is_own:
        command = replace(command, profile="own", terminal=terminal, timeout_s=None if terminal else command.timeout_s)
    result = await workspace.sandbox.run(command, on_output=context.emit, detach=context.detach)
    finish = partial(_output, result, given, start, context, lost)
    if result.dry_run is not None:
        unread = _unread(result.output, result.cwd or start, workspace) if result.exit_code else ()
        host = _needed_host(result.output)
        report = DryRunReport(dry_run=result.dry_run, result=result, output=finish, needed_host=host, unread=unread)
        return ToolOutput(dry_run=report)
    if result.job is not None and result.exit_code is None:
        return _went_on(result.job, result, context)
    return await asyncio.to_thread(finish)


def _limit_s(given: Bash) -> float:
    return min(given.timeout_ms, LONGEST_TIMEOUT_MS) / 1000


def _output(result: CommandResult, given: Bash, start: Path, context: ToolContext, lost: str) -> ToolOutput:
    """The output, then only what is out of the ordinary: an exit code, a time-out, another directory."""
    workspace, code, is_late = context.workspace, result.exit_code, result.timed_out
    notes = [lost]
    if code and not is_late:
        why = f"; {result.stall}" if result.stall else ""
        notes.append(f"[exit code {code}{why}]" if code > 0 else f"[ended by signal {-code}{why}]")
    if workspace.facts.confines and not given.unconfined:
        notes += _of_the_sandbox(result.output, workspace, start)
    cwd = start if given.cwd else _follow(result, start, context, notes)
    notes += _left_notes(result, workspace)
    if is_late:
        advice = result.stall or "for a long job set timeout_ms or background"
        notes.append(f"[ended after {_limit_s(given):g} s; {advice}]")
    output = cut_middle(result.output, _MOST_BYTES["brief"]) if is_late else result.output
    optional = {"output_file": result.output_file, "stall": result.stall, "job_id": result.job and result.job.id}
    structured = {
        "exit_code": code,
        "output": result.output,
        "timed_out": is_late,
        "cwd": display_name(str(cwd)),
        **{name: str(value) for name, value in optional.items() if value},
    }
    summary = "timed out" if is_late else f"exit {code}" if code else count_lines(result.output) or "no output"
    for paths, what in ((result.reverts.put_back, "put back"), (result.reverts.left_changed, "could not be put back")):
        summary += f"; {len(paths)} protected files {what}" if paths else ""
    return ToolOutput(
        "\n".join(part for part in (output.rstrip("\n"), *notes) if part),
        structured,
        summary,
        is_error=is_late or bool(code),
        error_kind="timeout" if is_late else None,
    )


def count_lines(text: str, new: str = "") -> str:
    """The number of lines in words; empty for none."""
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    return f"{lines} {new}line{'s' if lines > 1 else ''}" if lines else ""


def _left_notes(result: CommandResult, workspace: Workspace) -> Iterator[str]:
    """Describe what a command has left behind, besides its output."""
    if result.made:
        names = ", ".join(workspace.shown(path) for path in result.made)
        yield (
            f"[it made or changed {names}, which other programs obey by themselves: the user should look at it first]"
        )
    yield from (f"[{note}]" for note in result.reverts.notes())
    if result.ended:
        names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in Counter(result.ended).items())
        yield (
            f"[stopped with the command: {names}, which it had left running. Set background to keep a process running.]"
        )
    if result.job is not None:
        yield f"[left running in the background: {result.job.id}]"


_REFUSED = re.compile("Read-only file system|Device or resource busy|Permission denied|Operation not permitted")
_IN_TMP = re.compile(r"(?<![\w/.-])/(?:var/)?tmp/")
_NO_HOST = re.compile(
    "Could not resolve host|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    "|EAI_AGAIN|ENOTFOUND|failed to lookup address|no such host"
)
# How curl and git, Node, Python, Go and pip name a host that they could not reach.
_NAMED_HOST = re.compile(
    r"[Cc]ould not resolve host:? '?([\w.-]+)|(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED) ([\w-]+(?:\.[\w-]+)+)"
    r"|HTTPS?ConnectionPool\(host='([\w.-]+)'|Failed to resolve '([\w.-]+)'|dial tcp: lookup ([\w.-]+)"
    r"|unable to access 'https?://([\w.-]+)"
)


def _needed_host(output: str) -> str:
    found = _NAMED_HOST.search(output)
    return next((host for host in found.groups() if host), "").rstrip(".") if found else ""


_UNREAD = re.compile("no such file|not found|does not exist|permission denied|cannot |ENOENT|EACCES", re.IGNORECASE)
_NAMES = re.compile(r"['`\"]([^'`\"]+)['`\"]|([^\s'`\":(),;]+)")
_MOST_UNREAD = 200  # names that are looked at


def _unread(output: str, cwd: Path, workspace: Workspace) -> tuple[Path, ...]:
    """Where all the names lead that stand in complaints about files."""
    lines = (line for line in output.splitlines() if _UNREAD.search(line))
    names = dict.fromkeys("".join(found) for line in lines for found in _NAMES.findall(line))
    return tuple(path.real for path in _looked_at(names, cwd, workspace, "read").values())


def _looked_at(names: Iterable[str], cwd: Path, workspace: Workspace, use: Use) -> dict[str, PathStatus]:
    """Look at the first names as paths; those that lead nowhere are left out."""
    paths: dict[str, PathStatus] = {}
    for name in list(names)[:_MOST_UNREAD]:
        with contextlib.suppress(ToolError):
            paths[name] = workspace.look(cwd / name, use)
    return paths


def _of_the_sandbox(output: str, workspace: Workspace, cwd: Path) -> list[str]:
    """Explain failures in a command's output that the sandbox is likely to have caused, a note each."""
    lines = output.splitlines()
    words = {word for line in lines if _REFUSED.search(line) for word in re.split(r"[\s'\"`:]+", line) if word}
    named = {part for word in words for part in word.split("/")}
    notes = []
    kept = sorted(filter(is_read_only_name, named))
    if not kept:
        paths = _looked_at(sorted(words), cwd, workspace, "write")
        kept = [word for word, path in paths.items() if path.is_auto_executed]
    if kept:
        notes.append(
            f"[the sandbox keeps {', '.join(kept)} from commands, as other programs obey what is there: file_edit "
            "changes it where the user agrees, and unconfined asks them to let this command do it]"
        )
    if secret := sorted(name for name in named if is_secret(PurePath(name), None)):
        notes.append(
            f"[the sandbox hides {', '.join(secret)}, which may hold secrets; a rule of the user that names it, "
            f"such as Read({secret[0]}), opens it]"
        )
    missing = (line for line in lines if "No such file or directory" in line and _IN_TMP.search(line))
    if any(not any(str(root) in line for root in workspace.facts.roots) for line in missing):
        notes.append("[/tmp is empty for each command: keep in the workspace what a later one is to find]")
    if _NO_HOST.search(output):
        notes.append("[the sandbox lets commands reach only hosts that the user opens: /sandbox host NAME]")
    return notes


def _follow(result: CommandResult, start: Path, context: ToolContext, notes: list[str]) -> Path:
    """Keep the directory the shell ended in; one outside the workspace is left again."""
    workspace = context.workspace
    end = result.cwd
    if end is None or end == (real_start := workspace.look(start).real):
        return start
    status = workspace.look(end, grants=context.grants)
    if status.kind != "folder":  # a dry run made it, and it was not applied
        return start
    if not status.is_usable:
        notes.append(f"[{workspace.shown(end)} is outside the workspace: back in {workspace.shown(real_start)}]")
        return start
    workspace.shell_cwd = status.real
    notes.append(f"[now in {workspace.shown(end)}]")
    return end


def _went_on(job: BackgroundJob, result: CommandResult, context: ToolContext) -> ToolOutput:
    """A command that goes on as a job: the person sent it there, or it `listens on :3000`."""
    how = f"It {result.stall}" if result.stall else "The person sent this to the background"
    started = _started(job, f"{how}: it goes on as", context)
    alone = ""
    if result.stall.startswith("listens") and context.workspace.facts.confines:
        alone = ". Only this command reaches it: each has a network of its own in the sandbox."
    output = f"Output so far:\n{result.output}" if result.output.strip() else "No output so far."
    structured = {**started.structured, "output": result.output, **({"stall": result.stall} if result.stall else {})}
    return ToolOutput(f"{started.content}{alone}\n{output}", structured, f"in the background as {job.id}")


def _started(job: BackgroundJob, how: str, context: ToolContext) -> ToolOutput:
    """Says how to end it without `jobs` too, which small models lack, unless commands see no others."""
    kill = "" if context.workspace.facts.confines else f" or with: kill -- -{job.pid}"
    text = (
        f"{how} job {job.id} (process group {job.pid}). Its output goes to {job.output_file}: read what is new "
        f"with jobs, or all of it with file_read. End it with jobs{kill}"
    )
    structured = {"job_id": job.id, "pid": job.pid, "output_file": str(job.output_file)}
    return ToolOutput(text, structured, f"{job.id} started")


async def _jobs(given: JobsCall, context: ToolContext) -> ToolOutput:
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


def _find(id: str, jobs: Jobs) -> BackgroundJob:
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
