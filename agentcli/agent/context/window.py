"""Measures how full the model's window is, by source, and has the conversation compacted before it overflows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from agentcli.agent.events import Emit
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Compaction, Result, User
from agentcli.llm.messages import Block, Message, Text, ToolResult, block_text
from agentcli.llm.models import ModelInfo, estimate, estimate_text
from agentcli.llm.provider import Prefix, Request
from agentcli.settings.structs import CompactionSettings

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor, Paid

CountTexts = Callable[[Sequence[str], ModelInfo], int]  # tokens of texts together; may block

SOURCES = ("system", "tools", "skills", "instructions", "memory", "notes", "summary", "messages", "results")
_INSTRUCTIONS = re.compile(r'<instructions path=".*?</instructions>', re.DOTALL)
_SKILL = re.compile(r'<system-reminder><skill name=".*?</skill></system-reminder>', re.DOTALL)
_SKILLS = re.compile(r"^# Skills\n.*\Z", re.DOTALL | re.MULTILINE)  # at the end of the system text
_MEMORY = re.compile(r"<system-reminder>Memory files of this project.*?</system-reminder>", re.DOTALL)


class ContextUse(msgspec.Struct, frozen=True):
    """Tokens by source, counted by the model's encoder, and those of the next `request`, from its provider's counts."""

    model: str
    window: int
    parts: dict[str, int]
    request: int

    @property
    def free(self) -> int:
        return max(0, self.window - self.request)


async def count_context(
    state: AgentState, *, model: str, info: ModelInfo, prefix: Prefix, count: CountTexts
) -> ContextUse:
    """Count the tokens that the next request would hold, by source."""
    found: dict[str, list[str]] = {source: [] for source in SOURCES}
    found["skills"] += _SKILLS.findall(prefix.system)
    found["system"].append(_SKILLS.sub("", prefix.system))
    found["tools"] += [msgspec.json.encode(spec).decode() for spec in prefix.tools]
    media: list[Block] = []
    for body in (*(entry.body for entry in state.conversation.request_entries), *state.notes):
        for source, part in _parts(body):
            found[source].append(part) if isinstance(part, str) else media.append(part)
    counted = await asyncio.to_thread(lambda: {source: count(found[source], info) for source in SOURCES})
    if media:
        counted["messages"] += estimate(Request("", (Message("user", tuple(media)),)), info).tokens
    request = state.conversation.size.tokens(prefix.system, prefix.tools, info)
    return ContextUse(model, info.window, counted, request)


def estimated(texts: Sequence[str], info: ModelInfo) -> int:
    """Estimate the tokens of texts by their bytes."""
    return sum(estimate_text(text, info) for text in texts)


def _parts(body: Body) -> Iterator[tuple[str, str | Block]]:
    """Yield the texts of an entry by source, and its images and documents."""
    match body:
        case User(content, is_reminder):
            for block in content:
                if not isinstance(block, Text):
                    yield "messages", block
                elif is_reminder:
                    yield from _of_note(block.text, "notes")
                else:
                    yield "messages", block.text
        case Assistant(content=content):
            yield from (("messages", block_text(block)) for block in content)
        case Result(result=ToolResult(_, str(content))):
            yield "results", content
        case Result(result=ToolResult(_, tuple(content))):
            yield from (("results", part.text if isinstance(part, Text) else part) for part in content)
        case Compaction(carried=carried):
            yield from _of_note(carried, "summary")


def _of_note(text: str, rest: str) -> Iterator[tuple[str, str]]:
    for source, pattern in (("instructions", _INSTRUCTIONS), ("memory", _MEMORY), ("skills", _SKILL)):
        yield from ((source, found) for found in pattern.findall(text))
        text = pattern.sub("", text)
    yield rest, text


@dataclass
class ContextWatch:
    """The context policy of sessions; `make` imports and makes the compactor when it is needed."""

    settings: CompactionSettings
    make: Callable[[], Compactor]
    paid: Paid = lambda model, usage, cost_usd, reason: None

    @cached_property
    def compactor(self) -> Compactor:
        return self.make()

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit
    ) -> Compaction | None:
        used = conversation.size.tokens(prefix.system, prefix.tools, model)
        if used < min(self.settings.warn_at, self.settings.at) * model.window:
            return None
        return await self.compactor.when_due(conversation, model, prefix, used=used, emit=tell)

    async def aclose(self) -> None:
        if "compactor" in self.__dict__:
            await self.compactor.summaries.aclose()
