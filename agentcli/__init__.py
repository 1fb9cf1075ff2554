"""agentcli: a coding assistant for the terminal, and a library: `from agentcli import Agent, tool`."""

from __future__ import annotations

from agentcli.version import __version__

TYPE_CHECKING = False  # importing typing takes longer than all that is here, and signals are not heeded before its end
if TYPE_CHECKING:
    from agentcli.agent import events, ops
    from agentcli.agent.accounting.metrics import UsageCollector
    from agentcli.agent.context.transform import create_context_transform
    from agentcli.agent.events import (
        ApprovalRequested,
        ApprovalSettled,
        ClientToolRequested,
        Compaction,
        Done,
        EntryStored,
        Event,
        HookRan,
        ModeChanged,
        Notice,
        OutputDelta,
        ProviderSwitched,
        QueueChanged,
        Retry,
        Steered,
        SubagentEnded,
        SubagentStarted,
        TextDelta,
        ThinkingDelta,
        ToolFinished,
        ToolStarted,
        TurnEnded,
        TurnFailed,
        TurnStarted,
        UsageReported,
    )
    from agentcli.agent.hooks import CallHooks, HookAnswer, NoHooks, TurnHooks
    from agentcli.agent.ops import Approve, ClientResult, Interrupt, Prompt, SetEffort, SetMode, SetModel, Steer
    from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, UsageError, UserError
    from agentcli.library import Agent, AgentFailed
    from agentcli.llm.messages import CacheControl, Document, Image, Message, Text
    from agentcli.llm.provider import ToolSpec
    from agentcli.llm.tokens.registry import TokenEncoder, encoders
    from agentcli.skills.activation import Activation, SkillRegistry
    from agentcli.skills.skill import Skill, read_skill
    from agentcli.token_counts import count_conversation_tokens, count_message_tokens, count_tokens, get_model_info
    from agentcli.tools.own_tools import tool
    from agentcli.tools.tool import Tool, ToolContext, ToolOutput

# The module of each name.
_HOMES = {
    name: module
    for module, names in {
        "agentcli.library": "Agent AgentFailed",
        "agentcli.agent.context.transform": "create_context_transform",
        "agentcli.tools.own_tools": "tool",
        "agentcli.tools.tool": "Tool ToolContext ToolOutput",
        "agentcli.llm.provider": "ToolSpec",
        "agentcli.llm.messages": "CacheControl Document Image Message Text",
        "agentcli.llm.tokens.registry": "TokenEncoder encoders",
        "agentcli.skills.activation": "Activation SkillRegistry",
        "agentcli.skills.skill": "Skill read_skill",
        "agentcli.token_counts": "count_conversation_tokens count_message_tokens count_tokens get_model_info",
        "agentcli.errors": "AgentcliError ConfigError StorageError ToolError UsageError UserError",
        "agentcli.agent.hooks": "CallHooks HookAnswer NoHooks TurnHooks",
        "agentcli.agent.events": (
            "ApprovalRequested ApprovalSettled ClientToolRequested Compaction Done EntryStored Event HookRan "
            "ModeChanged Notice OutputDelta ProviderSwitched QueueChanged Retry Steered SubagentEnded SubagentStarted "
            "TextDelta ThinkingDelta ToolFinished ToolStarted TurnEnded TurnFailed TurnStarted UsageReported"
        ),
        "agentcli.agent.accounting.metrics": "UsageCollector",
        "agentcli.agent.ops": "Approve ClientResult Interrupt Prompt SetEffort SetMode SetModel Steer",
    }.items()
    for name in names.split()
}

__all__ = [
    "Activation", "Agent", "AgentFailed", "AgentcliError", "ApprovalRequested", "ApprovalSettled", "Approve",
    "CacheControl", "CallHooks", "ClientResult", "ClientToolRequested", "Compaction", "ConfigError", "Document",
    "Done", "EntryStored", "Event", "HookAnswer", "HookRan", "Image", "Interrupt", "Message", "ModeChanged",
    "NoHooks", "Notice", "OutputDelta", "Prompt", "ProviderSwitched", "QueueChanged", "Retry", "SetEffort", "SetMode",
    "SetModel", "Skill", "SkillRegistry", "Steer", "Steered", "StorageError", "SubagentEnded", "SubagentStarted",
    "Text", "TextDelta", "ThinkingDelta", "TokenEncoder", "Tool", "ToolContext", "ToolError", "ToolFinished",
    "ToolOutput", "ToolSpec", "ToolStarted", "TurnEnded", "TurnFailed", "TurnHooks", "TurnStarted", "UsageCollector",
    "UsageError", "UsageReported", "UserError", "__version__", "count_conversation_tokens", "count_message_tokens",
    "count_tokens", "create_context_transform", "encoders", "events", "get_model_info", "ops", "read_skill", "tool",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker is to know the names above, and no others

    def __getattr__(name: str) -> object:
        """A name on demand: `agentcli --version` need not wait 100 ms for what it imports."""
        from importlib import import_module

        if name in ("events", "ops"):
            return import_module(f"agentcli.agent.{name}")
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'agentcli' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
