"""Streams the reply to one request: splits the body as it arrives, and runs the loop that all providers share."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from agentcli.llm import errors
from agentcli.llm.connection import Response
from agentcli.llm.http import MAX_EVENT_BYTES, Carrier, no_reply_error, read_start, redacted_address
from agentcli.llm.messages import Message, decode_json
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Request, StreamEvent
from agentcli.llm.wire.reply_parts import CallIds, read_items
from agentcli.patterns import lazy_pattern

if TYPE_CHECKING:
    from agentcli.llm.wire.chat_completions import Quirks

MAX_STREAM_BYTES = 128 * 1024 * 1024  # of one streamed reply: a token may take 400 bytes, also one that shows nothing
# A character like 😀 is escaped as a high and a low surrogate, \ud83d\ude00. The first pattern finds the quotation mark
# before a text that begins with a low one; the second finds a high one at the end of a text, after complete escapes.
_LOW_FIRST = lazy_pattern(r'(?<!\\)"(?=\\u[dD][c-fC-F])')
_HIGH_LAST = lazy_pattern(r'(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')


class EventReader(Protocol):
    """Builds a reply from the stream's events, and appends ours to `out`."""

    model: str
    has_ended: bool  # True once the server has announced the end; later events are not read

    @property
    def has_all_content(self) -> bool:
        """True once only the token counts and the announcement of the end may be missing."""

    def feed(self, event: dict[str, Any], out: list[StreamEvent]) -> None:
        """Append our own events for a provider's to `out`. Raises `ProviderError` for an error that it reports."""

    def finish(self, out: list[StreamEvent]) -> Done:
        """Return the whole reply, after the stream's end. Raises `ProviderError` if some of it did not arrive."""

    def partial(self) -> Message:
        """Return what arrived before a stream broke."""


async def stream_reply(
    carrier: Carrier,
    path: str,
    *,
    build: Callable[[], dict[str, Any]],
    reader: EventReader,
    parser: "LineParser | None" = None,
    content_type: str = "text/event-stream",
    window: int = 0,
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the reply's events, `Done` last. Raises `ProviderError` with the part of the reply that had arrived.

    `build` makes the request's body. With a `window` in tokens, a longer prompt is an overflow, because z.ai drops its
    beginning without an error.
    """
    decoder, has_response = JsonItems(), False

    def feed(item: str | bytes, out: list[StreamEvent]) -> None:
        if item == "[DONE]":  # how gateways end the replies of every API
            reader.has_ended = True
        elif not reader.has_ended:
            event = decoder.decode(item)
            reader.feed(event if isinstance(event, dict) else {}, out)

    try:
        body = build()
        try:
            async with carrier.send(path, body) as response:
                has_response = True
                pieces = _arriving_items(response, parser or SseParser(), content_type)
                async for items in pieces:
                    events, failure = read_items(items, feed)
                    for event in events:
                        yield event
                    if failure is not None:
                        raise failure
                    if reader.has_ended:
                        await _drain(pieces)  # so that the connection can be reused
                        break
        except errors.ProviderError as error:
            error.sent = body  # the caller looks in it for the part that was rejected
            # Once a response has begun, the server has the request, and may bill it even if the connection broke.
            error.is_answered |= has_response and isinstance(error, errors.ConnectionFailed | errors.Timeout)
            if not reader.has_all_content:  # otherwise the failure cost only the token counts, and the reply is good
                raise
        last_events: list[StreamEvent] = []
        done = reader.finish(last_events)
        for event in last_events:
            yield event
        if 0 < window < done.usage.prompt_tokens:
            raise errors.ContextOverflow(
                f"{reader.model} was sent {done.usage.prompt_tokens:,} prompt tokens, more than its window of "
                f"{window:,}: the beginning was dropped."
            )
        yield done
    except errors.ProviderError as error:
        error.partial = reader.partial()
        raise


async def _drain(pieces: AsyncIterator[Any]) -> None:
    """Read the rest of a body for a moment; it is usually short."""
    with suppress(TimeoutError, errors.ProviderError):
        async with asyncio.timeout(0.25):
            async for _ in pieces:
                pass


async def _arriving_items(
    response: Response, parser: "LineParser", content_type: str
) -> AsyncGenerator[list[Any], None]:
    """Yield the JSON of the reply's events in lists, as it arrives, or all at once if the reply is not streamed."""
    is_stream = content_type in response.headers.get("content-type", content_type).lower()  # servers may omit the type
    if not is_stream:
        start = await read_start(response, MAX_EVENT_BYTES)
        try:
            value = decode_json(start)
        except ValueError:
            value = None
        if isinstance(value, dict) and (value.get("choices") or value.get("output")):
            yield [start]  # a reply of an OpenAI API that was not streamed
            return
        if isinstance(value, dict | list) and errors.error_in_json(value)[0]:  # it has a message
            raise errors.embedded_error(value)
        raise no_reply_error(response, start)
    received = 0
    async for piece in response.pieces():
        received += len(piece)
        if received > MAX_STREAM_BYTES:
            raise errors.ServerError(
                f"{redacted_address(response.url)} sent more than {MAX_STREAM_BYTES >> 20} MB for one reply, "
                "so it was cancelled.",
                is_retryable=False,
            )
        if items := parser.feed(piece):
            yield items
    if items := parser.close():
        yield items


def stream_openai(
    carrier: Carrier, request: Request, info: ModelInfo, quirks: "Quirks"
) -> AsyncGenerator[StreamEvent, None]:
    """Stream the reply of a server that speaks Chat Completions or OpenAI's Responses API."""
    ids, tools = CallIds(request.call_ids), frozenset(tool.name for tool in request.tools)
    reader: EventReader
    if (info.api or quirks.api) == "responses":
        from agentcli.llm.wire import responses

        path, to_body = "/responses", responses.to_body
        reader = responses.ResponsesReader(info.id, info.provider, ids=ids)
    else:
        from agentcli.llm.wire import chat_completions

        path, to_body = "/chat/completions", chat_completions.to_body
        reader = chat_completions.ChatReader(info.id, info.provider, quirks=quirks, tool_names=tools, ids=ids)
    return stream_reply(
        carrier,
        path,
        build=lambda: to_body(request, info, quirks, info.provider),
        reader=reader,
        window=info.window if info.is_known else 0,  # an unknown model's window is only assumed
    )


class LineParser:
    """Splits bytes into NDJSON lines, and reads each byte once; a byte order mark may begin the stream."""

    _end = b"\n"  # of an item
    _at_start = True  # until the first item, which may have a byte order mark

    def __init__(self) -> None:
        self._unread = bytearray()  # an item whose end has not arrived

    def feed(self, chunk: bytes) -> list[str | bytes]:
        """Return the items that are complete now. Raises `ServerError` for one larger than `MAX_EVENT_BYTES`."""
        # An end has at most two bytes, so the last byte of one chunk and the first of the next may form one.
        if self._end not in chunk and self._end not in self._unread[-1:] + chunk[:1]:
            self._unread += chunk
            if len(self._unread) > MAX_EVENT_BYTES:
                raise errors.ServerError(
                    f"The server sent {MAX_EVENT_BYTES >> 20} MB without the end of a line: is the base_url right?",
                    is_retryable=False,
                )
            return []
        *parts, unfinished = (bytes(self._unread) + chunk).split(self._end)
        self._unread = bytearray(unfinished)
        return [item for part in parts if (item := self._item(part))]

    def close(self) -> list[str | bytes]:
        """Return the item that the end of the body completes. Raises `ConnectionFailed` in the middle of an item."""
        part, self._unread = bytes(self._unread), bytearray()
        if not (item := self._item(part)):
            return []
        try:
            if item != "[DONE]":
                decode_json(item)  # raises for a part of an event
        except ValueError as error:
            raise errors.ConnectionFailed("The stream ended in the middle of an event.") from error
        return [item]

    def _item(self, part: bytes) -> str | bytes:
        """Return the item in the bytes before an end; empty if there is none."""
        if self._at_start:
            self._at_start = False
            part = part.removeprefix(b"\xef\xbb\xbf")  # the byte order mark of UTF-8
        return self._content_of(part)

    def _content_of(self, part: bytes) -> str | bytes:
        return part.strip()


class SseParser(LineParser):
    """Splits bytes into the data of server-sent events (WHATWG HTML standard, "Server-sent events").

    Unlike the standard, the end of the body also ends an event, and an event without data is ignored.
    """

    _end = b"\n\n"
    _after_cr = False  # the last chunk ended with \r: an \n at the start of the next one belongs to it

    def feed(self, chunk: bytes) -> list[str | bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return super().feed(chunk)

    def _content_of(self, part: bytes) -> str:
        data = []
        for line in part.decode(errors="replace").split("\n"):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
        return "\n".join(data).strip()


class JsonItems:
    """Decodes the JSON values of one stream. A character that is split over two values comes with the second."""

    def __init__(self) -> None:
        self._high_surrogate = ""  # the first half of a character, which was cut from the end of an earlier value

    def decode(self, data: bytes | str) -> Any:
        """Return one JSON value. Raises `ServerError` if it is invalid."""
        try:
            is_plain = "\\u" not in data if isinstance(data, str) else b"\\u" not in data
            return decode_json(data if is_plain else self._with_joined_halves(data))
        except ValueError as error:
            raise errors.ServerError(f"The server sent a broken event: {error}") from error

    def _with_joined_halves(self, data: bytes | str) -> str:
        """Put an earlier first half before the second half here, and cut off a first half at an end."""
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if self._high_surrogate and _LOW_FIRST.search(text):
            text, self._high_surrogate = _LOW_FIRST.sub(lambda quote: quote[0] + self._high_surrogate, text), ""
        if found := _HIGH_LAST.search(text):
            text, self._high_surrogate = _HIGH_LAST.sub(lambda end: end[1], text), found[2]
        return text
