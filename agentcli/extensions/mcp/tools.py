"""Makes a `Tool` of each tool of an MCP server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.extensions.mcp.client import RemoteResult, RemoteTool
from agentcli.extensions.mcp.names import tool_names
from agentcli.extensions.mcp.provider_schema import provider_schema
from agentcli.llm.messages import Document, Image, Text
from agentcli.tools.observation import cut_middle
from agentcli.tools.tool import Tool, ToolContext, ToolOutput

# Calls a tool of a server by the server's name for it.
CallRemote = Callable[[RemoteTool, dict[str, Any], ToolContext], Awaitable[RemoteResult]]


class NoArguments(Struct, frozen=True):
    """Stands where a struct describes arguments; a server's schema does it here."""


def remote_tools(server: str, tools: Sequence[RemoteTool], call: CallRemote, taken: set[str]) -> Iterator[Tool]:
    """The tools of a server, under the names that models see, which are added to those `taken`."""
    names = tool_names(server, (tool.name for tool in tools), taken)
    for tool in tools:
        yield Tool(
            names[tool.name],
            tool.description.strip() or tool.name,
            NoArguments,
            partial(_run, tool, call),
            "foreign",  # what a server says of a tool (readOnlyHint and the like) proves nothing
            source=f"mcp:{server}",
            time_limit_s=None,  # the call has its own, which stops while the person is asked something
            schema=provider_schema(tool.schema),
            is_described_when_called=True,
        )


async def _run(tool: RemoteTool, call: CallRemote, given: dict[str, Any], context: ToolContext) -> ToolOutput:
    """Raises `ToolError`; where the server refuses the arguments it tells what they have to be."""
    own_level = "output_level" in provider_schema(tool.schema)["properties"]
    input = {name: value for name, value in given.items() if name != "output_level" or own_level}
    try:
        return output_of(await call(tool, input, context))
    except ToolError as error:
        if error.kind != "invalid_parameters":
            raise
        schema = msgspec.json.encode(tool.schema).decode()
        raise ToolError(f"{error}\nThe arguments, as a JSON Schema: {schema}", kind=error.kind) from error


def output_of(result: RemoteResult) -> ToolOutput:
    """A server's result as that of a tool. Text alone stays one text; structured data is told where nothing else is."""
    texts = [part.text for part in result.content if isinstance(part, Text)]
    content: str | tuple[Text | Image | Document, ...]
    if len(texts) == len(result.content):
        content = "\n".join(texts)
        if not content and result.structured is not None:
            content = msgspec.json.format(msgspec.json.encode(result.structured)).decode()
    else:
        content = tuple(Text(cut_middle(part.text)) if isinstance(part, Text) else part for part in result.content)
    return ToolOutput(
        content,
        result.structured,
        is_error=result.is_error,
        error_kind="execution_error" if result.is_error else None,
    )
