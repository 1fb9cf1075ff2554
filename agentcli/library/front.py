"""The names that programs import from `agentcli`, and functions for single prompts. Loaded when one is first used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypedDict, Unpack
from warnings import warn

from agentcli.agent.accounting import UsageCollector
from agentcli.agent.events import (
    ClientToolRequested,
    Done,
    Event,
    Output,
    QuestionEvent,
    TextDelta,
    ToolFinished,
    TurnFailed,
)
from agentcli.agent.ops import ClientResult, Interrupt, Prompt, Steer
from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, UsageError, UserError
from agentcli.library.agent import Agent, AgentFailed
from agentcli.library.approvals import Allow, Approver, Deny
from agentcli.library.functions import to_anthropic_message, to_chat_completion
from agentcli.library.options import AgentOptions
from agentcli.library.output import OutputType
from agentcli.llm.messages import Base64Source, Content, Document, Image, Message, Text
from agentcli.settings.structs import PermissionSettings, Settings
from agentcli.tools.own_tools import tool
from agentcli.tools.tool import RetryRule, Tool, ToolContext, ToolOutput
from agentcli.version import __version__

__all__ = [
    "Agent", "AgentFailed", "AgentOptions", "AgentcliError", "Allow", "Base64Source", "ClientResult",
    "ClientToolRequested", "ConfigError", "Deny", "Document", "Done", "Event", "Image", "Interrupt", "Message",
    "PermissionSettings", "Prompt", "QuestionEvent", "RetryRule", "Settings", "Steer", "StorageError", "Text",
    "TextDelta", "Tool", "ToolContext", "ToolError", "ToolFinished", "ToolOutput", "TurnFailed", "UsageCollector",
    "UsageError", "UserError", "__version__", "query", "query_sync", "to_anthropic_message", "to_chat_completion",
    "tool",
]  # fmt: skip
_RENAMED = {"ApprovalRequested": "QuestionEvent", "ops": "events"}


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


def find_moved(name: str) -> object:
    """Return a submodule, or with a warning a name that moved out of `agentcli` itself. Raises `AttributeError`."""
    import agentcli.events
    import agentcli.hooks
    import agentcli.providers
    import agentcli.skills
    import agentcli.stores
    import agentcli.tokens

    new = _RENAMED.get(name, name)
    # In this order, because a name in two modules was exported from the first of them.
    ordered = (agentcli.events, agentcli.stores, agentcli.hooks, agentcli.tokens, agentcli.skills, agentcli.providers)
    homes = [agentcli] if new in vars(agentcli) else [module for module in ordered if new in module.__all__]
    if not homes:
        raise AttributeError(f"module 'agentcli' has no attribute {name!r}")
    if (now := f"{homes[0].__name__}.{new}") != f"agentcli.{name}":
        warn(f"agentcli.{name} is {now} now; the next release drops the old name.", DeprecationWarning, stacklevel=3)
    return getattr(homes[0], new)
