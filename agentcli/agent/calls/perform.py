"""Performs a permitted call, within its time, with its files locked; a command perhaps as a dry run first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace as changed

from agentcli.agent.calls.dry_run_review import Obstacle, ask_about_obstacle, dry_run_output, review_changes
from agentcli.agent.calls.model import Call
from agentcli.agent.calls.recording import record_changes
from agentcli.agent.calls.report import Report
from agentcli.agent.events import Denial, Notice
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.agent.permissions.facts import CallFacts
from agentcli.agent.permissions.rules import READERS, rule_about
from agentcli.conversation.entries import CallAllowed, CallKept, CallTried
from agentcli.errors import ToolError, errno_name, kind_of
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
        if tool.is_idempotent and (before := session.history.replays.get(call.replay_key)) is not None:
            return before
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
        if tool.is_idempotent and not output.is_error:
            session.history.replays[call.replay_key] = output
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
