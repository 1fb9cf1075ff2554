"""Reads the configuration of MCP servers: how each is started or reached, and its limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from agentcli.errors import ConfigError, ToolError
from agentcli.extensions.mcp.tools import STARTUP_TIMEOUT_S, HttpSpec, Scope, ServerSpec, StdioSpec
from agentcli.extensions.programs import WorkspacePrograms, program_environment
from agentcli.settings.files import project_root, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.trust import MCP_FILE, is_project_file

if TYPE_CHECKING:
    from agentcli.extensions.mcp.server import Server
    from agentcli.extensions.mcp.servers import Servers
    from agentcli.extensions.mcp.stdio import ServerProgram
    from agentcli.extensions.mcp.tools import MCPClient
    from agentcli.extensions.plugins.plugin import Plugin

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_TRANSPORTS: dict[str, Literal["", "stdio", "http", "sse"]] = {  # without a type: http for a url, else stdio
    "": "", "stdio": "stdio", "local": "stdio", "http": "http", "streamable-http": "http", "streamable_http": "http",
    "streamableHttp": "http", "remote": "http", "sse": "sse",
}  # fmt: skip
# Other tools' keys, and ours for the same setting. If an entry has both, ours applies.
_OTHER_TOOLS_KEYS = {
    "transport": "type", "environment": "env", "httpUrl": "url", "http_headers": "headers",
    "includeTools": "enabled_tools", "excludeTools": "disabled_tools",
}  # fmt: skip
LOCAL_FILE = ".agentcli/config.local.toml"
EXTRA = "MCP servers need the extra mcp: ./install.sh --extras mcp, or pip install 'agentcli[mcp]'."
Positive = Annotated[float, msgspec.Meta(gt=0)]


class _ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A server in the form of `.mcp.json` and of the settings; unknown keys are ignored."""

    type: str = ""
    command: str | list[str] = ""
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    env_http_headers: dict[str, str] = {}  # values are names of variables
    bearer_token_env_var: str = ""
    timeout: Positive | None = None  # milliseconds, for one call
    tool_timeout_sec: Positive | None = None
    startup_timeout_sec: Positive | None = None
    startup_timeout_ms: Positive | None = None
    enabled_tools: tuple[str, ...] = ()
    disabled_tools: tuple[str, ...] = ()
    oauth: dict[str, Any] = {}
    enabled: bool = True
    disabled: bool = False


class _ServerFile(msgspec.Struct, frozen=True):
    mcpServers: dict[str, Any] = {}  # noqa: N815 - the field's name


class _ServerTable(NamedTuple):
    """Entries of servers by name; `source` is the file that contains them, or the caller that passed them."""

    servers: Mapping[str, Any]
    scope: Scope
    source: str


def server_specs(
    config: Config,
    on_notice: Callable[[str], None],
    *,
    files: Sequence[str] = (),
    added: Mapping[str, Any] = {},
    is_strict: bool = False,
    plugins: Sequence[Plugin] = (),
) -> list[ServerSpec]:
    """Return the enabled servers: those that a client has `added`, then of `files`, of the configuration, of plugins.

    Of several with one name, the first in this order applies. Unreadable entries are reported. If `is_strict`, those of
    the settings and the project are left out. Raises `ConfigError`.
    """
    tables = [
        _ServerTable(added, scope="flag", source="the client"),
        *(_ServerTable(servers_in(Path(file).expanduser()), scope="flag", source=file) for file in files),
        *([] if is_strict else _configured_tables(config)),
        *(_ServerTable(plugin.servers, scope="plugin", source=str(plugin.root)) for plugin in plugins),
    ]
    specs: dict[str, ServerSpec | None] = {}  # None: disabled or unreadable, which hides later ones, too
    call_s = _time_limit(config, "MCP_TOOL_TIMEOUT") or config.settings.mcp.call_timeout_s
    startup_s = _time_limit(config, "MCP_TIMEOUT") or STARTUP_TIMEOUT_S
    for table in tables:
        for name in [name for name in table.servers if name not in specs]:
            try:
                specs[name] = _read_entry(name, table, default_call_s=call_s, default_start_s=startup_s)
            except ValueError as error:
                specs[name] = None
                on_notice(f"{table.source}: the MCP server {name} is skipped: {error}.")
    return [spec for spec in specs.values() if spec is not None]


def _configured_tables(config: Config) -> list[_ServerTable]:
    """Return the servers of the settings and of the project's file, in the order of precedence."""
    root = project_root(config.cwd)
    user, local, file = str(config.paths.user_config), str(root / LOCAL_FILE), root / MCP_FILE
    tables: list[_ServerTable] = []
    for layer in reversed(config.layers):  # the strongest first
        if servers := layer.values.get("mcp_servers"):
            of_project = Path(layer.source).is_relative_to(root / ".agentcli")
            scope: Scope = "local" if layer.source == local else "project" if of_project else "user"
            tables.append(_ServerTable(servers, scope, layer.source))
    if config.project.is_allowed and is_project_file(file, root):
        tables.append(_ServerTable(servers_in(file), "project", str(file)))
        tables.sort(key=lambda table: table.source == user)  # the person's servers last, after those of the file
    return tables


def servers_in(file: Path) -> Mapping[str, Any]:
    """Return the servers of a file in the form of `.mcp.json`. Raises `ConfigError`."""
    try:
        return msgspec.json.decode(read_small_file(file), type=_ServerFile).mcpServers
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"could not be read ({error}).", file=str(file)) from error


def _read_entry(name: str, table: _ServerTable, *, default_call_s: float, default_start_s: float) -> ServerSpec | None:
    """Return the server of an entry; None if it is disabled. Raises `ValueError` if the entry cannot be read."""
    keys = table.servers[name]
    if isinstance(keys, Mapping):  # else `convert` rejects it
        keys = {ours: keys[theirs] for theirs, ours in _OTHER_TOOLS_KEYS.items() if theirs in keys} | dict(keys)
    entry = msgspec.convert(keys, _ServerEntry)
    if entry.type not in _TRANSPORTS:
        raise ValueError(f"unknown type {entry.type!r}; use stdio, http or sse")
    kind = _TRANSPORTS[entry.type] or ("http" if entry.url else "stdio")
    if not (entry.command or entry.url):
        raise ValueError("it has neither a command nor a url")
    if entry.disabled or not entry.enabled:
        return None
    transport: StdioSpec | HttpSpec
    if kind == "stdio":
        command, *arguments = [entry.command] if isinstance(entry.command, str) else entry.command
        transport = StdioSpec(command, (*arguments, *entry.args), entry.env, entry.cwd)
    else:
        # Headers refer to variables as `${NAME}`; `expand_address` inserts the values when a connection is made.
        headers = {header: f"${{{variable}}}" for header, variable in entry.env_http_headers.items()}
        if entry.bearer_token_env_var:
            headers["Authorization"] = f"Bearer ${{{entry.bearer_token_env_var}}}"
        transport = HttpSpec(entry.url, kind, headers | entry.headers, entry.oauth)
    return ServerSpec(
        name=name,
        transport=transport,
        scope=table.scope,
        source=table.source,
        timeout_s=entry.tool_timeout_sec or (entry.timeout or 0) / 1000 or default_call_s,
        startup_timeout_s=entry.startup_timeout_sec or (entry.startup_timeout_ms or 0) / 1000 or default_start_s,
        enabled_tools=entry.enabled_tools,
        disabled_tools=entry.disabled_tools,
    )


def _time_limit(config: Config, name: str) -> float:
    """Return a time limit in seconds from a variable in milliseconds; 0 if it is not set. Raises `ConfigError`."""
    value = config.environment.get(name, "").strip()
    try:
        return msgspec.convert(value, Positive, strict=False) / 1000 if value else 0
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name} must be a number of milliseconds: {error}.") from error


def expand_variables(text: str, environment: Mapping[str, str], *, forbidden: Collection[str] = ()) -> str:
    """Replace `${VAR}` and `${VAR:-default}`. Raises `ToolError` for a variable that is not set, or is `forbidden`."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name in forbidden:
            raise ToolError(
                f"A server of a project or plugin cannot use {name}, a model's key. Move it to your own settings.",
                kind="permission_denied",
            )
        replacement = environment.get(name, found[2])  # found[2] is the default, or None
        if replacement is None:
            raise ToolError(f"The server needs the variable {name}, which is not set.", kind="dependency_error")
        return replacement

    return _VARIABLE.sub(value, text)


def describe_server(spec: ServerSpec) -> str:
    """Describe, for a decision to trust a server, all that it is started with or sent; variables stay `${NAME}`."""
    match spec.transport:
        case StdioSpec(env=env, cwd=cwd):
            verb, details = "runs", [f"{name}={value}" for name, value in env.items()]
            details += [f"in {cwd}"] if cwd else []
        case HttpSpec(headers=headers):
            verb, details = "reaches", [f"{name}: {value}" for name, value in headers.items()]
    return f"The MCP server {spec.name} {verb}: {'; '.join((str(spec.transport), *details))}"


class Connector(msgspec.Struct, dict=True):
    """Connects to the servers of one configuration. Implements `Connect`."""

    config: Config

    async def __call__(self, spec: ServerSpec, server: Server) -> MCPClient:
        sdk = await asyncio.to_thread(load_sdk)
        connect: Callable[..., Awaitable[MCPClient]] = partial(sdk.connect, spec, server, self.config.cwd)
        if isinstance(spec.transport, StdioSpec):
            return await connect(self._expand_program(spec, spec.transport))
        from agentcli.extensions.mcp.oauth import StoredLogins, stored_auth

        address, logins = self.expand_address(spec, spec.transport), StoredLogins(self.config.stored_keys)
        login = await asyncio.to_thread(logins.load, address.url)
        if "authorization" in map(str.lower, address.headers):  # the settings contain a key, so no login is used
            return await connect(address)
        return await connect(address, auth=stored_auth(logins, address.url, login))

    def expand_address(self, spec: ServerSpec, address: HttpSpec, *, with_oauth: bool = False) -> HttpSpec:
        """Return the address with its variables replaced; those in `oauth` only `with_oauth`. Raises `ToolError`."""
        expand, to_expand = partial(self._expand, spec), address.oauth if with_oauth else {}
        headers = {name: expand(value) for name, value in address.headers.items()}
        oauth = address.oauth | {key: expand(value) for key, value in to_expand.items() if isinstance(value, str)}
        return msgspec.structs.replace(address, url=expand(address.url), headers=headers, oauth=oauth)

    def _expand(self, spec: ServerSpec, text: str, more: Mapping[str, str] = {}) -> str:
        forbidden = self._model_keys if spec.is_of_project or spec.scope == "plugin" else ()
        return expand_variables(text, {**self.config.environment, **more}, forbidden=forbidden)

    @cached_property
    def _model_keys(self) -> frozenset[str]:
        """The variables of providers' keys, which the servers of projects and plugins must not get."""
        from agentcli.models.providers import ProviderKeys

        keys = ProviderKeys(self.config)
        return frozenset(name for provider in keys.providers_that_take_keys() for name in keys.variables(provider))

    def _expand_program(self, spec: ServerSpec, program: StdioSpec) -> ServerProgram:
        from agentcli.extensions.mcp.stdio import ServerProgram

        environment = program_environment(self.config)
        environment |= {name: self._expand(spec, value) for name, value in program.env.items()}
        argv = tuple(self._expand(spec, part, environment) for part in (program.command, *program.args))
        folder = Path(self._expand(spec, program.cwd, environment)).expanduser()
        return ServerProgram(argv, environment, self.config.cwd / folder)


def load_sdk() -> Any:
    """Import the module that uses the SDK. Raises `ToolError`."""
    try:
        from agentcli.extensions.mcp import connection  # takes 0.6 s
    except ImportError as error:
        raise ToolError(f"{EXTRA} ({error})", kind="dependency_error") from error
    return connection


def make_servers(
    config: Config,
    specs: Sequence[ServerSpec],
    programs: WorkspacePrograms,
    on_notice: Callable[[str], None],
    *,
    clients: Sequence[MCPClient] = (),
) -> Servers:
    """Return the configured servers, which are held to what the person approved of them, and a caller's `clients`."""
    from agentcli.extensions.mcp.server import ServerApprovals
    from agentcli.extensions.mcp.servers import Servers

    for spec in specs:
        programs.add_server(spec)  # a server whose files change later starts only after a question
    approvals = ServerApprovals(config.paths.state / "mcp", project_root(config.cwd), programs.pins)
    only = [name for name in config.settings.tools.only if name.startswith("mcp__")]  # empty: no limit
    return Servers(specs, Connector(config), approvals, on_notice=on_notice, clients=clients, only=only)
