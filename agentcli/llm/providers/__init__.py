"""Providers, with an independent module for each kind of API, and their base class."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agentcli.llm.errors import ConnectionFailed, ProviderError
from agentcli.llm.models import ModelInfo, estimate
from agentcli.llm.provider import Health, Request, TokenCount, with_wait

if TYPE_CHECKING:
    from agentcli.llm.http import Carrier


class BaseProvider(ABC):
    """One model behind one API. A subclass adds `stream` and completes the interface `Provider`."""

    _carrier: "Carrier | None" = None

    def __init__(self, info: ModelInfo) -> None:
        self.info, self.name, self.model = info, info.provider, info.id

    @property
    def address(self) -> str:
        """The address of the API; empty if it has none."""
        return self._carrier.shown_url if self._carrier else ""

    async def count_tokens(self, request: Request) -> TokenCount:
        return estimate(request, self.info)

    async def health_check(self) -> Health:
        try:
            return await self._check() or Health(True, f"{self.model} answers, window {self.info.window:,} tokens")
        except ProviderError as error:
            return Health(False, with_wait(str(error), error), is_reached=not isinstance(error, ConnectionFailed))

    @abstractmethod
    async def _check(self) -> Health | None:
        """Send a request that costs no tokens; None means that the server answered well. Raises `ProviderError`."""

    async def aclose(self) -> None:
        if self._carrier is not None:
            await self._carrier.aclose()
