"""The parts of a model provider of your own: what it is asked, the events it yields, and how it fails."""

from agentcli.library.functions import get_model_info
from agentcli.llm.errors import *
from agentcli.llm.messages import *
from agentcli.llm.models import ModelInfo, Prices
from agentcli.llm.provider import *
from agentcli.models.choice import create_provider

__all__ = [
    "AuthError", "BadRequest", "Base64Source", "CacheControl", "ConnectionFailed", "ContextOverflow", "Document",
    "Done", "Health", "Image", "Message", "ModelInfo", "Overloaded", "Prices", "Provider", "ProviderError",
    "RateLimit", "Request", "ServerError", "StopReason", "StreamEvent", "Text", "TextDelta", "Thinking",
    "ThinkingDelta", "Timeout", "TokenCount", "ToolCallDelta", "ToolCallEnded", "ToolCallStarted", "ToolResult",
    "ToolSpec", "ToolUse", "Usage", "UsageUpdate", "create_provider", "get_model_info",
]  # fmt: skip
