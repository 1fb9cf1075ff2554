"""The parts of a model provider of your own: what it is asked, the events it yields, and how it fails."""

from agentcli.library.functions import get_model_info

from agentcli.llm.errors import (  # isort: skip
    AuthError, BadRequest, ConnectionFailed, ContextOverflow, Overloaded, ProviderError, RateLimit, ServerError,
    Timeout,
)  # fmt: skip
from agentcli.llm.messages import (  # isort: skip
    Base64Source, CacheControl, Document, Image, Message, StopReason, Text, Thinking, ToolResult, ToolUse, Usage,
)  # fmt: skip
from agentcli.llm.models import ModelInfo, Prices

from agentcli.llm.provider import (  # isort: skip
    Done, Health, Provider, Request, StreamEvent, TextDelta, ThinkingDelta, TokenCount, ToolCallDelta, ToolCallEnded,
    ToolCallStarted, ToolSpec, UsageUpdate,
)  # fmt: skip
from agentcli.models.choice import create_provider

__all__ = [
    "AuthError", "BadRequest", "Base64Source", "CacheControl", "ConnectionFailed", "ContextOverflow", "Document",
    "Done", "Health", "Image", "Message", "ModelInfo", "Overloaded", "Prices", "Provider", "ProviderError",
    "RateLimit", "Request", "ServerError", "StopReason", "StreamEvent", "Text", "TextDelta", "Thinking",
    "ThinkingDelta", "Timeout", "TokenCount", "ToolCallDelta", "ToolCallEnded", "ToolCallStarted", "ToolResult",
    "ToolSpec", "ToolUse", "Usage", "UsageUpdate", "create_provider", "get_model_info",
]  # fmt: skip
