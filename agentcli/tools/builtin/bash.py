"""Runs shell commands, each in the directory where the previous one ended. Lists, reads and ends jobs."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from msgspec.structs import replace

from agentcli.errors import ToolError, ToolErrorKind
from agentcli.patterns import lazy_pattern
from agentcli.safety.paths.judge import is_read_only_name, is_secret
from agentcli.tools.builtin.toolset import Bash, JobsCall
from agentcli.tools.command import BackgroundJob, Command, CommandResult, JobOutcome, Profile
from agentcli.tools.observation import PAGE_BYTES, cut_middle
from agentcli.tools.sandbox import PathStatus, Sandbox, Use
from agentcli.tools.tool import DryRunReport, ToolContext, ToolOutput
from agentcli.tools.workspace import Workspace, display_name

MAX_TIMEOUT_MS = 3_600_000
_ASKED_LATER = "[It is a dry run. Its changes reach the workspace only after it has ended and the user has agreed.]"
_MAX_COMMAND_CHARS = 100  # of a job's command, in a list
# The most output by level: a brief or standard one fits into one page with its notes; a full one gets several pages.
_MAX_BYTES = {"brief": 1_800, "standard": PAGE_BYTES - 1_500, "full": 1_000_000}


async def run(arguments: Bash | JobsCall, context: ToolContext) -> ToolOutput:
    return await (_run_bash(arguments, context) if isinstance(arguments, Bash) else _handle_jobs(arguments, context))


async def run_own(command: str, context: ToolContext, *, terminal: str = "") -> ToolOutput:
    """Run the person's own command, unconfined. In a `terminal`, given by its path, the command can ask them things."""
    call = Bash(command=command, timeout_ms=MAX_TIMEOUT_MS, unconfined=True)
    return await _run_bash(call, context, is_own=True, terminal=terminal)


async def _run_bash(arguments: Bash, context: ToolContext, *, is_own: bool = False, terminal: str = "") -> ToolOutput:
    """Run a command and return its output, the report of its dry run, or the job that it became. Raises `ToolError`.

    `is_own` and `terminal` are for a command that the person typed, as `run_own` explains.
    """
    sandbox = context.workspace.sandbox
    start, note = _find_start_folder(arguments, context)
    command = _build_command(arguments, start, context)
    if arguments.background:
        # A job for which the call sets no limit of its own runs until the session ends.
        has_default_limit = arguments.timeout_ms == Bash(command="").timeout_ms
        job = await _start_job(replace(command, timeout_s=None) if has_default_limit else command, sandbox)
        return _describe_start(job, "Started", context)
    if is_own:  # in a terminal it may wait for the person's input, so it has no time limit there
        command = replace(command, profile="own", terminal=terminal, timeout_s=None if terminal else command.timeout_s)
    result = await sandbox.run(command, on_output=context.emit, detach=context.detach)
    # `finish` makes the call's output once the command has ended, whether in a dry run or not.
    finish = partial(_make_output, arguments=arguments, context=context, start=start, note=note)
    if result.dry_run is not None:
        return ToolOutput(dry_run=_dry_run_report(result, start, context, finish))
    if result.job is not None and result.exit_code is None:  # with an exit code, the job is what was left running
        output = _describe_detached(result.job, result, context)
        if (at_the_end := result.later) is None:  # it is no dry run, so nobody is asked when it ends
            return output

        async def later() -> DryRunReport:  # the report at the end of a dry run that became a job
            return _dry_run_report(await at_the_end, start, context, finish)

        return replace(output, content=f"{_ASKED_LATER}\n{output.content}", later=later)
    if len(result.output) <= 2_000:  # so little is formatted in less time than a thread would take to start
        return finish(result)
    return await asyncio.to_thread(finish, result)


async def _start_job(command: Command, sandbox: Sandbox) -> BackgroundJob:
    at_once = asyncio.Event()
    at_once.set()
    job = (await sandbox.run(command, detach=at_once)).job
    assert job is not None  # a command that is detached from the start is a job, or `run` raises `ToolError`
    return job


def _dry_run_report(
    result: CommandResult, start: Path, context: ToolContext, finish: Callable[[CommandResult], ToolOutput]
) -> DryRunReport:
    """Return the report of a command that has ended, with what it lacked; `finish` makes the call's result from it."""
    assert result.dry_run is not None
    host = _NAMED_HOST.search(result.output)
    return DryRunReport(
        dry_run=result.dry_run,
        result=result,
        output=partial(finish, result),
        needed_host=next(filter(None, host.groups())).rstrip(".") if host else "",
        unread=_find_unread_paths(result.output, result.cwd or start, context.workspace) if result.exit_code else (),
    )


def _find_start_folder(arguments: Bash, context: ToolContext) -> tuple[Path, str]:
    """Return the folder to start a command in, and a note if the shell's folder is gone. Raises `ToolError`."""
    if not arguments.command.strip():
        raise ToolError("The command is empty.", kind="invalid_parameters")
    if "\0" in arguments.command:
        raise ToolError("The command holds a NUL character.", kind="invalid_parameters")
    workspace = context.workspace
    start = workspace.shell_cwd or workspace.cwd
    if arguments.cwd:
        start = workspace.usable_path(arguments.cwd, "read", context.grants)
    if workspace.look(start).kind == "folder":
        return start, ""
    if arguments.cwd:
        raise ToolError(f"{arguments.cwd} is not a directory.", kind="not_found", code="ENOTDIR")
    workspace.shell_cwd = None
    return workspace.cwd, f"[{workspace.shown(start)} is gone: started in {workspace.shown(workspace.real_cwd)}]"


def _build_command(arguments: Bash, start: Path, context: ToolContext) -> Command:
    terms, grants = context.terms, context.all_grants
    if terms.dry_run == "narrow":  # nobody allowed the command, so it may not use the hosts granted to the session
        grants = replace(grants, hosts=terms.grants.hosts)
    profile: Profile | None = "read-only" if terms.only_reads else None
    return Command(
        text=arguments.command,
        cwd=start,
        timeout_s=min(arguments.timeout_ms, MAX_TIMEOUT_MS) / 1000,
        max_bytes=_MAX_BYTES[arguments.output_level or context.level],
        grants=grants,
        dry_run=terms.dry_run,
        profile="danger-full-access" if arguments.unconfined else profile,
    )


def _make_output(result: CommandResult, arguments: Bash, context: ToolContext, *, start: Path, note: str) -> ToolOutput:
    """Return the output of a command, with notes on anything unusual, such as an exit code.

    `start` is the folder in which it started; `note`, if any, is the first note. After a timeout the output is cut.
    """
    workspace, code, timed_out = context.workspace, result.exit_code, result.timed_out
    notes = [note]
    if code and not timed_out:
        why = f"; {result.stall}" if result.stall else ""
        notes.append(f"[exit code {code}{why}]" if code > 0 else f"[ended by signal {-code}{why}]")
    explanations: list[str] = []
    if workspace.facts.confines and not arguments.unconfined:
        explanations = [*_explain_failures(result, workspace, start)]
    notes += explanations
    # A call with a `cwd` of its own does not move the shell.
    cwd = start if arguments.cwd else _follow_folder(result, start, context, notes)
    notes += _describe_leftovers(result, workspace)
    if timed_out:
        reason = result.stall or "for a long job set timeout_ms or background"
        notes.append(f"[ended after {min(arguments.timeout_ms, MAX_TIMEOUT_MS) / 1000:g} s; {reason}]")
    output = cut_middle(result.output, _MAX_BYTES["brief"]) if timed_out else result.output
    optional = {"output_file": result.output_file, "stall": result.stall, "job_id": result.job and result.job.id}
    structured = {
        "exit_code": code,
        "output": result.output,
        "timed_out": timed_out,
        "cwd": display_name(str(cwd)),
        **{name: str(value) for name, value in optional.items() if value},
    }
    failure = "timed out" if timed_out else f"exit {code}" if code else ""
    summary = failure or describe_line_count(result.output) or "no output"
    for paths, what in ((result.reverts.reverted, "reverted"), (result.reverts.not_reverted, "could not be reverted")):
        summary += f"; {len(paths)} protected files {what}" if paths else ""
    summary += "; .git/config was not written" if _GIT_SETTINGS_KEPT in explanations else ""
    content = "\n".join(part for part in (output.rstrip("\n"), *notes) if part)
    error_kind: ToolErrorKind | None = "timeout" if timed_out else None
    return ToolOutput(content, structured, summary, is_error=timed_out or bool(code), error_kind=error_kind)


def describe_line_count(text: str, new: str = "") -> str:
    """Return the number of a text's lines as `3 lines` or `3 new lines`; empty if there are none."""
    lines = text.count("\n") + (not text.endswith("\n") and bool(text))
    return f"{lines} {new}line{'s' if lines > 1 else ''}" if lines else ""


def _describe_leftovers(result: CommandResult, workspace: Workspace) -> Iterator[str]:
    if result.made:
        names = ", ".join(workspace.shown(path) for path in result.made)
        yield (
            f"[it made or changed {names}, which other programs run or obey by themselves: ask the user to look at it "
            "first]"
        )
    yield from (f"[{note}]" for note in result.reverts.notes())
    if result.ended:
        names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in Counter(result.ended).items())
        yield f"[ended together with the command that had started them: {names}. Set background to keep one running.]"
    if result.job is not None:
        yield f"[left running in the background: {result.job.id}]"


def _follow_folder(result: CommandResult, start: Path, context: ToolContext, notes: list[str]) -> Path:
    """Return the folder in which a command ended, let the next command start there, and add a note to `notes`.

    A folder that is outside the workspace or does not exist is not followed: the next command starts in `start`.
    """
    workspace, end = context.workspace, result.cwd
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


# The forms in which curl, git, Node, Python, Go and pip name a host that they could not reach.
_NAMED_HOST = lazy_pattern(
    r"[Cc]ould not resolve host:? '?([\w.-]+)|(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED) ([\w-]+(?:\.[\w-]+)+(?::\d+)?)"
    r"|HTTPS?ConnectionPool\(host='([\w.-]+)'|Failed to resolve '([\w.-]+)'|dial tcp: lookup ([\w.-]+)"
    r"|unable to access 'https?://([\w.-]+)"
)
_PROXY_FAILED = lazy_pattern("connect|proxy|tunnel", re.IGNORECASE)  # few programs show the proxy's reason, too
_NO_SERVER = lazy_pattern("[Cc]onnection refused|ECONNREFUSED|Couldn't connect to server")
_NO_HOST = lazy_pattern(
    "Could not resolve host|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    "|EAI_AGAIN|ENOTFOUND|failed to lookup address|no such host"
)
_DENIED = lazy_pattern("Read-only file system|Device or resource busy|Permission denied|Operation not permitted")
_TEMPORARY_PATH = lazy_pattern(r"(?<![\w/.-])/(?:var/)?tmp/")
_GIT_CONFIG_LOCKED = lazy_pattern("could not (write|lock) config file")
_GIT_SETTINGS_KEPT = (
    "[the sandbox keeps git's settings (.git/config) from a command that runs directly: git did the rest without them. "
    "unconfined, which asks the user, lets it write them.]"
)
_NO_FILE = lazy_pattern("no such file|not found|does not exist|permission denied|cannot |ENOENT|EACCES", re.IGNORECASE)
_QUOTED_OR_BARE = lazy_pattern(r"['`\"]([^'`\"]+)['`\"]|([^\s'`\":(),;]+)")  # names in a message
_MAX_NAMES = 200  # names in an output that are looked up as paths


def _find_unread_paths(output: str, cwd: Path, workspace: Workspace) -> tuple[Path, ...]:
    """Return the real paths of the names in lines that complain about files, such as `cat: x: No such file`."""
    lines = (line for line in output.splitlines() if _NO_FILE.search(line))
    names = dict.fromkeys("".join(found) for line in lines for found in _QUOTED_OR_BARE.findall(line))
    return tuple(path.real for path in _look_up(names, cwd, workspace, "read").values())


def _look_up(names: Iterable[str], cwd: Path, workspace: Workspace, use: Use) -> dict[str, PathStatus]:
    """Return the status of each name that may be a path in `cwd`, even if nothing is there."""
    paths: dict[str, PathStatus] = {}
    for name in list(names)[:_MAX_NAMES]:
        with contextlib.suppress(ToolError):  # not a path, or a loop of links
            paths[name] = workspace.look(cwd / name, use)
    return paths


def _explain_failures(result: CommandResult, workspace: Workspace, cwd: Path) -> Iterator[str]:
    """Yield notes on failures in an output that the sandbox has probably caused, each with a way around it."""
    output, lines = result.output, result.output.splitlines()
    words = {word for line in lines if _DENIED.search(line) for word in re.split(r"[\s'\"`:]+", line) if word}
    names = {name for word in words for name in word.split("/")}
    protected = sorted(filter(is_read_only_name, names))
    if not protected:  # auto-executed files may have any name, so the paths themselves are looked up
        paths = _look_up(sorted(words), cwd, workspace, "write")
        protected = [word for word, path in paths.items() if path.is_auto_executed]
    if _GIT_CONFIG_LOCKED.search(output):
        yield _GIT_SETTINGS_KEPT
    elif protected:
        yield (
            f"[the sandbox does not let commands write {', '.join(protected)}, because other programs execute it. "
            "To change it, use file_edit or unconfined, which ask the user.]"
        )
    if secret := sorted(name for name in names if is_secret(PurePath(name), None)):
        yield (
            f"[the sandbox hides {', '.join(secret)}, which may hold secrets. The user can allow it with a rule "
            f"such as Read({secret[0]}).]"
        )
    missing = [line for line in lines if "No such file or directory" in line and _TEMPORARY_PATH.search(line)]
    roots = list(map(str, workspace.facts.roots))  # one may be in /tmp
    if not all(any(root in line for root in roots) for line in missing):
        yield "[/tmp is new and empty for each command. Keep files for later commands in the workspace.]"
    if result.denials and (result.exit_code or _PROXY_FAILED.search(output)):
        yield from (f"[the sandbox's proxy: {reason}]" for reason in result.denials[:3] if reason not in output)
    elif _NO_SERVER.search(output):
        yield (
            "[the sandbox has a network of its own. A server on this machine, or of a job, is reached on a port "
            "that the user opens: with a yes to a command that names it, such as curl http://127.0.0.1:PORT, or with "
            "/sandbox host 127.0.0.1:PORT]"
        )
    elif _NO_HOST.search(output):
        yield "[the sandbox lets commands reach only hosts that the user has allowed with /sandbox host NAME]"


def _describe_detached(job: BackgroundJob, result: CommandResult, context: ToolContext) -> ToolOutput:
    """Describe a command that continues as a job: the person sent it there, or it `listens on :3000`."""
    reason = f"It {result.stall}" if result.stall else "The person sent this to the background"
    started = _describe_start(job, f"{reason}: it continues as", context)
    is_confined_server = result.stall.startswith("listens") and context.workspace.facts.confines
    hint = ". A command reaches it on 127.0.0.1 if it names the port and the user agrees." if is_confined_server else ""
    output = f"Output so far:\n{result.output}" if result.output.strip() else "No output so far."
    structured = {**started.structured, "output": result.output, **({"stall": result.stall} if result.stall else {})}
    return ToolOutput(f"{started.content}{hint}\n{output}", structured, f"in the background as {job.id}")


def _describe_start(job: BackgroundJob, opening: str, context: ToolContext) -> ToolOutput:
    """Return the output of a call that has started a job; its text begins with `opening`, such as `Started`."""
    # Small models have no `jobs` tool, so `kill` is named too, unless commands cannot see each other's processes.
    kill = "" if context.workspace.facts.confines else f" or with: kill -- -{job.pid}"
    text = (
        f"{opening} job {job.id} (process group {job.pid}). Its output goes to {job.output_file}: read what is new "
        f"with jobs, or all of it with file_read. End it with jobs{kill}"
    )
    structured = {"job_id": job.id, "pid": job.pid, "output_file": str(job.output_file)}
    return ToolOutput(text, structured, f"{job.id} started")


async def _handle_jobs(arguments: JobsCall, context: ToolContext) -> ToolOutput:
    """List the jobs, return what one has printed since the last read, or end one. Raises `ToolError`."""
    jobs, id = context.workspace.sandbox.jobs, arguments.job_id
    by_id = {job.id: job for job in jobs.list()}  # as they are before this call reads or ends one
    if arguments.action == "list":
        running = sum(job.is_running for job in by_id.values())
        content = "\n".join(map(_job_line, by_id.values())) or "No command runs in the background."
        return ToolOutput(content, {"jobs": list(map(_as_dict, by_id.values()))}, f"{running} of {len(by_id)} running")
    if not id:
        raise ToolError(f"To {arguments.action} a job, give its job_id; list shows them.", kind="invalid_parameters")
    if arguments.action == "read":
        new = await asyncio.to_thread(jobs.read, id, PAGE_BYTES)
        job = next(job for job in jobs.list() if job.id == id)
        content = "\n".join((new.rstrip("\n") if new.strip() else "[nothing new]", f"[{_describe_state(job)}]"))
        return ToolOutput(content, {**_as_dict(job), "output": new}, describe_line_count(new, "new ") or "0 new lines")
    await jobs.stop(id)
    job = next(job for job in jobs.list() if job.id == id)
    if job.is_running:
        message = f"{id} could not be ended: some of its processes run as another user."
        raise ToolError(message, kind="permission_denied")
    message = f"Ended {id}." if by_id[id].is_running else f"{id} had ended before: {_describe_state(job)}."
    return ToolOutput(message, _as_dict(job), message.rstrip("."))


def _job_line(job: BackgroundJob) -> str:
    command = " ".join(job.command.split())
    command = command if len(command) <= _MAX_COMMAND_CHARS else f"{command[: _MAX_COMMAND_CHARS - 1]}…"
    new = f" [{job.new_bytes:,} bytes of new output]" if job.new_bytes else ""
    return f"{job.id}: {_describe_state(job)}: {command}{new}"


def _describe_state(job: BackgroundJob) -> str:
    match job.outcome:
        case None:
            state = "running"
        case JobOutcome(timed_out=False, exit_code=int(code)) if code >= 0:
            state = f"exit code {code}"
        case outcome:
            state = outcome.text
    return ", ".join(filter(None, (state, job.stall, *job.reverts.notes())))


def _as_dict(job: BackgroundJob) -> dict[str, Any]:
    outcome = job.outcome or JobOutcome()
    return {
        "job_id": job.id,
        "command": job.command,
        "is_running": job.is_running,
        "exit_code": outcome.exit_code,
        "timed_out": outcome.timed_out,
        "stall": job.stall,
        "output_file": str(job.output_file),
    }
