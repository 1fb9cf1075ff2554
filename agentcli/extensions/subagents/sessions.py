"""Makes the sessions of subagents: the parent's parts, with a conversation, tools and limits of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentcli.agent.accounting.budgets import Account
from agentcli.agent.accounting.usage import UsageCollector
from agentcli.agent.calls.model import Delegates, SessionCalls, TurnCalls
from agentcli.agent.context.window import ContextWatch
from agentcli.agent.events import Notice
from agentcli.agent.interfaces import SessionLog, SessionStore, subagents_owner
from agentcli.agent.permissions.modes import mode_notes
from agentcli.agent.permissions.rule_text import ALIASES
from agentcli.agent.permissions.rules import Rule
from agentcli.agent.runtime import Runtime, TurnLimits
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, ModelChoice, rebuilt
from agentcli.agent.steps import usual_steps
from agentcli.agent.steps.messages import NestedInstructions
from agentcli.conversation.entries import Entry, Paid, User
from agentcli.errors import NoSession, ToolError, UsageError
from agentcli.extensions.skills.find import Skills, model_named
from agentcli.extensions.subagents.definitions import Agents
from agentcli.extensions.subagents.running import AgentRun
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix
from agentcli.models.choice import Models
from agentcli.tools.file_ledger import FileLedger
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.tool import Workspace

NOT_FOR_SUBAGENTS = ("create_subagent", "ask_user")
_IN_PLAN_MODE = frozenset(("none", "read", "web", "command"))


class _RollingMeter(UsageCollector):
    """Counts requests for the turn that made the subagent as well."""

    def __init__(self, parent: TurnCalls) -> None:
        super().__init__()
        self._parent = parent

    def add_request(
        self, model: str, usage: Usage, cost_usd: float | None, duration_ms: int = 0, retries: int = 0
    ) -> None:
        super().add_request(model, usage, cost_usd, duration_ms, retries)
        self._parent.store(Paid(model, usage, cost_usd, "subagent"))


@dataclass(frozen=True, kw_only=True)
class ChildSessions:
    """Makes the sessions of the subagents of one parent; `prefix_for` begins an agent's requests, by its prompt."""

    parent: Session
    store: SessionStore
    agents: Agents
    models: Models
    prefix_for: Callable[[str], Callable[[ModelInfo, ToolRegistry], Prefix]]
    nested: Callable[[], NestedInstructions | None]
    skills: Skills
    watch: Callable[[AgentState, Workspace, Any], ContextWatch]
    notes: Callable[[Workspace, ModelInfo], list[User]]

    async def make(self, run: AgentRun) -> Session:
        """The session of a subagent, ready for its task. Raises `UserError`, `ToolError`."""
        runtime, parent, call, given = self.parent.runtime, self.parent.state, run.call, run.given
        tools = self._tools(runtime.calls.tools, run)
        if parent.mode == "plan" and (changing := [tool.name for tool in tools if tool.effect not in _IN_PLAN_MODE]):
            tools = tools.clone(exclude=changing)
        log, entries = await self._log(run)
        workspace = replace(runtime.calls.workspace, files=FileLedger(), shell_cwd=None, past=None)
        limits: dict[str, float] = {"usd": given.max_budget_usd} if given.max_budget_usd else {}
        state = AgentState(
            model=ModelChoice(name=self._model(run, parent.model.name), effort=parent.model.effort),
            mode=parent.mode,
            rules=parent.rules,
            budgets=call.turn.budgets.within(Account("subagent", limits)),  # type: ignore[arg-type]
        )
        state = rebuilt(state, entries)
        state.meter = _RollingMeter(call.turn)
        info = self.models.info(state.model.name)
        if not entries:
            state.notes.extend(self.notes(workspace, info))
        state.notes.extend(mode_notes("default", state.mode))
        nested = self.nested()
        watch = self.watch(state, workspace, nested)
        delegates = runtime.calls.delegates
        calls = SessionCalls(
            services=replace(runtime.calls.services, workspace=workspace),
            tools=tools,
            agent_id=run.id,
            made_by=call,
            delegates=Delegates(client=delegates.client, events=delegates.events),
            recording=runtime.calls.recording,
        )
        session = Session(state, self._runtime(run, calls, log, watch=watch, nested=nested))
        watch.paid = session.paid
        self.skills.attach(session, self.models, outer=delegates.skills)
        if delegates.skills is not None:  # what narrows the parent's tools holds here, too
            calls.delegates.open_skills()
        return session

    def _runtime(
        self, run: AgentRun, calls: SessionCalls, log: SessionLog, *, watch: ContextWatch, nested: Any
    ) -> Runtime:
        parent, max_turns = self.parent.runtime, self.agents.config.settings.agents.max_turns
        most = min(run.given.max_turns or max_turns, max_turns)
        return replace(
            parent,
            models=replace(parent.models, prefix_for=self.prefix_for(run.definition.prompt)),
            calls=calls,
            log=log,
            steps=usual_steps(nested=nested),
            limits=TurnLimits(most, parent.limits.max_tokens, max_breaks=1),
            context=replace(parent.context, policy=watch, watch=watch),
            collect=lambda session_id, entry: None,
        )

    async def _log(self, run: AgentRun) -> tuple[SessionLog, Sequence[Entry]]:
        owner = subagents_owner(self.parent.id)
        if resumed := run.given.resume:
            try:
                info, _ = await self.store.load(resumed, user_id=owner)
            except NoSession as error:
                raise UsageError(f"{resumed} is no subagent of this session.") from error
            return await self.store.open(info.id)
        name = f"{run.id}: {' '.join(run.given.task.split())[:60]}"
        return await self.store.create(cwd=self.agents.config.cwd, name=name, user_id=owner), []

    def _model(self, run: AgentRun, now: str) -> str:
        definition, given = run.definition, run.given
        wanted = given.model or self.agents.config.settings.agents.models.get(definition.name) or definition.model
        if not wanted:
            return now
        try:
            if wanted.startswith("scripted/") and not now.startswith("scripted/"):
                raise UsageError("a script answers only where one was chosen for the session.")
            return model_named(wanted, now, self.models)
        except UsageError as error:
            if given.model:
                raise
            self.parent.publish(Notice(f"The agent {definition.name} asks for {wanted}: {error} Going on with {now}."))
            return now

    def _tools(self, tools: ToolRegistry, run: AgentRun) -> ToolRegistry:
        """The parent's tools as far as the definition and the call leave them. Raises `ToolError`."""
        definition, given = run.definition, run.given
        left = tools.clone(exclude=NOT_FOR_SUBAGENTS)
        if definition.tools is not None:
            wished = [Rule(name) for name in definition.tools]
            left = left.clone(only=[tool.name for tool in left if any(rule.names(tool.name) for rule in wished)])
        if given.tools is not None:
            wanted = [ALIASES.get(name, name) for name in given.tools]
            if missing := [name for name in wanted if name not in left]:
                known = ", ".join(tool.name for tool in left)
                raise ToolError(f"{definition.name} has no tool {missing[0]!r}; there is {known}.", kind="not_found")
            left = left.clone(only=[tool.name for tool in left if tool.name in wanted])
        return left
