"""Another page of a result that was longer than one page."""

from __future__ import annotations

import asyncio

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import ReadMore
from agentcli.tools.observation import pages_of
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: ReadMore, context: ToolContext) -> ToolOutput:
    return await asyncio.to_thread(_page, given, context)


def _page(given: ReadMore, context: ToolContext) -> ToolOutput:
    data = context.workspace.data
    path = data.find(given.result_id) if data is not None else None
    if path is None:
        raise ToolError(
            f"No result {given.result_id!r} is kept: only long results are, and say so. Make the call again.",
            kind="not_found",
        )
    pages = pages_of(path.read_bytes().decode(errors="replace"))
    if given.page > len(pages):
        raise ToolError(f"The result has {len(pages)} pages.", kind="invalid_parameters")
    more = f"\n[page {given.page} of {len(pages)}]" if given.page < len(pages) else "\n[the last page]"
    structured = {"page": given.page, "pages": len(pages), "text": pages[given.page - 1]}
    return ToolOutput(pages[given.page - 1].rstrip("\n") + more, structured, f"page {given.page} of {len(pages)}")
