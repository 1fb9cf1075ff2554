"""Carries requests by Anthropic's SDK: its client for the API itself, and those for the clouds that serve Claude.

The SDK takes over a second to import, so that waits for the first request and happens in a thread. The SDK is the
carrier alone: what a request says and what a reply means is decided as for our own client.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from agentcli.errors import UserError
from agentcli.llm.errors import BadRequest, ProviderError
from agentcli.llm.http import Answer, check_sendable, mask_of, not_a_reply, note_request, shown
from agentcli.llm.json_text import decode_json

if TYPE_CHECKING:
    from agentcli.llm.sdk_connection import SdkConnection


class Service(Struct, frozen=True):
    """Where Claude is asked, and by whom. What is empty the SDK looks for itself, where the vendor's tools keep it.

    `auth_token` goes as Bearer. A region is one of AWS or Google, a project Google's, a resource Azure's.
    """

    platform: Literal["anthropic", "bedrock", "vertex", "foundry"]
    base_url: str = ""
    api_key: str = ""
    auth_token: str = ""
    region: str = ""
    project: str = ""
    resource: str = ""
    headers: Mapping[str, str] = {}


class SdkClient:
    """Requests to one service. `read_timeout` is the longest silence in seconds that is waited through."""

    def __init__(self, service: Service, *, read_timeout: float) -> None:
        self.shown_url = shown(service.base_url) or service.platform
        self._service, self._read_timeout = service, read_timeout
        key = {"key": service.api_key, "token": service.auth_token}
        self._sent = {**service.headers, **{name: value for name, value in key.items() if value}}
        self._masked = mask_of(self._sent, service.base_url)
        self._connecting = asyncio.Lock()
        self._connection: SdkConnection | None = None

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[Answer]:
        """POST `body`; the response once its status is known to be good. Raises `ProviderError`."""
        async with self._answered("POST", path, body) as response:
            yield response

    async def get_json(self, path: str) -> Any:
        return await self._json("GET", path, None)

    async def post_json(self, path: str, body: dict[str, Any]) -> Any:
        return await self._json("POST", path, body)

    async def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        async with self._answered(method, path, body) as response:
            content = b"".join([piece async for piece in response.pieces()])
            try:
                return decode_json(content)
            except ValueError as error:
                raise not_a_reply(response, content) from error

    @asynccontextmanager
    async def _answered(self, method: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[Answer]:
        is_answered, masked = False, self._masked
        try:
            connection = await self._connected()
            async with connection.answered(method, path, body) as response:
                is_answered, masked = True, response.masked
                yield response
        except ProviderError as error:
            note_request(error, masked, body, is_answered=is_answered)
            raise

    async def _connected(self) -> SdkConnection:
        async with self._connecting:
            if self._connection is None:
                check_sendable(self._service.base_url or "https://named.by.sdk", self._sent)
                try:
                    self._connection = await asyncio.to_thread(_connect, self._service, self._read_timeout)
                except UserError as error:
                    raise BadRequest(str(error)) from error
                self.shown_url = self._connection.where
            return self._connection

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()


def _connect(service: Service, read_timeout: float) -> SdkConnection:
    """Raises `ProviderError`, and `ConfigError` for a proxy that cannot be used."""
    collects = gc.isenabled()
    gc.disable()  # the collector takes a fifth of the import, and stalls other threads the longest
    try:
        from agentcli.llm.sdk_connection import SdkConnection

        return SdkConnection(service, read_timeout)
    finally:
        if collects:
            gc.enable()
