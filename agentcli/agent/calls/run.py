"""Runs one call: parse, hooks, permission, perform, observe, report."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentcli.agent.calls.model import SAME_CALL_LIMIT, Call
from agentcli.agent.calls.observe import asked_level, mask_for, observed
from agentcli.agent.calls.perform import perform
from agentcli.agent.hooks import CallRecord, HookAnswer
from agentcli.agent.permissions.approvals import permit
from agentcli.agent.questions import make_ask
from agentcli.conversation.entries import Result, reminder
from agentcli.errors import ToolError
from agentcli.tools.tool import Tool, ToolContext

MAX_ARGUMENT_BYTES = 10 * 1024 * 1024


async def run_call(call: Call) -> Result:
    """One call, from what the model wrote to what it reads. Every failure is a result, a cancellation too."""
    report, services = call.report, call.turn.session.services
    report.start()
    try:
        tool, arguments, hooks = await _parse(call)
        context = _context(call, tool, arguments)
        permitted = await permit(call, tool, arguments, context, hooks=hooks)
        report.answer = permitted.answer
        is_speaking = tool.effect in ("command", "foreign")  # heard while it runs, and may make any file
        if is_speaking:
            await services.know_secrets()
        output, _ = await asyncio.gather(perform(call, permitted, context), services.know_secrets())
        report.mask = await mask_for(services.mask, permitted)
        output = await observed(tool, output, context)
        if is_speaking:
            await services.know_secrets(is_changed=True)
        report.finish(output)
    except ToolError as error:
        await services.know_secrets(is_changed=bool(report.heard))  # whatever failed, and however early
        report.fail(error)
    except asyncio.CancelledError:
        report.interrupt()
        raise
    finally:
        if report.result is not None:
            call.turn.session.history.remember(call.use, report.result.result)
            for hook in services.hooks:
                if report.record and (note := await hook.after_call(report.record, report.result.result)):
                    call.turn.state.notes.append(reminder(note))
    assert report.result is not None, "whatever happens is reported"
    return report.result


async def _parse(call: Call) -> tuple[Tool, Any, HookAnswer]:
    """The tool, its arguments as hooks leave them, and what the hooks decided. Raises `ToolError`."""
    use, session = call.use, call.turn.session
    tool = session.tools.get(use.name)
    if use.unparsed:
        raise ToolError(
            f"The arguments are not a JSON object: {use.unparsed[:200]!r}. Make the call again.",
            kind="invalid_parameters",
        )
    if len(use.input) and len(msgspec.json.encode(use.input)) > MAX_ARGUMENT_BYTES:
        raise ToolError("The arguments are larger than 10 MB.", kind="invalid_parameters")
    if session.history.is_stuck(use):
        raise ToolError(
            f"This call has given the same result {SAME_CALL_LIMIT} times in a row: do something else, or answer.",
            kind="validation_error",
        )
    record = CallRecord(use.id, tool.name, tool.version, session.agent_id, call.turn.state.mode)
    arguments = tool.parse(use.input)
    hooks = await _ask_hooks(call, record)
    arguments = arguments if hooks.input is None else tool.parse(hooks.input)
    call.report.record = record
    return tool, arguments, hooks


async def _ask_hooks(call: Call, record: CallRecord) -> HookAnswer:
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


def _context(call: Call, tool: Tool, arguments: Any) -> ToolContext:
    services, turn = call.turn.session.services, call.turn
    asked, share = asked_level(tool, arguments), turn.state.model.window_share
    level = services.levels.level_for(tool.name, asked=asked, own=tool.level, window_share=share)
    call.report.level = level
    ask = make_ask(turn.session, call) if tool.server and turn.session.ask is not None else None
    return ToolContext(services.workspace, call.use.id, call.report.show, level=level, publish=turn.emit, ask=ask)
