"""`agentcli mcp` adds, lists, tests and removes MCP servers, and can itself serve as one."""

import asyncio
import re
import sys
import webbrowser
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
import typer

from agentcli.agent.permissions.modes import parse_mode
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer, run_app
from agentcli.errors import ToolError, UsageError, UserError
from agentcli.extensions.mcp.config import LOCAL_FILE, Connector, load_sdk, make_servers, server_specs, servers_in
from agentcli.extensions.mcp.server import Server, Status
from agentcli.extensions.mcp.servers import NO_SERVERS, Servers, describe_offer, server_row
from agentcli.extensions.mcp.tools import HttpSpec, ServerSpec, StdioSpec
from agentcli.extensions.programs import Plugins, WorkspacePrograms
from agentcli.llm.addresses import is_loopback
from agentcli.settings.files import project_root
from agentcli.settings.load import Config, read_layer
from agentcli.settings.trust import MCP_FILE
from agentcli.settings.write import store_in, store_setting, write_settings

LOOPBACK = "127.0.0.1"

app = make_app("Add, list and remove MCP servers, log in to one, or serve as one.")

Name = Annotated[str, typer.Argument(help="The server's name.")]
Scope = Literal["user", "project", "local"]


def run(arguments: list[str]) -> int:
    try:
        return run_app(app, "mcp", arguments)
    except ToolError as error:
        raise UserError(str(error)) from error


@app.command("list")
def list_servers(json: AsJson = False) -> None:
    """Connect to the configured servers, and show what each offers. Exits with 1 if one does not work."""
    servers = list(_servers(configuration(warns=True)))
    statuses = asyncio.run(_try_connections(*servers))
    text = "\n".join(map(server_row, servers, statuses)) or NO_SERVERS
    print_answer(list(map(_row, servers, statuses)), text, as_json=json)
    raise typer.Exit(int(any(server.current_offer is None for server in servers)))


@app.command("get")
def show_server(name: Name, json: AsJson = False) -> None:
    """Connect to one server and show its tools. Exits with 1 if it does not work."""
    server = _servers(configuration(warns=True)).get(name)
    (status,) = asyncio.run(_try_connections(server))
    tools = msgspec.to_builtins(server.current_offer.tools if server.current_offer else ())
    print_answer(_row(server, status) | {"tools": tools}, describe_offer(server, status), as_json=json)
    raise typer.Exit(int(server.current_offer is None))


@app.command("add", context_settings={"ignore_unknown_options": True})
def add_server(
    name: Name,
    target: Annotated[list[str], typer.Argument(help="A URL, or after -- a command with its arguments.")],
    *,
    scope: Annotated[Scope, typer.Option(help="Where to save it.")] = "user",
    env: Annotated[list[str], typer.Option("--env", "-e", help="An environment variable, K=V.")] = [],  # noqa: B006 - typer copies it
    header: Annotated[list[str], typer.Option("--header", "-H", help="A request header, 'Name: value'.")] = [],  # noqa: B006 - typer copies it
    transport: Annotated[str, typer.Option(help="stdio, http or sse. Default: by the target.")] = "",
) -> None:
    """Add a server to your settings, to this project (.mcp.json), or to this folder only for you (local)."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f"{name!r} is not a valid server name. Use letters, digits, - and _.")
    config = configuration()
    is_address = target[0].startswith(("http://", "https://"))
    if "://" in target[0] and not is_address:
        raise UsageError(f"{target[0]} is not a valid URL of a server. Start it with https:// or http://.")
    if is_address and len(target) > 1:
        raise UsageError("Use either a URL or a command, not both.")
    keys: dict[str, Any] = {
        "type": transport or ("http" if is_address else ""),
        **({"url": target[0]} if is_address else {"command": target[0], "args": target[1:]}),
        "env": dict(_pair(text, "=", "--env") for text in env),
        "headers": dict(_pair(text, ":", "--header") for text in header),
    }
    entry = {key: value for key, value in keys.items() if value or key == "args"}  # a command always has `args`
    load_sdk()  # raises without the SDK, before anything is written
    change = "replaced" if name in _servers_of(config, scope) else "added"
    echo(f"{change.capitalize()} {name}. {_write_entry(config, scope, name, entry)}")


@app.command("remove")
def remove_server(
    name: Name, scope: Annotated[str, typer.Option(help="Remove it only here. Default: everywhere.")] = ""
) -> None:
    """Remove a server from the settings."""
    config = configuration()
    scopes = [each for each in get_args(Scope) if scope in ("", each) and name in _servers_of(config, each)]
    if not scopes:
        raise UsageError(f"There is no MCP server {name!r} in your settings, this project or this folder.")
    for each in scopes:
        echo(_write_entry(config, each, name, None))


@app.command("approve")
def approve_server(name: Name) -> None:
    """Approve the current version of a project's server."""
    server = _servers(configuration(warns=True)).get(name)

    async def approve() -> str:
        async with aclosing(server):
            return await server.approve()

    echo(f"Approved: {asyncio.run(approve())}.")


@app.command("login")
def log_in(name: Name) -> None:
    """Log in to a server in your browser. The tokens are stored like API keys."""
    config = configuration(warns=True)
    echo(asyncio.run(_log_in(config, _servers(config).get(name))))


@app.command("logout")
def log_out(name: Name) -> None:
    """Log out of a server: remove its tokens."""
    config = configuration(warns=True)
    spec = _servers(config).get(name).spec
    load_sdk()
    from agentcli.extensions.mcp.oauth import StoredLogins  # the SDK: 0.6 s

    is_removed = StoredLogins(config.stored_keys).remove(_address(config, spec).url)
    echo(f"Logged out of {name}." if is_removed else f"You are not logged in to {name}.")


@app.command("serve")
def serve(
    permission_mode: Annotated[str, typer.Option(help="The mode. What needs approval is denied.")] = "default",
    tools: Annotated[str, typer.Option(help="Offer only these tools, separated by commas.")] = "",
    *,
    http: Annotated[
        bool, typer.Option("--http", help="Serve over Streamable HTTP instead of stdin and stdout.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --http: listen on this address.")] = LOOPBACK,
    port: Annotated[int, typer.Option(help="With --http: listen on this port; 0 is any free port.")] = 0,
    token_file: Annotated[str, typer.Option(help="With --http: the file with the token, created if missing.")] = "",
) -> None:
    """Serve agentcli's own tools to other agents, with its sandbox and permissions."""
    if not http and (host, port, token_file) != (LOOPBACK, 0, ""):
        raise UsageError("--host, --port and --token-file are for --http.")
    load_sdk()
    from agentcli.cli.subcommands.tool_server import serve_on_http, serve_on_stdio  # the SDK: 0.6 s

    config, mode = configuration(warns=True), parse_mode(permission_mode)
    only = [name for name in tools.split(",") if name]
    if http:
        raise typer.Exit(serve_on_http(config, mode, only, host=host, port=port, token_file=token_file))
    asyncio.run(serve_on_stdio(config, mode, only))


def _servers(config: Config) -> Servers:
    plugins = Plugins(config=config, on_notice=warn).active
    return make_servers(config, server_specs(config, warn, plugins=plugins), WorkspacePrograms(config), warn)


async def _try_connections(*servers: Server) -> list[Status]:
    """Connect to servers and disconnect again; return the status that each had in between."""
    try:
        await asyncio.gather(*(server.client() for server in servers), return_exceptions=True)
        return [server.status for server in servers]
    finally:
        await asyncio.gather(*(server.aclose() for server in servers))


def _row(server: Server, status: Status) -> dict[str, Any]:
    tools = [tool.name for tool in server.current_offer.tools] if server.current_offer else []
    problem = {"problem": server.problem} if server.problem else {}
    spec = server.spec
    return {"name": spec.name, "source": spec.source, "scope": spec.scope, "status": status, "tools": tools, **problem}


def _pair(text: str, separator: str, flag: str) -> tuple[str, str]:
    """Split the value of a flag at the first `separator`. Raises `UsageError`."""
    name, found, value = text.partition(separator)
    if not found or not name.strip():
        raise UsageError(f"{flag} {text!r} has no {separator!r}.")
    return name.strip(), value.strip()


def _scope_file(config: Config, scope: str) -> Path:
    root = project_root(config.cwd)
    return {"user": config.paths.user_config, "local": root / LOCAL_FILE, "project": root / MCP_FILE}[scope]


def _servers_of(config: Config, scope: str) -> Mapping[str, Any]:
    if not (file := _scope_file(config, scope)).exists():
        return {}
    return servers_in(file) if scope == "project" else read_layer(file).values.get("mcp_servers", {})


def _write_entry(config: Config, scope: str, name: str, entry: dict[str, Any] | None) -> str:
    """Write a server to the file of a scope, or remove it (None); return a message. Raises `UserError`."""
    file, key = _scope_file(config, scope), f"mcp_servers.{name}"
    if scope == "user":
        return store_setting(config, key, entry)
    if scope == "local":
        return store_in(file, key, entry)
    servers = {**_servers_of(config, scope), name: entry}
    if entry is None:
        del servers[name]
    content = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file.exists() else {}
    text = msgspec.json.format(msgspec.json.encode({**content, "mcpServers": servers}), indent=2)
    write_settings(file, f"{text.decode()}\n", mode=0o644)  # for everybody who works on the project
    if entry is None:
        return f"Removed from {file}."
    return f"Saved in {file}. To use it, trust the project: agentcli config trust"


def _address(config: Config, spec: ServerSpec, *, with_oauth: bool = False) -> HttpSpec:
    """Return a server's address, with its variables replaced. Raises `UsageError` if the server is a local program."""
    if isinstance(spec.transport, StdioSpec):
        raise UsageError(f"{spec.name} runs on this machine and has no login. Set what it needs in its env.")
    return Connector(config).expand_address(spec, spec.transport, with_oauth=with_oauth)


async def _log_in(config: Config, server: Server) -> str:
    """Log in to a server in the browser; return a message for the person. Raises `UsageError` and `ToolError`."""
    spec, address = server.spec, _address(config, server.spec, with_oauth=True)
    if address.url.startswith("http://") and not is_loopback(urlsplit(address.url).hostname or ""):
        raise UsageError(f"{spec.name} uses an unencrypted connection, which would expose the login. Use https://.")
    sdk = load_sdk()
    from agentcli.extensions.mcp.oauth import StoredLogins, login_auth  # the SDK: 0.6 s

    def show(login_page: str) -> None:
        echo(f"If your browser does not open, log in here: {login_page}")
        sys.stdout.flush()  # before the wait for the browser
        if config.environment.get("BROWSER") != "none":
            webbrowser.open(login_page)

    async with login_auth(StoredLogins(config.stored_keys), address, show) as auth:
        client = await sdk.connect(spec, server, config.cwd, address, auth=auth)
        tools = await client.list_tools()
        await client.close()
    return f"You are logged in to {spec.name}, which has {len(tools)} tools."
