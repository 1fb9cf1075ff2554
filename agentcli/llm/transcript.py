"""Finds in a conversation the faults that every provider would refuse, and makes the least repair."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache

from msgspec.structs import replace

from agentcli.llm.messages import (
    GO_ON,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    without_empty_text,
)

log = logging.getLogger(__name__)

LOST = "The result was lost."
_OF_USERS = (Text, Image, Document, ToolResult)
_OF_ASSISTANTS = (Text, Thinking, RedactedThinking, ToolUse, Opaque)


def doctor(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same messages when they are valid, else repaired ones.

    Every call has its own id and exactly one result, first in the next user message, in order; no result lacks its
    call; the first message is a user's; no message is empty or holds anything that its role cannot say.
    """
    if is_valid(messages):
        return messages
    repaired: list[Message] = []
    taken: set[str] = set()
    waiting: list[tuple[str, str]] = []  # calls without a result: the id they had, and the one they have now
    for message in _with_users_joined(messages):
        content = message.content
        if message.role == "user":
            content, waiting = _answers(waiting, content), []
        else:
            if waiting:
                repaired.append(Message("user", _answers(waiting, ())))
            if not repaired:
                repaired.append(Message("user", (Text("(the beginning of the conversation is missing)"),)))
            content, waiting = _with_own_ids(content, taken)
        if content:
            repaired.append(Message(message.role, content))
    if waiting:
        repaired.append(Message("user", _answers(waiting, ())))
    _note(f"repaired a conversation of {len(messages)} messages, which has {len(repaired)} now")
    return tuple(_with_users_joined(repaired))


def is_valid(messages: tuple[Message, ...], *, start: int = 0) -> bool:
    """Return True if a provider takes these messages, replies beside each other too. Those before `start` are valid."""
    before = messages[start - 1] if start else Message("assistant", ())
    expected = tuple(use.id for use in before.tool_uses)
    role = before.role
    for number, message in enumerate(messages[start:], start):
        if not message.content or _sayable(message) != message.content:
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
    new = [use.id for message in messages[start:] for use in message.tool_uses]
    old = {use.id for message in messages[:start] for use in message.tool_uses} if new else set()
    return not expected and len(set(new)) == len(new) and old.isdisjoint(new)


def in_turn(messages: Iterable[Message]) -> list[Message]:
    """The messages for APIs that want the roles in turn and the user's last, and take no reply of reasoning alone."""
    turns: list[Message] = []
    for message in messages:
        if message.role == "assistant" and not (message.text.strip() or message.tool_uses):
            continue
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(message.role, turns[-1].content + message.content)
        else:
            turns.append(message)
    return [*turns, Message("user", (GO_ON,))] if turns and turns[-1].role == "assistant" else turns


def _sayable(message: Message) -> tuple[Block, ...]:
    kinds = _OF_USERS if message.role == "user" else _OF_ASSISTANTS
    return without_empty_text(block for block in message.content if isinstance(block, kinds))


def _with_own_ids(content: tuple[Block, ...], taken: set[str]) -> tuple[tuple[Block, ...], list[tuple[str, str]]]:
    """A reply whose calls have ids that no other call has, and those ids beside the ones they had."""
    blocks: list[Block] = []
    ids: list[tuple[str, str]] = []
    for block in content:
        if isinstance(block, ToolUse):
            id, number = block.id, 1
            while id in taken:
                number += 1
                id = f"{block.id}_{number}"
            taken.add(id)
            ids.append((block.id, id))
            block = replace(block, id=id)
        blocks.append(block)
    return tuple(blocks), ids


def _answers(calls: list[tuple[str, str]], content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The results of these calls in their order, then the rest; results of other calls are dropped."""
    found: dict[str, list[ToolResult]] = {}
    for block in content:
        if isinstance(block, ToolResult):
            found.setdefault(block.tool_use_id, []).append(block)
    results: list[Block] = []
    for had, has in calls:
        mine = found.get(had)
        result = mine.pop(0) if mine else ToolResult(has, LOST, is_error=True)
        results.append(result if result.tool_use_id == has else replace(result, tool_use_id=has))
    return (*results, *(block for block in content if not isinstance(block, ToolResult)))


def _with_users_joined(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that can be sent, neighbouring ones of the user joined. Replies stay as they came."""
    said: list[Message] = []
    for message in messages:
        content = _sayable(message)
        if content and said and said[-1].role == message.role == "user":
            said[-1] = Message("user", said[-1].content + content)
        elif content:
            said.append(Message(message.role, content))
    return said


@lru_cache(maxsize=256)
def _note(repair: str) -> None:
    """Log a repair once, however many requests it is made in."""
    log.warning(repair)
