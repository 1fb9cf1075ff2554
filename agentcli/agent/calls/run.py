"""Runs one call: parse, hooks, permission, lock, replay, time limit, run, retry, observe, report."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.agent import events
from agentcli.agent.calls.dry_run import DryRunRequest, can_dry_run, make_dry_run
from agentcli.agent.calls.model import SAME_CALL_LIMIT, Call, CallServices, SessionCalls, SkillsInUse, SubagentRuns
from agentcli.agent.calls.observe import asked_level, observed
from agentcli.agent.calls.recording import recorded
from agentcli.agent.events import Denial
from agentcli.agent.hooks import CallRecord, HookAnswer, fire_about
from agentcli.agent.masking import Mask
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.approvals import PendingCall, PermittedCall, ask_person, grant
from agentcli.agent.permissions.decide import Verdict, decide_with_exposure
from agentcli.agent.permissions.facts import judge
from agentcli.conversation.entries import CallDenied, Result, reminder
from agentcli.errors import ToolError, ToolErrorKind, UsageError, errno_name
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.tool import Ask, Tool, ToolContext, ToolOutput

LARGEST_ARGUMENTS = 10 * 1024 * 1024  # bytes
LOCK_PATIENCE_S = 30.0
MOST_LOCKED = 500  # of the files that a tried command changed: each lock is a file


class ParsedCall(Struct, frozen=True, kw_only=True):
    """A call whose arguments are understood, and what the hooks said of it."""

    record: CallRecord
    tool: Tool
    arguments: Any
    context: ToolContext
    hooks: HookAnswer = HookAnswer()


async def run_call(call: Call) -> Result:
    """One call, from what the model wrote to what it reads.

    Every failure is a result, and so is a cancellation, which then goes on: `call.result` has it.
    """
    report, services = call.report, call.turn.session.services
    report.start()
    parsed: ParsedCall | None = None
    try:
        parsed = await parse_call(call)
        report.record = parsed.record
        permitted = await permit(call, parsed)
        report.answer = permitted.answer
        is_speaking = parsed.tool.effect in ("command", "foreign")  # heard while it runs, and may make any file
        if is_speaking:
            await services.know_secrets()
        output, _ = await asyncio.gather(perform(call, parsed, permitted), services.know_secrets())
        output = await observed(parsed.tool, output, parsed.context)
        if is_speaking:
            await services.know_secrets(is_changed=True)
        report.mask = await _mask_for(services, permitted)
        report.finish(output)
    except ToolError as error:
        await services.know_secrets(is_changed=bool(report.heard))  # whatever failed, and however early
        report.fail(error)
    except asyncio.CancelledError:
        report.interrupt()
        raise
    finally:
        if report.result is not None:
            await _account(call, parsed, report.result)
    assert report.result is not None, "whatever happens is reported"
    return report.result


async def _mask_for(services: CallServices, permitted: PermittedCall) -> Mask | None:
    """The mask for the output of a call that has run: a file that was granted is shown with the values it holds."""
    facts = permitted.facts
    if services.mask is None or facts.tool.name != "file_read" or not permitted.verdict.needs:
        return services.mask
    values = await asyncio.to_thread(facts.workspace.facts.secret_values, apart_from=facts.files[0].real)
    return services.mask.knowing(values)


async def parse_call(call: Call) -> ParsedCall:
    """The tool and its arguments, as hooks leave them. Raises `ToolError` that names the wrong field."""
    use, turn, session = call.use, call.turn, call.turn.session
    tool = session.tools.get(use.name)
    if use.unparsed:
        raise ToolError(
            f"The arguments are not a JSON object: {use.unparsed[:200]!r}. Make the call again.",
            kind="invalid_parameters",
        )
    if len(use.input) and len(msgspec.json.encode(use.input)) > LARGEST_ARGUMENTS:
        raise ToolError("The arguments are larger than 10 MB.", kind="invalid_parameters")
    if session.history.is_stuck(use):
        raise ToolError(
            f"This call has given the same result {SAME_CALL_LIMIT} times in a row: do something else, or answer.",
            kind="validation_error",
        )
    record = CallRecord(use.id, tool.name, tool.version, session.agent_id, turn.state.mode)
    arguments = tool.parse(use.input)
    merged = await _apply_hooks(call, record)
    if merged.input is not None:
        arguments = tool.parse(merged.input)
    asked = asked_level(tool, arguments)
    services, share = session.services, turn.state.window_share
    level = services.levels.level_for(tool.name, asked=asked, own=tool.level, window_share=share)
    call.report.level = level
    context = ToolContext(services.workspace, use.id, call.report.show, level=level, publish=turn.emit)
    return ParsedCall(record=record, tool=tool, arguments=arguments, context=context, hooks=merged)


async def _apply_hooks(call: Call, record: CallRecord) -> HookAnswer:
    """The answers of all hooks as one: a deny wins over an ask, an ask over an allow. Raises `ToolError`."""
    merged = HookAnswer()
    for hook in call.turn.session.services.hooks:
        given = call.use.input if merged.input is None else merged.input
        answer = await hook.before_call(record, given) or HookAnswer()
        call.turn.is_stopped |= answer.stops
        if answer.context:
            call.turn.state.notes.append(reminder(answer.context))
        if answer.decision == "deny":
            raise ToolError(answer.reason or "A hook refused this call.", kind="permission_denied")
        stronger = answer.decision == "ask" or merged.decision == ""
        merged = HookAnswer(
            answer.decision if stronger else merged.decision,
            answer.reason if stronger else merged.reason,
            merged.input if answer.input is None else answer.input,
        )
    return merged


async def permit(call: Call, parsed: ParsedCall) -> PermittedCall:
    """The arguments to run with, once all has been checked and asked. Raises `ToolError`."""
    arguments, state, session = parsed.arguments, call.turn.state, call.turn.session
    facts = judge(parsed.tool, arguments, session.workspace)
    if parsed.tool.attempt is not None and session.services.tries:
        can_try = await asyncio.to_thread(can_dry_run, parsed.tool, arguments, parsed.context)
        facts = msgspec.structs.replace(facts, can_try=can_try)

    def decided() -> Verdict:
        verdict = _with_hooks(decide_with_exposure(facts, state.mode, state.rules), parsed.hooks)
        return verdict if session.skills is None else session.skills.narrowed(parsed.tool.name, verdict)

    verdict = decided()
    question = PendingCall(call=call.use, judged=facts, context=parsed.context, verdict=verdict, decide=decided)
    if verdict.decision == "try":
        trial = DryRunRequest(facts, is_requested=False, grant=partial(grant, call, question))
        writing = msgspec.structs.replace(verdict, only_reads=False)  # what it writes is on the stand-in alone
        return PermittedCall(facts, arguments, writing, trial=trial)
    if verdict.decision == "allow":
        return PermittedCall(facts, arguments, verdict)
    try:
        if verdict.decision == "deny":
            call.turn.store(CallDenied(call.use.id, verdict.reason))
            await fire_about(call, "PermissionDenied", reason=verdict.reason)
            raise ToolError(f"{verdict.reason}.", kind="permission_denied")
        return await ask_person(call, question)
    except ToolError as refusal:
        if refusal.kind == "permission_denied":
            call.turn.denials.append(Denial(call.use))
        raise


def _with_hooks(verdict: Verdict, hooks: HookAnswer) -> Verdict:
    """The verdict as hooks change it: they let through what would ask, and ask about what would run."""
    if hooks.decision == "allow" and verdict.decision in ("ask", "try"):
        return msgspec.structs.replace(verdict, decision="allow", reason=hooks.reason)
    if hooks.decision == "ask" and verdict.decision in ("allow", "try"):
        return msgspec.structs.replace(verdict, decision="ask", reason=hooks.reason or "a hook asks for your yes")
    return verdict


async def perform(call: Call, parsed: ParsedCall, permitted: PermittedCall) -> ToolOutput:
    """Run the tool while it holds the files it changes; a call that ran before gets its result. Raises `ToolError`."""
    tool, session, report, verdict = parsed.tool, call.turn.session, call.report, permitted.verdict

    def hold(paths: Iterable[Path]) -> AbstractAsyncContextManager[None]:
        keys = tuple(sorted(set(map(str, paths))))  # sorted, so that two calls never wait for each other
        return session.services.locks.held(keys, timeout_s=LOCK_PATIENCE_S)

    def hold_named(names: Sequence[str]) -> AbstractAsyncContextManager[None]:
        return hold(session.workspace.real_path(name) for name in names[:MOST_LOCKED])

    async def run() -> ToolOutput:
        if permitted.trial is not None:
            return await make_dry_run(call, permitted.trial, permitted.arguments, context, hold=hold_named)
        if tool.mode == "client":
            return await session.client.result_of(call.use, call.turn.hand_over)
        if tool.mode == "session":
            return await _run_session_tool(call, permitted.arguments)
        async with recorded(call, _changed_paths(permitted)):
            return await tool.output(permitted.arguments, context)

    async with hold(_named_files(permitted)):
        if tool.is_idempotent and (before := session.history.replays.get(call.replay_key)) is not None:
            return before
        report.is_running = True
        with session.detachable() as sign:
            context = replace(
                parsed.context,
                detach=sign,
                judged=verdict.judged,
                only_reads=verdict.only_reads,
                grants=verdict.grants,
                ask=asking(session, call) if tool.server and session.ask is not None else None,
            )
            attempts = await run_with_retries(tool, run)
        report.retry_count, report.last_error = attempts.retry_count, attempts.last_error
        output = _with_remark(attempts.output, permitted.remark)
        if tool.is_idempotent and not output.is_error:
            session.history.replays[call.replay_key] = output
        return output


def _named_files(permitted: PermittedCall) -> list[Path]:
    """The real paths of the files that a call names and changes."""
    facts, grants = permitted.facts, permitted.verdict.grants
    tool, workspace = facts.tool, facts.workspace
    if tool.effect == "edit":
        return [path.real for path in facts.files] if tool.file_arguments else []
    given = (getattr(facts.arguments, name, None) for name in tool.file_arguments)
    return [workspace.writable(name, grants) for name in given if isinstance(name, str)]


def _changed_paths(permitted: PermittedCall) -> Sequence[Path] | None:
    """The files that a call may change: none, those it names, or (None) any."""
    match permitted.facts.tool.effect:
        case "edit":
            return _named_files(permitted) or None
        case "command":
            return () if permitted.verdict.only_reads else None
        case "foreign":
            return None
        case _:
            return ()


async def _account(call: Call, parsed: ParsedCall | None, result: Result) -> None:
    session = call.turn.session
    session.history.remember(call.use, result.result)
    if parsed is None:
        return
    for hook in session.services.hooks:
        if context := await hook.after_call(parsed.record, result.result):
            call.turn.state.notes.append(reminder(context))


def _with_remark(output: ToolOutput, remark: str) -> ToolOutput:
    """Add to a result what the person said when they allowed the call."""
    if not remark:
        return output
    content = output.content or ""
    said = f"{content}\n{remark}" if isinstance(content, str) else (*content, Text(remark))
    return msgspec.structs.replace(output, content=said)


async def _run_session_tool(call: Call, arguments: Any) -> ToolOutput:
    """Run a tool that needs the session itself; its body is imported at the first call."""
    match call.use.name:
        case "ask_user":
            from agentcli.agent.own_tools import ask_user

            return await ask_user.run(call, arguments)
        case "create_subagent":
            opened: Callable[[], SkillsInUse | SubagentRuns] = call.turn.session.open_agents
        case _:
            opened = call.turn.session.open_skills
    try:
        body = opened()
    except UsageError as error:
        raise ToolError(str(error), kind="validation_error") from error
    return await body.answer(call, arguments)


def asking(calls: SessionCalls, call: Call | None = None) -> Ask:
    """Return a function that asks the person, about a running call or outside of calls; None answers where nobody can.

    Such a question is no entry: a call that has begun is not begun again after a crash, so it would not be asked again.
    """
    numbers = count(1)

    async def ask(question: str, options: Sequence[str]) -> str | None:
        if calls.ask is None:
            return None
        id = f"{call.use.id if call else 'question'}-{next(numbers)}"
        use = call.use if call else ToolUse(id, "ask_user", {"question": question, "options": list(options)})
        request = events.Question(id, question, call=use, options=tuple(options))
        since = time.perf_counter()
        try:
            answer = await calls.ask(request, None)
        finally:
            if call is not None:
                call.report.waited_s += time.perf_counter() - since
        return answer.comment if isinstance(answer, Approve) and answer.allowed else None

    return ask


LONGEST_LIMIT_S = 300.0

# What is the same at the next try; all else may pass.
_LASTING: dict[int, ToolErrorKind] = {
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOENT: "not_found",
}


class Attempts(Struct, frozen=True):
    """The output after all attempts. `last_error` is the failure before the last one, empty when the first one did."""

    output: ToolOutput
    retry_count: int = 0
    last_error: str = ""


async def run_with_retries(tool: Tool, run: Callable[[], Awaitable[ToolOutput]]) -> Attempts:
    """Raises `ToolError` with `retry_count` and `last_error` set; what else goes wrong is an internal_error."""
    limit, retries, last_error = tool.time_limit_s, 0, ""
    while True:
        try:
            return Attempts(await _within(tool.name, limit, run), retries, last_error)
        except ToolError as error:
            again = tool.may_be_repeated and error.kind in tool.retry.retry_on and retries < tool.retry.most
            if not again:
                error.retry_count, error.last_error = retries, last_error
                raise
            await asyncio.sleep(error.retry_after or tool.retry.delay(retries))
            retries, last_error = retries + 1, str(error)
            limit = None if limit is None else max(limit, min(limit * 2, LONGEST_LIMIT_S))


async def _within(name: str, limit_s: float | None, run: Callable[[], Awaitable[ToolOutput]]) -> ToolOutput:
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await run()
    except TimeoutError as error:
        took = f"took longer than {limit_s:g} s" if limit.expired() else f"ran out of time: {error or 'no answer'}"
        raise ToolError(f"{name} {took}.", kind="timeout") from error
    except OSError as error:
        kind = _LASTING.get(error.errno or 0, "resource_error")
        raise ToolError(f"{name} failed: {error}.", kind=kind, code=errno_name(error)) from error
