"""Looks up what was said and done earlier in this conversation."""

from __future__ import annotations

import asyncio

from agentcli.errors import ToolError
from agentcli.llm.messages import Text
from agentcli.tools.builtin.arguments import Recall
from agentcli.tools.tool import ToolContext, ToolOutput

MOST_SHOWN = 12


async def run(given: Recall, context: ToolContext) -> ToolOutput:
    if context.workspace.past is None:
        raise ToolError("There is no conversation here that could be looked through.", kind="not_found")
    past = context.workspace.past()
    if given.id:
        found = await asyncio.to_thread(past.entry, given.id)
        if found is None:
            raise ToolError(f"There is no entry {given.id}: search with query.", kind="not_found")
        text, media = found
        content = (Text(text), *media) if media else text
        return ToolOutput(content, {"id": given.id, "text": text}, f"#{given.id.lstrip('#')}")
    if not given.query or not given.query.strip():
        raise ToolError("Give query (words to look for) or id (an entry's number).", kind="invalid_parameters")
    excerpts = await asyncio.to_thread(past.search, given.query)
    shown = excerpts[:MOST_SHOWN]
    more = [f"[{len(excerpts) - MOST_SHOWN} more: use other words]"] if len(excerpts) > MOST_SHOWN else []
    told = "\n".join([*shown, *more]) or "Nothing of this conversation says that: try fewer or other words."
    return ToolOutput(told, {"found": shown, "total": len(excerpts)}, f"{len(excerpts)} found")
