"""Gives the model a place to reason between calls."""

from __future__ import annotations

from agentcli.tools.builtin.arguments import Think
from agentcli.tools.tool import ToolContext, ToolOutput


async def run(given: Think, context: ToolContext) -> ToolOutput:
    return ToolOutput("Noted.", summary="thought")
