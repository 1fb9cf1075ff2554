"""Defines the options of an agent, converts them to those of its sessions, and accepts its old parameters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from warnings import warn

from agentcli.agent.interfaces import CallHooks, ConversationStore, EventStore, Locks, NoHooks, SessionStore, TurnHooks
from agentcli.agent.runtime import ContextControl, ContextPolicy, ContextTransform, ModelResolver, unchanged
from agentcli.errors import UsageError
from agentcli.frontends.hosts import working_folder
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm.provider import Provider
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config, load_config
from agentcli.settings.structs import PermissionSettings, Settings
from agentcli.settings.write import changed_values
from agentcli.setup.options import AddedDefinitions, CallerParts, McpOptions, SessionOptions
from agentcli.tools.own_tools import tool
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Tool
from agentcli.tools.workspace import SearchProvider

if TYPE_CHECKING:
    from agentcli.agent.accounting import UsageCollector
    from agentcli.extensions.mcp.tools import MCPClient
    from agentcli.library.approvals import Answerer

log = logging.getLogger("agentcli")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of an agent; most programs need none of them.

    `settings` are nested like config.toml, or a `Settings`, whose defaults are ignored; they override settings files.

    `store` keeps conversations. A `SessionStore` keeps them entry by entry, as the command line does. A
    `ConversationStore` keeps whole ones, which suits a web handler that creates an agent for each request. They belong
    to `user_id`; opening a conversation of another user is an error. `event_store` keeps the numbered events of prompts
    that have a `stream_id`. Readers in other processes can follow them, and resume where they stopped.

    `answer` returns a text, or None, for the model's or an MCP server's questions; without it, `approve` is asked.
    `provider` replaces the configured ones. `resolve` chooses before each request: it returns `provider/model`, or a
    provider and its `ModelInfo`. If it fails, the fallback model of the settings answers. `context_policy` replaces the
    policy that compacts the conversation, `context_transform` changes the messages of one request. `usage` collects the
    usage of the conversation; several agents may share one.

    `hooks` are called around turns, `call_hooks` in order around each call. `locks` let only one call at a time use a
    file, even across programs. `sandbox` replaces the machine's own files and commands, `search` replaces Tavily in
    web_search. `skills` are more folders of skills, `mcp_clients` are connections to MCP servers (`settings` can
    configure others: `{"mcp_servers": {…}}`). `deps` is the program's own object, which functions of `tools` find in
    their `ToolContext`; a prompt may bring another one.
    """

    settings: Mapping[str, Any] | Settings | None = None
    store: SessionStore | ConversationStore | None = None
    user_id: str = ""
    answer: Answerer | None = None
    event_store: EventStore | None = None
    provider: Provider | None = None
    resolve: ModelResolver | None = None
    context_policy: ContextPolicy | None = None
    context_transform: ContextTransform | None = None
    usage: UsageCollector | None = None
    hooks: TurnHooks | None = None
    call_hooks: Sequence[CallHooks] = ()
    locks: Locks | None = None
    sandbox: Sandbox | None = None
    search: SearchProvider | None = None
    skills: Sequence[str | Path] = ()
    mcp_clients: Sequence[MCPClient] = ()
    deps: Any = None


def stores_of(
    options: AgentOptions, conversation: str, *, has_history: bool
) -> tuple[ConversationStore | None, SessionStore | None]:
    """Return the caller's store, which is of one of these kinds. Raises `UsageError` if other parameters do not fit."""
    store = options.store
    if has_history and store is not None:
        raise UsageError("A history is kept by the program, and a conversation by a store: pass only one of them.")
    if isinstance(store, SessionStore):
        return None, store
    if store is not None and not isinstance(store, ConversationStore):
        raise UsageError(f"A store is a SessionStore or a ConversationStore, not {type(store).__name__}.")
    if store is not None and not conversation:
        raise UsageError('A ConversationStore needs the id of a conversation: Agent(…, conversation="my-id").')
    if store is None and conversation:
        example = "Agent(…, options=AgentOptions(store=SqliteSessions(path)))"
        raise UsageError(f"conversation={conversation!r} needs a store that keeps it: {example}.")
    return store, None


def session_options(
    options: AgentOptions, instructions: str | None, tools: Sequence[Tool | Callable[..., Any]]
) -> SessionOptions:
    """Return the options of the agent's sessions. Raises `UsageError` for a function that cannot be a tool."""
    return SessionOptions(
        system_prompt=instructions,
        accepts_client_tools=True,
        added=AddedDefinitions(tuple(map(_folder, options.skills))),
        mcp=McpOptions(clients=tuple(options.mcp_clients)),
        parts=CallerParts(
            tools=tuple(item if isinstance(item, Tool) else tool(item) for item in tools),
            search=options.search,
            hooks=options.hooks or NoHooks(),
            call_hooks=tuple(options.call_hooks),
            locks=options.locks,
            resolve=options.resolve,
            context=ContextControl(policy=options.context_policy, transform=options.context_transform or unchanged),
            sandbox=options.sandbox,
        ),
    )


def agent_config(options: AgentOptions, cwd: str | Path, permissions: str | PermissionSettings) -> Config:
    """Return all settings for a working directory. Raises `UserError`."""
    given = changed_values(options.settings) if isinstance(options.settings, Settings) else {**(options.settings or {})}
    chosen = {"mode": permissions} if isinstance(permissions, str) else changed_values(permissions)
    if chosen.get("mode") == "default":  # it is also the parameter's default: a mode in `options.settings` applies
        del chosen["mode"]
    # Later ones win. A mode is always set, so that one in the person's own settings files never applies to an agent.
    flags = given | {"permissions": {"mode": "default"} | given.get("permissions", {}) | chosen}
    config = load_config(_folder(cwd), flags=flags, caller="settings")
    for notice in config.notices:
        log.warning(notice)
    return config


def _folder(name: str | Path) -> Path:
    folder = Path(name) if Path(name).is_absolute() else current_folder() / name
    return working_folder(str(folder))


# The next release drops what follows.
Constructor = TypeVar("Constructor", bound=Callable[..., None])
_RENAMED = {  # parameters of `Agent`, by their old names; below, those that are options now
    "system_prompt": "instructions", "permission_mode": "permissions", "session_id": "conversation",
    "conversation_id": "conversation",
}  # fmt: skip
_MOVED = {"conversation_store": "store"} | {name: name for name in AgentOptions.__dataclass_fields__}


def accept_old_names(construct: Constructor) -> Constructor:
    """Wrap the constructor of `Agent`, so that it also accepts its old parameters, with a warning."""

    @wraps(construct)
    def construct_with_new_names(*arguments: Any, options: AgentOptions = AgentOptions(), **named: Any) -> None:
        renamed: dict[str, Any] = {}
        moved: dict[str, Any] = {"store": MemorySessions()} if "session_id" in named else {}  # ids needed no store
        for old, new in (_RENAMED | _MOVED).items():
            if old in named:
                is_parameter = old in _RENAMED
                if (is_parameter and new in named) or getattr(options, new, None):  # one would be lost
                    raise TypeError(f"Agent(…) has {old} under its new name, too. Pass only the new one, {new}.")
                values = renamed if is_parameter else moved
                values[new] = named.pop(old) or values.get(new)  # of two old names for it, an empty one does not count
                now = f"Agent({new}=…)" if is_parameter else f"Agent(options=AgentOptions({new}=…))"
                advice = f"Agent({old}=…) is {now} now; the next release drops the old name."
                warn(advice, DeprecationWarning, stacklevel=2)
        construct(*arguments, **named, **renamed, options=replace(options, **moved))

    return cast("Constructor", construct_with_new_names)
