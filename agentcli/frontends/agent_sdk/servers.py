"""Lets the model use MCP servers that run inside the program at the other end."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from agentcli.errors import ToolError
from agentcli.extensions.mcp.tools import Parts, RemoteResult, RemoteTool
from agentcli.frontends.agent_sdk.channel import ClientError, ControlChannel
from agentcli.frontends.json_input import IMAGE_TYPES
from agentcli.llm.messages import Base64Source, Image, Text
from agentcli.tools.tool import Ask
from agentcli.version import __version__

_PROTOCOL = "2025-06-18"
_INVALID_PARAMETERS = -32602  # JSON-RPC 2.0 §5.1


class HostedServer:
    """A server of the program, which is sent the messages of MCP in control requests. Implements `MCPClient`."""

    def __init__(self, name: str, channel: ControlChannel) -> None:
        self.name = name
        self._channel = channel
        self._ids = count(1)

    async def list_tools(self) -> Sequence[RemoteTool]:
        client = {"name": "agentcli", "version": __version__}
        await self._request("initialize", protocolVersion=_PROTOCOL, capabilities={}, clientInfo=client)
        self._notify("notifications/initialized")
        result = await self._request("tools/list")
        return [
            RemoteTool(str(tool["name"]), str(tool.get("description") or ""), dict(tool.get("inputSchema") or {}))
            for tool in result.get("tools", ())
        ]

    async def call_tool(
        self, name: str, input: dict[str, Any], *, progress: Callable[[str], None], ask: Ask | None
    ) -> RemoteResult:
        result = await self._request("tools/call", name=name, arguments=input)
        content: Parts = tuple(_part(block) for block in result.get("content", ()))
        return RemoteResult(content, result.get("structuredContent"), bool(result.get("isError")))

    async def close(self) -> None:
        return

    async def _request(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result; if it is cancelled, so is the request on the server."""
        id = next(self._ids)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        try:
            answer = await self._channel.ask("mcp_message", server_name=self.name, message=message)
        except asyncio.CancelledError:
            self._notify("notifications/cancelled", requestId=id)
            raise
        except ClientError as error:
            raise ToolError(str(error), kind="resource_error") from error
        match answer.get("mcp_response"):
            case {"result": dict(result)} if all(isinstance(result.get(key, []), list) for key in ("tools", "content")):
                return result
            case {"error": {"code": code, "message": why}} if code == _INVALID_PARAMETERS:
                raise ToolError(str(why), kind="invalid_parameters")
            case {"error": {"message": why}}:
                raise ToolError(str(why), kind="execution_error")
        raise ToolError(f"The MCP server {self.name} gave no valid answer to {method}.", kind="execution_error")

    def _notify(self, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self._channel.post("mcp_message", server_name=self.name, message=message)


def _part(block: Any) -> Text | Image:
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return Text(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)} if kind in IMAGE_TYPES:
            return Image(Base64Source(kind, data))
        case {"type": "resource_link", "uri": str(uri)}:
            return Text(f"[resource {uri}]")
        case _:
            return Text(f"[{block.get('type') if isinstance(block, dict) else 'content'}: not supported]")
