"""One streamed request to a server of OpenAI's family: what its two APIs share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from agentcli.llm.errors import ContextOverflow, ProviderError
from agentcli.llm.event_streams import ServerSentEvent, SseParser
from agentcli.llm.http import HttpClient, drain, parsed_chunks
from agentcli.llm.json_text import JsonItems
from agentcli.llm.messages import Message
from agentcli.llm.models import ModelInfo
from agentcli.llm.off_thread import off_thread_if_large
from agentcli.llm.provider import Done, Request, StreamEvent
from agentcli.llm.wire.deltas import read


class Reader(Protocol):
    """Builds a reply from its events. `is_finished`: it is whole, `is_closed`: nothing follows."""

    is_finished: bool
    is_closed: bool

    def feed(self, chunk: dict[str, Any], out: list[StreamEvent]) -> None: ...

    def done(self, out: list[StreamEvent]) -> Done: ...

    def partial(self) -> Message: ...


async def stream_reply(
    http: HttpClient,
    path: str,
    request: Request,
    *,
    build: Callable[[], dict[str, Any]],
    reader: Reader,
    info: ModelInfo,
    whole: str,
) -> AsyncGenerator[StreamEvent, None]:
    """The reply's events, `Done` last. `whole` is the field of a reply that came at once.

    Raises `ProviderError` with the partial message.
    """
    json = JsonItems()

    def feed(event: ServerSentEvent, out: list[StreamEvent]) -> None:
        data = event.data.strip()
        if data == "[DONE]":
            reader.is_closed = True
        elif data and not reader.is_closed:
            chunk = json.decode(data)
            reader.feed(chunk if isinstance(chunk, dict) else {}, out)

    try:
        body = await off_thread_if_large(len(request.messages), build)
        try:
            async with http.stream(path, body) as response:
                pieces = parsed_chunks(response, SseParser(), content_type="text/event-stream", whole=whole)
                async for events in pieces:
                    heard, failure = read(events, feed)
                    for item in heard:
                        yield item
                    if failure is not None:
                        raise failure
                    if reader.is_closed:
                        await drain(pieces)
                        break
        except ProviderError:
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
