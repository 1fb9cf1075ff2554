"""Holds what a caller adds to a session, and reads its limits, rules and tools from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from msgspec import Struct

from agentcli.agent.accounting.budgets import Account, Amounts, Budgets, Kind
from agentcli.agent.hooks import CallHooks, TurnHooks
from agentcli.agent.interfaces import Checkpoints, Locks, SessionLog, SessionStore
from agentcli.agent.permissions.rule_text import check_rule, parse_rule
from agentcli.agent.permissions.rules import Rule, Rules, Verb
from agentcli.agent.runtime import ContextPolicy, ContextTransform, Resolve, TurnLimits, unchanged
from agentcli.conversation.entries import Entry
from agentcli.errors import ConfigError, UsageError, UserError, did_you_mean
from agentcli.infra.data_files import DataFolder
from agentcli.infra.day_account import DayAccount
from agentcli.infra.grants import FileGrants
from agentcli.llm.provider import ReplyLimits, RetryPolicy
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, Settings
from agentcli.tools.builtin.toolset import builtin_tools
from agentcli.tools.own_tools import guarded
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Tool

if TYPE_CHECKING:
    from agentcli.agent.result import AnswerSchema
    from agentcli.extensions.mcp.client import MCPClient
    from agentcli.tools.web.web import SearchProvider


class SessionFiles(Protocol):
    """Wraps the sandbox and the checkpoints of one session, so that unsaved changes count."""

    def sandbox(self, made: Sandbox, roots: Callable[[], Sequence[Path]]) -> Sandbox:
        """Wrap a sandbox; `roots` are the folders of its workspace now."""
        ...

    def checkpoints(self, made: Checkpoints) -> Checkpoints: ...


class Extras(Struct, frozen=True, kw_only=True):
    """The options that a caller adds to the configuration. `system_prompt` replaces the system text.

    `bare` leaves out hooks, skills, MCP servers, memory and instruction files. `brings_tools`: tools may come with a
    prompt. `mcp_config` is a file of MCP servers, the only ones with `is_strict_mcp`; `mcp_servers` are further ones.
    `client_files` makes those of a session by its id. The others are as in `Agent`.
    """

    system_prompt: str | None = None
    append_system_prompt: str = ""
    bare: bool = False
    tools: tuple[Tool, ...] = ()
    hooks: TurnHooks | None = None
    brings_tools: bool = False
    search: SearchProvider | None = None
    call_hooks: tuple[CallHooks, ...] = ()
    locks: Locks | None = None
    resolve: Resolve | None = None
    context_policy: ContextPolicy | None = None
    context_transform: ContextTransform = unchanged
    sandbox: Sandbox | None = None
    skill_folders: tuple[Path, ...] = ()
    answer_schema: AnswerSchema | None = None
    mcp_config: str = ""
    mcp_servers: Mapping[str, Any] = {}
    is_strict_mcp: bool = False
    mcp_clients: tuple[MCPClient, ...] = ()
    client_files: Callable[[str], SessionFiles] | None = None


class SessionChoice(Struct, frozen=True):
    """The conversation to open: new, newest or by id; `fork` continues a copy, `take_over` ends its program."""

    how: Literal["new", "newest", "id"] = "new"
    id: str = ""
    fork: bool = False
    new_id: str | None = None
    name: str = ""
    take_over: bool = False
    user_id: str = ""


NEW = SessionChoice()


async def open_log(
    choice: SessionChoice, store: SessionStore, data: DataFolder, cwd: Path
) -> tuple[SessionLog, list[Entry]]:
    """Return the log and its entries; a fork shares the data files of its source. Raises `UserError`."""
    if choice.how == "new":
        return await store.create(cwd=cwd, session_id=choice.new_id, name=choice.name, user_id=choice.user_id), []
    id = choice.id
    if choice.how == "newest":
        newest = await store.list(cwd=cwd, limit=1)
        if not newest:
            raise UsageError(f"There is no session of {cwd} to continue: leave out --continue.")
        id = newest[0].id
    if choice.fork:
        log, entries = await store.fork(id, cwd=cwd, new_id=choice.new_id, name=choice.name)
        source, _ = await store.load(id)
        await asyncio.to_thread(data.share, source.id, log.session_id)
        return log, entries
    log, entries = await store.open(id, take_over=choice.take_over)
    if choice.name:
        await store.rename(log.session_id, choice.name)
    return log, entries


ROUNDS, INTERACTIVE_ROUNDS = 25, 100  # requests for one prompt where no setting says how many


def turn_limits(settings: Settings, *, asks: bool, max_breaks: int = 0) -> TurnLimits:
    """Return the limits of one prompt; with `asks` there is a person who may allow more."""
    return TurnLimits(
        settings.limits.max_turns or (INTERACTIVE_ROUNDS if asks else ROUNDS),
        settings.tokens.max_output,
        asks=asks,
        budgets=budget_of(settings.budgets, "turn"),
        cheaper_model=settings.budgets.fallback_model,
        cheaper_at=settings.budgets.fallback_at,
        waits_for_reset=settings.limits.wait_for_reset,
        max_breaks=max_breaks,
    )


def retry_policy(settings: Settings) -> RetryPolicy:
    """Return how often a request is tried, and the limits of one reply."""
    limits = settings.limits
    reply = ReplyLimits(limits.max_reply_mb, limits.max_arguments_mb, limits.max_reply_s)
    return RetryPolicy(settings.retry.max, settings.retry.initial_delay, reply)


def session_budgets(config: Config) -> Budgets:
    """Return the accounts of a session: its own, and the day's."""
    settings = config.settings
    session = budget_of(settings.budgets, "session")
    if (most := settings.limits.max_budget_usd) is not None:
        session["usd"] = min(most, session.get("usd", most))
    ledger = DayAccount(config.paths.state / "budgets.db", budget_of(settings.budgets, "day"))
    return Budgets((Account("session", session), ledger), warn_at=settings.budgets.warn_at)


def budget_of(budgets: BudgetSettings, scope: Literal["turn", "session", "day"]) -> Amounts:
    return {kind: limit for kind in get_args(Kind) if (limit := getattr(budgets, f"{scope}_{kind}")) is not None}


def configured_rules(
    config: Config,
    grants: FileGrants,
    tools: Sequence[Tool],
    *,
    on_notice: Callable[[str], None],
    brings_tools: bool,
    servers: Collection[str] = (),
) -> Rules:
    """Return the rules of the settings and the lasting grants. Raises `ConfigError` for one that can never hold.

    With `brings_tools` a rule may name tools under any name; `servers` begin names that may not be known yet.
    """
    permissions = config.settings.permissions
    rules = Rules()
    for verb in get_args(Verb):
        for text in getattr(permissions, verb):
            key = f"permissions.{verb}"
            try:
                rule = parse_rule(text, "settings")
                warning = check_rule(rule, tools, written=text, under_any_name=brings_tools)
            except UsageError as error:
                raise config.error(str(error), key, item=text) from error
            of_server = any(f"{rule.tool}__".startswith(prefix) for prefix in servers)
            if warning and not of_server:
                on_notice(str(config.error(warning, key, item=text)))
            rules.of(verb).append(rule)
    for verb, rule in _granted(grants, tools, on_notice):
        rules.of(verb).append(rule)
    return rules


def check_hosts(config: Config) -> None:
    """Raises `ConfigError` for a host that can be none."""
    for key, hosts in (("sandbox.hosts", config.settings.sandbox.hosts), ("web.hosts", config.settings.web.hosts)):
        for host in hosts:
            from agentcli.safety.addresses.hosts import read_grant  # few grant any

            try:
                read_grant(host)
            except ValueError as error:
                raise config.error(str(error), key, item=host) from error


def _granted(
    grants: FileGrants, tools: Sequence[Tool], on_notice: Callable[[str], None]
) -> Iterator[tuple[Verb, Rule]]:
    """Yield the person's lasting grants; one that makes no sense is left out, with a notice."""
    try:
        kept: list[tuple[Verb, str, str]] = [("allow", text, "") for text in grants.list()]
        kept += [(one.verb, one.rule, one.quote) for one in grants.restrictions()]
    except UserError as error:
        on_notice(str(error))
        return
    for verb, text, quote in kept:
        try:
            rule = parse_rule(text, "granted", quote)
            check_rule(rule, tools, written=text, more_may_come=True)
            yield verb, rule
        except UsageError as error:
            on_notice(f"{grants.file}: {error} This {'grant' if verb == 'allow' else 'rule'} is left out.")


@dataclass
class ToolChoice:
    """`added` are a caller's tools, `can_work` says of a built-in one if it has what it needs here."""

    config: Config
    added: Sequence[Tool]
    can_work: Callable[[str], bool]

    @cached_property
    def every(self) -> ToolRegistry:
        """All tools there are, whatever the settings say."""
        added = (replace(tool, source="library") if tool.source == "builtin" else tool for tool in self.added)
        return ToolRegistry((*builtin_tools(), *map(guarded, added)))

    def named(self) -> ToolRegistry:
        """All tools, or those the settings name. Raises `ConfigError` for a name that no tool has."""
        settings, tools = self.config.settings.tools, self.every
        only = settings.only
        for key, names in (("tools.only", only), ("tools.output_levels", settings.output_levels)):
            for name in names:
                if name not in tools and name != "none" and not name.startswith("mcp__"):
                    known = [tool.name for tool in tools]
                    message = f"No tool {name!r}{did_you_mean(name, known)}; there is {', '.join(known)}."
                    raise self.config.error(message, key, item=name if key == "tools.only" else "")
        named = [name for name in only if name != "none" and not name.startswith("mcp__")]
        return tools.clone(only=named if only else None)

    def offered(self, on_notice: Callable[[str], None]) -> ToolRegistry:
        """Return the named tools that can work here: without a provider a search could only fail."""
        tools = self.named()
        left_out = [tool.name for tool in tools if tool.source == "builtin" and not self.can_work(tool.name)]
        if "web_search" in left_out and "web_search" in self.config.settings.tools.only:
            on_notice("web_search is not offered to the model: it needs a key of Tavily (TAVILY_API_KEY).")
        return tools.clone(exclude=left_out) if left_out else tools


def has_key(config: Config, variable: str) -> bool:
    try:
        return bool(config.place_of_key(variable))
    except ConfigError:  # told where a key is needed, and by doctor
        return False
