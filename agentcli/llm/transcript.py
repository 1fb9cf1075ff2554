"""Finds what a provider would refuse in a conversation, and makes the least repair."""

from __future__ import annotations

from agentcli.llm.messages import Block, Message, Text, ToolResult, ToolUse

LOST = "The result was lost."


def doctor(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same messages when they are valid, else repaired ones.

    Every call has exactly one result, in the next user message, in order and before any text; no result lacks its
    call; the first message is a user's; no message is empty.
    """
    if is_valid(messages):
        return messages
    repaired: list[Message] = []
    waiting: tuple[ToolUse, ...] = ()
    for message in messages:
        if message.role == "assistant":
            if waiting:
                repaired.append(Message("user", _answers(waiting, ())))
            if not repaired:
                repaired.append(Message("user", (Text("(the beginning of the conversation is missing)"),)))
            waiting = message.tool_uses
            if message.content:
                _join(repaired, message)
            continue
        content = _answers(waiting, message.content)
        waiting = ()
        if content:
            _join(repaired, Message("user", content))
    if waiting:
        repaired.append(Message("user", _answers(waiting, ())))
    return tuple(repaired)


def is_valid(messages: tuple[Message, ...], *, start: int = 0) -> bool:
    """Whether a provider takes these messages; those before `start` are known to be in order."""
    before = messages[start - 1] if start else Message("assistant", ())
    expected = tuple(use.id for use in before.tool_uses)
    role = before.role
    for message in messages[start:]:
        if message.role == role or not message.content:
            return False
        role = message.role
        results = [block for block in message.content if isinstance(block, ToolResult)]
        if tuple(result.tool_use_id for result in results) != expected:
            return False
        if results and any(not isinstance(block, ToolResult) for block in message.content[: len(results)]):
            return False
        expected = tuple(use.id for use in message.tool_uses)
    return not expected


def _answers(calls: tuple[ToolUse, ...], content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The results of these calls in their order, then the rest; results of other calls are dropped."""
    found = {block.tool_use_id: block for block in content if isinstance(block, ToolResult)}
    results = tuple(found.get(call.id, ToolResult(call.id, LOST, is_error=True)) for call in calls)
    return results + tuple(block for block in content if not isinstance(block, ToolResult))


def _join(messages: list[Message], message: Message) -> None:
    if messages and messages[-1].role == message.role:
        messages[-1] = Message(message.role, messages[-1].content + message.content)
    else:
        messages.append(message)
