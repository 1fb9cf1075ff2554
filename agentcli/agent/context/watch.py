"""Looks before each request whether the conversation has to shrink; what shrinks it is imported when it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agentcli.agent.context import Paid, request_tokens
from agentcli.agent.events import Emit
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Compaction
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix
from agentcli.settings.structs import CompactionSettings

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor


@dataclass
class ContextWatch:
    """The context policy and the compactor of sessions; `make` gives what does the work."""

    settings: CompactionSettings
    make: Callable[[], Compactor]
    paid: Paid = lambda model, usage, cost_usd, reason: None

    @cached_property
    def compactor(self) -> Compactor:
        return self.make()

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit
    ) -> Compaction | None:
        used = request_tokens(conversation, model, prefix)
        if used < min(self.settings.warn_at, self.settings.at) * model.window:
            return None
        return await self.compactor.when_due(conversation, model, prefix, used=used, tell=tell)

    async def aclose(self) -> None:
        if "compactor" in self.__dict__:
            await self.compactor.summaries.aclose()
