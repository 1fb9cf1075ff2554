"""Tries a request again while no text of its reply has been shown, and limits what each reply may bring."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from math import ceil

from msgspec import Struct

from agentcli.llm.errors import ProviderError, ServerError
from agentcli.llm.provider import Provider, Request, StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta

LONGEST_WAIT_S = 60.0
MB = 1024 * 1024


class ReplyLimits(Struct, frozen=True):
    """Limits of one reply's size and time. The names are those of the settings in `limits`."""

    max_reply_mb: float = 8.0
    max_arguments_mb: float = 4.0
    max_reply_s: float = 3_600.0


class RetryPolicy(Struct, frozen=True):
    """`max_retries` after the first try; the first wait in seconds, doubled each time; what each try may bring."""

    max_retries: int = 3
    initial_delay: float = 1.0
    reply_limits: ReplyLimits = ReplyLimits()


OnRetry = Callable[[int, float, ProviderError], None]  # which retry this is (1 is the first), seconds to wait, why


async def stream_with_retry(
    provider: Provider,
    request: Request,
    *,
    policy: RetryPolicy,
    on_retry: OnRetry,
    before_try: Callable[[Request], Request] = lambda request: request,
) -> AsyncGenerator[StreamEvent, None]:
    """The provider's stream; a failure before the first text is tried again after a wait.

    `before_try` gives the request each time, and may raise to end it. Raises the last `ProviderError`.
    """
    tries, started = 0, time.monotonic()
    while True:
        shown = False
        try:
            async with aclosing(provider.stream(before_try(request))) as events:
                async for event in limit_reply(events, policy.reply_limits):
                    shown = shown or isinstance(event, TextDelta)
                    yield event
            return
        except ProviderError as error:
            error.shown = shown
            tries += 1
            wait_s = delay_before(tries, policy, error)
            if shown or not error.is_retryable or tries > policy.max_retries or wait_s > LONGEST_WAIT_S:
                error.tries, error.tried_s = tries, time.monotonic() - started
                raise
            on_retry(tries, wait_s, error)
        await asyncio.sleep(wait_s)


async def limit_reply(
    events: AsyncGenerator[StreamEvent, None], limits: ReplyLimits
) -> AsyncGenerator[StreamEvent, None]:
    """The events of one reply within its limits. Raises `ServerError` that names the limit it exceeds."""
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
        match event:
            case None:
                return
            case TextDelta(text) | ThinkingDelta(text) | ToolCallDelta(_, text):
                size = len(text) if text.isascii() else len(text.encode(errors="replace"))
                total, arguments = total + size, arguments + size * isinstance(event, ToolCallDelta)
            case _:
                pass
        if arguments > limits.max_arguments_mb * MB:
            raise _exceeded(f"holds calls with more than limits.max_arguments_mb = {limits.max_arguments_mb:g} MB")
        if total > limits.max_reply_mb * MB:
            raise _exceeded(f"is longer than limits.max_reply_mb = {limits.max_reply_mb:g} MB")
        yield event


def _exceeded(what: str) -> ServerError:
    text = f"The reply {what}, so the request was cancelled. Ask for less at once, or raise the limit in the settings."
    return ServerError(text, is_retryable=False)


def delay_before(retry: int, policy: RetryPolicy, error: ProviderError) -> float:
    """Seconds to wait before retry number `retry` (1-based): the server's word, else doubled with up to 25% less."""
    if error.retry_after is not None:
        return max(0.0, error.retry_after)
    delay = min(policy.initial_delay * 2.0 ** (retry - 1), LONGEST_WAIT_S)
    return delay * (1 - 0.25 * random.random())  # noqa: S311 - jitter needs no cryptography


def with_wait(text: str, error: ProviderError) -> str:
    """A sentence about an error, and how long its server asks to wait where that is too long to be waited for."""
    wait_s = error.retry_after or 0.0
    if wait_s <= LONGEST_WAIT_S:
        return text
    wait = f"{ceil(wait_s)} s ({time_span(wait_s)}), until {clock_time(time.time() + wait_s)}"
    return f"{text.rstrip('.')}. The server asks to wait {wait}."


def clock_time(at: float) -> str:
    """A time of today as 14:05, of another day with its date."""
    form = "%H:%M" if time.localtime(at)[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(at))


def time_span(span_s: float) -> str:
    """Seconds as a person reads them: 1 h 30 min."""
    rest, parts = ceil(span_s), []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        parts += [f"{count} {unit}"] if count else []
    return " ".join(parts) or "0 s"
