"""The members that most providers share: names from the model's row, estimates for counts, health from one question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from agentcli.llm.errors import AuthError, ProviderError
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health, Request, TokenCount
from agentcli.llm.retry import with_wait
from agentcli.llm.tokens.estimates import estimate

if TYPE_CHECKING:
    from agentcli.llm.http import Carrier


class BaseProvider(ABC):
    """One model behind one API, as `Provider` describes it; a subclass adds `stream`.

    `_missing_key` says how to give a key, where none is there and every request would fail.
    """

    _carrier: Carrier | None = None
    _missing_key = ""

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

    def _require_key(self) -> None:
        if self._missing_key:
            raise AuthError(self._missing_key)

    async def aclose(self) -> None:
        if self._carrier is not None:
            await self._carrier.aclose()

    def _answers(self, models: tuple[str, ...] = ()) -> Health:
        return Health(True, f"{self.model} answers, window {self.info.window:,} tokens", models)
