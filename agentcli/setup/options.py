"""Holds what a caller adds to a session, and reads its limits, rules and tools from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from msgspec import Struct

from agentcli.agent.accounting.budgets import Account, Amounts, Budgets, Kind
from agentcli.agent.hooks import CallHooks, NoHooks, TurnHooks
from agentcli.agent.interfaces import Locks, SessionLog, SessionStore
from agentcli.agent.permissions.rule_text import check_rule, parse_rule
from agentcli.agent.permissions.rules import Rules, Verb
from agentcli.agent.runtime import ContextControl, Resolve, TurnLimits
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
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Tool, ToolRegistry

if TYPE_CHECKING:
    from agentcli.extensions.mcp.tools import MCPClient
    from agentcli.frontends.acp.client import ClientFiles
    from agentcli.tools.workspace import SearchProvider


class McpOptions(Struct, frozen=True):
    """MCP servers beside those of the settings: of a file, by name, and connected ones.

    With `is_strict` the file's servers are the only ones.
    """

    file: str = ""
    servers: Mapping[str, Any] = {}
    is_strict: bool = False
    clients: tuple[MCPClient, ...] = ()


class CallerParts(Struct, frozen=True, kw_only=True):
    """Parts of a session that a program adds or puts in place of our own. The docstring of `Agent` explains them."""

    tools: tuple[Tool, ...] = ()
    search: SearchProvider | None = None
    hooks: TurnHooks = NoHooks()
    call_hooks: tuple[CallHooks, ...] = ()
    locks: Locks | None = None
    resolve: Resolve | None = None
    context: ContextControl = ContextControl()
    sandbox: Sandbox | None = None


class SessionOptions(Struct, frozen=True, kw_only=True):
    """The options that a caller adds to the configuration. `system_prompt` replaces the system text.

    `is_bare` leaves out hooks, skills, MCP servers, memory and instruction files. With `accepts_client_tools` tools may
    come with a prompt. `client_files` returns an editor's files for the session with an id.
    """

    system_prompt: str | None = None
    append_system_prompt: str = ""
    is_bare: bool = False
    accepts_client_tools: bool = False
    skill_folders: tuple[Path, ...] = ()
    mcp: McpOptions = McpOptions()
    client_files: Callable[[str], ClientFiles] | None = None
    parts: CallerParts = CallerParts()


class SessionChoice(Struct, frozen=True):
    """The conversation to open: new, newest or by id.

    With `fork` a copy of it continues; with `take_over` the program that holds it ends.
    """

    how: Literal["new", "newest", "id"] = "new"
    id: str = ""
    fork: bool = False
    new_id: str | None = None
    name: str = ""
    take_over: bool = False
    user_id: str = ""


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


ROUNDS, INTERACTIVE_ROUNDS = 25, 100  # requests for one prompt, unless a setting says how many


def turn_limits(settings: Settings, *, asks: bool, max_breaks: int = 0) -> TurnLimits:
    """Return the limits of one prompt; with `asks` a person may allow more. `max_breaks` is as in `TurnLimits`."""
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
    """Return how often a failed request is tried again, and the limits of one reply."""
    limits = settings.limits
    reply = ReplyLimits(limits.max_reply_mb, limits.max_arguments_mb, limits.max_reply_s)
    return RetryPolicy(settings.retry.max, settings.retry.initial_delay, reply)


def session_budgets(config: Config) -> Budgets:
    """Return the budgets of a session: its own, and the day's."""
    settings = config.settings
    session = budget_of(settings.budgets, "session")
    if (max_usd := settings.limits.max_budget_usd) is not None:
        session["usd"] = min(max_usd, session.get("usd", max_usd))
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
    accepts_client_tools: bool,
    servers: Collection[str] = (),
) -> Rules:
    """Return the rules of the settings and the lasting grants. Raises `ConfigError` for one that can never hold.

    With `accepts_client_tools` a rule may name any tool. `servers` are prefixes of tools that may not be known yet.
    """
    permissions = config.settings.permissions
    rules = Rules()
    for verb in get_args(Verb):
        key = f"permissions.{verb}"
        for text in getattr(permissions, verb):
            try:
                rule = parse_rule(text, "settings")
                warning = check_rule(rule, tools, written=text, under_any_name=accepts_client_tools)
            except UsageError as error:
                raise config.error(str(error), key, item=text) from error
            if warning and not any(f"{rule.tool}__".startswith(prefix) for prefix in servers):
                on_notice(str(config.error(warning, key, item=text)))
            rules.of(verb).append(rule)
    _add_grants(rules, grants, tools, on_notice)
    return rules


def check_hosts(config: Config) -> None:
    """Raise `ConfigError` for a granted host that is not the name of one."""
    for key, hosts in (("sandbox.hosts", config.settings.sandbox.hosts), ("web.hosts", config.settings.web.hosts)):
        for host in hosts:
            from agentcli.safety.hosts import read_grant  # few grant any

            try:
                read_grant(host)
            except ValueError as error:
                raise config.error(str(error), key, item=host) from error


def _add_grants(rules: Rules, grants: FileGrants, tools: Sequence[Tool], on_notice: Callable[[str], None]) -> None:
    """Add the person's lasting grants; one that makes no sense is left out, with a notice."""
    try:
        stored: list[tuple[Verb, str, str]] = [("allow", text, "") for text in grants.list()]
        stored += [(one.verb, one.rule, one.quote) for one in grants.restrictions()]
    except UserError as error:
        on_notice(str(error))
        return
    for verb, text, quote in stored:
        try:
            rule = parse_rule(text, "granted", quote)
            check_rule(rule, tools, written=text, more_may_come=True)
            rules.of(verb).append(rule)
        except UsageError as error:
            on_notice(f"{grants.file}: {error} This {'grant' if verb == 'allow' else 'rule'} is left out.")


def all_tools(added: Sequence[Tool]) -> ToolRegistry:
    """Return the built-in tools and a caller's own, whatever the settings say."""
    own = (replace(tool, source="library") if tool.source == "builtin" else tool for tool in added)
    return ToolRegistry((*builtin_tools(), *map(guarded, own)))


def named_tools(config: Config, tools: ToolRegistry) -> ToolRegistry:
    """Return all tools, or those that the settings name. Raises `ConfigError` for a name that no tool has."""
    settings = config.settings.tools
    for key, names in (("tools.only", settings.only), ("tools.output_levels", settings.output_levels)):
        for name in names:
            if name not in tools and name != "none" and not name.startswith("mcp__"):
                known = [tool.name for tool in tools]
                message = f"No tool {name!r}{did_you_mean(name, known)}; there is {', '.join(known)}."
                raise config.error(message, key, item=name if key == "tools.only" else "")
    named = [name for name in settings.only if name != "none" and not name.startswith("mcp__")]
    return tools.clone(only=named if settings.only else None)


def has_key(config: Config, variable: str) -> bool:
    try:
        return bool(config.place_of_key(variable))
    except ConfigError:  # reported where the key is needed, and by doctor
        return False
