"""A provider whose key comes from elsewhere and may run out: it is made anew with each key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from agentcli.errors import UserError
from agentcli.llm.errors import AuthError, ProviderError
from agentcli.llm.provider import Health, Provider, Request, StreamEvent, TokenCount
from agentcli.settings.keys import KeyHelper

UNAUTHORIZED = 401


class RenewedKeyProvider:
    """The provider that `make` builds with the key that `keys` has.

    A request that is refused for its key goes out again, once, with a new one: nothing of a reply has come by then.
    """

    def __init__(self, keys: KeyHelper, make: Callable[[str], Provider]) -> None:
        self._keys, self._make = keys, make
        self._key, self._provider = "", make("")
        self._earlier: list[Provider] = []  # requests may still run on them

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def model(self) -> str:
        return self._provider.model

    @property
    def info(self) -> Any:
        return self._provider.info  # type: ignore[attr-defined]  # what is made here has it

    @property
    def media_rules(self) -> Any:
        return self._provider.media_rules  # type: ignore[attr-defined]  # as above

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        provider, refused = await self._with_key(), False
        while True:
            try:
                async with aclosing(provider.stream(request)) as events:
                    async for event in events:
                        yield event
                return
            except AuthError as error:
                if error.status != UNAUTHORIZED or refused:
                    raise
                self._keys.forget()
                before, provider, refused = provider, await self._with_key(), True
                if provider is before:
                    raise

    async def count_tokens(self, request: Request) -> TokenCount:
        return await (await self._with_key()).count_tokens(request)

    async def health_check(self) -> Health:
        try:
            provider = await self._with_key()
        except ProviderError as error:
            return Health(False, str(error))
        return await provider.health_check()

    async def _with_key(self) -> Provider:
        try:
            key = await self._keys.key()
        except UserError as error:
            raise AuthError(str(error)) from error
        if key != self._key:
            self._earlier.append(self._provider)
            self._key, self._provider = key, self._make(key)
        return self._provider

    async def aclose(self) -> None:
        for provider in (*self._earlier, self._provider):
            await provider.aclose()
        self._earlier.clear()
