"""Makes tools of those of MCP servers: named as providers accept it, and small where the prompt has no room for all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.extensions.mcp.client import Parts, RemoteResult, RemoteTool
from agentcli.extensions.mcp.provider_schema import provider_schema
from agentcli.llm.messages import Text
from agentcli.llm.provider import ToolSpec
from agentcli.tools.observation import cut_middle
from agentcli.tools.tool import Tool, ToolContext, ToolOutput

# Calls a tool of a server by the server's name for it.
CallRemote = Callable[[RemoteTool, dict[str, Any], ToolContext], Awaitable[RemoteResult]]

MAX_NAME = 64  # characters; Anthropic's and OpenAI's limit for the name of a tool
_DIGEST = 8  # characters that tell shortened names apart
BYTES_PER_TOKEN = 3.2  # of names and short descriptions in JSON, by the o200k encoding
STUB_WORDS = (12, 8, 5, 0)  # of a description, the most that fits
NOTE = "Tools named mcp__… are described in a few words: call one with {} to be told its arguments."


def tool_name(server: str, tool: str) -> str:
    """The name of a tool, or a prompt, as long as it is short enough.

    A server's own `__` becomes `_`, so that a rule about the server `git` is about no other one.
    """
    return f"mcp__{re.sub('__+', '_', plain(server))}__{plain(tool)}"


def plain(name: str) -> str:
    """A name with `_` in place of each character that providers refuse."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)


class NoArguments(Struct, frozen=True):
    """Stands where a struct describes arguments; a server's schema does it here."""


def remote_tools(server: str, tools: Sequence[RemoteTool], call: CallRemote, taken: set[str]) -> Iterator[Tool]:
    """The tools of a server, under the names that models see, which are added to those `taken`.

    A hash tells names apart that are too long or taken.
    """
    for tool in tools:
        name = tool_name(server, tool.name)
        if len(name) > MAX_NAME or name in taken:
            digest = hashlib.sha256(f"{server}\0{tool.name}".encode()).hexdigest()[:_DIGEST]
            name = f"{name[: MAX_NAME - _DIGEST - 1]}_{digest}"
        taken.add(name)
        yield Tool(
            name,
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
    content: str | Parts
    if all(isinstance(part, Text) for part in result.content):
        content = "\n".join(part.text for part in result.content if isinstance(part, Text))
        if not content and result.structured is not None:
            content = msgspec.json.format(msgspec.json.encode(result.structured)).decode()
    else:
        content = tuple(Text(cut_middle(part.text)) if isinstance(part, Text) else part for part in result.content)
    output = ToolOutput(content, result.structured, is_error=result.is_error)
    return replace(output, error_kind="execution_error") if result.is_error else output


def fitted(specs: Sequence[ToolSpec], most_tokens: int) -> tuple[ToolSpec, ...]:
    """The tools in as much detail as fits: all of them whole, else a stub each, else only the first stubs that fit."""
    if _tokens(specs) <= most_tokens:
        return tuple(specs)
    room = most_tokens - _tokens((ToolSpec("", NOTE, {}),))
    for words in STUB_WORDS:
        stubs = [stub(spec, words) for spec in specs]
        if _tokens(stubs) <= room:
            return tuple(stubs)
    taken = accumulate(_tokens((one,)) for one in stubs)
    return tuple(one for one, tokens in zip(stubs, taken, strict=True) if tokens <= room)


def stub(spec: ToolSpec, words: int) -> ToolSpec:
    """A tool's name and the first words of its description; any arguments are accepted."""
    said = spec.description.split()
    short = " ".join(said[:words]) + (" …" if 0 < words < len(said) else "")
    return ToolSpec(spec.name, short, {"type": "object"})


def _tokens(specs: Sequence[ToolSpec]) -> float:
    return sum(len(msgspec.json.encode(spec)) for spec in specs) / BYTES_PER_TOKEN
