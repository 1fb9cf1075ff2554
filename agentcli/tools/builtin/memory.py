"""Keeps notes for later in the project's memory files."""

from __future__ import annotations

import asyncio

from agentcli.errors import ToolError
from agentcli.tools.builtin.arguments import MemoryCall
from agentcli.tools.remembered import Memory
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: MemoryCall, context: ToolContext) -> ToolOutput:
    memory = context.workspace.memory
    if memory is None:
        raise ToolError("There is no memory here: it is switched off.", kind="not_found")
    return await asyncio.to_thread(_done, given, memory)


def _done(given: MemoryCall, memory: Memory) -> ToolOutput:
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
