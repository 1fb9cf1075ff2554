"""Keeps the model's list of what is to be done; the newest call holds all of it."""

from __future__ import annotations

import msgspec

from agentcli.tools.builtin.arguments import Todo
from agentcli.tools.tool import ToolContext, ToolOutput

_MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


async def run(given: Todo, context: ToolContext) -> ToolOutput:
    rows = [f"{_MARKS[item.status]} {item.content}" for item in given.items]
    done = sum(item.status == "completed" for item in given.items)
    structured = {"items": msgspec.to_builtins(given.items)}
    return ToolOutput("\n".join(rows) or "The list is empty.", structured, f"{done} of {len(rows)} done")
