"""Answers one prompt with an agent of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypedDict, Unpack

from agentcli.agent.events import Done, Output
from agentcli.library.agent import Agent
from agentcli.library.approvals import Approver
from agentcli.library.options import AgentOptions
from agentcli.library.output import OutputType
from agentcli.llm.messages import Content
from agentcli.settings.structs import PermissionSettings
from agentcli.tools.tool import Tool


class QueryParameters(TypedDict, Generic[Output], total=False):
    """The parameters of `Agent` that are useful for a single prompt."""

    instructions: str | None
    tools: Sequence[Tool | Callable[..., Any]]
    output_type: OutputType[Output] | None
    approve: Approver | None
    permissions: str | PermissionSettings
    cwd: str | Path
    options: AgentOptions


async def query(prompt: Content, *, model: str = "", **parameters: Unpack[QueryParameters[Output]]) -> Done[Output]:
    """Answer one prompt with a new agent that takes these `parameters`, and close everything. Raises `AgentFailed`."""
    async with Agent(model, **parameters) as agent:
        return await agent.run(prompt)


def query_sync(prompt: Content, *, model: str = "", **parameters: Unpack[QueryParameters[Output]]) -> Done[Output]:
    """Do the same as `query`, for callers without an event loop."""
    return Agent(model, **parameters).run_sync(prompt)
