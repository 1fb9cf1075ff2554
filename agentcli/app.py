"""Builds a session from its parts; the only module that knows every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from agentcli.agent.calls.masking import Mask
from agentcli.agent.calls.model import CallServices, SessionCalls
from agentcli.agent.calls.recording import account_for_interrupted
from agentcli.agent.context.nested_instructions import NestedInstructions
from agentcli.agent.context.watch import ContextWatch
from agentcli.agent.events import Notice
from agentcli.agent.hooks import NoHooks
from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.agent.permissions.modes import mode_notes, parse_mode
from agentcli.agent.permissions.rules import Rules
from agentcli.agent.questions import make_ask
from agentcli.agent.runtime import ContextControl, ModelAccess, Runtime
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, chosen_model, rebuilt
from agentcli.agent.steps import usual_steps
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry, SkillActivated, User, reminder
from agentcli.conversation.history import carried_notes
from agentcli.errors import StorageError, ToolError
from agentcli.extensions.hooks.config import Hooks
from agentcli.extensions.programs import WorkspacePrograms
from agentcli.extensions.skills.find import Skills
from agentcli.extensions.subagents.definitions import Agents
from agentcli.infra.data_files import DataFolder
from agentcli.infra.grants import FileGrants
from agentcli.infra.locks import FileLocks
from agentcli.infra.sessions.sqlite import can_resume
from agentcli.llm.messages import user_message
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider, Request, Warmable
from agentcli.models.choice import Models
from agentcli.settings.load import Config
from agentcli.settings.paths import project_root
from agentcli.setup import options
from agentcli.setup.opening import Opening, untold
from agentcli.setup.options import NEW, Extras, SessionChoice, ToolChoice
from agentcli.setup.telemetry import Observed
from agentcli.setup.workspace import (
    WorkspaceFactory,
    finish_interrupted_dry_runs,
    has_interrupted,
    make_checkpoints,
    make_masker,
)
from agentcli.tools.command import Profile
from agentcli.tools.observation import Levels
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.workspace import Workspace

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor
    from agentcli.conversation.history import LogSearch
    from agentcli.extensions.mcp.servers import Servers
    from agentcli.extensions.subagents.running import Subagents


class Builder:
    """Opens sessions with one configuration, set of providers and store; `goes_on` continues a broken answer once."""

    def __init__(
        self,
        config: Config,
        *,
        store: SessionStore,
        extras: Extras = Extras(),
        can_ask: bool = False,
        is_interactive: bool = False,
        goes_on: bool = False,
        owns_store: bool = True,
        on_notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config = config
        self.store = store
        self.models = Models(config, on_wait=on_notice)
        self._extras = extras
        self.skills = Skills(config=config, is_bare=extras.bare, tell=on_notice, added=extras.skill_folders)
        self.programs = WorkspacePrograms(config)
        self.hooks = Hooks(config, is_bare=extras.bare, tell=on_notice, programs=self.programs)
        self.agents = Agents(config=config, is_bare=extras.bare, tell=on_notice)
        self._tools = ToolChoice(config, extras.tools, self._can_work)
        skills, agents = self.skills.listing, self.agents.listing
        self.opening = Opening(config=config, extras=extras, skills=skills, agents=agents, on_notice=on_notice)
        self._can_ask = can_ask or is_interactive
        self._is_interactive = is_interactive
        self._goes_on = goes_on
        self._owns_store = owns_store
        self._on_notice = on_notice
        self._observed = Observed(config, Mask(partial(make_masker, config)).text, on_notice)
        self._data = DataFolder(
            config.paths.state / "data",
            outputs=config.paths.state / "jobs",
            is_resumable=partial(can_resume, config.paths.state / "sessions.db"),
            settings=config.settings.data,
        )
        self._workspaces = WorkspaceFactory(config, extras, self._data, self.programs)
        self._grants = FileGrants(config.paths.state / "grants.json", project_root(config.cwd))

    async def build_session(self, choice: SessionChoice = NEW, *, model: str = "") -> Session:
        """Return a session ready for its first prompt. Raises `UserError`."""
        settings = self.config.settings
        registry = self.offered_tools()
        log, entries = await options.open_log(choice, self.store, self._data, self.config.cwd)
        rules = self.rules()
        await asyncio.to_thread(finish_interrupted_dry_runs, self.config.paths.state, self._on_notice)
        files = self._extras.client_files(log.session_id) if self._extras.client_files else None
        workspace = self._workspaces.make(log.session_id, rules, files=files)
        budgets = options.session_budgets(self.config)
        state = AgentState("", parse_mode(settings.permissions.mode), rules=rules, budgets=budgets)
        state = rebuilt(state, entries)
        state.model = model or self.model_of(state.conversation) or await self.models.default()
        if not self._can_ask:
            state.conversation.queue.follow_ups.clear()  # only a person starts the messages that waited in the log
        info = self.models.info(state.model)  # a wrong name is told now, not after the first prompt
        self.models.provider(state.model)
        state.notes.extend(untold(self.opening.notes(workspace, info), state))
        state.notes.extend(mode_notes("default", state.mode))
        nested = self.opening.nested()
        watch = self._watch(state, workspace, nested)
        calls = self.session_calls(registry, workspace)
        is_lasting = self.store.is_lasting
        made = make_checkpoints(self.config, log.session_id, lambda: workspace.facts.roots, is_lasting=is_lasting)
        calls.recording.checkpoints = files.checkpoints(made) if files and made else made
        session = Session(state, self._runtime(calls, log, watch, nested), can_ask=self._can_ask)
        watch.paid = session.paid
        self._observed.follow(session)
        await self._begin_hooks(session, source="resume" if entries else "startup")
        self._offer(session, entries)
        self._attach_servers(session)
        if (checkpoints := calls.recording.checkpoints) and has_interrupted(self.config, log.session_id):
            try:
                await account_for_interrupted(checkpoints, entries, session.append)
            except (StorageError, ToolError) as error:  # the next start looks again
                self._on_notice(str(error))
        return session

    def model_of(self, conversation: Conversation) -> str:
        """Return the model of a stored conversation; empty for a new one, and where a flag names another."""
        layers = self.config.layers
        is_named = bool(layers) and layers[-1].holds("provider.model")
        return "" if is_named else chosen_model(conversation)

    def _runtime(
        self, calls: SessionCalls, log: SessionLog, watch: ContextWatch, nested: NestedInstructions | None
    ) -> Runtime:
        settings, extras = self.config.settings, self._extras
        return Runtime(
            models=ModelAccess(
                resolve=extras.resolve or self._resolve,
                prefix_for=self.opening.prefix,
                info=self.models.info,
                fallback=settings.provider.fallback_model,
                retry=options.retry_policy(settings),
                temperature=settings.tokens.temperature,
                effort=settings.tokens.effort,
            ),
            calls=calls,
            log=log,
            steps=usual_steps(nested=nested, schema=extras.answer_schema),
            limits=options.turn_limits(settings, asks=self._is_interactive, max_breaks=int(self._goes_on)),
            context=ContextControl(
                policy=extras.context_policy or watch,
                watch=watch,
                transform=extras.context_transform,
                warn_at=settings.compaction.warn_at,
                count_texts=self._count_texts,
            ),
            hooks=extras.hooks or NoHooks(),
        )

    @cached_property
    def servers(self) -> Servers | None:
        """The MCP servers that are configured; None without one, and then nothing of them is imported."""
        extras, settings, only = self._extras, self.config.settings, self.config.settings.tools.only
        may_have = not extras.bare and settings.mcp.enabled and bool(settings.mcp_servers or self.config.uses_project)
        if not (may_have or extras.mcp_config or extras.mcp_servers or extras.mcp_clients):
            return None
        from agentcli.extensions.mcp.config import make_servers, server_specs

        specs = server_specs(
            self.config,
            self._on_notice,
            file=extras.mcp_config,
            added=extras.mcp_servers,
            is_strict=extras.is_strict_mcp or not may_have,
        )
        if not (specs or extras.mcp_clients) or (only and not any(name.startswith("mcp__") for name in only)):
            return None
        return make_servers(self.config, specs, self.programs, self._on_notice, extras.mcp_clients)

    def _with_servers(self, tools: ToolRegistry) -> ToolRegistry:
        return tools if self.servers is None else ToolRegistry((*tools, *self.servers.tools()))

    def _attach_servers(self, session: Session) -> None:
        """Let a session use the MCP servers; where it stays open they are connected now, else when one is called."""
        if (servers := self.servers) is None:
            return
        from agentcli.extensions.mcp.servers import JoinServers

        session.runtime.calls.delegates.servers = servers
        session.runtime.steps.append(partial(JoinServers, servers))
        servers.tell = lambda text: session.publish(Notice(text))
        servers.can_skip = self._is_interactive
        if self._can_ask:
            servers.start()

    def _offer(self, session: Session, entries: Sequence[Entry]) -> None:
        """Let the session have skills and subagents, each made when one is used, or was active before."""
        calls = session.runtime.calls
        self.skills.attach(session, self.models)
        if "create_subagent" in calls.tools:
            calls.delegates.make_agents = partial(self._subagents, session)
        if any(isinstance(entry.body, SkillActivated) for entry in entries):
            calls.delegates.open_skills()

    async def _begin_hooks(self, session: Session, *, source: str) -> None:
        """Have the person's command hooks called around calls and at events."""
        state, calls, services = session.state, session.runtime.calls, session.runtime.calls.services
        if (hooks := self.hooks.of_session(session.id, lambda: state.mode)) is None:
            return
        services.hooks, calls.delegates.events = (*services.hooks, hooks), hooks
        hooks.publish = session.publish
        if services.mask is not None:
            hooks.mask = services.mask.text
        said = await hooks.fire("SessionStart", subject=source, source=source)  # nobody listens yet who could be asked
        hooks.ask = make_ask(calls)
        if said.context:
            state.notes.append(reminder(said.context))

    def _subagents(self, session: Session) -> Subagents:
        """Return what runs the subagents of a session; loaded when the first one is asked for."""
        from agentcli.extensions.subagents.running import Subagents
        from agentcli.extensions.subagents.sessions import ChildSessions

        children = ChildSessions(
            parent=session,
            store=self.store,
            agents=self.agents,
            models=self.models,
            prefix_for=lambda prompt: self.opening.for_agent(prompt).prefix,
            nested=self.opening.nested,
            skills=self.skills,
            watch=self._watch,
            notes=self.opening.notes,
        )
        return Subagents(self.agents, self.store, session, children.make)

    def _watch(self, state: AgentState, workspace: Workspace, nested: NestedInstructions | None) -> ContextWatch:
        """Make what keeps a conversation within its model's window, and let the session recall what lies beyond it."""
        settings, conversation = self.config.settings.compaction, state.conversation

        def opening(info: ModelInfo) -> Sequence[User]:
            notes = [*self.opening.notes(workspace, info), *carried_notes(conversation.path)]
            if nested and (note := nested.read_again(conversation, "".join(n.text for n in notes)).note()):
                notes.append(note)
            return notes

        async def writer() -> tuple[Provider, ModelInfo]:
            if settings.summary_model:
                return self._of_model(settings.summary_model)
            return await (self._extras.resolve or self._resolve)(state)

        def make() -> Compactor:
            from cachetools import TTLCache

            from agentcli.agent.context.compaction import Compactor
            from agentcli.agent.context.summaries import Summaries, TextCache
            from agentcli.infra.summary_files import SummaryFiles

            folder = self.config.paths.state / "summaries"
            hours, most = settings.cache_hours, settings.cache_entries
            kept: TextCache = TTLCache(most, 3_600 * hours)
            if self.store.is_lasting:
                kept = SummaryFiles(folder, hours=hours, most=most)
            summaries = Summaries(settings=settings, writer=writer, paid=watch.paid, kept=kept, budgets=state.budgets)
            return Compactor(settings, opening, lambda path: hash_of(workspace.real_path(path)), summaries)

        def recall() -> LogSearch:
            from agentcli.conversation.history import LogSearch

            return LogSearch(conversation)

        hash_of, watch = workspace.files.hash_of, ContextWatch(settings, make)
        workspace.resources.past = recall
        return watch

    def _count_texts(self, texts: Sequence[str], info: ModelInfo) -> int:
        from agentcli.llm.token_encoders import text_tokens

        return text_tokens(texts, info.id, self.models.encoders)

    def session_calls(self, registry: ToolRegistry, workspace: Workspace) -> SessionCalls:
        """Return what the calls of a session share, as the settings and the caller say."""
        tools = self.config.settings.tools
        services = CallServices(
            workspace=workspace,
            locks=self._extras.locks or FileLocks(self.config.paths.state / "file_locks"),
            grants=self._grants,
            mask=Mask(partial(make_masker, self.config)),
            hooks=self._extras.call_hooks,
            levels=Levels(tools.output_level, tools.output_levels),
            max_parallel=tools.max_parallel,
            dry_runs=self.config.settings.permissions.tries,
        )
        return SessionCalls(services=services, tools=registry)

    def tool_registry(self) -> ToolRegistry:
        """Return all tools, or those the settings name. Raises `ConfigError` for a name that no tool has."""
        return self._with_servers(self._tools.named())

    def offered_tools(self) -> ToolRegistry:
        """Return those of the tools that can work here."""
        return self._with_servers(self._tools.offered(self._on_notice))

    def _can_work(self, tool: str) -> bool:
        match tool:
            case "memory":
                return self._workspaces.has_memory
            case "skill":
                return bool(self.skills.offered)
            case "create_subagent":
                return self.config.settings.agents.enabled
            case "web_search":
                return self._extras.search is not None or options.has_key(self.config, "TAVILY_API_KEY")
            case _:
                return True

    def workspace(self, rules: Rules | None = None, *, profile: Profile | None = None) -> Workspace:
        """Return a workspace without a session, for running single tools."""
        finish_interrupted_dry_runs(self.config.paths.state, self._on_notice)
        return self._workspaces.make("tools", rules or self.rules(), profile=profile)

    def rules(self) -> Rules:
        """Return the rules of the settings and the lasting grants. Raises `ConfigError` for one that can never hold."""
        return options.configured_rules(
            self.config,
            self._grants,
            list(self._with_servers(self._tools.every)),
            on_notice=self._on_notice,
            brings_tools=self._extras.brings_tools,
            servers=[server.prefix for server in self.servers or ()],
        )

    async def warm_up(self, session: Session) -> None:
        """Let a model on this machine read the fixed beginning of its requests while the person types."""
        provider, info = await self._resolve(session.state)
        if isinstance(provider, Warmable):
            prefix = session.runtime.prefix(info)
            await provider.warm(Request(prefix.system, (user_message("Hello"),), prefix.tools))

    async def _resolve(self, state: AgentState) -> tuple[Provider, ModelInfo]:
        return self._of_model(state.model)

    def _of_model(self, name: str) -> tuple[Provider, ModelInfo]:
        provider = self.models.provider(name)
        return provider, getattr(provider, "info", None) or self.models.info(name)

    async def aclose(self, *, for_good: bool = True) -> None:
        """Close what is open; unless `for_good`, further sessions can be built, in another event loop too."""
        await self.models.aclose()
        if self._owns_store:
            await self.store.close()
        if self.__dict__.get("servers") is not None:
            await self.__dict__["servers"].aclose(for_good=for_good)
        with suppress(OSError):  # a full disk is told where something is to be kept
            await asyncio.to_thread(self._data.clean_when_due)
        await self._observed.aclose()
