"""Runs subagents: each is a session of its own that does one task; its parent passes on its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from agentcli.agent import events
from agentcli.agent.accounting import Account, UsageCollector, format_amount
from agentcli.agent.calls.model import NOBODY_LEFT, Ask, Call, Decide, Delegates, SessionCalls, TurnCalls
from agentcli.agent.interfaces import SessionLog, SessionStore, subagents_owner
from agentcli.agent.ops import Approve, Interrupt, Op, Prompt
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.agent.permissions.rules import ALIASES, Rule
from agentcli.agent.runtime import ContextWatch, TurnLimits
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, ModelChoice, restore_state
from agentcli.agent.steps.messages import NestedInstructions, usual_steps
from agentcli.conversation.entries import Assistant, Entry, Paid, User
from agentcli.errors import NoSession, ToolError, UsageError, UserError
from agentcli.extensions.skills.find import Skills, full_model_name
from agentcli.extensions.subagents.definitions import DEFAULT, AgentDefinition, Agents
from agentcli.llm.messages import Text, Usage
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix
from agentcli.models.choice import Models
from agentcli.tools.builtin.toolset import CreateSubagent
from agentcli.tools.tool import ToolOutput, ToolRegistry
from agentcli.tools.workspace import FileLedger, Workspace

MAX_RUNNING = 4  # at a time; the others wait


class AgentProgress(Struct):
    """The rounds of a subagent, the title of its newest call, and its tokens and costs."""

    rounds: int = 0
    title: str = ""
    meter: UsageCollector = field(default_factory=UsageCollector)

    @property
    def summary(self) -> str:
        """Return the rounds, the tokens and the cost as text: `3 rounds · 1,200 tokens · $0.02`."""
        rounds, usd = f"{self.rounds} round{'s' * (self.rounds != 1)}", self.meter.total.full_cost_usd
        cost = f" · {format_amount('usd', usd)}" if usd else ""
        return f"{rounds} · {self.meter.total.usage.context_tokens:,} tokens{cost}"


class AgentRun(Struct, kw_only=True):
    """A subagent of a session that waits, runs or has ended; it has a `session` only while it runs."""

    id: str
    definition: AgentDefinition
    arguments: CreateSubagent
    call: Call
    session: Session | None = None
    session_id: str = ""
    end: events.SubagentEnd | None = None
    progress: AgentProgress = field(default_factory=AgentProgress)


class Subagents:
    """Runs the subagents of a session. Those in the background add to `reports`, which start its next turn."""

    id_prefix = ""  # if set, all ids begin with it instead of the name of the definition

    def __init__(self, child_sessions: ChildSessions) -> None:
        self.definitions = child_sessions.agents.definitions
        self.runs: list[AgentRun] = []
        self.reports: list[str] = []
        self._child_sessions = child_sessions
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._background: dict[str, asyncio.Task[None]] = {}  # the unfinished ones in the background, by id

    async def answer(self, call: Call, arguments: CreateSubagent) -> ToolOutput:
        """Let a subagent do a task, and return its answer; in the background, a notice. Raises `ToolError`."""
        if not arguments.task.strip():
            raise ToolError("The task is empty. Say all that the subagent needs to know.", kind="invalid_parameters")
        if (definition := self._child_sessions.agents.find(arguments.agent or DEFAULT)) is None:
            names = ", ".join(self.definitions)
            raise ToolError(f"Unknown agent {arguments.agent!r}. Choose one of {names}.", kind="not_found")
        id = f"{self.id_prefix or definition.name}-{len(self.runs) + 1}"
        run = AgentRun(id=id, definition=definition, arguments=arguments, call=call)
        self.runs.append(run)
        if not arguments.background:
            return await self._run(run)
        self._background[id] = task = asyncio.create_task(self._run_in_background(run))
        task.add_done_callback(lambda done: self._background.pop(id, None))
        text = f"{id} is running in the background. You will get its report automatically."
        return ToolOutput(text, summary="in the background")

    async def _run_in_background(self, run: AgentRun) -> None:
        try:
            output = str((await self._run(run)).content)
        except ToolError as error:
            output = str(error)
        self.reports.append(f"<system-reminder>The subagent {run.id} reports:\n{output}</system-reminder>")
        self._child_sessions.parent.deliver_reports()

    async def _run(self, run: AgentRun) -> ToolOutput:
        """Run a subagent as soon as fewer than `MAX_RUNNING` others run, and return its answer. Raises `ToolError`."""
        try:
            async with self._slots:
                try:
                    child = await self._child_sessions.make(run)
                except UserError as error:
                    raise ToolError(str(error), kind="validation_error") from error
                last_event = await self._run_session(run, child)
        except ToolError:
            run.end = run.end or "failed"
            raise
        finally:
            run.end = run.end or "stopped"  # it was cancelled, perhaps before it had begun
        run.call.turn.denials.extend(last_event.denials)  # the parent's turn reports them, too
        return _format_answer(run, last_event, _answer_texts(child))

    async def _run_session(self, run: AgentRun, child: Session) -> events.Done | events.TurnFailed:
        """Let the session `child` do the task, close it whatever happens, and return the end of its turn."""
        turn, use_id = run.call.turn, run.call.use.id
        run.session, run.session_id, run.progress.meter = child, child.id, child.state.meter
        child.runtime.calls.ask = self._parent_asker(run) if turn.session.ask is not None else None
        agent, task, model = run.definition.name, run.arguments.task, child.state.model.name
        turn.emit(events.SubagentStarted(run.id, use_id, agent, task, child.id, model, agent_id=run.id))
        try:
            return await self._relay_events(run, child)
        finally:
            try:
                await _close(child)
            finally:
                run.session, run.end = None, run.end or "stopped"
                rounds, total, text = run.progress.rounds, child.state.meter.total, _answer_texts(child)
                usage, usd = total.usage, total.full_cost_usd
                turn.emit(events.SubagentEnded(run.id, use_id, run.end, rounds, usage, usd, text, agent_id=run.id))

    async def _relay_events(self, run: AgentRun, child: Session) -> events.Done | events.TurnFailed:
        """Give the subagent its task and pass its events on, until the last one, which is returned."""
        async with aclosing(child.subscribe()) as child_events:
            child.submit(Prompt((Text(run.arguments.task),)))
            async for event in child_events:
                match event:
                    case events.Done() | events.TurnFailed() if child.is_busy:
                        continue  # the child goes on with a message that came too late for this turn
                    case events.Done() | events.TurnFailed():
                        run.progress.rounds = event.turns
                        run.end = "failed" if isinstance(event, events.TurnFailed) else _ENDS.get(event.reason, "done")
                        return event
                    case events.ToolStarted(title=title):
                        run.progress.title = title
                    case events.UsageReported():
                        run.progress.rounds += 1
                run.call.turn.emit(event)
        raise AssertionError("a subscription does not end by itself")

    def _parent_asker(self, run: AgentRun) -> Ask:
        """Return a function that asks the person the subagent's questions, with ids that name the subagent."""

        async def ask(question: events.AnyQuestion, decide_now: Decide | None) -> Approve | PolicyDecision:
            if (ask_person := run.call.turn.session.ask) is None:  # the last front end has left meanwhile
                return Approve(question.id, allowed=False, comment=NOBODY_LEFT)
            id, title = f"{run.id}/{question.id}", f"{run.id}: {question.title}"
            try:
                answer = await ask_person(replace(question, id=id, title=title, agent_id=run.id), decide_now)
            except asyncio.CancelledError:  # the subagent is stopped while it waits for the answer
                run.call.turn.emit(events.ApprovalSettled(id, agent_id=run.id))
                raise
            if isinstance(answer, Approve) and answer.stops and not answer.allowed and run.session is not None:
                run.session.submit(Interrupt())  # the person stops the whole subagent
            return answer

        return ask

    async def transcript(self, id: str) -> Sequence[Entry]:
        """Return the entries of a subagent, by its own id or that of its session. Raises `UserError`."""
        run = next((run for run in self.runs if run.id == id), None)
        if run is not None and run.session is not None:
            return run.session.state.conversation.path
        session_id, sessions = run.session_id if run else id, self._child_sessions
        _, entries = await sessions.store.load(session_id, user_id=sessions.owner)
        return entries

    def listing(self) -> list[dict[str, Any]]:
        return [{"name": kind.name, "description": kind.description} for kind in self.definitions.values()]

    def submit(self, op: Op) -> None:
        for run in self.runs:
            if run.session is not None:
                run.session.submit(op)

    def background_tasks(self) -> list[tuple[str, str]]:
        return [(run.id, run.arguments.task) for run in self.runs if run.id in self._background]

    def take_reports(self) -> list[str]:
        reports, self.reports = self.reports, []
        return reports

    async def wait_for_report(self) -> None:
        if self._background and not self.reports:
            await asyncio.wait(self._background.values(), return_when="FIRST_COMPLETED")

    async def aclose(self) -> None:
        tasks = list(self._background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _close(child: Session) -> None:
    """Close a subagent's session, and raise a cancellation of the parent only after that."""
    closing = asyncio.ensure_future(child.close())
    try:
        await asyncio.shield(closing)
    finally:
        while not closing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((closing,))


def _answer_texts(child: Session) -> str:
    """Return all texts of the answer to the newest prompt, the newest last."""
    texts: list[str] = []
    for body in (entry.body for entry in child.state.conversation.path):
        match body:
            case User(is_reminder=False):
                texts = []
            case Assistant(content=content):
                texts.append("".join(block.text for block in content if isinstance(block, Text)).strip())
    return "\n\n".join(filter(None, texts))


# The end of a subagent by the reason why its last turn ended; any other reason means "done".
_ENDS: dict[str, events.SubagentEnd] = {
    "max_turns": "limit", "max_budget": "limit", "interrupted": "stopped", "declined": "stopped", "stopped": "stopped",
}  # fmt: skip
_UNFINISHED = {  # the first sentence of an unfinished subagent's result
    "failed": "The subagent failed: {error}",
    "limit": "The subagent reached its limit ({reason}).",
    "stopped": "The subagent was stopped before it finished.",
}


def _format_answer(run: AgentRun, last_event: events.Done | events.TurnFailed, texts: str) -> ToolOutput:
    """Return a subagent's result. An unfinished subagent answers with all of its `texts` so far."""
    used, cost_usd = run.progress.summary, run.progress.meter.total.full_cost_usd
    footer = f"[{run.id}: {used} · session {run.session_id}]"
    if isinstance(last_event, events.Done) and run.end == "done":
        paragraphs = [last_event.text, footer]
    else:
        # `TurnFailed` has an error, `Done` a reason.
        error, reason = getattr(last_event, "error", ""), getattr(last_event, "reason", "")
        why = _UNFINISHED.get(run.end or "", "").format(error=error, reason=reason)
        paragraphs = [why, texts or "It had not answered anything yet.", footer]
    content = "\n\n".join(filter(None, paragraphs))
    structured = {"agent": run.definition.name, "session_id": run.session_id, "end": run.end, "cost_usd": cost_usd}
    return ToolOutput(content, structured, f"{run.end} · {used}", is_error=run.end == "failed")


NOT_FOR_SUBAGENTS = ("create_subagent", "ask_user")
_EFFECTS_IN_PLAN_MODE = frozenset(("none", "read", "web", "command"))  # of tools in plan mode


class _ChargingMeter(UsageCollector):
    """Counts the requests of a subagent, and stores their cost in the log of the parent's turn."""

    def __init__(self, parent: TurnCalls) -> None:
        super().__init__()
        self._parent = parent

    def add_request(
        self, model: str, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0
    ) -> None:
        super().add_request(model, usage, cost_usd, duration_ms=duration_ms, retries=retries)
        self._parent.store(Paid(model=model, usage=usage, cost_usd=cost_usd, reason="subagent"))


class ContextParts(Struct, frozen=True, kw_only=True):
    """Functions of the session's builder that make the parts of a conversation's context."""

    prefix_for: Callable[[str], Callable[[ModelInfo, ToolRegistry], Prefix]]  # by the agent's prompt
    nested_instructions: Callable[[], NestedInstructions | None]  # the instruction files of folders
    watch: Callable[[AgentState, Workspace, Any], ContextWatch]
    first_reminders: Callable[[Workspace, ModelInfo], list[User]]  # the system reminders before the first prompt


class ChildSessions(Struct, frozen=True, kw_only=True):
    """Makes the sessions of the subagents of one parent."""

    parent: Session
    store: SessionStore
    agents: Agents
    models: Models
    skills: Skills
    context: ContextParts

    @property
    def owner(self) -> str:  # the user id under which the subagents' sessions are stored
        return subagents_owner(self.parent.id)

    async def make(self, run: AgentRun) -> Session:
        """Return the session of a subagent, ready for its task. Raises `UserError` and `ToolError`.

        It starts in the parent's mode, shares its sandbox and rules, and spends from the budgets of the parent's turn.
        It has its own log, conversation, compaction, record of the files that it has seen, and shell folder.
        """
        runtime, parent, call = self.parent.runtime, self.parent.state, run.call
        tools = self._allowed_tools(runtime.calls.tools, run)
        log, entries = await self._open_log(run)
        resources = replace(runtime.calls.workspace.resources, past=None)  # `past` searches the parent's log
        workspace = replace(runtime.calls.workspace, files=FileLedger(), shell_cwd=None, resources=resources)
        account = Account("subagent", {"usd": run.arguments.max_budget_usd} if run.arguments.max_budget_usd else {})
        model = ModelChoice(name=self._model_name(run, parent.model.name), effort=parent.model.effort)
        budgets = call.turn.budgets.within(account)
        state = restore_state(AgentState(model=model, mode=parent.mode, rules=parent.rules, budgets=budgets), entries)
        state.meter = _ChargingMeter(call.turn)  # the parent's turn pays
        if not entries:  # a new subagent; in the log of a resumed one, the reminders are there already
            state.notes.extend(self.context.first_reminders(workspace, self.models.info(state.model.name)))
        state.add_mode_note()  # for a resumed subagent: the parent's mode may have changed since its last run
        instructions = self.context.nested_instructions()
        watch = self.context.watch(state, workspace, instructions)
        delegates = runtime.calls.delegates
        calls = SessionCalls(
            services=replace(runtime.calls.services, workspace=workspace),
            tools=tools,
            agent_id=run.id,
            parent_call=call,
            delegates=Delegates(client=delegates.client, events=delegates.events),  # without subagents of its own
            recording=runtime.calls.recording,
        )
        settings = self.agents.plugins.config.settings.agents
        # Of the limits that are set, the lowest applies.
        max_turns = min(filter(None, (run.arguments.max_turns, run.definition.max_turns, settings.max_turns)))
        child_runtime = replace(
            runtime,
            models=replace(runtime.models, prefix_for=self.context.prefix_for(run.definition.prompt)),
            calls=calls,
            log=log,
            steps=usual_steps(nested=instructions),
            # A broken-off answer is continued once, because no person is asked.
            limits=TurnLimits(max_turns=max_turns, max_tokens=runtime.limits.max_tokens, max_breaks=1),
            context=replace(runtime.context, policy=watch, watch=watch),  # compacts this conversation, not the parent's
            collect=lambda session_id, entry: None,  # only the parent's own entries are collected
        )
        session = Session(state, child_runtime)
        watch.paid = session.record_cost  # for the summaries of compactions
        self.skills.attach(session, self.models, parent_skills=delegates.skills)
        if delegates.skills is not None:  # the parent's skills restrict these tools, too
            calls.delegates.get_or_make_skills()
        return session

    async def _open_log(self, run: AgentRun) -> tuple[SessionLog, Sequence[Entry]]:
        """Return a new log, or if the call resumes an earlier subagent, its log and entries. Raises `UserError`."""
        if resumed := run.arguments.resume:
            try:
                info, _ = await self.store.load(resumed, user_id=self.owner)
            except NoSession as error:
                raise UsageError(f"{resumed} is not a subagent of this session.") from error
            return await self.store.open(info.id)
        name = f"{run.id}: {' '.join(run.arguments.task.split())[:60]}"
        return await self.store.create(cwd=self.agents.plugins.config.cwd, name=name, user_id=self.owner), []

    def _model_name(self, run: AgentRun, current: str) -> str:
        """Return the model that the call, the settings or the definition names, else `current`. Raises `UsageError`."""
        agent, in_call = run.definition.name, run.arguments.model
        name = in_call or self.agents.plugins.config.settings.agents.models.get(agent) or run.definition.model
        if not name:
            return current
        try:
            if name.startswith("scripted/") and not current.startswith("scripted/"):
                raise UsageError("a script works only if it was chosen for the session.")
            return full_model_name(name, current, self.models)
        except UsageError as error:
            if in_call:  # the calling model can choose another one
                raise
            notice = f"The agent {agent} asks for {name}: {error} Continuing with {current}."
            self.parent.publish(events.Notice(notice))
            return current

    def _allowed_tools(self, tools: ToolRegistry, run: AgentRun) -> ToolRegistry:
        """Return the parent's tools that its mode, the definition and the call allow. Raises `ToolError`."""
        definition, names = run.definition, run.arguments.tools
        denied = [Rule(name) for name in definition.denied_tools]
        excluded = [tool.name for tool in tools if any(rule.is_about(tool.name) for rule in denied)]
        tools = tools.clone(exclude=(*NOT_FOR_SUBAGENTS, *excluded))
        if definition.tools is not None:
            rules = [Rule(name) for name in definition.tools]
            tools = tools.clone(only=[tool.name for tool in tools if any(rule.is_about(tool.name) for rule in rules)])
        if names is not None:
            in_call = [ALIASES.get(name, name) for name in names]
            if missing := [name for name in in_call if name not in tools]:
                known = ", ".join(tool.name for tool in tools)
                raise ToolError(f"{definition.name} has no tool {missing[0]!r}; there is {known}.", kind="not_found")
            tools = tools.clone(only=in_call)
        if self.parent.state.mode == "plan":
            tools = tools.clone(only=[tool.name for tool in tools if tool.effect in _EFFECTS_IN_PLAN_MODE])
        return tools
