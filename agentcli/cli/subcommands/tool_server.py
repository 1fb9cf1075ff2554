"""Serves agentcli's own tools as an MCP server: to one program on stdin and stdout, or over Streamable HTTP."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from agentcli.agent.permissions.modes import Mode
from agentcli.app import Builder
from agentcli.cli.output import warn
from agentcli.cli.subcommands.serve import listen, owner_token
from agentcli.cli.subcommands.tools import ToolCallLine, open_bench
from agentcli.errors import UsageError
from agentcli.frontends.http.server import http_server, import_server
from agentcli.frontends.json_output import write_line
from agentcli.frontends.run_end import interrupt_on_signals
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.settings.load import Config
from agentcli.tools.tool import Tool
from agentcli.version import __version__


async def serve_on_stdio(config: Config, mode: Mode, only: Collection[str]) -> None:
    """Serve the tools named in `only` (empty: all) until stdin ends. Raises `UsageError` for an unknown tool."""
    async with _open_server(config, mode, only) as server, stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def serve_on_http(config: Config, mode: Mode, only: Collection[str], *, host: str, port: int, token_file: str) -> int:
    """Serve the tools at `/mcp` until a signal arrives, and return the exit code. All clients share one workspace.

    Requests need a token, as those to `agentcli serve` do. Raises `UsageError`.
    """
    import_server()
    from agentcli.frontends.http.requests import Guard  # needs the extra

    file, _, access = owner_token(config, token_file, "mcp_token")
    listener, address = listen(host, port)

    async def run() -> int:
        async with _open_server(config, mode, only) as server:
            # The guard checks hosts and origins. The SDK's own check would accept only loopback addresses.
            unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
            app = server.streamable_http_app(transport_security=unchecked)
            http = http_server(Guard(app, tokens=(access,), hosts=(*config.settings.serve.hosts, host)))
            listener.listen()
            write_line({"url": f"{address['url']}/mcp", "token_file": str(file)})
            with interrupt_on_signals(lambda: setattr(http, "should_exit", True)) as received:
                await http.serve(sockets=[listener])
        return 128 + received["signal"] if received else 1

    with listener:
        return asyncio.run(run())


@asynccontextmanager
async def _open_server(config: Config, mode: Mode, only: Collection[str]) -> AsyncIterator[Server[Any]]:
    """Yield an MCP server with agentcli's tools, or those named in `only`. Raises `UsageError` for an unknown name."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    registry = builder.offered_tools()
    # Tools that run in this program (mode "server") and do not come from an MCP server.
    names = [tool.name for tool in registry if tool.mode == "server" and not tool.server]
    if missing := [name for name in only if name not in names]:
        raise UsageError(f"Unknown tool {missing[0]!r}. Choose one of {', '.join(names)}.")
    offered = registry.clone(only=[name for name in names if not only or name in only])

    async def list_tools(context: Any, params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult.model_validate({"tools": list(map(_tool_message, offered))})

    async def call_tool(context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        answer = await bench.answer(ToolCallLine(params.name, params.arguments or {}))  # `bench` is opened below
        return mcp_types.CallToolResult.model_validate(_result_message(answer))

    async with open_bench(builder, offered, mode) as bench:
        yield Server[Any]("agentcli", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _tool_message(tool: Tool) -> dict[str, Any]:
    spec, only_reads = tool.spec(), tool.effect in ("none", "read", "web")
    hints = {"readOnlyHint": only_reads, "openWorldHint": tool.effect == "web"}
    return {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema, "annotations": hints}


def _result_message(answer: dict[str, Any]) -> dict[str, Any]:
    content = answer["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    structured = answer["structured"] if isinstance(answer["structured"], dict) else None
    return {
        "content": list(map(_mcp_content, blocks)),
        "structuredContent": msgspec.to_builtins(structured, enc_hook=str),
        "isError": answer["is_error"],
    }


def _mcp_content(block: dict[str, Any]) -> dict[str, Any]:
    match block:
        case {"type": "image", "source": {"media_type": media_type, "data": data}}:
            return {"type": "image", "data": data, "mimeType": media_type}
        case {"type": "document", "source": {"media_type": media_type, "data": data}}:
            return {"type": "resource", "resource": {"uri": "file:///document", "mimeType": media_type, "blob": data}}
        case _:
            return block  # texts have the same format in both
