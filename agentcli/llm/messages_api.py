"""Requests to the Messages API over any carrier: what every provider of Claude shares."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from agentcli.llm.errors import ProviderError, ServerError
from agentcli.llm.event_streams import ServerSentEvent, SseParser
from agentcli.llm.http import Answer, drain, parsed_chunks
from agentcli.llm.json_text import JsonItems
from agentcli.llm.models import ModelInfo
from agentcli.llm.off_thread import off_thread_if_large
from agentcli.llm.provider import Request, StreamEvent, TokenCount
from agentcli.llm.wire.anthropic_reply import ReplyReader
from agentcli.llm.wire.anthropic_request import to_body
from agentcli.llm.wire.calls import CallIds
from agentcli.llm.wire.deltas import read

MESSAGES = "/v1/messages"


class Carrier(Protocol):
    """Brings requests to one service: our own HTTP client, or the vendor's. Raises `ProviderError` for every failure.

    A streamed body arrives as server-sent events, whatever the service itself speaks.
    """

    @property
    def shown_url(self) -> str: ...

    def stream(self, path: str, body: dict[str, Any]) -> AbstractAsyncContextManager[Answer]: ...

    async def get_json(self, path: str) -> Any: ...

    async def post_json(self, path: str, body: dict[str, Any]) -> Any: ...

    async def aclose(self) -> None: ...


async def stream_messages(carrier: Carrier, request: Request, info: ModelInfo) -> AsyncGenerator[StreamEvent, None]:
    """The reply's events, `Done` last. Raises `ProviderError` with the partial message."""
    reader = ReplyReader(info.id, ids=CallIds(request.messages))
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
        body = await off_thread_if_large(len(request.messages), lambda: to_body(request, info))
        try:
            async with carrier.stream(MESSAGES, body) as response:
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
        except ProviderError:
            if not reader.is_whole:
                raise
        last: list[StreamEvent] = []
        reader.close(last)
        for item in last:
            yield item
    except ProviderError as error:
        error.partial = reader.partial()
        raise


async def count_messages(carrier: Carrier, request: Request, info: ModelInfo) -> TokenCount:
    """The service's own count. Raises `ProviderError`."""
    body = to_body(request, info)
    del body["max_tokens"], body["stream"]
    counted = await carrier.post_json(f"{MESSAGES}/count_tokens", body)
    tokens = counted.get("input_tokens") if isinstance(counted, dict) else None
    if not isinstance(tokens, int):
        raise ServerError(f"{carrier.shown_url} gave no token count: is the base_url right?")
    return TokenCount(tokens, exact=True)
