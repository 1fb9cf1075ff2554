"""Defines a caller's options, and builds a session's limits, rules, tools and telemetry from the settings.

The export of traces and metrics follows OpenTelemetry's own variables, too:
https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from agentcli.agent.accounting import Account, Amounts, Budgets, Kind
from agentcli.agent.interfaces import CallHooks, Locks, NoHooks, SessionLog, SessionStore, TurnHooks
from agentcli.agent.permissions.rules import Rules, Verb, check_rule, parse_rule
from agentcli.agent.runtime import ContextControl, ModelResolver
from agentcli.agent.session import Session
from agentcli.conversation.entries import Entry, HeadMoved
from agentcli.errors import ConfigError, UsageError, UserError, did_you_mean
from agentcli.infra.shared import DayAccount
from agentcli.infra.state_files import DataFolder, FileGrants
from agentcli.models.choice import Models
from agentcli.models.providers import is_installed
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, ObservabilitySettings
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Tool, ToolRegistry
from agentcli.version import __version__

if TYPE_CHECKING:
    from agentcli.extensions.mcp.tools import MCPClient
    from agentcli.extensions.subagents.definitions import AgentDefinition
    from agentcli.frontends.acp.client import ClientFiles
    from agentcli.infra.telemetry import Export, Signal, Telemetry
    from agentcli.tools.workspace import SearchProvider


class McpOptions(Struct, frozen=True):
    """MCP servers from files, by name, or already connected; if `is_strict`, those of the settings are not used."""

    files: tuple[str, ...] = ()
    servers: Mapping[str, Any] = {}
    is_strict: bool = False
    clients: tuple[MCPClient, ...] = ()


class CallerParts(Struct, frozen=True, kw_only=True):
    """Parts of a session that a program adds, or that replace our own. The docstring of `Agent` explains them."""

    tools: tuple[Tool, ...] = ()
    search: SearchProvider | None = None
    hooks: TurnHooks = NoHooks()
    call_hooks: tuple[CallHooks, ...] = ()
    locks: Locks | None = None
    resolve: ModelResolver | None = None
    context: ContextControl = ContextControl()
    sandbox: Sandbox | None = None


class AddedDefinitions(Struct, frozen=True):
    """Folders of skills and of plugins, and subagents by name, which a caller adds to those that agentcli finds."""

    skill_folders: tuple[Path, ...] = ()
    plugin_folders: tuple[Path, ...] = ()
    agents: Mapping[str, AgentDefinition] = {}


class SessionOptions(Struct, frozen=True, kw_only=True):
    """The options that a caller adds to the configuration. `system_prompt` replaces the system text."""

    system_prompt: str | None = None
    append_system_prompt: str = ""
    is_bare: bool = False  # ignores hooks, skills, MCP servers, memory and instructions of the person and the project
    accepts_client_tools: bool = False  # a prompt may bring tools with it
    added: AddedDefinitions = AddedDefinitions()
    mcp: McpOptions = McpOptions()
    client_files: Callable[[str], ClientFiles] | None = None  # returns an editor's files for a session id
    parts: CallerParts = CallerParts()


class SessionChoice(Struct, frozen=True, kw_only=True):
    """The conversation to open: new, newest or by id."""

    how: Literal["new", "newest", "id"] = "new"
    id: str = ""
    fork: bool = False  # continue a copy of it
    new_id: str | None = None
    name: str = ""
    take_over: bool = False  # another program that has it open must give it up
    user_id: str = ""
    at: str = ""  # the id of the entry to continue after; empty: the newest


async def open_log(
    choice: SessionChoice, store: SessionStore, data: DataFolder, cwd: Path
) -> tuple[SessionLog, list[Entry]]:
    """Return the log of the chosen conversation and its entries. Raises `UserError`."""
    if choice.how == "new":
        return await store.create(cwd=cwd, session_id=choice.new_id, name=choice.name, user_id=choice.user_id), []
    id = choice.id
    if choice.how == "newest":
        if not (newest := await store.list(cwd=cwd, limit=1)):
            raise UsageError(f"There is no session to continue in {cwd}. Leave out --continue.")
        id = newest[0].id
    if choice.fork:
        log, entries = await store.fork(id, cwd=cwd, new_id=choice.new_id, name=choice.name, at=choice.at or None)
        source, _ = await store.load(id)  # `id` may be only the beginning of the source's id
        await asyncio.to_thread(data.share, source.id, log.session_id)
        return log, entries
    log, entries = await store.open(id, take_over=choice.take_over)
    if choice.name:
        await store.rename(log.session_id, choice.name)
    if choice.at:
        if all(entry.id != choice.at for entry in entries):
            await log.close()
            raise UsageError(f"--resume-session-at: the session has no message {choice.at!r}.")
        # Go back to that entry, as a rewind does: later entries stay in the log, on another branch.
        moved = await log.append(HeadMoved(choice.at), parent_id=choice.at).committed
        entries = [*entries, *moved.entries]
    return log, entries


def session_budgets(config: Config) -> Budgets:
    """Return the budget of one session, and that of the day, which all sessions share."""
    settings = config.settings
    session = budget_of(settings.budgets, "session")
    if (max_usd := settings.limits.max_budget_usd) is not None:  # two settings limit the cost: the lower one counts
        session["usd"] = min(max_usd, session.get("usd", max_usd))
    day = DayAccount(config.paths.state / "budgets.db", budget_of(settings.budgets, "day"))
    return Budgets((Account("session", session), day), warn_at=settings.budgets.warn_at)


def budget_of(budgets: BudgetSettings, scope: Literal["turn", "session", "day"]) -> Amounts:
    return {kind: limit for kind in get_args(Kind) if (limit := getattr(budgets, f"{scope}_{kind}")) is not None}


def configured_rules(
    config: Config,
    grants: FileGrants,
    tools: Sequence[Tool],
    *,
    on_notice: Callable[[str], None],
    accepts_client_tools: bool,
    server_prefixes: Collection[str] = (),
) -> Rules:
    """Return the rules of the settings and the lasting grants. Raises `ConfigError` for one that can never apply.

    A rule that names no known tool gets a notice, unless a client may bring any tool (`accepts_client_tools`), or an
    MCP server that is not connected yet may have it: `server_prefixes` begin the names of its tools (`mcp__docs__`).
    """
    permissions = config.settings.permissions
    rules = Rules()
    for verb in get_args(Verb):
        key = f"permissions.{verb}"
        for text in getattr(permissions, verb):
            try:
                rule = parse_rule(text, "settings")
                warning = check_rule(rule, tools, written=text, allows_similar=accepts_client_tools)
            except UsageError as error:
                raise config.error(str(error), key, item=text) from error
            if warning and not any(f"{rule.tool}__".startswith(prefix) for prefix in server_prefixes):
                on_notice(str(config.error(warning, key, item=text)))
            rules.of(verb).append(rule)
    _add_grants(rules, grants, tools, on_notice)
    return rules


def check_hosts(config: Config) -> None:
    """Raise `ConfigError` for a granted host that is not a valid name."""
    for key, hosts in (("sandbox.hosts", config.settings.sandbox.hosts), ("web.hosts", config.settings.web.hosts)):
        for host in hosts:
            from agentcli.safety.hosts import read_grant  # imported late, because few people grant hosts

            try:
                read_grant(host)
            except ValueError as error:
                raise config.error(str(error), key, item=host) from error


def _add_grants(rules: Rules, grants: FileGrants, tools: Sequence[Tool], on_notice: Callable[[str], None]) -> None:
    """Add the person's lasting grants and restrictions; an invalid one is left out, with a notice."""
    try:
        stored: list[tuple[Verb, str, str]] = [("allow", text, "") for text in grants.list()]
        stored += [(one.verb, one.rule, one.quote) for one in grants.restrictions()]
    except UserError as error:
        on_notice(str(error))
        return
    for verb, text, quoted_instruction in stored:
        try:
            rule = parse_rule(text, "granted", quoted_instruction)
            check_rule(rule, tools, written=text, allows_new=True)  # another session's client may have the tool
            rules.of(verb).append(rule)
        except UsageError as error:
            on_notice(f"{grants.file}: {error} This {'grant' if verb == 'allow' else 'rule'} is skipped.")


def named_tools(config: Config, tools: ToolRegistry) -> ToolRegistry:
    """Return all tools, or those that the settings name. Raises `ConfigError` for a name that no tool has."""
    settings = config.settings.tools
    for key, names in (("tools.only", settings.only), ("tools.output_levels", settings.output_levels)):
        for name in names:
            # "none" in `tools.only` leaves out all tools. Tools of MCP servers are not known yet.
            if name not in tools and name != "none" and not name.startswith("mcp__"):
                known = [tool.name for tool in tools]
                message = f"Unknown tool {name!r}{did_you_mean(name, known)}. Choose one of {', '.join(known)}."
                raise config.error(message, key, item=name if key == "tools.only" else "")  # the other is a table
    return tools.clone(only=[name for name in settings.only if name in tools] if settings.only else None)


def has_key(config: Config, variable: str) -> bool:
    try:
        return bool(config.key_source(variable))
    except ConfigError:  # reported where the key is needed, and by doctor
        return False


OTEL_EXTRA = "./install.sh --extras otel, or pip install 'agentcli[otel]'"
_TIMEOUTS = {"traces": "export_timeout", "metrics": "metrics_timeout"}  # the settings, by signal


class SessionTelemetry(Struct):
    """Exports traces and metrics of sessions if settings or environment request it; only then imports OpenTelemetry.

    If a session `_has_screen`, it draws on the terminal, so nothing else may write there.
    """

    _config: Config
    _models: Models
    _mask: Callable[[str], str]
    _on_notice: Callable[[str], None]
    _has_screen: bool = False
    _telemetry: Telemetry | None = None

    def follow(self, session: Session) -> None:
        """Export a session's events from now on, if that is configured; a notice says why it is not possible."""
        try:
            if not (signals := exported_signals(self._config, has_screen=self._has_screen)):
                return
            if not is_installed("opentelemetry.exporter.otlp.proto.http"):
                raise ConfigError(f"That is not possible without the extra otel: {OTEL_EXTRA}.")
        except ConfigError as error:
            self._on_notice(f"No telemetry is exported: {error}")
            return
        if self._telemetry is None:
            from agentcli.infra.telemetry import Telemetry

            self._telemetry = Telemetry(make_export(self._config, self._models, signals, self._mask))
        self._telemetry.follow(session, session.runtime.calls.services.mask.text)

    async def aclose(self) -> None:
        """Send the rest. Sessions can be followed again afterwards."""
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            await telemetry.aclose()


def exported_signals(config: Config, *, has_screen: bool = False) -> dict[str, Signal]:
    """Return the signals to export, by name. Raises `ConfigError` for a variable with an unsupported value."""
    environment = config.environment
    true_variables = {name for name, value in environment.items() if value.lower() not in ("", "0", "false")}
    if "AGENTCLI_NO_TELEMETRY" in true_variables or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return {}
    is_enabled = not true_variables.isdisjoint(("AGENTCLI_ENABLE_TELEMETRY", "CLAUDE_CODE_ENABLE_TELEMETRY"))
    signals = {}
    for signal in _TIMEOUTS:
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        is_in_settings = getattr(config.settings.observability, signal)
        names = environment.get(variable) or ("otlp" if is_in_settings else "none")
        exporters = names.replace(" ", "").split(",")
        if exporters != ["none"] and (is_in_settings or is_enabled):  # a variable OTEL_…_EXPORTER alone exports nothing
            if not {"otlp", "console"}.issuperset(exporters):
                raise ConfigError(f"{','.join(exporters)} is not supported. Use otlp, console or none.", key=variable)
            if has_screen and "console" in exporters:
                raise ConfigError("console would write on the screen of this session. Use it with -p.", key=variable)
            signals[signal] = _read_signal(config, signal, exporters)
    return signals


def _read_signal(config: Config, signal: str, exporters: Sequence[str]) -> Signal:
    """Return how to export a signal; OpenTelemetry's variables replace default settings. Raises `ConfigError`."""
    from agentcli.infra.telemetry import Signal

    settings, environment, timeout_setting = config.settings.observability, config.environment, _TIMEOUTS[signal]

    def variable(name: str) -> str:
        for_signal = environment.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
        return for_signal or environment.get(f"OTEL_EXPORTER_OTLP_{name}", "")  # the latter is for all signals

    protocol, timeout = variable("PROTOCOL"), variable("TIMEOUT")
    if "otlp" in exporters and protocol not in ("", "http/protobuf"):
        raise ConfigError(f"only http/protobuf is supported, not {protocol!r}.", key="OTEL_EXPORTER_OTLP_PROTOCOL")
    timeout_s = getattr(settings, timeout_setting)
    is_default = timeout_s == getattr(ObservabilitySettings(), timeout_setting)
    if timeout and is_default:  # a setting that the person changed wins
        try:
            timeout_s = float(timeout) / 1000  # as specified, although Python's SDK reads seconds
        except ValueError:
            raise ConfigError(f"{timeout!r} is not a number of ms.", key="OTEL_EXPORTER_OTLP_TIMEOUT") from None
    endpoint = f"{settings.endpoint.rstrip('/')}/v1/{signal}" if settings.endpoint else None  # None: by the SDK's rules
    return Signal(tuple(exporters), timeout_s, endpoint)


def make_export(config: Config, models: Models, signals: Mapping[str, Signal], mask: Callable[[str], str]) -> Export:
    """Return what sends a session's `signals` to a collector of traces and metrics.

    Its spans join the trace of the program that started agentcli, if the environment names one.
    """
    settings, environment = config.settings.observability, config.environment
    resource = {"service.name": settings.service, "service.version": __version__}
    has_attribute = "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if settings.service == "agentcli" and (has_attribute or environment.get("OTEL_SERVICE_NAME")):
        del resource["service.name"]  # the setting has its default, so the SDK takes the name from these variables
    if settings.environment:
        resource["deployment.environment.name"] = settings.environment
    headers = ("traceparent", "tracestate")
    parent = {name: environment[name.upper()] for name in headers if name.upper() in environment}
    from agentcli.infra.telemetry import Export

    return Export(
        settings=settings,
        signals=signals,
        resource=resource | settings.tags,
        parent=parent,
        server=partial(_server_of, models),
        mask=mask,
    )


def _server_of(models: Models, name: str) -> tuple[str, int]:
    """Return the host and port of a `provider/model`; an empty host and 0 where they are not known."""
    try:
        parts = urlsplit(getattr(models.provider(name), "address", ""))
        usual_port = 443 if parts.scheme == "https" else 80
        return (parts.hostname, parts.port or usual_port) if parts.hostname else ("", 0)
    except (UserError, ValueError):  # the model's next request reports it
        return "", 0


def secret_headers(config: Config) -> list[str]:
    """Return the secrets in the headers for telemetry collectors: each value, and each word of it (`Bearer TOKEN`)."""
    variables = (f"OTEL_EXPORTER_OTLP_{kind}HEADERS" for kind in ("", "TRACES_", "METRICS_", "LOGS_"))
    texts = (config.environment.get(variable, "") for variable in variables)  # NAME=VALUE,NAME=VALUE, in URL encoding
    values = {unquote(pair.partition("=")[2].strip()) for text in texts for pair in text.split(",")}
    values.update(config.settings.observability.headers.values())
    return [word for value in values if value for word in (value, *value.split())]
