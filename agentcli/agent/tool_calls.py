"""The calls of a reply: what runs together, and one call from its arguments to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec

from agentcli.agent.approvals import Ask, Permitted, Question, ask_person
from agentcli.agent.events import Emit, Steered, ToolFinished, ToolOutput, ToolStarted
from agentcli.agent.interfaces import GrantStore
from agentcli.agent.permissions import judge
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import Result
from agentcli.errors import ToolError
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.observation import cut_middle
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title
from agentcli.tools.tool import Tool, ToolContext, Workspace
from agentcli.tools.tool import ToolOutput as Output

SAME_CALL_LIMIT = 3  # the same call with the same result so often in a row is answered, not run
INTERRUPTED = "Not run: interrupted by the user."
LARGEST_ARGUMENTS = 10 * 1024 * 1024  # bytes


@dataclass
class CallRunner:
    """What calls need beside the state. `ask` is None where nobody can be asked; then what would ask is denied.

    `grants` keeps what a person allows for good; without it that holds for the session.
    """

    tools: ToolRegistry
    workspace: Workspace
    ask: Ask | None = None
    max_parallel: int = 8
    grants: GrantStore | None = None
    denials: list[ToolUse] = field(default_factory=list)
    _last_calls: list[tuple[str, str]] = field(default_factory=list)
    _detaching: set[asyncio.Event] = field(default_factory=set)

    def is_stuck(self, call: ToolUse) -> bool:
        """Whether this very call has just given the same result several times."""
        recent = self._last_calls[-SAME_CALL_LIMIT:]
        return len(recent) == SAME_CALL_LIMIT and len(set(recent)) == 1 and recent[0][0] == _key(call)

    def remember(self, call: ToolUse, result: ToolResult) -> None:
        self._last_calls = [*self._last_calls[-SAME_CALL_LIMIT:], (_key(call), str(result.content))]

    @contextmanager
    def detachable(self) -> Iterator[asyncio.Event]:
        """The sign for a call that runs meanwhile to let its command go on in the background."""
        sign = asyncio.Event()
        self._detaching.add(sign)
        try:
            yield sign
        finally:
            self._detaching.discard(sign)

    def to_background(self) -> None:
        for sign in self._detaching:
            sign.set()


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


@dataclass
class Report:
    """Tells of one call while it runs; its result is in `done` once it has ended."""

    call: ToolUse
    emit: Emit
    done: dict[str, Result]
    heard: list[str] = field(default_factory=list)
    is_running: bool = False
    _started: float = field(default_factory=time.perf_counter)

    def start(self) -> None:
        call = self.call
        self.emit(ToolStarted(call.id, call.name, call.input, call_title(call.name, call.input)))

    def show(self, text: str) -> None:
        self.heard.append(text)
        self.emit(ToolOutput(self.call.id, text))

    def finish(self, output: Output, error_kind: str = "") -> None:
        call = self.call
        result = ToolResult(call.id, output.content, output.is_error)
        took_ms = round((time.perf_counter() - self._started) * 1000, 1)
        self.done[call.id] = Result(result, call.name, output.summary, took_ms, output.structured, error_kind)
        self.emit(ToolFinished(call.id, call.name, result, took_ms, output.summary, output.structured, error_kind))

    def fail(self, error: ToolError) -> None:
        self.finish(Output(str(error), is_error=True, summary=_first_line(str(error))), error.kind)

    def interrupt(self) -> None:
        said = cut_middle("".join(self.heard))
        ended = f"{said}\n[interrupted by the user; it may have had effects]".lstrip()
        self.finish(Output(ended if self.is_running else INTERRUPTED, is_error=True, summary="interrupted"))


async def run_call(runner: CallRunner, state: AgentState, call: ToolUse, emit: Emit, done: dict[str, Result]) -> None:
    """One call: parse, permission, run with its time limit, observe, report.

    Every failure is a result. The result is in `done` when this ends, also when it ends by cancellation.
    """
    report = Report(call, emit, done)
    report.start()
    try:
        context = ToolContext(runner.workspace, call.id, report.show)
        tool, permitted = await _permitted(runner, state, call, context, emit)
        report.is_running = True
        with runner.detachable() as sign:
            output = await _run(tool, permitted.arguments, replace(context, detach=sign))
    except ToolError as error:
        report.fail(error)
    except asyncio.CancelledError:
        report.interrupt()
        raise
    else:
        report.finish(_with_remark(output, permitted.remark))
    runner.remember(call, done[call.id].result)


async def _permitted(
    runner: CallRunner, state: AgentState, call: ToolUse, context: ToolContext, emit: Emit
) -> tuple[Tool, Permitted]:
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
    verdict = judge(tool, arguments, state.mode, state.rules, runner.workspace)
    if verdict.decision == "allow":
        return tool, Permitted(arguments)
    try:
        if verdict.decision == "deny":
            raise ToolError(f"Denied: {verdict.reason}.", kind="permission_denied")
        return tool, await ask_person(runner, state, Question(call, tool, arguments, context, verdict.reason), emit)
    except ToolError as refusal:
        if refusal.kind == "permission_denied":
            runner.denials.append(call)
        raise


async def _run(tool: Tool, arguments: object, context: ToolContext) -> Output:
    try:
        async with asyncio.timeout(tool.time_limit_s):
            return await tool.run(arguments, context)
    except TimeoutError as error:
        raise ToolError(f"{tool.name} took longer than {tool.time_limit_s:g} s.", kind="timeout") from error
    except OSError as error:
        raise ToolError(f"{tool.name} failed: {error}.", kind="resource_error") from error


def _with_remark(output: Output, remark: str) -> Output:
    """What the person said when they allowed a call belongs to its result."""
    if not remark:
        return output
    content = output.content
    said = f"{content}\n{remark}" if isinstance(content, str) else (*content, Text(remark))
    return msgspec.structs.replace(output, content=said)


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0][:200]
