"""agentcli: a coding assistant for the terminal, and a library: `from agentcli import Agent, tool`."""

from agentcli.version import __version__

TYPE_CHECKING = False  # importing typing takes longer than all that is here, and signals are not heeded before its end
if TYPE_CHECKING:
    from agentcli.agent import events, ops
    from agentcli.agent.accounting import UsageCollector
    from agentcli.agent.context.transform import create_context_transform
    from agentcli.agent.runtime import Guardrails
    from agentcli.agent.turn_records import TurnMetrics, TurnRecord

    # fmt: off
    from agentcli.agent.events import (  # isort: skip
        ApprovalSettled, CallApproval, ChangesApproval, ClientToolRequested, CommandApproval, Compaction, Done,
        EditApproval, EntryStored, Event, HookRan, LimitQuestion, ModeChanged, Notice, OutputDelta, PlanApproval,
        ProviderSwitched, Question, QuestionEvent, QueueChanged, Retry, Steered, SubagentEnded, SubagentStarted,
        TextDelta, ThinkingDelta, ToolFinished, ToolStarted, TurnEnded, TurnFailed, TurnStarted, UsageReported,
    )
    from agentcli.agent.interfaces import (  # isort: skip
        CallHooks, ConversationStore, EventStore, HookAnswer, Locks, NoHooks, SessionLog, SessionStore, StreamEvent,
        StreamState, TurnHooks,
    )
    from agentcli.library.functions import (  # isort: skip
        count_conversation_tokens, count_message_tokens, count_tokens, get_model_info, to_anthropic_message,
        to_chat_completion,
    )
    # fmt: on
    from agentcli.agent.ops import Approve, ClientResult, Interrupt, Prompt, SetEffort, SetMode, SetModel, Steer
    from agentcli.conversation.schema import readable_from
    from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, UsageError, UserError
    from agentcli.extensions.mcp.tools import MCPClient, RemoteResult, RemoteTool
    from agentcli.extensions.skills.activation import Activation, SkillRegistry
    from agentcli.extensions.skills.skill import Skill, read_skill
    from agentcli.infra.event_log import MemoryEvents, RedisEvents, SqliteEvents
    from agentcli.infra.sessions.postgres import PostgresSessions
    from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
    from agentcli.library.agent import Agent, AgentFailed
    from agentcli.library.options import AgentOptions
    from agentcli.llm.messages import CacheControl, Document, Image, Message, Text
    from agentcli.llm.provider import Provider, ToolSpec
    from agentcli.llm.token_encoders import TokenEncoder, encoders
    from agentcli.settings.structs import PermissionSettings, Settings
    from agentcli.tools.own_tools import tool
    from agentcli.tools.sandbox import Sandbox
    from agentcli.tools.tool import RetryRule, Tool, ToolContext, ToolOutput

    ApprovalRequested = QuestionEvent  # deprecated

# The module of each name.
_HOMES = {
    name: module
    for module, names in {
        "agentcli.library.agent": "Agent AgentFailed",
        "agentcli.library.options": "AgentOptions",
        "agentcli.library.functions": (
            "count_conversation_tokens count_message_tokens count_tokens get_model_info to_anthropic_message "
            "to_chat_completion"
        ),
        "agentcli.agent.interfaces": (
            "CallHooks ConversationStore EventStore HookAnswer Locks NoHooks SessionLog SessionStore StreamEvent "
            "StreamState TurnHooks"
        ),
        "agentcli.conversation.schema": "readable_from",
        "agentcli.infra.event_log": "MemoryEvents RedisEvents SqliteEvents",
        "agentcli.infra.sessions.postgres": "PostgresSessions",
        "agentcli.infra.sessions.sqlite": "MemorySessions SqliteSessions",
        "agentcli.extensions.mcp.tools": "MCPClient RemoteResult RemoteTool",
        "agentcli.tools.sandbox": "Sandbox",
        "agentcli.agent.context.transform": "create_context_transform",
        "agentcli.tools.own_tools": "tool",
        "agentcli.tools.tool": "RetryRule Tool ToolContext ToolOutput",
        "agentcli.llm.provider": "Provider ToolSpec",
        "agentcli.llm.messages": "CacheControl Document Image Message Text",
        "agentcli.llm.token_encoders": "TokenEncoder encoders",
        "agentcli.settings.structs": "PermissionSettings Settings",
        "agentcli.extensions.skills.activation": "Activation SkillRegistry",
        "agentcli.extensions.skills.skill": "Skill read_skill",
        "agentcli.errors": "AgentcliError ConfigError StorageError ToolError UsageError UserError",
        "agentcli.agent.events": (
            "ApprovalSettled CallApproval ChangesApproval ClientToolRequested CommandApproval Compaction Done "
            "EditApproval EntryStored Event HookRan LimitQuestion ModeChanged Notice OutputDelta PlanApproval "
            "ProviderSwitched Question QuestionEvent QueueChanged Retry Steered SubagentEnded SubagentStarted "
            "TextDelta ThinkingDelta ToolFinished ToolStarted TurnEnded TurnFailed TurnStarted UsageReported"
        ),
        "agentcli.agent.accounting": "UsageCollector",
        "agentcli.agent.runtime": "Guardrails",
        "agentcli.agent.turn_records": "TurnMetrics TurnRecord",
        "agentcli.agent.ops": "Approve ClientResult Interrupt Prompt SetEffort SetMode SetModel Steer",
    }.items()
    for name in names.split()
}

__all__ = [
    "Activation", "Agent", "AgentFailed", "AgentOptions", "AgentcliError", "ApprovalSettled", "Approve", "CacheControl",
    "CallApproval", "CallHooks", "ChangesApproval", "ClientResult", "ClientToolRequested", "CommandApproval",
    "Compaction", "ConfigError", "ConversationStore", "Document", "Done", "EditApproval", "EntryStored", "Event",
    "EventStore", "Guardrails", "HookAnswer", "HookRan", "Image", "Interrupt", "LimitQuestion", "Locks", "MCPClient",
    "MemoryEvents", "MemorySessions", "Message", "ModeChanged", "NoHooks", "Notice", "OutputDelta",
    "PermissionSettings", "PlanApproval", "PostgresSessions", "Prompt", "Provider", "ProviderSwitched", "Question",
    "QuestionEvent", "QueueChanged", "RedisEvents", "RemoteResult", "RemoteTool", "Retry",
    "RetryRule", "Sandbox", "SessionLog", "SessionStore", "SetEffort", "SetMode", "SetModel", "Settings", "Skill",
    "SkillRegistry", "SqliteEvents", "SqliteSessions", "Steer", "Steered",
    "StorageError", "StreamEvent", "StreamState", "SubagentEnded", "SubagentStarted", "Text", "TextDelta",
    "ThinkingDelta", "TokenEncoder", "Tool", "ToolContext", "ToolError", "ToolFinished", "ToolOutput", "ToolSpec",
    "ToolStarted", "TurnEnded", "TurnFailed", "TurnHooks", "TurnMetrics", "TurnRecord", "TurnStarted",
    "UsageCollector", "UsageError", "UsageReported", "UserError", "__version__", "count_conversation_tokens",
    "count_message_tokens", "count_tokens", "create_context_transform", "encoders", "events", "get_model_info", "ops",
    "read_skill", "readable_from", "to_anthropic_message", "to_chat_completion", "tool",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker is to know the names above, and no others

    def __getattr__(name: str) -> object:
        """A name on demand: `agentcli --version` need not wait 100 ms for what it imports."""
        from importlib import import_module

        if name in ("events", "ops"):
            from agentcli.agent import events, ops

            return events if name == "events" else ops
        if name == "ApprovalRequested":
            from warnings import warn

            warn("ApprovalRequested is QuestionEvent now; the next release drops the old name.", DeprecationWarning, 2)
            name = "QuestionEvent"
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'agentcli' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
