"""Answers one prompt with an agent of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from agentcli.agent.events import Done
from agentcli.library.agent import Agent, Decide
from agentcli.library.options import AgentOptions
from agentcli.llm.messages import Content
from agentcli.settings.structs import PermissionSettings
from agentcli.tools.tool import Tool


class QueryParameters(TypedDict, total=False):
    """The parameters of `Agent` that a single prompt can have."""

    instructions: str | None
    tools: Sequence[Tool | Callable[..., Any]]
    approve: Decide | None
    permissions: str | PermissionSettings
    cwd: str | Path
    options: AgentOptions


async def query(prompt: Content, *, model: str = "", **parameters: Unpack[QueryParameters]) -> Done:
    """Answer one prompt with a new agent that takes these `parameters`, and close everything. Raises `AgentFailed`."""
    async with Agent(model, **parameters) as agent:
        return await agent.run(prompt)


def query_sync(prompt: Content, *, model: str = "", **parameters: Unpack[QueryParameters]) -> Done:
    """Do the same as `query`, for callers without an event loop."""
    return Agent(model, **parameters).run_sync(prompt)
