"""What fills a model's window, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Result, User
from agentcli.llm.messages import Block, Message, Text, Thinking, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request
from agentcli.llm.tokens.estimates import estimate, estimate_text

if TYPE_CHECKING:
    from agentcli.agent.session import Session


class ContextUse(Struct, frozen=True):
    """Tokens, all estimated but `counted`: what the provider counted for the newest request and its reply (0: none)."""

    model: str
    window: int
    parts: dict[str, int]
    counted: int

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def free(self) -> int:
        return max(0, self.window - self.total)


async def context_use(session: Session) -> ContextUse:
    """What the next request would hold."""
    state = session.state
    provider, info = await session.runtime.resolve(state)
    prefix = session.runtime.prefix(info)
    parts = {
        "system text": estimate_text(prefix.system, info),
        "tools": sum(estimate_text(msgspec.json.encode(spec).decode(), info) for spec in prefix.tools),
    } | dict.fromkeys(("instructions", "notes", "prompts", "replies", "thinking", "calls", "results"), 0)
    entries = state.conversation.request_entries
    for body in (*(entry.body for entry in entries), *state.notes):
        for kind, block in _kinds(body):
            parts[kind] += _tokens(block, info)
    return ContextUse(f"{provider.name}/{provider.model}", info.window, parts, _counted(entries))


def _kinds(body: Body) -> list[tuple[str, Block]]:
    match body:
        case User(content, is_reminder):
            kind = "prompts"
            if is_reminder:
                kind = "instructions" if "<instructions path=" in body.text else "notes"
            return [(kind, block) for block in content]
        case Assistant(content):
            return [(_kind_of_reply(block), block) for block in content]
        case Result(result):
            return [("results", result)]
        case Compaction(carried):
            return [("notes", Text(carried))]
        case _:
            return []


def _kind_of_reply(block: Block) -> str:
    match block:
        case ToolUse():
            return "calls"
        case Text():
            return "replies"
        case _:
            return "thinking"


def _tokens(block: Block, info: ModelInfo) -> int:
    if isinstance(block, Text):
        return estimate_text(block.text, info)
    if isinstance(block, Thinking):
        return estimate_text(block.thinking, info)
    return estimate(Request("", (Message("user", (block,)),)), info).tokens


def _counted(entries: list[Entry]) -> int:
    for entry in reversed(entries):
        if isinstance(entry.body, Assistant) and entry.body.usage.prompt_tokens:
            return entry.body.usage.context_tokens
    return 0
