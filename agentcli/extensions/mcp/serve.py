"""Offers agentcli's tools as an MCP server on stdin and stdout, with the sandbox and the permissions of a session."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from agentcli.agent.permissions.modes import parse_mode
from agentcli.app import Builder
from agentcli.cli.output import warn
from agentcli.cli.subcommands.tools import ToolCallLine, open_bench
from agentcli.errors import UsageError
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.settings.load import Config
from agentcli.tools.tool import Tool
from agentcli.version import __version__


async def serve_tools(config: Config, mode: str, only: Collection[str]) -> None:
    """Serve the tools named in `only` (empty: all) until stdin ends. Raises `UsageError` for an unknown tool."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    registry = builder.offered_tools()
    tools = [tool.name for tool in registry if tool.mode == "server" and not tool.server]
    if missing := [name for name in only if name not in tools]:
        raise UsageError(f"There is no tool {missing[0]!r} to serve; there is {', '.join(tools)}.")
    offered = registry.clone(only=[name for name in tools if not only or name in only])

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(map(_describe, offered)))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return _result(await bench.answer(ToolCallLine(params.name, params.arguments or {})))

    server: Server[Any] = Server("agentcli", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    async with open_bench(builder, offered, parse_mode(mode)) as bench, stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _describe(tool: Tool) -> types.Tool:
    spec, only_reads = tool.spec(), tool.effect in ("none", "read", "web")
    hints = types.ToolAnnotations(read_only_hint=only_reads, open_world_hint=tool.effect == "web")
    return types.Tool(name=spec.name, description=spec.description, input_schema=spec.input_schema, annotations=hints)


def _result(answer: dict[str, Any]) -> types.CallToolResult:
    content = answer["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    structured = answer["structured"] if isinstance(answer["structured"], dict) else None
    return types.CallToolResult(
        content=[_block(block) for block in blocks],
        structured_content=msgspec.to_builtins(structured, enc_hook=str),
        is_error=answer["is_error"],
    )


def _block(block: dict[str, Any]) -> types.ContentBlock:
    match block:
        case {"type": "text", "text": text}:
            return types.TextContent(type="text", text=text)
        case {"type": "image", "source": {"media_type": media_type, "data": data}}:
            return types.ImageContent(type="image", data=data, mime_type=media_type)
        case {"source": {"media_type": media_type, "data": data}}:
            blob = types.BlobResourceContents(uri="file:///document", mime_type=media_type, blob=data)
            return types.EmbeddedResource(type="resource", resource=blob)
        case _:
            return types.TextContent(type="text", text=str(block))
