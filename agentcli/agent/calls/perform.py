"""Performs a permitted call: opens the sandbox, locks, replays, runs, retries, within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import msgspec

from agentcli.agent.calls.dry_run import make_dry_run
from agentcli.agent.calls.model import Call
from agentcli.agent.calls.recording import record_changes
from agentcli.agent.calls.report import Report
from agentcli.agent.permissions.approvals import PermittedCall
from agentcli.agent.permissions.facts import CallFacts
from agentcli.errors import ToolError, errno_name, kind_of
from agentcli.llm.messages import Text
from agentcli.tools.command import Grants
from agentcli.tools.tool import RunTerms, Tool, ToolContext, ToolOutput

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
