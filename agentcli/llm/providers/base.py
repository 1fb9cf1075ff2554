"""The members that most providers share: names from the model's row, estimates for counts, health from one question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agentcli.llm.errors import ProviderError
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health, Request, TokenCount, with_wait
from agentcli.llm.tokens import estimate

if TYPE_CHECKING:
    from agentcli.llm.http import Carrier


class BaseProvider(ABC):
    """One model behind one API, as `Provider` describes it; a subclass adds `stream`."""

    _carrier: Carrier | None = None

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
            health = await self._check()
        except ProviderError as error:
            return Health(False, with_wait(str(error), error))
        return health or Health(True, f"{self.model} answers, window {self.info.window:,} tokens")

    @abstractmethod
    async def _check(self) -> Health | None:
        """Ask for something that costs no tokens; None if the server answers as it should. Raises `ProviderError`."""

    async def aclose(self) -> None:
        if self._carrier is not None:
            await self._carrier.aclose()
