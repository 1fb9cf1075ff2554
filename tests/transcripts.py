"""What every provider requirements of the messages of a request."""

from __future__ import annotations

from agentcli.llm.messages import (
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)

OF_ROLES = {
    "user": (Text, Image, Document, ToolResult),
    "assistant": (Text, Thinking, RedactedThinking, ToolUse, Opaque),
}


def is_valid(messages: tuple[Message, ...]) -> bool:
    """Return True if every provider accepts these messages. Replies may follow each other."""
    expected: tuple[str, ...] = ()
    role = "assistant"
    for number, message in enumerate(messages):
        texts = [block.text for block in message.content if isinstance(block, Text)]
        if not message.content or not all(isinstance(block, OF_ROLES[message.role]) for block in message.content):
            return False
        if not all(text.strip() for text in texts):
            return False
        if message.role == role and (role == "user" or expected or not number):
            return False
        role = message.role
        results = [block for block in message.content if isinstance(block, ToolResult)]
        if tuple(result.tool_use_id for result in results) != expected:
            return False
        if results and any(not isinstance(block, ToolResult) for block in message.content[: len(results)]):
            return False
        expected = tuple(use.id for use in message.tool_uses)
    ids = [use.id for message in messages for use in message.tool_uses]
    return not expected and len(set(ids)) == len(ids)
