"""Claude by the Messages API, from Anthropic or from a cloud (Bedrock, Vertex AI, Microsoft Foundry)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

import msgspec

from agentcli.llm.errors import BadRequest, ServerError
from agentcli.llm.http import Carrier, HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo, with_listed_limits
from agentcli.llm.provider import Health, Request, StreamEvent, TokenCount
from agentcli.llm.providers import BaseProvider
from agentcli.llm.streaming import stream_reply
from agentcli.llm.wire.anthropic import AnthropicReader, media_rules, to_body
from agentcli.llm.wire.reply_parts import CallIds
from agentcli.settings.keys import Key

if TYPE_CHECKING:
    from agentcli.llm.sdk_client import Service

API_VERSION = "2026-10-21"
BASE_URL = "https://api.anthropic.com"
MESSAGES = "/v1/messages"


class MessagesProvider(BaseProvider):
    """One Claude model behind the Messages API."""

    _carrier: Carrier

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        reader = AnthropicReader(self.model, ids=CallIds(request.messages))
        return stream_reply(self._carrier, MESSAGES, request, build=lambda: to_body(request, self.info), reader=reader)

    async def count_tokens(self, request: Request) -> TokenCount:
        body = to_body(request, self.info)
        del body["max_tokens"], body["stream"]
        counted = await self._carrier.fetch_json(f"{MESSAGES}/count_tokens", body)
        tokens = counted.get("input_tokens") if isinstance(counted, dict) else None
        if not isinstance(tokens, int):
            raise ServerError(f"{self._carrier.shown_url} gave no token count: is the base_url right?")
        return TokenCount(tokens, exact=True)


class AnthropicProvider(MessagesProvider):
    """One model of Anthropic. Gateways may need an older `api_version`. `uses_sdk`: the SDK carries the requests."""

    def __init__(
        self,
        info: ModelInfo,
        *,
        base_url: str = BASE_URL,
        api_key: Key = "",
        auth_token: Key = "",
        api_version: str = API_VERSION,
        headers: Mapping[str, str] | None = None,
        read_timeout: float = 600.0,
        uses_sdk: bool = False,
    ) -> None:
        # From this version on, the API refuses a temperature for every model.
        takes_temperature = info.takes_temperature and api_version < "2026-10-21"
        super().__init__(msgspec.structs.replace(info, takes_temperature=takes_temperature, sends_back="none"))
        address = base_url.rstrip("/").removesuffix("/v1")
        sent = {"anthropic-version": api_version, **(headers or {})}
        if uses_sdk:
            from agentcli.llm.sdk_client import SdkClient, Service  # only those who set it pay for the import

            service = Service(
                platform="anthropic", base_url=address, api_key=api_key, auth_token=auth_token, headers=sent
            )
            self._carrier = SdkClient(service, read_timeout=read_timeout)
        else:
            header = "x-api-key" if api_key else "authorization"
            self._carrier = HttpClient(
                address, sent, key=api_key or auth_token, key_header=header, read_timeout=read_timeout
            )
        if not (api_key or auth_token):
            self._carrier.missing_key = (
                "No Anthropic key: set ANTHROPIC_API_KEY, or keep one with agentcli login anthropic."
            )

    async def _check(self) -> Health | None:
        listed = await self._carrier.fetch_json(f"/v1/models/{self.model}")
        if not isinstance(listed, dict):
            where = self._carrier.shown_url
            return Health(False, f"{where} does not answer as the Messages API does: is the base_url right?")
        self.info = with_listed_limits(self.info, listed)
        return None


class CloudProvider(MessagesProvider):
    """One Claude model in a cloud. Anthropic's SDK signs its requests with the credentials of the cloud's tools."""

    def __init__(self, info: ModelInfo, *, service: Service, read_timeout: float = 600.0) -> None:
        super().__init__(msgspec.structs.replace(info, takes_temperature=False, sends_back="none"))
        from agentcli.llm.sdk_client import SdkClient

        self._counts = service.platform != "bedrock"  # few models there count tokens, and none by their usual names
        self._carrier = SdkClient(service, read_timeout=read_timeout)

    async def count_tokens(self, request: Request) -> TokenCount:
        return await (super().count_tokens(request) if self._counts else BaseProvider.count_tokens(self, request))

    async def _check(self) -> None:
        """Send an empty conversation: the model refuses it only if it may be used. This costs nothing."""
        try:
            await self._carrier.fetch_json(MESSAGES, {"model": self.model, "max_tokens": 1, "messages": []})
        except BadRequest as error:
            if type(error) is not BadRequest or error.status != 400 or "messages" not in str(error):
                raise
