"""The records of calls: a session's, a turn's, those that a client runs, and a single one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import msgspec

from agentcli.agent.accounting import Budgets
from agentcli.agent.calls.report import Mask, Report
from agentcli.agent.events import AnyQuestion, ClientToolRequested, Denial, Emit
from agentcli.agent.interfaces import CallHooks, Checkpoints, EventAnswer, EventHooks, EventName, GrantStore, Locks
from agentcli.agent.ops import Approve, Op
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Body, CallAllowed, CallAsked, CallDenied, CallsHandedOver
from agentcli.errors import StorageError, ToolError, UsageError
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools.observation import Levels, call_title, cut_middle
from agentcli.tools.tool import Tool, ToolContext, ToolOutput, ToolRegistry
from agentcli.tools.workspace import Workspace

Decide = Callable[[], PolicyDecision]  # returns the decision of the current permissions on a call
# Returns the person's answer, or the decision of permissions that changed before there was one.
Ask = Callable[[AnyQuestion, Decide | None], Awaitable[Approve | PolicyDecision]]
HandOver = Callable[[tuple[ToolUse, ...]], None]  # sends calls to the client

NOBODY_LEFT = "no one can approve it any more"  # the comment of an automatic no when nobody can answer any more
SAME_CALL_LIMIT = 3  # after this many equal calls in a row with equal results, the next one is not run


class CallServices(msgspec.Struct, kw_only=True):
    """The services that a session's calls use. With `dry_runs`, a command that would ask makes a dry run instead."""

    workspace: Workspace
    locks: Locks
    grants: GrantStore | None = None  # stores permissions for later sessions; without it they last for this session
    mask: Mask
    hooks: Sequence[CallHooks] = ()
    levels: Levels = Levels()
    max_parallel: int = 8
    dry_runs: bool = True

    async def load_secrets(self) -> None:
        await self.mask.load_secrets(self.workspace.facts.secret_values)

    async def masked(self, text: str) -> str:
        """Mask the output of a command that has just run, including secrets that the command itself wrote to files."""
        await self.load_secrets()
        return self.mask.text(text)


class CallHistory(msgspec.Struct, kw_only=True):
    """A session's running commands, and its newest calls: a call that is repeated for the same result gets an error."""

    ends_loops: bool = True
    looping: str = ""  # title of the call that the model repeats in spite of the error, until the person allows it
    detachable: set[asyncio.Event] = msgspec.field(default_factory=set)  # set an event to move its command to a job
    # The newest calls with their arguments, each with its result.
    _recent: deque[tuple[str, str]] = msgspec.field(default_factory=lambda: deque(maxlen=SAME_CALL_LIMIT))
    _got_error: bool = False  # the newest call repeated the ones before it, so it was not run

    @contextmanager
    def detach_request(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the person moves the running command to the background (`Background`)."""
        detach = asyncio.Event()
        self.detachable.add(detach)
        try:
            yield detach
        finally:
            self.detachable.discard(detach)

    def detect_loop(self, call: ToolUse) -> bool:
        """Return True if the newest calls equal this one; if they do so in spite of the error, set `looping`."""
        is_repeated = len(self._recent) == SAME_CALL_LIMIT and len(set(self._recent)) == 1
        is_loop = self.ends_loops and is_repeated and self._recent[0][0] == _call_key(call)
        if is_loop and self._got_error:
            self.looping = call_title(call.name, call.input)
        self._got_error = is_loop
        return is_loop

    def remember(self, call: ToolUse, result: ToolResult) -> None:
        if not self._got_error:  # otherwise the result is the error
            self._recent.append((_call_key(call), str(result.content)))

    def forget_results(self) -> None:
        """Let the model repeat calls again, because the person may have asked for that."""
        self._recent.clear()
        self._got_error, self.looping = False, ""


def _call_key(call: ToolUse) -> str:
    return f"{call.name} {msgspec.json.encode(call.input, order='sorted').decode()}"


class _AnyArguments(msgspec.Struct, frozen=True):
    """Accepts any arguments, because a client's tool describes them only by its JSON Schema."""


async def _reject_local_run(arguments: object, context: ToolContext) -> ToolOutput:
    raise ToolError("Only the client can run this tool.", kind="internal_error")


def with_client_tools(tools: ToolRegistry, offered: Sequence[ToolSpec]) -> ToolRegistry:
    """Add the tools that a client offers and runs itself. Raises `UsageError` for a name that is taken."""
    known = [tool.spec() for tool in tools if tool.mode == "client"]
    new = [spec for spec in offered if spec not in known]
    return ToolRegistry((*tools, *map(client_tool, new))) if new else tools


def client_tool(spec: ToolSpec) -> Tool:
    fields: dict[str, Any] = {"source": "client", "mode": "client", "time_limit_s": None, "schema": spec.input_schema}
    return Tool(spec.name, spec.description, _AnyArguments, _reject_local_run, "none", **fields)


class CallPaused(Exception):
    """The turn no longer waits for the client's result of a call, which may come later."""


class ClientCalls(msgspec.Struct, kw_only=True):
    """Calls that wait for the client. Calls that begin to wait at the same time are handed over in one event."""

    _answers: dict[str, asyncio.Future[ToolOutput]] = msgspec.field(default_factory=dict)  # by the ids of their calls
    _new: list[ToolUse] = msgspec.field(default_factory=list)  # not handed over yet
    _has_client: bool = True
    paused: set[str] = msgspec.field(default_factory=set)  # ids of calls whose results arrive in a later turn
    # Ids of this turn's calls whose results have arrived; some may not be stored yet.
    received_ids: set[str] = msgspec.field(default_factory=set)

    async def result_of(self, call: ToolUse, hand_over: HandOver) -> ToolOutput:
        """Hand the call to the client and wait for its result. Raises `ToolError`, and `CallPaused`."""
        if call.id in self._answers:
            raise ToolError(f"A call with the id {call.id} is already waiting.", kind="validation_error")
        if not self._has_client:
            raise _client_gone()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ToolOutput] = loop.create_future()
        self._answers[call.id] = answer
        self.paused.discard(call.id)
        self._new.append(call)
        if len(self._new) == 1:  # calls that start before the loop's next iteration join `_new` and the same event
            loop.call_soon(self._hand_over_new, hand_over)
        try:
            return await answer
        finally:
            del self._answers[call.id]

    def _hand_over_new(self, hand_over: HandOver) -> None:
        calls, self._new = self._new, []
        hand_over(tuple(calls))

    @property
    def waiting_ids(self) -> Collection[str]:
        return [id for id, answer in self._answers.items() if not answer.done()]

    def set_attended(self, is_attended: bool) -> None:
        """Note if a client runs its tools. Without one, waiting calls and later ones end with an error."""
        self._has_client = is_attended
        if not is_attended:
            for id in self.waiting_ids:
                self._answers[id].set_exception(_client_gone())

    def pause(self, call_ids: Collection[str]) -> None:
        """End the wait for the results of these calls, which arrive in a later turn."""
        for id in call_ids:
            if id in self.waiting_ids:
                self._answers[id].set_exception(CallPaused())
                self.paused.add(id)

    def answer(self, call_id: str, output: ToolOutput) -> bool:
        """Deliver the client's result; return False if no call with that id was waiting."""
        self.received_ids.add(call_id)
        if is_waiting := call_id in self.waiting_ids:
            self._answers[call_id].set_result(output)
        return is_waiting


def _client_gone() -> ToolError:
    return ToolError("The client that runs this tool has disconnected. Continue without it.", kind="dependency_error")


class SkillsInUse(Protocol):
    """Decides which skills of a session are active."""

    def begin_turn(self, conversation: Conversation, *, is_resumed: bool = False) -> None: ...

    def end_turn(self, store: Callable[..., object]) -> None: ...  # ends the skills that the model activated

    def narrowed(self, tool: str, decision: PolicyDecision) -> PolicyDecision:
        """Return the decision on a call of the tool: a denial if an active skill does not allow the tool."""

    async def answer(self, call: Call, given: Any) -> ToolOutput:
        """Run a call of `skill`. Raises `ToolError`."""


class SubagentRuns(Protocol):
    """Runs the subagents of a session."""

    async def answer(self, call: Call, given: Any) -> ToolOutput:
        """Run a call of `create_subagent`. Raises `ToolError`."""

    def listing(self) -> list[dict[str, Any]]:
        """Return the names and the descriptions of the subagents that can be created."""

    def submit(self, op: Op) -> None: ...  # to all subagents that run

    def background_tasks(self) -> list[tuple[str, str]]: ...  # by id, of unfinished subagents in the background

    def take_reports(self) -> list[str]: ...  # of subagents in the background; each is returned once

    async def wait_for_report(self) -> None: ...  # of a subagent in the background, if there is one

    async def aclose(self) -> None: ...


class ToolServers(Protocol):
    """Offers the tools and resources of MCP servers to sessions."""

    async def update_tools(self, calls: SessionCalls) -> None: ...  # waits for the servers, and adds their tools

    def refresh(self, calls: SessionCalls) -> None: ...  # adds tools that were approved since

    def stop_waiting(self) -> None: ...  # for servers that are still connecting

    def listing(self) -> list[dict[str, Any]]: ...  # names and statuses


class Delegates(msgspec.Struct, kw_only=True):
    """The parts of a session that run some tools themselves; those for skills and subagents are made on demand."""

    client: ClientCalls = msgspec.field(default_factory=ClientCalls)
    make_skills: Callable[[], SkillsInUse] | None = None
    skills: SkillsInUse | None = None
    make_subagents: Callable[[], SubagentRuns] | None = None
    subagents: SubagentRuns | None = None
    servers: ToolServers | None = None
    unknown_servers: set[str] | None = None  # MCP servers without tools at the first request; None before it
    events: EventHooks | None = None

    def get_or_make_skills(self) -> SkillsInUse:
        """Return the session's skills, made at the first call. Raises `UsageError` if the session has none."""
        if self.make_skills is None:
            raise UsageError("There are no skills in this session.")
        self.skills = self.skills or self.make_skills()
        return self.skills

    def get_or_make_subagents(self) -> SubagentRuns:
        """Return the session's subagents, made at the first call. Raises `UsageError` if the session allows none."""
        if self.make_subagents is None:
            raise UsageError("There are no subagents in this session.")
        self.subagents = self.subagents or self.make_subagents()
        return self.subagents

    async def answer(self, call: Call, arguments: Any) -> ToolOutput:
        """Run a tool that needs the session itself; its code is imported at the first call. Raises `ToolError`."""
        if call.use.name == "ask_user":
            from agentcli.agent.questions import answer_ask_user

            return await answer_ask_user(call, arguments)
        try:
            delegate = self.get_or_make_subagents() if call.use.name == "create_subagent" else self.get_or_make_skills()
        except UsageError as error:
            raise ToolError(str(error), kind="validation_error") from error
        return await delegate.answer(call, arguments)


class Recording(msgspec.Struct, kw_only=True):
    """Records the changes that a session's calls make to files."""

    checkpoints: Checkpoints | None = None
    tasks: set[asyncio.Task[None]] = msgspec.field(default_factory=set)  # they store changes, some after a job's end
    dry_runs: set[asyncio.Task[None]] = msgspec.field(default_factory=set)  # they apply dry runs in the background
    is_closing: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    has_reported_gap: bool = False  # the notice that changes by commands are not recorded was shown; once is enough

    async def end(self) -> None:
        """Wait until all changes are in the log, without waiting for jobs. Background dry runs are discarded."""
        self.is_closing.set()
        for task in self.dry_runs:
            task.cancel()
        while tasks := self.dry_runs | self.tasks:
            await asyncio.wait(tasks)
        if self.checkpoints is not None:
            await self.checkpoints.aclose()


class SessionCalls(msgspec.Struct, kw_only=True):
    """The parts that the calls of a session share. Without `ask`, calls that need approval are denied."""

    services: CallServices
    tools: ToolRegistry
    ask: Ask | None = None
    agent_id: str = "main"
    parent_call: Call | None = None  # in a subagent: the call that created it; its file changes count as that call's
    history: CallHistory = msgspec.field(default_factory=CallHistory)
    delegates: Delegates = msgspec.field(default_factory=Delegates)
    recording: Recording = msgspec.field(default_factory=Recording)

    @property
    def workspace(self) -> Workspace:
        return self.services.workspace

    def is_for_client(self, call: ToolUse) -> bool:
        return call.name in self.tools and self.tools.get(call.name).mode == "client"


def done_future(*_: object) -> Awaitable[object]:
    """Return a future that is already done. Unlike a coroutine, it does not have to be awaited."""
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class TurnCalls(msgspec.Struct, kw_only=True):
    """The calls of one turn. `store` adds an entry to the log; `commit` waits until all entries are on disk."""

    session: SessionCalls
    state: AgentState
    emit: Emit
    store: Callable[[Body], Awaitable[object]] = done_future
    commit: Callable[[], Awaitable[object]] = done_future
    budgets: Budgets = msgspec.field(default_factory=Budgets)  # they also limit subagents
    denials: list[Denial] = msgspec.field(default_factory=list)
    is_stopped: bool = False

    def hand_over(self, calls: tuple[ToolUse, ...]) -> None:
        """Send calls to the client once their entry is on disk, so that results can arrive even after a crash."""
        tools = tuple(tool.spec() for tool in self.session.tools if tool.mode == "client")
        stored = asyncio.ensure_future(self.store(CallsHandedOver(tuple(call.id for call in calls), tools)))
        stored.add_done_callback(lambda _: self.emit(ClientToolRequested(calls)))

    @property
    def must_skip_calls(self) -> bool:
        """True if no further call may start, because the person sent a message or stopped the turn."""
        return self.is_stopped or bool(self.state.conversation.queue.steering)


class Call:
    """One call of a turn, with its report."""

    def __init__(self, use: ToolUse, turn: TurnCalls) -> None:
        self.use, self.turn = use, turn
        services = turn.session.services
        self.report = Report(use, turn.emit, services.mask, gives_all=services.levels.gives_all)
        self.input_change: Approve | None = None  # the yes by which the person replaced the input

    def change_input(self, answer: Approve, input: dict[str, Any]) -> None:
        """Replace the input by the person's, and add a remark about it for the model."""
        self.report.remarks.append(f"[The user changed the input: {cut_middle(msgspec.json.encode(input).decode())}]")
        self.use, self.input_change = msgspec.structs.replace(self.use, input=input), answer

    async def ask(self, question: AnyQuestion, decide_now: Decide | None) -> Approve | PolicyDecision:
        """Ask the person about the call, and store the question and the answer, or the decision that replaced it."""
        turn = self.turn
        if turn.session.ask is None:
            return Approve(question.id, allowed=False, comment=NOBODY_LEFT)
        turn.store(CallAsked(question.id, question.title, question.reason, question.rules))
        # The question is on disk before the person sees it, so that it is asked again after a crash.
        with suppress(StorageError):  # the turn reports it when it waits for its entries
            await turn.commit()
        with self.report.excluded_from_duration():
            answer = await turn.session.ask(question, decide_now)
        is_allowed = answer.allowed if isinstance(answer, Approve) else answer.outcome == "allow"
        why = answer.comment if isinstance(answer, Approve) else answer.reason
        # A question without `decide_now` is the model's own, or follows a dry run: neither can change the input.
        input = answer.input if isinstance(answer, Approve) and decide_now is not None else None
        turn.store(CallAllowed(question.id, input) if is_allowed else CallDenied(question.id, why))
        return answer


async def fire(calls: SessionCalls, event: EventName, **fields: Any) -> EventAnswer:
    events = calls.delegates.events
    return EventAnswer() if events is None else await events.fire(event, agent_id=calls.agent_id, **fields)
