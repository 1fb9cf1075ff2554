"""Token counting, and the encoders that do it."""

from agentcli.library.functions import count_conversation_tokens, count_message_tokens, count_tokens
from agentcli.llm.token_encoders import TokenEncoder, encoders

__all__ = ["TokenEncoder", "count_conversation_tokens", "count_message_tokens", "count_tokens", "encoders"]
