"""One call on its way: parse, hooks, permission, lock, replay, time limit, run, retry, observe, report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.agent.approvals import Ask, Permitted, Question, ask_person
from agentcli.agent.call_record import Caller, CallMetrics, CallRecord
from agentcli.agent.call_retry import run_with_retries
from agentcli.agent.client_calls import ClientCalls
from agentcli.agent.events import Emit
from agentcli.agent.exposure import with_exposure
from agentcli.agent.hooks import CallHooks
from agentcli.agent.interfaces import GrantStore, Locks
from agentcli.agent.masking import Mask
from agentcli.agent.observing import observed
from agentcli.agent.permissions import Verdict, judge
from agentcli.agent.replays import Replays
from agentcli.agent.report import Report
from agentcli.agent.state import AgentState
from agentcli.agent.trying import try_first
from agentcli.conversation.entries import Result
from agentcli.errors import ToolError
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.observation import Levels
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.tool import Tool, ToolContext, Workspace
from agentcli.tools.tool import ToolOutput as Output

SAME_CALL_LIMIT = 3  # the same call with the same result so often in a row is answered, not run
LARGEST_ARGUMENTS = 10 * 1024 * 1024  # bytes
LOCK_PATIENCE_S = 30.0


class NoLocks:
    """For a workspace nobody else works in."""

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        yield


@dataclass
class CallRunner:
    """What calls need beside the state. `ask` is None where nobody can be asked; then what would ask is denied.

    `grants` keeps what a person allows for good; without it that holds for the session. `caller` is on whose behalf
    all calls of this runner are made. With `ends_loops` a call that keeps giving the same result is answered.
    With `gives_all` structured results are given however large they are. Once it `is_stopped`, by a no of the person's,
    no more calls of the turn are begun. `waited` is as in `Report`.
    """

    tools: ToolRegistry
    workspace: Workspace
    ask: Ask | None = None
    max_parallel: int = 8
    grants: GrantStore | None = None
    locks: Locks = field(default_factory=NoLocks)
    levels: Levels = Levels()
    hooks: CallHooks | None = None
    caller: Caller = "main"
    ends_loops: bool = True
    gives_all: bool = False
    client: ClientCalls = field(default_factory=ClientCalls)
    mask: Mask | None = None
    replays: Replays = field(default_factory=Replays)
    is_stopped: bool = False
    waited: dict[str, float] = field(default_factory=dict)
    metrics: CallMetrics = field(default_factory=CallMetrics)
    denials: list[ToolUse] = field(default_factory=list)
    _last_calls: list[tuple[str, str]] = field(default_factory=list)
    _detaching: set[asyncio.Event] = field(default_factory=set)

    def is_for_client(self, call: ToolUse) -> bool:
        return call.name in self.tools and self.tools.get(call.name).mode == "client"

    def is_stuck(self, call: ToolUse) -> bool:
        """Whether this very call has just given the same result several times."""
        recent = self._last_calls[-SAME_CALL_LIMIT:]
        return (
            self.ends_loops and len(recent) == SAME_CALL_LIMIT and len(set(recent)) == 1 and recent[0][0] == _key(call)
        )

    def remember(self, call: ToolUse, result: ToolResult) -> None:
        self._last_calls = [*self._last_calls[-SAME_CALL_LIMIT:], (_key(call), str(result.content))]

    def forget_results(self) -> None:
        """A person has spoken: what they ask for again is done again."""
        self._last_calls = []

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


class Parsed(Struct, frozen=True):
    """A call whose arguments are understood."""

    record: CallRecord
    tool: Tool
    arguments: Any
    context: ToolContext


async def run_call(
    runner: CallRunner, state: AgentState, call: ToolUse, emit: Emit, done: dict[str, Result], *, reply_id: str = ""
) -> None:
    """One call, from what the model wrote to what it reads.

    Every failure is a result. The result is in `done` when this ends, also when it ends by cancellation.
    """
    report = Report(call, emit, done, mask=runner.mask, gives_all=runner.gives_all, waited=runner.waited)
    report.start()
    parsed: Parsed | None = None
    try:
        parsed = await parse_call(runner, state, call, report.show)
        report.record = parsed.record
        permitted = await permit(runner, state, call, parsed, emit)
        report.answer = permitted.answer
        is_speaking = parsed.tool.effect in ("command", "foreign")  # heard while it runs, and may make any file
        if is_speaking:
            await know_secrets(runner)
        performing = perform(runner, call, parsed, permitted, report, reply_id)
        output, _ = await asyncio.gather(performing, know_secrets(runner))
        output = await observed(parsed.tool, output, parsed.context)
        if is_speaking:
            await know_secrets(runner, is_changed=True)
        report.mask = await _mask_for(runner, parsed, permitted)
        report.finish(output)
    except ToolError as error:
        await know_secrets(runner, is_changed=bool(report.heard))  # whatever failed, and however early
        report.fail(error)
    except asyncio.CancelledError:
        report.interrupt()
        raise
    finally:
        if call.id in done:
            await _account(runner, call, parsed, report, done[call.id])


async def know_secrets(runner: CallRunner, *, is_changed: bool = False) -> None:
    """Have the values masked that secret files of the workspace hold now."""
    if runner.mask is not None:
        sandbox = runner.workspace.sandbox
        runner.mask.know(await asyncio.to_thread(sandbox.secret_values, is_changed=is_changed))


async def masked(runner: CallRunner, text: str) -> str:
    """Take the secrets out of what a command has just said, also those it has only now written to a secret file."""
    await know_secrets(runner, is_changed=True)
    return text if runner.mask is None else runner.mask.text(text)


async def _mask_for(runner: CallRunner, parsed: Parsed, permitted: Permitted) -> Mask | None:
    """For the output of a call that has run: a file that was granted is shown with the values it holds."""
    if runner.mask is None or parsed.tool.name != "file_read" or not permitted.needs:
        return runner.mask
    path, sandbox = runner.workspace.real_path(parsed.arguments.path), runner.workspace.sandbox
    return runner.mask.knowing(await asyncio.to_thread(sandbox.secret_values, apart_from=path))


async def parse_call(runner: CallRunner, state: AgentState, call: ToolUse, show: Callable[[str], None]) -> Parsed:
    """The tool and its arguments, as hooks leave them. Raises `ToolError`: which field is wrong, what it takes."""
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
    record = CallRecord(call.id, tool.name, tool.version, runner.caller, state.mode)
    arguments = tool.parse(call.input)
    if runner.hooks is not None:
        changed = await runner.hooks.before_call(record, call.input)
        arguments = arguments if changed is None else tool.parse(changed)
    asked = getattr(arguments, "output_level", None)
    level = runner.levels.level_for(tool.name, asked=asked, own=tool.level, window_share=state.window_share)
    return Parsed(record, tool, arguments, ToolContext(runner.workspace, call.id, show, level=level))


async def permit(runner: CallRunner, state: AgentState, call: ToolUse, parsed: Parsed, emit: Emit) -> Permitted:
    """The arguments to run with, once all has been checked and asked. Raises `ToolError`."""
    tool, arguments, context = parsed.tool, parsed.arguments, parsed.context

    def judged() -> Verdict:
        given = tool, arguments, state.mode, state.rules, runner.workspace
        return with_exposure(judge(*given), *given)

    verdict = judged()
    if verdict.decision == "allow":
        return Permitted(arguments, "", verdict.needs, verdict.hosts, verdict.judged, verdict.only_reads)
    try:
        if verdict.decision == "deny":
            raise ToolError(f"{verdict.reason}.", kind="permission_denied")
        permitted = await ask_person(runner, state, Question(call, tool, arguments, context, verdict, judged), emit)
        return msgspec.structs.replace(permitted, judged=verdict.judged, only_reads=verdict.only_reads)
    except ToolError as refusal:
        if refusal.kind == "permission_denied":
            runner.denials.append(call)
        raise


async def perform(
    runner: CallRunner, call: ToolUse, parsed: Parsed, permitted: Permitted, report: Report, reply_id: str
) -> Output:
    """Run the tool while it holds the files it changes; what ran before is answered as it was. Raises `ToolError`."""
    tool = parsed.tool
    async with opened(runner.workspace, permitted), runner.locks.held(_locked(parsed), timeout_s=LOCK_PATIENCE_S):
        if tool.is_idempotent and (before := runner.replays.get(reply_id, call)) is not None:
            return before
        report.is_running = True
        with runner.detachable() as sign:
            context = replace(parsed.context, detach=sign, judged=permitted.judged, only_reads=permitted.only_reads)

            async def run() -> Output:
                if permitted.is_trial:
                    arguments = permitted.arguments
                    return await try_first(tool, arguments, context, call=call, ask=runner.ask, mask=runner.mask)
                if tool.mode == "client":
                    return await runner.client.result_of(call, report.emit)
                return await tool.output(permitted.arguments, context)

            attempts = await run_with_retries(tool, run)
        report.retry_count, report.last_error = attempts.retry_count, attempts.last_error
        output = _with_remark(attempts.output, permitted.remark)
        if tool.is_idempotent and not output.is_error:
            runner.replays.keep(reply_id, call, output)
        return output


@asynccontextmanager
async def opened(workspace: Workspace, permitted: Permitted) -> AsyncIterator[None]:
    """The exceptions the sandbox makes for one call, and no longer."""
    sandbox = workspace.sandbox
    for need in permitted.needs:
        sandbox.grant(need.path, need.access)
    for host in permitted.hosts:
        sandbox.grant_host(host)
    try:
        yield
    finally:
        for need in permitted.needs:
            sandbox.revoke(need.path, need.access)
        for host in permitted.hosts:
            sandbox.revoke_host(host)


def _locked(parsed: Parsed) -> tuple[str, ...]:
    """The real paths of the files a call changes, sorted, so that two calls never wait for each other."""
    workspace = parsed.context.workspace
    given = [getattr(parsed.arguments, name, None) for name in parsed.tool.file_arguments]
    return tuple(sorted({str(workspace.writable(name)) for name in given if isinstance(name, str)}))


async def _account(runner: CallRunner, call: ToolUse, parsed: Parsed | None, report: Report, result: Result) -> None:
    runner.remember(call, result.result)
    runner.waited.pop(call.id, None)
    if parsed is None:
        return
    runner.metrics.add(parsed.record, seconds=report.seconds, retries=report.retry_count, error_kind=result.error_kind)
    if runner.hooks is not None:
        await runner.hooks.after_call(parsed.record, result.result)


def _with_remark(output: Output, remark: str) -> Output:
    """What the person said when they allowed a call belongs to its result."""
    if not remark:
        return output
    content = output.content or ""
    said = f"{content}\n{remark}" if isinstance(content, str) else (*content, Text(remark))
    return msgspec.structs.replace(output, content=said)
