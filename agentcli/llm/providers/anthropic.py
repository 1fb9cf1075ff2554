"""Anthropic's Messages API, spoken by our own lean client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import msgspec

from agentcli.llm.errors import AuthError, ProviderError, ServerError
from agentcli.llm.event_streams import ServerSentEvent, SseParser
from agentcli.llm.http import HttpClient, drain, parsed_chunks
from agentcli.llm.json_text import JsonItems
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo, refined
from agentcli.llm.off_thread import off_thread_if_large
from agentcli.llm.provider import Health, Request, StreamEvent, TokenCount
from agentcli.llm.retry import with_wait
from agentcli.llm.wire.anthropic_reply import ReplyReader
from agentcli.llm.wire.anthropic_request import media_rules, to_body
from agentcli.llm.wire.call_ids import CallIds
from agentcli.llm.wire.deltas import read

API_VERSION = "2026-10-21"
BASE_URL = "https://api.anthropic.com"


class AnthropicProvider:
    """One Claude model. `api_version` is for gateways that know only an older one; `auth_token` goes as Bearer."""

    name = "anthropic"

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
    ) -> None:
        # From this version on the API refuses a temperature, whatever the model.
        takes_temperature = info.takes_temperature and api_version < "2026-10-21"
        self.info = msgspec.structs.replace(info, takes_temperature=takes_temperature, sends_back="none")
        sent = {"anthropic-version": api_version, **(headers or {})}
        if api_key:
            sent["x-api-key"] = api_key
        elif auth_token:
            sent["authorization"] = f"Bearer {auth_token}"
        self._has_key = bool(api_key or auth_token)
        self._http = HttpClient(base_url.rstrip("/").removesuffix("/v1"), sent, read_timeout=read_timeout)

    @property
    def model(self) -> str:
        return self.info.id

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        self._require_key()
        reader = ReplyReader(self.model, ids=CallIds(request.messages))
        json = JsonItems()

        def feed(event: ServerSentEvent, out: list[StreamEvent]) -> None:
            if reader.is_done:
                return
            data = event.data.strip()
            if data == "[DONE]":  # gateways that speak Chat Completions too end both alike
                reader.close(out)
            elif data:
                told = json.decode(data)
                reader.feed(told if isinstance(told, dict) else {}, out)

        try:
            body = await off_thread_if_large(len(request.messages), lambda: to_body(request, self.info))
            async with self._http.stream("/v1/messages", body) as response:
                pieces = parsed_chunks(response, SseParser(), content_type="text/event-stream")
                async for events in pieces:
                    heard, failure = read(events, feed)
                    if reader.is_done:
                        await drain(pieces)
                    for item in heard:
                        yield item
                    if failure is not None:
                        raise failure
                    if reader.is_done:
                        return
            last: list[StreamEvent] = []
            reader.close(last)
            for item in last:
                yield item
        except ProviderError as error:
            error.partial = reader.partial()
            raise

    async def count_tokens(self, request: Request) -> TokenCount:
        self._require_key()
        body = to_body(request, self.info)
        del body["max_tokens"], body["stream"]
        counted = await self._http.post_json("/v1/messages/count_tokens", body)
        tokens = counted.get("input_tokens") if isinstance(counted, dict) else None
        if not isinstance(tokens, int):
            raise ServerError(f"{self._http.shown_url} gave no token count: is the base_url right?")
        return TokenCount(tokens, exact=True)

    async def health_check(self) -> Health:
        try:
            self._require_key()
            listed = await self._http.get_json(f"/v1/models/{self.model}")
        except ProviderError as error:
            return Health(False, with_wait(str(error), error))
        if not isinstance(listed, dict):
            return Health(
                False, f"{self._http.shown_url} does not answer as the Messages API does: is the base_url right?"
            )
        self.info = refined(self.info, listed)
        return Health(True, f"{self.model} answers, window {self.info.window:,} tokens")

    def _require_key(self) -> None:
        if not self._has_key:
            raise AuthError("No Anthropic key: set ANTHROPIC_API_KEY, or keep one with agentcli login anthropic.")

    async def aclose(self) -> None:
        await self._http.aclose()
