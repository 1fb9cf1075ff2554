"""The calls of a reply: what runs together, and one call from its arguments to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from agentcli.agent.events import ApprovalRequested, Approve, Emit, Steered, ToolFinished, ToolOutput, ToolStarted
from agentcli.agent.permissions import grant_for, judge
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import Result
from agentcli.errors import ToolError
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.tools.observation import cut_middle
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title
from agentcli.tools.tool import Tool, ToolContext, Workspace
from agentcli.tools.tool import ToolOutput as Output

SAME_CALL_LIMIT = 3  # the same call with the same result so often in a row is answered, not run
INTERRUPTED = "Not run: interrupted by the user."
LARGEST_ARGUMENTS = 10 * 1024 * 1024  # bytes

Ask = Callable[[ApprovalRequested], Awaitable[Approve]]


@dataclass
class CallRunner:
    """What calls need beside the state. `ask` is None where nobody can be asked; then what would ask is denied."""

    tools: ToolRegistry
    workspace: Workspace
    ask: Ask | None = None
    max_parallel: int = 8
    denials: list[ToolUse] = field(default_factory=list)
    _last_calls: list[tuple[str, str]] = field(default_factory=list)

    def is_stuck(self, call: ToolUse) -> bool:
        """Whether this very call has just given the same result several times."""
        recent = self._last_calls[-SAME_CALL_LIMIT:]
        return len(recent) == SAME_CALL_LIMIT and len(set(recent)) == 1 and recent[0][0] == _key(call)

    def remember(self, call: ToolUse, result: ToolResult) -> None:
        self._last_calls = [*self._last_calls[-SAME_CALL_LIMIT:], (_key(call), str(result.content))]


def _key(call: ToolUse) -> str:
    return f"{call.name} {msgspec.json.encode(call.input, order='sorted').decode()}"


async def run_calls(runner: CallRunner, state: AgentState, calls: Sequence[ToolUse], emit: Emit) -> list[Result]:
    """A result for every call, in the order of the calls.

    Neighbouring calls that only read run together, the others one after another. Before each start the steering queue
    is looked at: what has not started then is skipped and says so. Raises `Interrupted`, with a result for every call,
    when the turn is cancelled meanwhile.
    """
    done: dict[str, Result] = {}
    try:
        for batch in _batches(runner, calls):
            if state.steering:
                break
            await _run_batch(runner, state, batch, emit, done)
    except asyncio.CancelledError as interrupt:
        raise Interrupted([done.get(call.id) or _unfinished(call) for call in calls]) from interrupt
    skipped = [call for call in calls if call.id not in done]
    for call in skipped:
        done[call.id] = not_run(call, "Not run: a new message from the user came first.")
    if skipped:
        emit(Steered(tuple(skipped)))
    return [done[call.id] for call in calls]


class Interrupted(asyncio.CancelledError):
    """The turn was interrupted while calls ran; `results` answers every one of them."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__()
        self.results = results


def _batches(runner: CallRunner, calls: Sequence[ToolUse]) -> Iterator[list[ToolUse]]:
    batch: list[ToolUse] = []
    for call in calls:
        overlaps = call.name in runner.tools and runner.tools.get(call.name).may_overlap
        if overlaps:
            batch.append(call)
            continue
        if batch:
            yield batch
            batch = []
        yield [call]
    if batch:
        yield batch


async def _run_batch(
    runner: CallRunner, state: AgentState, batch: list[ToolUse], emit: Emit, done: dict[str, Result]
) -> None:
    if len(batch) == 1:
        await run_call(runner, state, batch[0], emit, done)
        return
    places = asyncio.Semaphore(runner.max_parallel)

    async def run_one(call: ToolUse) -> None:
        async with places:
            if not state.steering:
                await run_call(runner, state, call, emit, done)

    async with asyncio.TaskGroup() as group:
        for call in batch:
            group.create_task(run_one(call))


def not_run(call: ToolUse, why: str) -> Result:
    return Result(ToolResult(call.id, why, is_error=True), call.name, summary=why)


def _unfinished(call: ToolUse) -> Result:
    return not_run(call, INTERRUPTED)


async def run_call(runner: CallRunner, state: AgentState, call: ToolUse, emit: Emit, done: dict[str, Result]) -> None:
    """One call: parse, permission, run with its time limit, observe, report.

    Every failure is a result. The result is in `done` when this ends, also when it ends by cancellation.
    """
    started = time.perf_counter()
    emit(ToolStarted(call.id, call.name, call.input, call_title(call.name, call.input)))
    heard: list[str] = []
    is_running = False

    def show(text: str) -> None:
        heard.append(text)
        emit(ToolOutput(call.id, text))

    def finish(output: Output, error_kind: str = "") -> None:
        result = ToolResult(call.id, output.content, output.is_error)
        took_ms = round((time.perf_counter() - started) * 1000, 1)
        done[call.id] = Result(result, call.name, output.summary, took_ms, output.structured, error_kind)
        emit(ToolFinished(call.id, call.name, result, took_ms, output.summary, output.structured, error_kind))

    try:
        context = ToolContext(runner.workspace, call.id, show)
        tool, arguments = await _permitted(runner, state, call, context)
        is_running = True
        output = await _run(tool, arguments, context)
    except ToolError as error:
        finish(Output(str(error), is_error=True, summary=_first_line(str(error))), error.kind)
    except asyncio.CancelledError:
        said = cut_middle("".join(heard))
        text = f"{said}\n[interrupted by the user; it may have had effects]".lstrip() if is_running else INTERRUPTED
        finish(Output(text, is_error=True, summary="interrupted"))
        raise
    else:
        finish(output)
    runner.remember(call, done[call.id].result)


async def _permitted(runner: CallRunner, state: AgentState, call: ToolUse, context: ToolContext) -> tuple[Tool, object]:
    """The tool and its arguments, once all has been checked and asked. Raises `ToolError`."""
    tool = runner.tools.get(call.name)
    if call.unparsed:
        raise ToolError(
            f"The arguments are not a JSON object: {call.unparsed[:200]!r}. Make the call again.",
            kind="invalid_parameters",
        )
    if len(call.input) and len(msgspec.json.encode(call.input)) > LARGEST_ARGUMENTS:
        raise ToolError("The arguments are larger than 10 MB.", kind="invalid_parameters")
    if runner.is_stuck(call):
        raise ToolError(
            f"This call has given the same result {SAME_CALL_LIMIT} times in a row: do something else, or answer.",
            kind="validation_error",
        )
    arguments = tool.parse(call.input)
    await _require_permission(runner, state, call, tool, arguments, context)
    return tool, arguments


async def _run(tool: Tool, arguments: object, context: ToolContext) -> Output:
    try:
        async with asyncio.timeout(tool.time_limit_s):
            return await tool.run(arguments, context)
    except TimeoutError as error:
        raise ToolError(f"{tool.name} took longer than {tool.time_limit_s:g} s.", kind="timeout") from error
    except OSError as error:
        raise ToolError(f"{tool.name} failed: {error}.", kind="resource_error") from error


async def _require_permission(
    runner: CallRunner, state: AgentState, call: ToolUse, tool: Tool, arguments: object, context: ToolContext
) -> None:
    """Raises `ToolError` (permission_denied) unless the call may run."""
    verdict = judge(tool, arguments, state.mode, state.rules, runner.workspace)
    if verdict.decision == "allow":
        return
    if verdict.decision == "deny":
        runner.denials.append(call)
        raise ToolError(f"Denied: {verdict.reason}.", kind="permission_denied")
    preview = await tool.preview(arguments, context)  # an edit that cannot apply fails here, before anybody is asked
    if runner.ask is None:
        runner.denials.append(call)
        raise ToolError(f"Denied: {verdict.reason}, and nobody can be asked.", kind="permission_denied")
    request = ApprovalRequested(call.id, call, call_title(call.name, call.input), verdict.reason, preview)
    answer = await runner.ask(request)
    if not answer.allowed:
        runner.denials.append(call)
        said = f" They say: {answer.comment}" if answer.comment else ""
        raise ToolError(f"The user declined this call.{said}", kind="permission_denied")
    if answer.scope == "session":
        state.rules.allow.append(grant_for(tool, arguments))


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0][:200]
