"""Performs a permitted call with its files locked, perhaps after a dry run, and records the changes of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace as changed

from agentcli.agent.calls.dry_run_review import Obstacle, ask_about_obstacle, dry_run_output, review_changes
from agentcli.agent.calls.model import Call, Recording, SessionCalls
from agentcli.agent.calls.report import Report
from agentcli.agent.events import Denial, Notice, OutputDelta
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.rules import READERS, rule_about
from agentcli.conversation.entries import CallAllowed, CallKept, CallTried, Entry
from agentcli.conversation.file_changes import FilesChanged
from agentcli.errors import StorageError, ToolError, errno_name, kind_of
from agentcli.llm.messages import Text
from agentcli.safety.paths.judge import WHY
from agentcli.tools.command import Grants
from agentcli.tools.dry_run import ApplyOutcome
from agentcli.tools.tool import DryRunReport, RunTerms, Tool, ToolContext, ToolOutput

LOCK_PATIENCE_S = 30.0


async def perform(call: Call, permitted: PermittedCall, context: ToolContext) -> ToolOutput:
    """Run the tool while it holds the files it changes; a call that ran before gets its result. Raises `ToolError`."""
    facts, verdict, session = permitted.policy.facts, permitted.verdict, call.turn.session
    tool, files = facts.tool, _named_files(facts, permitted.grants)

    def hold(paths: Iterable[Path]) -> AbstractAsyncContextManager[None]:
        keys = tuple(sorted(set(map(str, paths))))  # sorted, so that two calls never wait for each other
        return session.services.locks.held(keys, timeout_s=LOCK_PATIENCE_S)

    async def run() -> ToolOutput:
        now: ToolOutput | PermittedCall = permitted
        if permitted.dry_run != "never":
            now = await make_dry_run(call, permitted, context, hold=hold)
        if isinstance(now, ToolOutput):
            return now
        if tool.mode == "client":
            return await session.delegates.client.result_of(call.use, call.turn.hand_over)
        if tool.mode == "session":
            return await session.delegates.answer(call, now.arguments)
        changed: dict[str, Sequence[Path] | None] = {"edit": files or None, "foreign": None}
        if tool.effect == "command":
            changed["command"] = () if verdict.only_reads else None
        async with record_changes(call, changed.get(tool.effect, ())):
            return await tool.output(now.arguments, context)

    async with hold(files):
        call.report.is_running = True
        with session.history.detach_sign() as sign:
            paths = frozenset(path.real for path in facts.files) if tool.effect in ("read", "edit") else None
            terms = RunTerms(grants=permitted.grants, paths=paths, only_reads=verdict.only_reads)
            context = replace(context, detach=sign, terms=terms)
            output = await run_with_retries(call.report, tool, run)
        if permitted.remark:
            content = output.content or ""
            is_text = isinstance(content, str)
            with_remark = f"{content}\n{permitted.remark}" if is_text else (*content, Text(permitted.remark))
            output = msgspec.structs.replace(output, content=with_remark)
        return output


def _named_files(facts: CallFacts, grants: Grants) -> list[Path]:
    """The real paths of the files that a call names and changes."""
    tool, workspace = facts.tool, facts.workspace
    if tool.effect == "edit":
        return [path.real for path in facts.files] if tool.file_arguments else []
    given = (getattr(facts.arguments, name, None) for name in tool.file_arguments)
    return [workspace.writable(name, grants) for name in given if isinstance(name, str)]


MAX_LIMIT_S = 300.0


async def run_with_retries(report: Report, tool: Tool, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    """Raises `ToolError`; what else goes wrong is an internal_error."""
    limit = tool.time_limit_s
    while True:
        try:
            return await _within(tool.name, limit, run)
        except ToolError as error:
            retries, rule = report.retry_count, tool.retry
            if not tool.may_be_repeated or error.kind not in rule.retry_on or retries >= rule.most:
                raise
            await asyncio.sleep(error.retry_after or rule.delay(retries))
            report.retry_count, report.last_error = retries + 1, str(error)
            limit = None if limit is None else max(limit, min(limit * 2, MAX_LIMIT_S))


async def _within(name: str, limit_s: float | None, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await run()
    except TimeoutError as error:
        took = f"took longer than {limit_s:g} s" if limit.expired() else f"ran out of time: {error or 'no answer'}"
        raise ToolError(f"{name} {took}.", kind="timeout") from error
    except OSError as error:
        raise ToolError(f"{name} failed: {error}.", kind=kind_of(error), code=errno_name(error)) from error


_STAYS = "A dry run cannot go to the background: Esc stops it, or ask for it as a job."
MAX_LOCKED = 500  # files; each lock is a file

Hold = Callable[[Iterable[Path]], AbstractAsyncContextManager[None]]


async def make_dry_run(
    call: Call, permitted: PermittedCall, context: ToolContext, *, hold: Hold
) -> ToolOutput | PermittedCall:
    """Make a dry run of a command and apply what may stay, holding `hold`. Return its output or what to run instead."""
    opens: Obstacle | None = None
    while True:
        async with _dry_run(call, permitted, context, opens) as report:
            obstacle = None
            if opens is None and permitted.dry_run == "always":
                obstacle = await asyncio.to_thread(_obstacle, call, permitted, report)
            if obstacle is None or not await ask_about_obstacle(call, permitted, obstacle):
                return await _apply(call, permitted, report, hold)
        if not (obstacle.host or obstacle.path):
            call.report.is_dry_run = False
            arguments = permitted.arguments
            arguments = changed(arguments, background=True) if obstacle.is_server else arguments
            return changed(permitted, arguments=arguments, dry_run="never")
        opens = obstacle


@asynccontextmanager
async def _dry_run(
    call: Call, permitted: PermittedCall, context: ToolContext, opens: Obstacle | None
) -> AsyncIterator[DryRunReport]:
    """Run it, with a host or a path open for no longer than that; what was not applied is discarded at the end."""
    host, path = (opens.host, opens.path) if opens else ("", None)
    opened = Grants(readable=(path,) if path else (), hosts=(host,) if host else ())
    dry_run: Literal["full", "narrow"] = "narrow" if permitted.dry_run == "always" else "full"
    terms = RunTerms(grants=permitted.grants + opened, dry_run=dry_run)
    call.turn.store(CallTried(call.use.id))
    call.report.is_dry_run = not host
    staying = asyncio.create_task(_stay(call, context.detach or asyncio.Event()))
    try:
        output = await permitted.policy.facts.tool.output(permitted.arguments, replace(context, terms=terms))
    finally:
        staying.cancel()
    assert output.dry_run is not None, "a tool that runs commands obeys the terms"
    try:
        yield output.dry_run
    finally:
        await output.dry_run.dry_run.discard()


async def _stay(call: Call, sign: asyncio.Event) -> None:
    """Tell whoever sends a dry run to the background that it stays in the foreground."""
    while await sign.wait():
        sign.clear()
        call.turn.emit(Notice(_STAYS))


def _obstacle(call: Call, permitted: PermittedCall, report: DryRunReport) -> Obstacle | None:
    """Find the hindrance that a dry run met. Blocks."""
    dry_run = report.dry_run
    if dry_run.too_much:
        return Obstacle(dry_run.too_much, "runs it in the workspace itself")
    if report.result.stall.startswith("listens"):
        return Obstacle(f"it {report.result.stall.partition(';')[0]}", "starts it as a job", is_server=True)
    if host := report.needed_host:
        effects = (f"reaches {host}",)
        return Obstacle(f"it could not reach {host}", "tries it again with that host", effects, effects, host)
    lookup, deny = permitted.policy.facts.paths, call.turn.state.rules.deny
    for path in report.unread:
        kind, how = lookup.find_real(str(path), "read").kind, dry_run.hides(path)
        can_open = how == "here" or (how == "always" and kind == "secret")
        if can_open and not rule_about([path], deny, lookup.ground, tools=READERS):
            shown = lookup.workspace.shown(path)
            reads = f"reads outside the project: {shown}" if kind == "outside" else f"reads {shown}"
            effects, grave = ((f"{reads}, which {WHY[kind]}",),) * 2 if kind == "secret" else ((reads,), ())
            return Obstacle(f"it could not read {shown}", "tries it again with that to read", effects, grave, path=path)
    return None


async def _apply(call: Call, permitted: PermittedCall, report: DryRunReport, hold: Hold) -> ToolOutput:
    """Apply what the rules, the mode and the person let stay."""
    turn, dry_run, applied = call.turn, report.dry_run, ApplyOutcome()
    is_planning = turn.state.mode == "plan"
    if dry_run.too_much:
        if not is_planning:
            turn.denials.append(Denial(call.use, "dropped"))
        remark = f"It was a dry run, and {dry_run.too_much}: nothing of it was kept."
        return changed(dry_run_output(report, remark, "dropped"), is_error=not is_planning)
    if not dry_run.changes:
        return dry_run_output(report, "", "changed nothing")
    review = await review_changes(call, permitted, report)
    if review.names:
        if not review.is_answered:
            turn.store(CallAllowed(call.use.id))
        await turn.commit()
        call.report.is_dry_run = False
        paths = [path for name in review.names for path in dry_run.paths_of(name)]
        async with hold(paths[:MAX_LOCKED]), record_changes(call, paths) as note:
            applied = await dry_run.apply(review.names, hunks=review.parts, note=note)
        turn.store(CallKept(call.use.id, applied.names))
        await turn.commit()  # before nobody else knows it any more
    if review.is_denied:
        turn.denials.append(Denial(call.use, "dropped"))
    call.report.answer = review.answer(applied)
    return review.output(applied)


_LOOK_EVERY_S = 0.5
_PROGRESS_EVERY_S = 1.0


@asynccontextmanager
async def record_changes(call: Call, paths: Sequence[Path] | None) -> AsyncIterator[Path | None]:
    """Record what is done to these files, or with None to any, while the body runs and its jobs do.

    Yield the file that notes so until it is in the log; None where nothing is recorded, perhaps with a notice.
    """
    call = call.turn.session.made_by or call
    session = call.turn.session
    checkpoints, recording = session.recording.checkpoints, session.recording
    mark = None
    if checkpoints is not None and (paths is None or paths):
        try:
            mark = await _with_progress(call, checkpoints, checkpoints.begin(call.use.id, paths))
        except ToolError as error:
            call.turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
    if checkpoints is None or mark is None:
        yield None
        return
    before = _running_jobs(session)
    try:
        yield mark.note
    finally:
        end = _store_changes(call, checkpoints, mark)
        if paths is None and (jobs := _running_jobs(session) - before):
            _keep(recording, _after_jobs(session, jobs, end))
        else:  # before anything else happens: that would count as the call's; the output may end within a line
            await _with_progress(call, checkpoints, end, before="\n")


async def _with_progress(call: Call, checkpoints: Checkpoints, work: Awaitable[Any], before: str = "") -> Any:
    """Show how far a long look at the workspace has come, as output of the call."""

    async def show() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            text = f"[Recording the workspace so that /undo works: {checkpoints.files_scanned():,} files so far]"
            call.turn.emit(OutputDelta(call.use.id, f"{before}{text}\n"))

    showing = asyncio.create_task(show())
    try:
        return await work
    finally:
        showing.cancel()


def _running_jobs(session: SessionCalls) -> set[str]:
    return {job.id for job in session.workspace.running_jobs()}


def _keep(recording: Recording, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    recording.tasks.add(task)
    task.add_done_callback(recording.tasks.discard)


async def _after_jobs(session: SessionCalls, jobs: set[str], end: Awaitable[None]) -> None:
    is_closing = session.recording.is_closing
    while jobs & _running_jobs(session) and not is_closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_closing.wait(), _LOOK_EVERY_S)
    await end


async def _store_changes(call: Call, checkpoints: Checkpoints, mark: Any) -> None:
    """Store what a call has changed; its note goes once that is on disk."""
    turn = call.turn
    try:
        changed = await checkpoints.end(mark)
    except ToolError as error:
        turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
        with suppress(ToolError):  # nothing of it is to be looked for later, when it would be others' doing
            await checkpoints.forget(mark)
        return
    if changed is not None and not changed.changes and not turn.session.recording.has_reported_gap:
        turn.session.recording.has_reported_gap = True
        why = "; ".join(name.removeprefix("everything: ") for name in changed.left_out)
        turn.emit(Notice(f"What commands change here is not recorded, and /undo cannot take it back: {why}."))
    stored = turn.store(changed) if changed is not None else None

    async def forget() -> None:
        with suppress(StorageError, ToolError):  # whoever waits for the turn's entries reports it
            if stored is not None:
                await asyncio.shield(asyncio.ensure_future(stored))
            await checkpoints.forget(mark)

    _keep(turn.session.recording, forget())


async def end_recording(recording: Recording) -> None:
    """Wait until what calls did is in the log; jobs are taken to have ended."""
    recording.is_closing.set()
    while recording.tasks:
        await asyncio.wait(recording.tasks)
    if recording.checkpoints is not None:
        await recording.checkpoints.aclose()


async def account_for_interrupted(
    checkpoints: Checkpoints, entries: Iterable[Entry], append: Callable[..., Awaitable[object]]
) -> None:
    """Store what calls had done to files when their process was killed. Raises `ToolError` and `StorageError`."""
    stored = {entry.body.id: entry.time for entry in entries if isinstance(entry.body, FilesChanged)}
    if changed := await checkpoints.interrupted(stored):
        await append(*changed)
    await checkpoints.forget(None)
