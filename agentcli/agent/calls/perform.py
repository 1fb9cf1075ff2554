"""Performs a permitted call with its files locked, after a dry run if one is due, and records file changes."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as changed

from agentcli.agent.calls import dry_run_review
from agentcli.agent.calls.dry_run_review import Obstacle
from agentcli.agent.calls.model import Call, SessionCalls, done_future
from agentcli.agent.calls.report import Report, count_recorded
from agentcli.agent.events import Denial, Notice, OutputDelta
from agentcli.agent.interfaces import LOCK_TIMEOUT_S, MAX_LOCKED, Checkpoints
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.agent.permissions.call_effects import MAX_SHOWN
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.matches import READERS, rule_about
from agentcli.background import start_in_background
from agentcli.conversation.entries import CallAllowed, CallKept, CallTried, Entry, FilesChanged, reminder
from agentcli.conversation.history import listed_names
from agentcli.errors import StorageError, ToolError, UserError, errno_name, kind_of
from agentcli.safety.paths.judge import WHY, PathKind
from agentcli.tools.builtin.toolset import MemoryCall
from agentcli.tools.command import STOPPED_CODES, ApplyOutcome, Grants
from agentcli.tools.observation import call_title
from agentcli.tools.tool import DryRunReport, RunTerms, Tool, ToolContext, ToolOutput

MAX_TIME_LIMIT_S = 300.0  # of a call, when retries double its time
_JOB_POLL_S = 0.5  # between two looks at the jobs that a call has left running
_PROGRESS_EVERY_S = 1.0


async def perform(call: Call, permitted: PermittedCall, context: ToolContext) -> ToolOutput:
    """Run the tool while the files that it changes are locked. Raises `ToolError`."""
    facts, decision, session = permitted.policy.facts, permitted.decision, call.turn.session
    tool, files = facts.tool, _named_files(facts, permitted.grants)

    async def run() -> ToolOutput:
        arguments = permitted.arguments
        if permitted.dry_run != "never":
            outcome = await make_dry_run(call, permitted, context)
            if isinstance(outcome, ToolOutput):
                return outcome
            arguments = outcome.arguments
        if tool.mode == "client":
            return await session.delegates.client.result_of(call.use, call.turn.hand_over)
        if tool.mode == "session":
            return await session.delegates.answer(call, arguments)
        # The files that may change, by the tool's effect; None stands for all files. Other effects change no files.
        may_change: dict[str, Sequence[Path] | None] = {
            "edit": files or None,  # the tool may have no argument that names its files
            "foreign": None,
            "command": () if decision.only_reads else None,
            "none": _memory_files(facts),  # such as the effect of the tool `memory`, whose files are not the project's
        }
        async with record_changes(call, may_change.get(tool.effect, ())):
            return await tool.output(arguments, context)

    keys = tool.lock_keys(permitted.arguments) if tool.lock_keys else ()
    async with _hold(call, files, keys if isinstance(keys, Iterable) else await keys):
        call.report.is_running = True
        with session.history.detach_request() as detach:
            # The sandbox does not limit file tools, so they may use only the files that the decision was about.
            paths = frozenset(path.real for path in facts.files) if tool.effect in ("read", "edit") else None
            terms = RunTerms(grants=permitted.grants, paths=paths, only_reads=decision.only_reads)
            context = replace(context, detach=detach, terms=terms)
            return await run_with_retries(call.report, tool, run)


def _hold(call: Call, paths: Iterable[Path], own_keys: Iterable[str] = ()) -> AbstractAsyncContextManager[None]:
    """Lock files and a tool's own keys for a call. They are sorted, so that two calls cannot deadlock."""
    keys = tuple(sorted({*map(str, paths), *own_keys}))
    timeout_s = MAX_TIME_LIMIT_S if own_keys else LOCK_TIMEOUT_S  # a tool may hold its own keys for its whole run
    return call.turn.session.services.locks.held(keys, timeout_s=timeout_s)


def _named_files(facts: CallFacts, grants: Grants) -> list[Path]:
    """Return the real paths of the files that a call changes, from the arguments that its tool declares as files."""
    tool = facts.tool
    if tool.effect == "edit":  # without a declaration, `facts.files` has the argument `path`, which is only a guess
        return [path.real for path in facts.files] if tool.file_arguments else []
    values = (getattr(facts.arguments, name, None) for name in tool.file_arguments)
    return [facts.workspace.usable_path(value, "write", grants) for value in values if isinstance(value, str)]


def _memory_files(facts: CallFacts) -> tuple[Path, ...]:
    """Return the memory file that a call changes. It is outside the workspace, but /undo reverts its changes, too."""
    match facts.arguments, facts.workspace.resources.memory:
        case MemoryCall(command="write" | "delete", path=str(name)), memory if memory is not None:
            return (memory.path_of(name),)
    return ()


async def run_with_retries(report: Report, tool: Tool, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    """Run a tool within its time limit, which doubles with each retry that its rule allows. Raises `ToolError`."""
    limit_s = tool.time_limit_s
    while True:
        try:
            return await _run_with_timeout(tool.name, limit_s, run)
        except ToolError as error:
            retries, rule = report.retry_count, tool.retry
            if not tool.may_be_repeated or error.kind not in rule.retry_on or retries >= rule.max_retries:
                raise
            await asyncio.sleep(error.retry_after or rule.delay(retries))
            report.retry_count, report.last_error = retries + 1, str(error)
            if limit_s is not None and limit_s < MAX_TIME_LIMIT_S:
                limit_s = min(2 * limit_s, MAX_TIME_LIMIT_S)


async def _run_with_timeout(name: str, limit_s: float | None, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    """Run a tool within a time limit. Raises `ToolError`, also for system errors and the tool's own timeouts."""
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await run()
    except TimeoutError as error:
        took = f"took longer than {limit_s:g} s" if limit.expired() else f"timed out: {error or 'no answer'}"
        raise ToolError(f"{name} {took}.", kind="timeout") from error
    except OSError as error:
        raise ToolError(f"{name} failed: {error}.", kind=kind_of(error), code=errno_name(error)) from error


async def make_dry_run(call: Call, permitted: PermittedCall, context: ToolContext) -> ToolOutput | PermittedCall:
    """Make a dry run of a command and apply the approved changes. Return its output, or the call to run instead.

    The person is asked about an obstacle, but only once. A yes runs the command directly, starts its server as a job,
    or opens a host or path for one more dry run.
    """
    opened: Obstacle | None = None  # the host or paths that the person has opened
    while True:
        output = await _run_dry(call, permitted, context, opened)
        if output.later is not None:  # the dry run continues as a background job
            start_in_background(_apply_later(call, permitted, output.later), call.turn.session.recording.dry_runs)
            return changed(output, later=None)
        report, obstacle = output.dry_run, None
        assert report is not None, "a tool that runs commands makes a dry run if the terms say so"
        try:
            if opened is None:
                obstacle = await asyncio.to_thread(_find_obstacle, call, permitted, report)
            if obstacle is None or not await dry_run_review.ask_about_obstacle(call, permitted, obstacle, report):
                return await _apply(call, permitted, report)
        finally:
            await report.dry_run.discard()
        if not obstacle.opens:  # there is nothing to open, so the yes was to run it directly
            call.report.is_dry_run = False
            arguments = changed(permitted.arguments, background=True) if obstacle.is_server else permitted.arguments
            return changed(permitted, arguments=arguments, dry_run="never")
        # The next dry run's changes may quote the opened files, so the mask must know the secrets in them.
        await call.turn.session.services.load_secrets()
        opened = obstacle


async def _run_dry(call: Call, permitted: PermittedCall, context: ToolContext, opened: Obstacle | None) -> ToolOutput:
    """Make a dry run with access to the host or path of `opened`, if given."""
    grants = permitted.grants
    if opened is not None:
        grants += Grants(readable=opened.paths, hosts=(opened.host,) if opened.host else ())
    is_requested = permitted.dry_run == "on_request"  # otherwise nobody has allowed it, so it may read and reach less
    terms = RunTerms(grants=grants, dry_run="full" if is_requested else "narrow")
    call.turn.store(CallTried(call.use.id))
    call.report.is_dry_run = not grants.hosts  # data sent to a host cannot be discarded
    # A subagent's dry run cannot become a background job, because the subagent's log would end before the job.
    detach = context.detach if call.turn.session.parent_call is None else None
    return await permitted.policy.facts.tool.output(permitted.arguments, replace(context, terms=terms, detach=detach))


async def _apply_later(call: Call, permitted: PermittedCall, later: Callable[[], Awaitable[DryRunReport]]) -> None:
    """Apply the approved changes of a dry run that runs as a job, once it ends; notify the model and the person."""
    turn, end = call.turn, "finished"
    try:
        report = await later()
        end = "stopped" if report.result.exit_code in STOPPED_CODES else end
        try:
            output = await _apply(call, permitted, report)
        finally:
            await report.dry_run.discard()
        summary, text = output.summary, await turn.session.services.masked(str(output.content))
    except (ToolError, UserError, OSError) as error:  # no turn waits for this task and could report the error
        summary = text = str(error)
    title = call_title(call.use.name, call.use.input)
    turn.emit(Notice(f"Background dry run {end}: {title} · {summary}"))
    turn.state.notes.append(reminder(f"The dry run in the background has {end}: {title}\n{text}"))


def _find_doubt(permitted: PermittedCall, report: DryRunReport) -> Obstacle | None:
    """Return an obstacle if a dry run that the person requested may not show the command's real effects. Blocks."""
    result, problems = report.result, []
    if exceeded_limit := report.dry_run.exceeded_limit:
        problems.append(f"was ended: {exceeded_limit}")
    if result.timed_out or result.exit_code:
        problems.append("timed out" if result.timed_out else f"failed (exit {result.exit_code})")
    if not (report.dry_run.changes or exceeded_limit):
        problems.append("changed nothing")
    # Even a dry run without problems may differ from the real run, if the command needs hosts that were not opened.
    if not problems and not dry_run_review.lacks_hosts(permitted):
        return None
    why = ", ".join((*problems, permitted.network_phrase))  # such as "failed (exit 1), had no network"
    return Obstacle(why=why, then="run it for real")


def _quotes_error(number: int, output: str) -> bool:
    """Return True if an output has the text of a system error, in English or the user's language, or its name."""
    import gettext

    text = os.strerror(number)
    translated = gettext.translation("libc", "/usr/share/locale", fallback=True).gettext(text)
    return any(one in output for one in (text, translated, f"{errno.errorcode[number]}:"))  # Node writes the name


def _find_obstacle(call: Call, permitted: PermittedCall, report: DryRunReport) -> Obstacle | None:
    """Return the first obstacle to a dry run that the person can remove with a yes, if there is one. Blocks.

    In this order: a doubt about a requested dry run, a limit, a server, files of another group, a host, hidden paths.
    """
    dry_run = report.dry_run
    if permitted.dry_run == "on_request":
        return _find_doubt(permitted, report)
    if dry_run.exceeded_limit:
        return Obstacle(why=f"was ended: {dry_run.exceeded_limit}", then="run it directly in the workspace")
    if report.result.stall.startswith("listens"):  # "listens on port 8000; …": a server, which would never end
        return Obstacle(why=report.result.stall.partition(";")[0], then="start it as a job", is_server=True)
    # On an overlay, this error means that a file belongs to a group that the overlay cannot represent.
    if report.result.exit_code and _quotes_error(errno.EOVERFLOW, report.result.output):
        return Obstacle(why="cannot change files of another group", then="run it directly in the workspace")
    if host := report.needed_host:
        then = f"run it again with access to {host}"
        return Obstacle(why=f"could not reach {host}", then=then, opens="host", host=host, is_grave=True)
    lookup, deny = permitted.policy.facts.paths, call.turn.state.rules.deny
    openable: dict[PathKind, list[Path]] = {}  # the paths that the command lacked and a yes can open, by kind
    for path in report.unread:
        kind, hidden_in = lookup.find_real(str(path), "read").kind, dry_run.hides(path)
        # A yes opens paths that only this dry run hides. Of those that every dry run hides, it opens only secret files.
        can_open = hidden_in == "here" or (hidden_in == "always" and kind == "secret")
        if can_open and not rule_about([path], deny, lookup.base, tools=READERS):
            openable.setdefault(kind, []).append(path)
    if not openable:
        return None
    kind, paths = next(iter(openable.items()))  # a question is about only one kind
    if kind != "secret":  # an error may quote many paths by chance, but hardly the names of secret files
        paths = paths[:1]
    shown = listed_names([lookup.workspace.shown(path) for path in paths], MAX_SHOWN)
    note = f" ({WHY['secret']})" if kind == "secret" else " (outside the project)" if kind == "outside" else ""
    return Obstacle(
        why=f"had no access to {shown}{note}",
        then=f"run it again with access to {shown}",
        opens="file" if len(paths) == 1 and paths[0].is_file() else "files",
        paths=tuple(paths),
        is_grave=kind == "secret",
    )


async def _apply(call: Call, permitted: PermittedCall, report: DryRunReport) -> ToolOutput:
    """Apply the changes that the rules, the mode or the person approve, and return the call's output.

    Except in plan mode, changes that are discarded without a question become denials ("dropped"), which the turn's last
    event reports.
    """
    turn, dry_run, applied = call.turn, report.dry_run, ApplyOutcome()
    if permitted.dry_run == "on_request":
        call.report.remarks.append(f"[The user let it run as a dry run only, which {permitted.network_phrase}.]")
    if dry_run.exceeded_limit:
        is_planning = turn.state.mode == "plan"  # plan mode applies nothing anyway, so this is not an error
        if not is_planning:
            turn.denials.append(Denial(call.use, "dropped"))
        output = dry_run_review.dry_run_output(
            report, f"It was a dry run, and {dry_run.exceeded_limit}: nothing was applied.", "discarded"
        )
        return changed(output, is_error=not is_planning)
    if not dry_run.changes:
        used_tmp = "/tmp/" in permitted.policy.facts.command_text  # noqa: S108  no file is created
        hint = "; /tmp is empty again for the next command" if used_tmp else ""
        return dry_run_review.dry_run_output(report, "", f"changed nothing{hint}")
    review = await dry_run_review.review_changes(call, permitted, report)
    if review.approved:
        if not review.is_answered:
            turn.store(CallAllowed(call.use.id))  # if the person answered, their answer is in the log already
        await turn.commit()
        call.report.is_dry_run = False  # from here on, an interrupt may leave the workspace changed
        paths = [path for name in review.approved for path in dry_run.paths_of(name)]
        # Each lock is a file, so only the first paths are locked. That a call changes more is rare.
        async with _hold(call, paths[:MAX_LOCKED]), record_changes(call, paths) as note:
            applied = await dry_run.apply(review.approved, hunks=review.chosen_hunks, note=note)
        turn.store(CallKept(call.use.id, applied.names))
        await turn.commit()  # now, because once the dry run is discarded only the log knows the applied changes
    if review.is_denied:
        turn.denials.append(Denial(call.use, "dropped"))
    call.report.answer = review.answer(applied)
    return review.output(applied)


@asynccontextmanager
async def record_changes(call: Call, paths: Sequence[Path] | None) -> AsyncIterator[Path | None]:
    """Record the changes that the body, and jobs that it starts, make to these files (None: to all files).

    Yield the file that notes the call until its changes are in the log; None if nothing is recorded.
    """
    # The result gets a count of the changes, unless the call names its files, because its output then shows them.
    report = call.report if paths is None else None
    call = call.turn.session.parent_call or call  # a subagent's changes belong to the call that created it
    session = call.turn.session
    checkpoints, mark = session.recording.checkpoints, None
    if checkpoints is not None and (paths is None or paths):
        try:
            mark = await _with_progress(call, checkpoints, checkpoints.begin(call.use.id, paths))
        except ToolError as error:
            call.turn.emit(Notice(f"{error} /undo cannot revert this call."))
    if checkpoints is None or mark is None:
        yield None
        return
    earlier_jobs = _running_jobs(session)
    try:
        yield mark.note
    finally:
        end = _store_changes(call, checkpoints, mark, report)
        if paths is None and (jobs := _running_jobs(session) - earlier_jobs):
            start_in_background(_end_after_jobs(session, jobs, end), session.recording.tasks)
        else:  # not later, so that changes by others are not attributed to the call
            await _with_progress(call, checkpoints, end, prefix="\n")  # the call's output may have ended within a line


async def _with_progress(call: Call, checkpoints: Checkpoints, work: Awaitable[Any], prefix: str = "") -> Any:
    """Return the result of `work`, which may scan the workspace, and show its progress in lines with a prefix."""

    async def show() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            text = f"[Recording the workspace so that /undo works: {checkpoints.files_scanned():,} files so far]"
            call.turn.emit(OutputDelta(call.use.id, f"{prefix}{text}\n"))

    showing = asyncio.create_task(show())
    try:
        return await work
    finally:
        showing.cancel()


def _running_jobs(session: SessionCalls) -> set[str]:
    return {job.id for job in session.workspace.running_jobs()}


async def _end_after_jobs(session: SessionCalls, jobs: set[str], end: Awaitable[None]) -> None:
    """Store a call's changes by awaiting `end` once these jobs have ended, or the session closes."""
    is_closing = session.recording.is_closing
    while jobs & _running_jobs(session) and not is_closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_closing.wait(), _JOB_POLL_S)
    await end


async def _store_changes(call: Call, checkpoints: Checkpoints, mark: Any, report: Report | None) -> None:
    """Store the changes of a call, count them in `report`, and delete the note about the call once they are on disk."""
    turn, recording = call.turn, call.turn.session.recording
    try:
        entry = await checkpoints.end(mark)  # None if nothing changed
    except ToolError as error:
        turn.emit(Notice(f"{error} /undo cannot revert this call."))
        with suppress(ToolError):  # if the note stayed, the next start would attribute later changes to this call
            await checkpoints.forget(mark)
        return
    # An entry without changes only lists files that are not recorded. The person learns of that once per session.
    if entry is not None and not entry.changes and not recording.has_reported_gap:
        recording.has_reported_gap = True
        why = "; ".join(name.removeprefix("everything: ") for name in entry.left_out)  # "everything: too many files"
        turn.emit(Notice(f"Changes made by commands are not recorded here, so /undo cannot revert them: {why}."))
    if entry is not None and report is not None:
        report.changes = count_recorded(entry.changes)
    stored = done_future() if entry is None else turn.store(entry)

    async def forget() -> None:
        with suppress(StorageError, ToolError):  # the turn waits for its entries and reports failures
            await asyncio.shield(asyncio.ensure_future(stored))
            await checkpoints.forget(mark)

    start_in_background(forget(), recording.tasks)


async def store_interrupted_changes(
    checkpoints: Checkpoints, entries: Iterable[Entry], append: Callable[..., Awaitable[object]]
) -> None:
    """Store the changes of calls whose process was killed. Raises `ToolError` and `StorageError`."""
    logged = {entry.body.id: entry.time for entry in entries if isinstance(entry.body, FilesChanged)}
    if changes := await checkpoints.interrupted(logged):
        await append(*changes)
    await checkpoints.forget(None)  # all these calls
