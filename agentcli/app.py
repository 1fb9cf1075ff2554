"""Builds sessions from the settings and a caller's options; the only module that knows every part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from msgspec import structs

from agentcli.agent.calls.model import CallServices, SessionCalls
from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.agent.permissions.modes import parse_mode
from agentcli.agent.permissions.rules import Rules
from agentcli.agent.questions import make_ask
from agentcli.agent.runtime import ContextWatch, ModelAccess, Runtime, TurnLimits, TurnStep, call_resolver
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, ModelChoice, chosen_model, restore_state
from agentcli.agent.steps.messages import NestedInstructions, usual_steps
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry, SkillActivated, User
from agentcli.conversation.history import LogSearch, carried_reminders
from agentcli.errors import StorageError, ToolError
from agentcli.extensions.programs import Hooks, Plugins, WorkspacePrograms
from agentcli.extensions.skills.find import Skills, full_model_name
from agentcli.extensions.subagents.definitions import Agents
from agentcli.infra.sessions.sqlite import can_resume
from agentcli.infra.shared import FileLocks
from agentcli.infra.state_files import DataFolder, FileGrants, SummaryFiles
from agentcli.llm.messages import user_message
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider, ReplyLimits, Request, RetryPolicy
from agentcli.models.choice import Models
from agentcli.settings.files import project_root
from agentcli.settings.load import Config
from agentcli.setup import options as setup
from agentcli.setup import workspace as workspaces
from agentcli.setup.prefix import PrefixBuilder, new_reminders
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.observation import Levels
from agentcli.tools.own_tools import as_session_tool
from agentcli.tools.tool import ToolRegistry
from agentcli.tools.workspace import Workspace

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor
    from agentcli.extensions.mcp.servers import Servers
    from agentcli.extensions.subagents.running import Subagents


class Builder:
    """Builds sessions with one configuration and one store; closes the store at the end if it `owns_store`."""

    def __init__(
        self,
        config: Config,
        *,
        store: SessionStore,
        options: setup.SessionOptions = setup.SessionOptions(),
        can_ask: bool = False,  # somebody can answer questions
        is_interactive: bool = False,  # a person is at a screen
        resumes_answers: bool = False,  # an answer that breaks off is continued once
        owns_store: bool = True,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.store, self._options = config, store, options
        self.models = Models(config, on_notice=on_notice)
        self.programs = WorkspacePrograms(config)  # those that hooks and MCP servers run
        self.plugins = Plugins(
            config=config, is_bare=options.is_bare, on_notice=on_notice, folders=options.added.plugin_folders
        )
        self.skills = Skills(plugins=self.plugins, added=options.added.skill_folders)
        self.hooks = Hooks(self.plugins, self.programs)
        self.agents = Agents(plugins=self.plugins, added=options.added.agents)
        self.prefixes = PrefixBuilder(
            config=config, options=options, skills=self.skills.listing, agents=self.agents.listing, on_notice=on_notice
        )
        self._can_ask, self._is_interactive = can_ask or is_interactive, is_interactive
        self._resumes_answers, self._owns_store, self._on_notice = resumes_answers, owns_store, on_notice
        self._telemetry = setup.SessionTelemetry(
            config, self.models, Mask(partial(workspaces.make_masker, config)).text, on_notice, is_interactive
        )
        state = config.paths.state
        self._large_results = DataFolder(
            folder=state / "data",
            outputs=state / "jobs",
            is_resumable=partial(can_resume, config.paths.sessions),  # results of these sessions are never deleted
            settings=config.settings.data,
        )
        self._workspaces = workspaces.WorkspaceFactory(config, options, self._large_results, self.programs)
        self._grants = FileGrants(state / "grants.json", project_root(config.cwd))

    async def build_session(self, choice: setup.SessionChoice = setup.SessionChoice(), *, model: str = "") -> Session:
        """Return a session; its `model` is by default the stored one or that of the settings. Raises `UserError`."""
        registry = self.offered_tools()  # a wrong setting fails before a log is opened
        log, entries = await setup.open_log(choice, self.store, self._large_results, self.config.cwd)
        rules = self.rules()
        await asyncio.to_thread(workspaces.finish_interrupted_dry_runs, self.config.paths.state, self._on_notice)
        client_files = self._options.client_files(log.session_id) if self._options.client_files else None
        workspace = self._workspaces.make(log.session_id, rules, client_files=client_files)
        budgets = setup.session_budgets(self.config)
        mode = parse_mode(self.config.settings.permissions.mode)
        state = restore_state(AgentState(model=ModelChoice(name=""), mode=mode, rules=rules, budgets=budgets), entries)
        state.model.name = model or self.model_of(state.conversation) or await self.models.default()
        if not self._can_ask:
            state.conversation.queue.follow_ups.clear()  # queued in an earlier process: only a person sends them now
        info = self.models.info(state.model.name)  # a wrong name fails now, not after the first prompt
        self.models.provider(state.model.name)
        # The next request gets the reminders that a resumed conversation lacks, and one if plan mode has changed.
        state.notes.extend(new_reminders(self.prefixes.reminders(workspace, info), state))
        state.add_mode_note()
        nested = self.prefixes.nested_instructions()
        watch = self._watch(state, workspace, nested)
        calls = self.session_calls(registry, workspace)
        checkpoints = workspaces.make_checkpoints(
            self.config, log.session_id, lambda: workspace.facts.roots, is_lasting=self.store.is_lasting
        )
        if client_files and checkpoints:  # saves the editor's unsaved changes of a file before a call edits it
            checkpoints = client_files.checkpoints(checkpoints)
        calls.recording.checkpoints = checkpoints
        session = Session(state, self._runtime(calls, log, watch, usual_steps(nested=nested)), can_ask=self._can_ask)
        session.private_folder = self.config.paths.state / "jobs"
        watch.paid = session.record_cost  # for summaries; set here, because the session is made after the watch
        self._telemetry.follow(session)
        self._attach_skills_and_agents(session, entries)
        if self.servers is not None:
            self.servers.attach(session, can_skip=self._is_interactive)
            if self._can_ask:  # connect while the person types; otherwise they connect at a call
                self.servers.start()
        await self._attach_hooks(session)
        # If a process of this session was killed during a call, record what the call changed, so it can be undone.
        if checkpoints and workspaces.has_interrupted_calls(self.config, log.session_id):
            from agentcli.agent.calls.perform import store_interrupted_changes

            try:
                await store_interrupted_changes(checkpoints, entries, session.append)
            except (StorageError, ToolError) as error:  # the next start of the session tries it again
                self._on_notice(str(error))
        return session

    def model_of(self, conversation: Conversation) -> str:
        """Return the model of a stored conversation; "" for a new one, or if a flag names a model."""
        is_named_by_flag = any(layer.holds("provider.model") for layer in self.config.layers[-1:])  # flags come last
        return "" if is_named_by_flag else chosen_model(conversation)

    def _runtime(
        self, calls: SessionCalls, log: SessionLog, watch: ContextWatch, steps: list[Callable[[], TurnStep]]
    ) -> Runtime:
        """Return the services and limits that a session's loop uses, from the settings and from the caller's parts."""
        settings, limits, parts = self.config.settings, self.config.settings.limits, self._options.parts
        context = structs.replace(
            parts.context,
            policy=parts.context.policy or watch,  # may compact before each request; a caller can pass its own policy
            watch=watch,  # compacts at the person's request, and after a request that was too long
            warn_at=settings.compaction.warn_at,
            count_texts=self.models.count_texts,
            rules=self.prefixes.rule_file_finder(),
        )
        return Runtime(
            models=ModelAccess(
                resolve=self._resolve,
                small=self._small_model,
                prefix_for=self.prefixes.prefix,
                info=self.models.info,
                fallback=settings.provider.fallback_model,
                retry=RetryPolicy(
                    settings.retry.max,
                    settings.retry.initial_delay,
                    ReplyLimits(limits.max_reply_mb, limits.max_arguments_mb, limits.max_reply_s),
                ),
                temperature=settings.tokens.temperature,
                effort=settings.tokens.effort,
            ),
            calls=calls,
            log=log,
            steps=steps,
            limits=TurnLimits(
                max_turns=limits.max_turns or (100 if self._is_interactive else 25),  # a person can interrupt it
                max_tokens=settings.tokens.max_output,
                is_interactive=self._is_interactive,
                budgets=setup.budget_of(settings.budgets, "turn"),
                waits_for_reset=limits.wait_for_reset,
                max_breaks=1 if self._resumes_answers else 0,
            ),
            context=context,
            hooks=parts.hooks,
        )

    @cached_property
    def servers(self) -> Servers | None:
        """The MCP servers of the settings and the caller; None if there are none, or if no tool of theirs is used."""
        config, settings, mcp = self.config, self.config.settings, self._options.mcp
        takes_others = settings.mcp.enabled and not mcp.is_strict  # also servers that the caller did not name
        plugins = [plugin for plugin in self.plugins.active if plugin.servers] if takes_others else []
        # The settings may have servers, and so may a file of a trusted project (`.mcp.json`), which is not read yet.
        may_be_configured = bool(settings.mcp_servers or config.project.is_allowed)
        reads_configured = takes_others and may_be_configured and not self._options.is_bare
        if not (reads_configured or plugins or mcp.files or mcp.servers or mcp.clients):
            return None
        from agentcli.extensions.mcp.config import make_servers, server_specs  # imported late: few people have servers

        specs = server_specs(
            config, self._on_notice, files=mcp.files, added=mcp.servers, is_strict=not reads_configured, plugins=plugins
        )
        uses_their_tools = not settings.tools.only or any(name.startswith("mcp__") for name in settings.tools.only)
        if not uses_their_tools or not (specs or mcp.clients):
            return None
        return make_servers(config, specs, self.programs, self._on_notice, clients=mcp.clients)

    def _with_server_tools(self, tools: ToolRegistry) -> ToolRegistry:
        return tools if self.servers is None else ToolRegistry((*tools, *self.servers.tools()))

    def _attach_skills_and_agents(self, session: Session, entries: Sequence[Entry]) -> None:
        """Let a session use skills and subagents. They are loaded at first use, or now if a skill was active before."""
        calls = session.runtime.calls
        self.skills.attach(session, self.models)
        if "create_subagent" in calls.tools:
            calls.delegates.make_subagents = partial(self._subagents, session)
        if any(isinstance(entry.body, SkillActivated) for entry in entries):
            calls.delegates.get_or_make_skills()

    async def _attach_hooks(self, session: Session) -> None:
        if (hooks := self.hooks.for_session(session.id, lambda: session.state.mode)) is not None:
            from agentcli.extensions.hooks.run import attach_hooks
            from agentcli.frontends.agent_sdk.transcripts import HookTranscript

            hooks.context.transcript = HookTranscript(session).path
            await attach_hooks(session, hooks)
            # Set last: hooks of the session's start may not ask, because no front end could show a question yet.
            hooks.context.ask = make_ask(session.runtime.calls)

    def _subagents(self, session: Session) -> Subagents:
        from agentcli.extensions.subagents.running import ChildSessions, ContextParts, Subagents

        context = ContextParts(
            prefix_for=lambda prompt: self.prefixes.for_agent(prompt).prefix,
            nested_instructions=self.prefixes.nested_instructions,
            watch=self._watch,
            first_reminders=self.prefixes.reminders,
        )
        store, agents, models, skills = self.store, self.agents, self.models, self.skills
        return Subagents(
            ChildSessions(parent=session, store=store, agents=agents, models=models, skills=skills, context=context)
        )

    def _watch(self, state: AgentState, workspace: Workspace, nested: NestedInstructions | None) -> ContextWatch:
        """Return the watch that compacts a conversation in time; also let `recall` search the conversation's log."""
        settings, conversation = self.config.settings.compaction, state.conversation

        def reminders_to_carry(info: ModelInfo) -> Sequence[User]:
            """Return the reminders that each compaction repeats, because it replaces the messages that had them."""
            reminders = [*self.prefixes.reminders(workspace, info), *carried_reminders(conversation.path)]
            if nested is not None:  # add the instruction files of folders that none of these reminders contains
                carried_text = "".join(one.text for one in reminders)
                if reminder := nested.read_again(conversation, carried_text).to_reminder():
                    reminders.append(reminder)
            return reminders

        async def choose_summary_model(may_be_small: bool) -> tuple[Provider, ModelInfo]:
            if settings.summary_model:
                return self._provider_of(settings.summary_model)
            return await (self._small_model if may_be_small else self._resolve)(state)

        def make_compactor() -> Compactor:  # called when it is first needed: the import takes time
            from agentcli.agent.context.compaction import Compactor, Summaries, TextCache

            cache: TextCache = {}  # in memory for sessions that are not stored
            if self.store.is_lasting:
                cache = SummaryFiles(
                    self.config.paths.state / "summaries", hours=settings.cache_hours, max_files=settings.cache_entries
                )
            return Compactor(
                settings=settings,
                first_reminders=reminders_to_carry,
                summaries=Summaries(
                    settings=settings,
                    choose_writer=choose_summary_model,
                    paid=watch.paid,  # `session.record_cost` by now, because the session exists when this is called
                    cache=cache,
                    budgets=state.budgets,
                ),
            )

        watch = ContextWatch(settings, make_compactor)
        workspace.resources.past = partial(LogSearch, conversation)  # for `recall`: the log has what was compacted
        return watch

    def session_calls(self, registry: ToolRegistry, workspace: Workspace) -> SessionCalls:
        """Return the part of a session that decides on tool calls and runs them in a workspace."""
        settings = self.config.settings
        services = CallServices(
            workspace=workspace,
            locks=self._options.parts.locks or FileLocks(self.config.paths.state / "file_locks"),
            grants=self._grants,
            mask=Mask(partial(workspaces.make_masker, self.config)),
            hooks=self._options.parts.call_hooks,
            levels=Levels(settings.tools.output_level, settings.tools.output_levels),
            max_parallel=settings.tools.max_parallel,
            dry_runs=settings.permissions.tries,
        )
        return SessionCalls(services=services, tools=registry)

    @cached_property
    def _all_tools(self) -> ToolRegistry:
        """The built-in tools and the caller's own, whatever the settings say."""
        return ToolRegistry((*builtin_tools(), *map(as_session_tool, self._options.parts.tools)))

    def tool_registry(self) -> ToolRegistry:
        """Return all tools, or those that the settings name. Raises `ConfigError` for a name that no tool has."""
        return self._with_server_tools(setup.named_tools(self.config, self._all_tools))

    def offered_tools(self) -> ToolRegistry:
        """Return the tools of `tool_registry` that can work here: without a key a web search could only fail."""
        tools = setup.named_tools(self.config, self._all_tools)
        can_work = {
            "memory": self._workspaces.has_memory,
            "skill": "skill" in tools and bool(self.skills.offered),  # `offered` searches folders: only if it is needed
            "create_subagent": self.config.settings.agents.enabled,
            "web_search": self._options.parts.search is not None or setup.has_key(self.config, "TAVILY_API_KEY"),
        }
        left_out = [tool.name for tool in tools if tool.source == "builtin" and not can_work.get(tool.name, True)]
        if "web_search" in left_out and "web_search" in self.config.settings.tools.only:
            self._on_notice("web_search is off because it needs a Tavily API key (TAVILY_API_KEY).")
        return self._with_server_tools(tools.clone(exclude=left_out))

    def workspace(self, rules: Rules | None = None) -> Workspace:
        """Return a workspace without a session, for running single tools."""
        workspaces.finish_interrupted_dry_runs(self.config.paths.state, self._on_notice)
        return self._workspaces.make("tools", rules or self.rules())

    def rules(self) -> Rules:
        """Return the rules of the settings and lasting grants. Raises `ConfigError` for one that can never apply."""
        return setup.configured_rules(
            self.config,
            self._grants,
            list(self._with_server_tools(self._all_tools)),
            on_notice=self._on_notice,
            accepts_client_tools=self._options.accepts_client_tools,
            server_prefixes=[server.prefix for server in self.servers or ()],
        )

    async def warm_up(self, session: Session) -> None:
        """Let a model on this machine read the fixed beginning of its requests while the person types."""
        provider, info = await self._resolve(session.state)
        if warm := getattr(provider, "warm", None):
            prefix = session.runtime.prefix(info)
            await warm(Request(prefix.system, (user_message("Hello"),), prefix.tools))

    async def _resolve(self, state: AgentState) -> tuple[Provider, ModelInfo]:
        """Return the model for the next request: the caller's choice, in plan mode `plan_model`, or the session's."""
        settings, name = self.config.settings.provider, state.model.name
        if resolve := self._options.parts.resolve:
            return await call_resolver(resolve, state, self._provider_of, settings.fallback_model)
        has_fallen_back = name == settings.fallback_model  # then the plan model must not take over again
        if state.mode == "plan" and settings.plan_model and not has_fallen_back:
            name = settings.plan_model
        return self._provider_of(name)

    async def _small_model(self, state: AgentState, name: str = "") -> tuple[Provider, ModelInfo]:
        """Return the named model, or else the small one of the session's provider. Raises `UsageError`."""
        current = state.model.name
        if name:
            return self._provider_of(full_model_name(name, current, self.models))
        if self._options.parts.resolve:  # the caller chooses every model that is not named
            return await self._resolve(state)
        return self._provider_of(self.models.small_model(current))

    def _provider_of(self, name: str) -> tuple[Provider, ModelInfo]:
        provider = self.models.provider(name)
        return provider, getattr(provider, "info", None) or self.models.info(name)

    async def aclose(self, *, for_good: bool = True) -> None:
        """Close connections and servers; unless `for_good`, sessions can still be built, also in another event loop."""
        await self.models.aclose()
        if self._owns_store:
            await self.store.close()
        if "servers" in self.__dict__ and self.servers is not None:  # the cached property was read before
            await self.servers.aclose(for_good=for_good)
        with suppress(OSError):  # the next write reports a full disk
            await asyncio.to_thread(self._large_results.clean_when_due)
        await self._telemetry.aclose()
