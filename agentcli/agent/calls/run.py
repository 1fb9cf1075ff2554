"""Runs the commands that the person types, and a reply's calls, each of which always gets a result.

The stages of a call are: parse, hooks, permission, perform, observe, report.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from signal import SIGINT
from typing import Any, get_args

import msgspec

from agentcli.agent.calls.model import SAME_CALL_LIMIT, Call, CallPaused, SessionCalls, TurnCalls, client_tool
from agentcli.agent.calls.perform import perform
from agentcli.agent.calls.report import INTERRUPTED, Mask, Report
from agentcli.agent.events import Emit, Steered
from agentcli.agent.interfaces import CallRecord, HookAnswer
from agentcli.agent.ops import OWN_CALL
from agentcli.agent.permissions.approvals import PermittedCall, permit
from agentcli.agent.questions import make_ask
from agentcli.conversation.entries import Result, reminder
from agentcli.errors import ToolError
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools import observation
from agentcli.tools.builtin import bash
from agentcli.tools.command import Grants
from agentcli.tools.tool import OutputLevel, Tool, ToolContext, ToolOutput

MAX_ARGUMENT_BYTES = 10 * 1024 * 1024


async def run_call(call: Call, answer: ToolOutput | None = None) -> None:
    """Run one call through all stages, to its result. Failures and cancellations become results, too.

    A call that the client was asked to run in an earlier turn is not run again: the client's `answer` is its output.
    """
    report, services = call.report, call.turn.session.services
    report.start()
    try:
        report.finish(await (_run_stages(call) if answer is None else _observe_client_answer(call, answer)))
    except CallPaused:  # the client's result arrives later, perhaps in another process, so there is none now
        return
    except ToolError as error:
        # The output so far may contain secrets that the call itself has written to files.
        await services.load_secrets()
        report.fail(error)
    except asyncio.CancelledError:
        if call.use.id not in call.turn.session.delegates.client.paused:  # a paused call gets its result later
            report.interrupt()
        raise
    finally:
        if report.result is not None:
            # The history detects calls that the model repeats. Hooks may return a note for the model.
            call.turn.session.history.remember(report.use, report.result.result)
            for hook in services.hooks:
                if report.record and (note := await hook.after_call(report.record, report.result.result)):
                    call.turn.state.notes.append(reminder(note))


async def _run_stages(call: Call) -> ToolOutput:
    """Permit and perform a call, and return its output in the form for the model. Raises `ToolError`."""
    report, services = call.report, call.turn.session.services
    permitted, context = await _permit(call)
    tool = permitted.policy.facts.tool
    # The output of such tools is shown while they run, so the secrets to mask must be known before.
    streams_output = tool.effect in ("command", "foreign")
    if streams_output:
        await services.load_secrets()
        output = await perform(call, permitted, context)
    else:
        output, _ = await asyncio.gather(perform(call, permitted, context), services.load_secrets())
    report.mask = await mask_for(services.mask, permitted)
    output = await observed(tool, output, context)
    if streams_output:  # they may have written new secrets, which later calls then mask
        await services.load_secrets()
    return output


async def _permit(call: Call) -> tuple[PermittedCall, ToolContext]:
    """Parse a call and decide about it; repeat both if the person changes its input. Raises `ToolError`."""
    while True:
        tool, arguments, hooks = await _parse_and_ask_hooks(call)
        context = _tool_context(call, tool, arguments)
        if (permitted := await permit(call, tool, arguments, context, hooks=hooks)) is not None:
            return permitted, context


async def _observe_client_answer(call: Call, answer: ToolOutput) -> ToolOutput:
    """Return the client's answer in the form for the model. The tool may no longer be among the session's."""
    tool, report = client_tool(ToolSpec(call.use.name, "", {})), call.report
    report.record, report.is_running = _record(call, tool), True
    await call.turn.session.services.load_secrets()
    return await observed(tool, answer, _tool_context(call, tool, call.use.input))


def _record(call: Call, tool: Tool) -> CallRecord:
    caller, mode = call.turn.session.agent_id, call.turn.state.mode
    return CallRecord(id=call.use.id, tool=tool.name, version=tool.version, caller=caller, mode=mode)


async def _parse_and_ask_hooks(call: Call) -> tuple[Tool, Any, HookAnswer]:
    """Return the tool, its arguments as changed by the hooks, and the hooks' decision. Raises `ToolError`."""
    use, session = call.use, call.turn.session
    tool = session.tools.get(use.name)
    if use.unparsed:
        raise ToolError(
            f"The arguments are not a JSON object: {use.unparsed[:200]!r}. Make the call again.",
            kind="invalid_parameters",
        )
    if len(msgspec.json.encode(use.input)) > MAX_ARGUMENT_BYTES:
        raise ToolError("The arguments are larger than 10 MB.", kind="invalid_parameters")
    if session.history.detect_loop(use):
        raise ToolError(
            f"This call has returned the same result {SAME_CALL_LIMIT} times in a row. Try something else, or answer.",
            kind="validation_error",
        )
    record = _record(call, tool)
    arguments = tool.parse(use.input)
    hooks = await _ask_hooks(call, record)
    if hooks.input is not None:
        call.use, arguments = msgspec.structs.replace(use, input=hooks.input), tool.parse(hooks.input)
    # With a record, hooks also get the result of the call. It is not set earlier, because they must not get the result
    # of a denied call, for which `_ask_hooks` raises an error.
    call.report.record = record
    return tool, arguments, hooks


async def _ask_hooks(call: Call, record: CallRecord) -> HookAnswer:
    """Return the merged answer of all hooks: "ask" overrides "allow". Raises `ToolError` for a denial."""
    merged = HookAnswer()
    for hook in call.turn.session.services.hooks:
        input = call.use.input if merged.input is None else merged.input
        answer = await hook.before_call(record, input) or HookAnswer()
        call.turn.is_stopped |= answer.stops
        if answer.context:
            call.turn.state.notes.append(reminder(answer.context))
        if answer.decision == "deny":
            raise ToolError(answer.reason or "A hook denied this call.", kind="permission_denied")
        deciding = answer if answer.decision == "ask" or merged.decision == "" else merged
        new_input = merged.input if answer.input is None else answer.input
        merged = HookAnswer(deciding.decision, deciding.reason, new_input)
    return merged


def _tool_context(call: Call, tool: Tool, arguments: Any) -> ToolContext:
    services, turn = call.turn.session.services, call.turn
    asked, share = asked_level(tool, arguments), turn.state.model.window_share
    level = services.levels.level_for(tool.name, asked=asked, own=tool.level, window_share=share)
    call.report.level = level
    # Only an MCP server may ask the person questions during its calls; the tool `ask_user` has a way of its own.
    ask = make_ask(turn.session, call) if tool.server and turn.session.ask is not None else None
    return ToolContext(services.workspace, call.use.id, call.report.show, level=level, publish=turn.emit, ask=ask)


async def run_calls(turn: TurnCalls, uses: Sequence[ToolUse]) -> list[Result]:
    """Run the calls of a reply; store and return their results in order. Paused calls have none.

    Neighbouring calls that only read run at the same time, others one after another; the client's calls run last, all
    at the same time. If the person sends a message, or stops or cancels the turn, calls that have not started are
    skipped, and their results say so.
    """
    calls = [Call(use, turn) for use in uses]
    results: list[Result] = []

    def is_open(call: Call) -> bool:
        return call.report.result is None and call.use.id not in turn.state.conversation.pending_calls

    def store(text_for_open: str = "") -> None:
        """Store results in order, up to the first call without one. With a text, all open calls get it as result."""
        for call in calls[len(results) :]:
            result = call.report.result
            if text_for_open and is_open(call):
                result = not_run(call.use, text_for_open)
            if result is not None:
                results.append(result)
                turn.store(result)
            elif not text_for_open:
                return

    try:
        for batch in _batches(turn, calls):
            if turn.must_skip_calls:
                break
            await _run_batch(turn, batch)
            store()
    except asyncio.CancelledError:
        store(INTERRUPTED)
        raise
    skipped = tuple(call.use for call in calls if is_open(call))
    if skipped and not turn.is_stopped:
        turn.emit(Steered(skipped))
    why = "another call was declined" if turn.is_stopped else "the user sent a new message"
    store(f"Not run: {why}.")
    return results


def _batches(turn: TurnCalls, calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Yield batches of calls. The calls of a batch run at the same time, the batches one after another."""
    tools = turn.session.tools
    for_client = [call for call in calls if turn.session.is_for_client(call.use)]
    own = (call for call in calls if call not in for_client)
    for overlap, group in groupby(own, lambda call: call.use.name in tools and tools.get(call.use.name).may_overlap):
        if overlap:
            yield list(group)
        else:
            yield from ([call] for call in group)
    if for_client:
        yield for_client


async def _run_batch(turn: TurnCalls, batch: list[Call]) -> None:
    """Run calls at the same time. A client runs its own calls, so here they only wait, and no limit applies."""
    if len(batch) == 1:
        await run_call(batch[0])
        return
    session = turn.session
    slots = asyncio.Semaphore(len(batch) if session.is_for_client(batch[0].use) else session.services.max_parallel)

    async def run_one(call: Call) -> None:
        async with slots:
            if not turn.must_skip_calls:
                await run_call(call)

    async with asyncio.TaskGroup() as group:
        for call in batch:
            group.create_task(run_one(call))


def not_run(call: ToolUse, why: str) -> Result:
    return Result(result=ToolResult(call.id, why, is_error=True), name=call.name, summary=why)


def asked_level(tool: Tool, arguments: Any) -> OutputLevel | None:
    """Return the output level that a call asks for; None if it asks for none, or its tool does not support levels."""
    if not isinstance(arguments, dict):  # the record of an own tool's arguments
        asked: OutputLevel | None = getattr(arguments, "output_level", None)
        return asked
    # agentcli adds the argument to tools of MCP servers, unless the server has one of that name with its own meaning.
    is_added = tool.server and "output_level" not in (tool.schema or {}).get("properties", {})
    level = arguments.get("output_level")
    return level if is_added and level in get_args(OutputLevel) else None


async def observed(tool: Tool, output: ToolOutput, context: ToolContext) -> ToolOutput:
    """Return the output in the form for the model: text at the output level, or the first page of a long text."""
    content, unshortened = output.content, output.full  # `full` is empty if nothing was left out
    if content is None and output.structured is not None:
        show, value = tool.show or observation.format_value, output.structured
        try:
            content, unshortened = show(value, context.level), show(value, "full")
        except Exception as error:  # `show` is foreign code: whatever it raises ends only this call
            from agentcli.tools.own_tools import log_failure

            raise log_failure(tool.name, error) from error
        if not observation.is_shortened(value, content, unshortened, context.level):
            unshortened = ""
    content = "" if content is None else content
    parts = (Text(content),) if isinstance(content, str) else content
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    if len(text.encode()) <= observation.MAX_UNPAGED_BYTES and not unshortened:
        return msgspec.structs.replace(output, content=content)
    shown, openable = await asyncio.to_thread(_first_page, text, unshortened, context)
    context.workspace.grants += Grants(readable=openable)  # so that file_read can open the stored result
    media = tuple(part for part in parts if not isinstance(part, Text))
    return msgspec.structs.replace(output, content=(Text(shown), *media) if media else shown)


def _first_page(text: str, unshortened: str, context: ToolContext) -> tuple[str, tuple[Path, ...]]:
    """Store a result that was shortened to `text` or has several pages, so that the model can read the rest later.

    Return what the model sees now and, if the stored file is large, its path, which the model may open.
    """
    data = context.workspace.resources.data
    if data is None:
        return observation.cut_middle(text), ()
    fits_one_page = len(text.encode()) <= observation.MAX_UNPAGED_BYTES
    stored_text = unshortened if fits_one_page else text  # page 2 of a long `text` must continue page 1
    try:
        stored = data.store(stored_text.encode(), context.call_id)
    except OSError as error:
        shown = text if fits_one_page else f"{observation.cut_middle(text)}\n[the rest could not be stored: {error}]"
        return shown, ()
    pages = observation.pages_of(stored_text)
    read_more = f'read_more with result_id="{context.call_id}"'
    if fits_one_page:
        hint = f"[{read_more} and page=1 shows all of it{f', in {len(pages)} pages' if len(pages) > 1 else ''}]"
    else:
        hint = f"[page 1 of {len(pages)}; {read_more} and page=2 shows the next]"
    openable: tuple[Path, ...] = ()
    if stored.size > observation.MAX_INLINE_BYTES:
        openable = (stored.path.resolve(),)
        file = f"{stored.path} ({stored.size:,} bytes, sha256 {stored.hash[:12]}…)"
        hint += f"\n[complete result: {file}; open it with file_read: {observation.data_summary(stored_text)}]"
    return f"{(text if fits_one_page else pages[0]).rstrip()}\n{hint}", openable


async def mask_for(mask: Mask, permitted: PermittedCall) -> Mask:
    """Return the mask for the output of a call. The values in a secret file stay visible if the person opened it."""
    facts = permitted.policy.facts
    if facts.tool.name != "file_read" or not permitted.grants.readable:
        return mask
    opened = facts.files[0].real
    return mask.with_secrets(await asyncio.to_thread(facts.workspace.facts.secret_values, apart_from=opened))


async def run_own_command(calls: SessionCalls, command: str, emit: Emit) -> Result:
    """Run the person's command with the events of a call, and return its result, even after a cancellation."""
    call = ToolUse(f"{OWN_CALL}{os.urandom(6).hex()}", "bash", {"command": command})
    report = Report(call, emit, calls.services.mask)
    report.is_running = True  # from the start, so that the result of an interrupted command has its output so far
    report.start()
    try:
        await calls.services.load_secrets()
        with calls.history.detach_request() as detach:  # the person may move the command to the background
            output = await bash.run_own(command, ToolContext(calls.workspace, call.id, report.show, detach))
        await calls.services.load_secrets()
        report.finish(output)
    except ToolError as error:
        report.fail(error)
    except OSError as error:
        report.fail(ToolError(f"The command failed: {error}.", kind="resource_error"))
    except asyncio.CancelledError:
        report.interrupt()
    assert report.result is not None
    return report.result


async def run_in_terminal(calls: SessionCalls, command: str, terminal: str) -> str:
    """Run a command in a terminal, given as a device path; return a note to add to the output, as on an exit code."""
    context = ToolContext(calls.workspace, f"{OWN_CALL}{os.urandom(6).hex()}")
    output = await bash.run_own(command, context, terminal=terminal)
    # Ctrl-C in that terminal ends the command by this signal.
    return str(output.content).replace(f"[ended by signal {int(SIGINT)}]", "[interrupted by the user]")
