"""Anthropic's Messages API, spoken by our own lean client, or by Anthropic's where a person wants that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import msgspec

from agentcli.llm.errors import AuthError
from agentcli.llm.http import Carrier, HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo, refined
from agentcli.llm.provider import Health, Request, StreamEvent, TokenCount
from agentcli.llm.providers.base import BaseProvider
from agentcli.llm.streaming import count_messages, stream_messages
from agentcli.llm.wire.anthropic_request import media_rules

API_VERSION = "2026-10-21"
BASE_URL = "https://api.anthropic.com"


class AnthropicProvider(BaseProvider):
    """One Claude model. `api_version` is for gateways that know only an older one; `auth_token` goes as Bearer.

    With `uses_sdk` Anthropic's SDK carries the requests.
    """

    def __init__(
        self,
        info: ModelInfo,
        *,
        base_url: str = BASE_URL,
        api_key: str = "",
        auth_token: str = "",
        api_version: str = API_VERSION,
        headers: Mapping[str, str] | None = None,
        read_timeout: float = 600.0,
        uses_sdk: bool = False,
    ) -> None:
        # From this version on the API refuses a temperature, whatever the model.
        takes_temperature = info.takes_temperature and api_version < "2026-10-21"
        super().__init__(msgspec.structs.replace(info, takes_temperature=takes_temperature, sends_back="none"))
        self._has_key = bool(api_key or auth_token)
        address = base_url.rstrip("/").removesuffix("/v1")
        sent = {"anthropic-version": api_version, **(headers or {})}
        self._carrier: Carrier
        if uses_sdk:
            from agentcli.llm import sdk_client as sdk  # not for those who do without

            service = sdk.Service("anthropic", address, api_key=api_key, auth_token=auth_token, headers=sent)
            self._carrier = sdk.SdkClient(service, read_timeout=read_timeout)
        else:
            key = {"x-api-key": api_key} if api_key else {"authorization": f"Bearer {auth_token}"} if auth_token else {}
            self._carrier = HttpClient(address, sent | key, read_timeout=read_timeout)

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        self._require_key()
        return stream_messages(self._carrier, request, self.info)

    async def count_tokens(self, request: Request) -> TokenCount:
        self._require_key()
        return await count_messages(self._carrier, request, self.info)

    async def _check(self) -> Health:
        self._require_key()
        listed = await self._carrier.get_json(f"/v1/models/{self.model}")
        if not isinstance(listed, dict):
            where = self._carrier.shown_url
            return Health(False, f"{where} does not answer as the Messages API does: is the base_url right?")
        self.info = refined(self.info, listed)
        return self._answers()

    def _require_key(self) -> None:
        if not self._has_key:
            raise AuthError("No Anthropic key: set ANTHROPIC_API_KEY, or keep one with agentcli login anthropic.")

    async def aclose(self) -> None:
        await self._carrier.aclose()
