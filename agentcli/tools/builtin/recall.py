"""Looks up what was said and done earlier in this conversation."""

from __future__ import annotations

import asyncio

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import Recall
from agentcli.tools.tool import ToolContext, ToolOutput

MOST_SHOWN = 12


async def run(given: Recall, context: ToolContext) -> ToolOutput:
    if context.workspace.past is None:
        raise ToolError("There is no conversation here that could be looked through.", kind="not_found")
    past = context.workspace.past()
    if given.id:
        text = await asyncio.to_thread(past.entry, given.id)
        if text is None:
            raise ToolError(f"There is no entry {given.id}: search with query.", kind="not_found")
        return ToolOutput(text, {"id": given.id, "text": text}, f"#{given.id.lstrip('#')}")
    if not given.query or not given.query.strip():
        raise ToolError("Give query (words to look for) or id (an entry's number).", kind="invalid_parameters")
    found = await asyncio.to_thread(past.search, given.query)
    shown = found[:MOST_SHOWN]
    more = [f"[{len(found) - MOST_SHOWN} more: use other words]"] if len(found) > MOST_SHOWN else []
    told = "\n".join([*shown, *more]) or "Nothing of this conversation says that: try fewer or other words."
    return ToolOutput(told, {"found": shown, "total": len(found)}, f"{len(found)} found")
