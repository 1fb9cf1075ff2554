"""Reads the resources that a prompt names as `@server:uri`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Iterator

from agentcli.agent.events import Emit, Notice
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import User
from agentcli.conversation.mentions import typed_blocks
from agentcli.errors import ToolError
from agentcli.extensions.mcp.client import Parts
from agentcli.llm.messages import Text
from agentcli.tools.observation import cut_middle

MOST_TEXT = 100_000  # characters of one resource
_MENTION = re.compile(r"(?<!\S)@([\w.-]+):(\S+)")
_PIPED = "\n\n<stdin>\n"  # what was piped in is somebody else's text


async def attach_named(
    state: AgentState,
    prompt_ids: Container[str],
    emit: Emit,
    *,
    servers: Container[str],
    read: Callable[[str, str], Awaitable[Parts]],
) -> None:
    """Add the resources as notes behind the prompt; the person is told of one that cannot be read."""
    for server, uri in dict.fromkeys(_named(state, prompt_ids, servers)):
        try:
            parts = await read(server, uri)
        except (ToolError, TimeoutError) as error:
            why = str(error) or "it took too long"
            emit(Notice(f"@{server}:{uri} was not read: {why}"))
            parts = (Text(f"It could not be read: {why}"),)
        cut = tuple(Text(cut_middle(part.text, MOST_TEXT)) if isinstance(part, Text) else part for part in parts)
        head = Text(f"The resource {uri} of the MCP server {server}, which the prompt names:")
        state.notes.append(User((head, *cut), is_reminder=True))


def _named(state: AgentState, prompt_ids: Container[str], servers: Container[str]) -> Iterator[tuple[str, str]]:
    for entry in state.conversation.path:
        if entry.id in prompt_ids and isinstance(entry.body, User):
            for block in typed_blocks(entry.body.content):
                typed = block.text.partition(_PIPED)[0] if isinstance(block, Text) else ""
                yield from ((found[1], found[2]) for found in _MENTION.finditer(typed) if found[1] in servers)
