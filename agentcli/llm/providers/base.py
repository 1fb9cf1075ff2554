"""The members that most providers share: names from the model's row, estimates for counts, health from one question."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import (
    Health,
    Request,
    StreamEvent,
    TokenCount,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from agentcli.llm.retry import with_wait
from agentcli.llm.tokens.estimates import estimate


class BaseProvider(ABC):
    """One model behind one API, as `Provider` describes it; a subclass adds `stream` and `aclose`."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    @property
    def name(self) -> str:
        return self.info.provider

    @property
    def model(self) -> str:
        return self.info.id

    async def count_tokens(self, request: Request) -> TokenCount:
        return estimate(request, self.info)

    async def health_check(self) -> Health:
        try:
            return await self._check()
        except ProviderError as error:
            return Health(False, with_wait(str(error), error))

    @abstractmethod
    async def _check(self) -> Health:
        """Ask the server for something that costs no tokens. Raises `ProviderError`."""

    def _answers(self, models: tuple[str, ...] = ()) -> Health:
        return Health(True, f"{self.model} answers, window {self.info.window:,} tokens", models)


def call_events(call: ToolUse) -> tuple[StreamEvent, ...]:
    """Return the events of a call that is known whole."""
    arguments = msgspec.json.encode(call.input).decode()
    return ToolCallStarted(call.id, call.name), ToolCallDelta(call.id, arguments), ToolCallEnded(call.id)
