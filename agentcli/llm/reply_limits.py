"""Limits a reply as a whole, so that one without an end fills neither the memory nor the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

from agentcli.llm.errors import ServerError
from agentcli.llm.provider import StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta

MB = 1024 * 1024


class ReplyLimits(Struct, frozen=True):
    """What one reply may hold and take. The names are those of the settings in `limits`."""

    max_reply_mb: float = 8.0
    max_arguments_mb: float = 4.0
    max_reply_s: float = 3_600.0


async def limit_reply(
    events: AsyncGenerator[StreamEvent, None], limits: ReplyLimits
) -> AsyncGenerator[StreamEvent, None]:
    """The events of one reply. Raises `ServerError` that names the limit it exceeds."""
    total = arguments = 0
    deadline = asyncio.get_running_loop().time() + limits.max_reply_s
    while True:
        try:
            # Each wait has a timeout of its own: one around a yield would also cancel whoever reads the events.
            async with asyncio.timeout_at(deadline) as timeout:
                event = await anext(events, None)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise _exceeded(f"took longer than limits.max_reply_s = {limits.max_reply_s:g} seconds") from error
        if event is None:
            return
        if isinstance(event, TextDelta | ThinkingDelta):
            total += _size(event.text)
        elif isinstance(event, ToolCallDelta):
            size = _size(event.partial_json)
            total, arguments = total + size, arguments + size
        if arguments > limits.max_arguments_mb * MB:
            raise _exceeded(f"holds calls with more than limits.max_arguments_mb = {limits.max_arguments_mb:g} MB")
        if total > limits.max_reply_mb * MB:
            raise _exceeded(f"is longer than limits.max_reply_mb = {limits.max_reply_mb:g} MB")
        yield event


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _exceeded(what: str) -> ServerError:
    return ServerError(
        f"The reply {what}, so the request was cancelled. Ask for less at once, or raise the limit in the settings.",
        is_retryable=False,
    )
