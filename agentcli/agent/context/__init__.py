"""Keeps a conversation inside the model's window: when to compact it, with what, and what fills it.

What is cut and carried over is planned in `conversation/compaction`; the only requests made here are for summaries.
"""

from __future__ import annotations

from collections.abc import Callable

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import PaidReason
from agentcli.llm.messages import Message, Usage
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix, Request
from agentcli.llm.tokens import estimate

Paid = Callable[[str, Usage, float | None, PaidReason], None]  # model, tokens, USD


def request_tokens(conversation: Conversation, model: ModelInfo, prefix: Prefix) -> int:
    """Return the tokens of the next request: the model's newest count, and a calibrated estimate of what came since."""
    return conversation.size.tokens(prefix.system, prefix.tools, model)


def message_tokens(messages: tuple[Message, ...], model: ModelInfo) -> int:
    return estimate(Request("", messages), model).tokens


def prefix_tokens(prefix: Prefix, model: ModelInfo) -> int:
    return estimate(Request(prefix.system, (), prefix.tools), model).tokens
