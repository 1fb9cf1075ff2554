"""Claude as the clouds serve it: Amazon Bedrock, Google's Vertex AI and Microsoft's Foundry."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from agentcli.llm.errors import BadRequest
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health, Request, StreamEvent, TokenCount
from agentcli.llm.providers.base import BaseProvider
from agentcli.llm.sdk_client import SdkClient, Service
from agentcli.llm.streaming import MESSAGES, count_messages, stream_messages
from agentcli.llm.wire.anthropic_request import media_rules


class CloudProvider(BaseProvider):
    """One Claude model of one cloud. Anthropic's SDK signs its requests, with the credentials of the cloud's tools."""

    def __init__(self, info: ModelInfo, *, service: Service, read_timeout: float = 600.0) -> None:
        super().__init__(msgspec.structs.replace(info, takes_temperature=False, sends_back="none"))
        self._counts = service.platform != "bedrock"  # there few models do, and none by their usual names
        self._carrier = SdkClient(service, read_timeout=read_timeout)

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        return stream_messages(self._carrier, request, self.info)

    async def count_tokens(self, request: Request) -> TokenCount:
        count = count_messages(self._carrier, request, self.info) if self._counts else super().count_tokens(request)
        return await count

    async def _check(self) -> Health:
        """Ask with an empty conversation: only a model that may be used finds fault with that. It costs nothing."""
        try:
            await self._carrier.post_json(MESSAGES, {"model": self.model, "max_tokens": 1, "messages": []})
        except BadRequest as error:
            if type(error) is not BadRequest or error.status != 400 or "messages" not in str(error):
                raise
        return self._answers()

    async def aclose(self) -> None:
        await self._carrier.aclose()
