"""The last stage of a call: what the model sees of its result."""

from __future__ import annotations

import asyncio

import msgspec

from agentcli.tools.data_files import DataFile
from agentcli.tools.observation import LARGEST_KEPT_AS_IS, LARGEST_UNPAGED, cut_middle, formatted, pages_of
from agentcli.tools.tool import Tool, ToolContext, ToolOutput


async def observed(tool: Tool, output: ToolOutput, context: ToolContext) -> ToolOutput:
    """The output with its content as text of the right length: longer ones begin with their first page.

    What is left out is kept in a data file, which read_more pages through and file_read opens.
    """
    content = output.content
    if content is None:
        content = "" if output.structured is None else (tool.show or formatted)(output.structured, context.level)
    if not isinstance(content, str) or len(content.encode()) <= LARGEST_UNPAGED:
        return msgspec.structs.replace(output, content=content)
    return msgspec.structs.replace(output, content=await asyncio.to_thread(_first_page, content, context))


def _first_page(text: str, context: ToolContext) -> str:
    data = context.workspace.data
    if data is None:
        return cut_middle(text)
    try:
        kept = data.store(text.encode(), context.call_id)
    except OSError as error:
        return f"{cut_middle(text)}\n[the rest could not be kept: {error}]"
    pages = pages_of(text)
    notes = f'[page 1 of {len(pages)}; read_more with result_id="{context.call_id}" and page=2 shows the next]'
    if kept.size > LARGEST_KEPT_AS_IS:
        context.workspace.sandbox.grant(kept.path.resolve(), "read")
        notes += f"\n{told_of(kept)}"
    return f"{pages[0].rstrip()}\n{notes}"


def told_of(file: DataFile) -> str:
    return f"[all of it: {file.path} ({file.size:,} bytes, sha256 {file.hash[:12]}…), which file_read opens]"
