"""The tools that look only into the session: to reason, to list what is to be done, to remember, to look things up."""

from __future__ import annotations

import asyncio

import msgspec

from agentcli.errors import ToolError
from agentcli.llm.messages import Text
from agentcli.tools.builtin.arguments import MemoryCall, ReadMore, Recall, Think, Todo
from agentcli.tools.observation import pages_of
from agentcli.tools.remembered import Memory
from agentcli.tools.tool import ToolContext, ToolOutput

MOST_SHOWN = 12
_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


async def run(given: Think | Todo | MemoryCall | Recall | ReadMore, context: ToolContext) -> ToolOutput:
    match given:
        case Think():
            return ToolOutput("Noted.", summary="thought")
        case Todo():
            return _todo(given)
        case MemoryCall():
            if context.workspace.resources.memory is None:
                raise ToolError("There is no memory here: it is switched off.", kind="not_found")
            return await asyncio.to_thread(_memory, given, context.workspace.resources.memory)
        case Recall():
            return await _recall(given, context)
        case ReadMore():
            return await asyncio.to_thread(_page, given, context)


def _todo(given: Todo) -> ToolOutput:
    """Keep the model's list; the newest call holds all of it."""
    rows = [f"{_MARKS[item.status]} {item.content}" for item in given.items]
    done = sum(item.status == "completed" for item in given.items)
    structured = {"items": msgspec.to_builtins(given.items)}
    return ToolOutput("\n".join(rows) or "The list is empty.", structured, f"{done} of {len(rows)} done")


def _memory(given: MemoryCall, memory: Memory) -> ToolOutput:
    if given.command == "view" and not given.path:
        index = memory.index()
        lines = [f"{name}: {first}" for name, first in index]
        return ToolOutput("\n".join(lines) or "No memory files yet.", {"files": [name for name, _ in index]})
    if not given.path:
        raise ToolError(f"Give path, the file to {given.command}.", kind="invalid_parameters")
    match given.command:
        case "view":
            text = memory.view(given.path)
            return ToolOutput(text or "(empty)", {"path": given.path, "text": text}, given.path)
        case "write":
            if given.content is None:
                raise ToolError("Give content, all that the file is to hold.", kind="invalid_parameters")
            memory.write(given.path, given.content)
            return ToolOutput(f"Kept in {given.path}.", {"path": given.path}, given.path)
        case "delete":
            memory.delete(given.path)
            return ToolOutput(f"Deleted {given.path}.", {"path": given.path}, given.path)


async def _recall(given: Recall, context: ToolContext) -> ToolOutput:
    if context.workspace.resources.past is None:
        raise ToolError("There is no conversation here that could be looked through.", kind="not_found")
    past = context.workspace.resources.past()
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


def _page(given: ReadMore, context: ToolContext) -> ToolOutput:
    data = context.workspace.resources.data
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
