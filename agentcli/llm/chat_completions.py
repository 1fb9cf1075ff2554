"""One Chat Completions request over HTTP: what every provider that speaks this protocol shares."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentcli.llm.errors import ConnectionFailed, ContextOverflow, ProviderError, Timeout
from agentcli.llm.event_streams import ServerSentEvent, SseParser
from agentcli.llm.http import HttpClient, drain, parsed_chunks
from agentcli.llm.json_text import JsonItems
from agentcli.llm.models import ModelInfo
from agentcli.llm.off_thread import off_thread_if_large
from agentcli.llm.provider import Request, StreamEvent
from agentcli.llm.wire.call_ids import CallIds
from agentcli.llm.wire.deltas import read
from agentcli.llm.wire.openai_reply import ReplyReader
from agentcli.llm.wire.openai_request import Quirks, to_body


async def stream_chat(
    http: HttpClient, request: Request, *, info: ModelInfo, provider: str, quirks: Quirks
) -> AsyncGenerator[StreamEvent, None]:
    """The reply's events, `Done` last. Raises `ProviderError` with the partial message."""
    reader = ReplyReader(
        info.id,
        provider,
        quirks=quirks,
        tool_names=frozenset(tool.name for tool in request.tools),
        ids=CallIds(request.messages),
    )

    json = JsonItems()

    def feed(event: ServerSentEvent, out: list[StreamEvent]) -> None:
        data = event.data.strip()
        if data == "[DONE]":
            reader.is_closed = True
        elif data and not reader.is_closed:
            chunk = json.decode(data)
            reader.feed(chunk if isinstance(chunk, dict) else {}, out)

    try:
        body = await off_thread_if_large(len(request.messages), lambda: to_body(request, info, quirks, provider))
        try:
            async with http.stream("/chat/completions", body) as response:
                pieces = parsed_chunks(response, SseParser(), content_type="text/event-stream", whole="choices")
                async for events in pieces:
                    heard, failure = read(events, feed)
                    for item in heard:
                        yield item
                    if failure is not None:
                        raise failure
                    if reader.is_closed:
                        await drain(pieces)
                        break
        except (ConnectionFailed, Timeout):
            if not reader.is_finished:  # else the reply is whole: only its price, if anything, is lost
                raise
        last: list[StreamEvent] = []
        done = reader.done(last)
        for item in last:
            yield item
        _check_fit(done.usage.prompt_tokens, info)
        yield done
    except ProviderError as error:
        error.partial = reader.partial()
        raise


def _check_fit(tokens: int, info: ModelInfo) -> None:
    """Raise `ContextOverflow` for a prompt the window cannot have held: z.ai drops its beginning and says nothing."""
    if info.is_known and tokens > info.window:
        raise ContextOverflow(
            f"{info.id} was sent {tokens:,} prompt tokens, which its window of {info.window:,} "
            "does not hold: the beginning was dropped."
        )
