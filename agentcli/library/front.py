"""The names that programs import from `agentcli`. The first use of one of them loads this module."""

from warnings import warn

from agentcli.agent.accounting import UsageCollector

from agentcli.agent.events import (  # isort: skip
    ClientToolRequested, Done, Event, QuestionEvent, TextDelta, ToolFinished, TurnFailed,
)  # fmt: skip
from agentcli.agent.ops import ClientResult, Interrupt, Prompt, Steer
from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, UsageError, UserError
from agentcli.library.agent import Agent, AgentFailed
from agentcli.library.approvals import Allow, Deny
from agentcli.library.functions import to_anthropic_message, to_chat_completion
from agentcli.library.options import AgentOptions
from agentcli.library.query import query, query_sync
from agentcli.llm.messages import Base64Source, Document, Image, Message, Text
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


def find_moved(name: str) -> object:
    """Return a submodule, or with a warning a name that moved out of `agentcli` itself. Raises `AttributeError`."""
    import agentcli.events
    import agentcli.hooks
    import agentcli.providers
    import agentcli.skills
    import agentcli.stores
    import agentcli.tokens

    # In this order, because a name in two modules was exported from the first of them.
    ordered = (agentcli.events, agentcli.stores, agentcli.hooks, agentcli.tokens, agentcli.skills, agentcli.providers)
    modules = {module.__name__: module for module in ordered}
    new = _RENAMED.get(name, name)
    if (home := f"agentcli.{new}") in modules:
        found: object = modules[home]
    elif place := next((place for place, module in modules.items() if new in module.__all__), ""):
        home, found = f"{place}.{new}", getattr(modules[place], new)
    else:
        raise AttributeError(f"module 'agentcli' has no attribute {name!r}")
    if home != f"agentcli.{name}":
        warn(f"agentcli.{name} is {home} now; the next release drops the old name.", DeprecationWarning, 3)
    return found
