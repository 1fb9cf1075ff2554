"""The counting of tokens, and the encoders that count."""

from agentcli.library.functions import count_conversation_tokens, count_message_tokens, count_tokens
from agentcli.llm.token_encoders import TokenEncoder, encoders

__all__ = ["TokenEncoder", "count_conversation_tokens", "count_message_tokens", "count_tokens", "encoders"]
