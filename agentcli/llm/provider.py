"""The interface that every model provider implements, with its requests and events, and how requests are retried."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from math import ceil
from typing import Any, Literal, Protocol

from msgspec import Struct

from agentcli.llm.errors import Overloaded, ProviderError, ServerError
from agentcli.llm.messages import CacheControl, Message, StopReason, Usage
from agentcli.llm.prepared import PreparedMessages, Transcript

Effort = Literal["low", "medium", "high", "xhigh", "max"]
MAX_WAIT_S = 60.0  # before a request is tried again
MB = 1024 * 1024


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it; `input_schema` is a JSON Schema object."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Prefix(Struct, frozen=True):
    """The fixed beginning of every request to a kind of model: the same objects, so the same bytes, each time."""

    system: str
    tools: tuple[ToolSpec, ...]


class Request(Struct, frozen=True):
    """One request to a model.

    `max_tokens` limits the reply. `answer_schema` is the JSON Schema of the answer, for APIs that can enforce one.
    `unsent` are fields of the body that the model was found to reject.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    temperature: float | None = None
    effort: Effort | None = None
    unsent: frozenset[str] = frozenset()
    answer_schema: dict[str, Any] | None = None

    @property
    def prepared(self) -> PreparedMessages:
        """The prepared messages of the conversation; empty if the messages belong to none."""
        return self.messages.prepared if isinstance(self.messages, Transcript) else PreparedMessages()

    def call_ids(self) -> set[str]:
        return self.prepared.call_ids(self.messages)

    @property
    def earlier_messages(self) -> int:
        """The number of `messages` before the newest reply; its request wrote the prompt cache up to there."""
        return next((n for n in range(len(self.messages) - 1, -1, -1) if self.messages[n].role == "assistant"), 0)

    @property
    def lasts_an_hour(self) -> bool:
        """True if a caller's breakpoint keeps a part of the request cached for an hour, which costs more."""
        messages = (self.messages[n] for n in self.prepared.media_or_breakpoints(self.messages))
        blocks = (block for message in messages for block in message.content)
        return any(getattr(block, "cache_control", None) == CacheControl("1h") for block in blocks)

    def remove_unsent(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body without the fields that the model was found to reject."""
        return {name: value for name, value in body.items() if name not in self.unsent}


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    text: str


class ToolCallStarted(Struct, frozen=True, tag="tool_call_started"):
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, tag="tool_call_delta"):
    id: str
    partial_json: str


class ToolCallEnded(Struct, frozen=True, tag="tool_call_ended"):
    id: str


class UsageUpdate(Struct, frozen=True, tag="usage"):
    """The tokens that the server has counted so far; a later update replaces an earlier one.

    While the server is reading the prompt, `prompt_tokens` is its full length.
    """

    usage: Usage
    prompt_tokens: int = 0


class Done(Struct, frozen=True, tag="done"):
    """The last event of every reply, with the whole message.

    `lost_tool_call`: the reply was cut inside a call, which the message does not contain. `note` adds to the stop
    reason: the provider's explanation of a refusal, or the name of an unknown reason.
    """

    message: Message
    stop_reason: StopReason
    usage: Usage
    model: str
    lost_tool_call: bool = False
    note: str = ""


StreamEvent = TextDelta | ThinkingDelta | ToolCallStarted | ToolCallDelta | ToolCallEnded | UsageUpdate | Done


class TokenCount(Struct, frozen=True):
    """A number of tokens: `exact` if the provider counted them, else an estimate that includes its safety margin."""

    tokens: int
    exact: bool


class Health(Struct, frozen=True):
    """The result of a provider's health check. `models` are the models it lists, if it has a list."""

    ok: bool
    detail: str
    models: tuple[str, ...] = ()
    is_reached: bool = True  # False if no server answered, so that nothing is known about the key


class Provider(Protocol):
    """One model behind one API. `name` is the provider's, `model` is the model's id in the API.

    It may also have `media_rules`, its limits for images and documents, and `warm(request)`, which lets the server read
    the beginning of a request before the first one.
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        """Send one request and yield its events, `Done` last; closing the iterator ends the request.

        Raises `ProviderError` for every failure; its `partial` is the part that had arrived, without cut calls.
        """

    async def count_tokens(self, request: Request) -> TokenCount:
        """Count the prompt tokens of `request`. Raises `ProviderError`."""

    async def health_check(self) -> Health:
        """Check that the server answers and accepts the key. Does not raise, and costs no tokens."""

    async def aclose(self) -> None:
        """Release connections and processes; safe to call twice."""


class ReplyLimits(Struct, frozen=True):
    """The limits of one reply's size and time, named like the settings in `limits`."""

    max_reply_mb: float = 8.0
    max_arguments_mb: float = 4.0
    max_reply_s: float = 3_600.0

    def check(self, reply_bytes: int, argument_bytes: int) -> None:
        """Raise `ServerError` that names a limit if a reply has become larger."""
        if argument_bytes > self.max_arguments_mb * MB:
            raise _limit_error(f"holds calls with more than limits.max_arguments_mb = {self.max_arguments_mb:g} MB")
        if reply_bytes > self.max_reply_mb * MB:
            raise _limit_error(f"is longer than limits.max_reply_mb = {self.max_reply_mb:g} MB")

    def late_error(self) -> ServerError:
        return _limit_error(f"took longer than limits.max_reply_s = {self.max_reply_s:g} seconds")


def _limit_error(excess: str) -> ServerError:
    return ServerError(
        f"The reply {excess}, so the request was cancelled. Ask for less at once, or raise the limit in the settings.",
        is_retryable=False,
    )


class RetryPolicy(Struct, frozen=True):
    """The rules for retries: at most `max_retries`, after waits that begin with `initial_delay` seconds and double."""

    max_retries: int = 3
    initial_delay: float = 1.0
    reply_limits: ReplyLimits = ReplyLimits()
    max_overloaded: int = sys.maxsize  # retries of an overloaded service, fewer if a fallback model can answer

    def max_retries_after(self, error: ProviderError) -> int:
        return min(self.max_retries, self.max_overloaded) if isinstance(error, Overloaded) else self.max_retries


OnRetry = Callable[[int, float, ProviderError], None]  # number of the retry (1 is the first), seconds to wait, reason


async def stream_with_retry(
    provider: Provider,
    request: Request,
    *,
    policy: RetryPolicy,
    on_retry: OnRetry,
    before_attempt: Callable[[Request], Request] = lambda request: request,
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a reply; after a failure before its first text, wait and try again. Raises the last failure.

    `before_attempt` returns the request of each attempt, and may raise an error to stop retrying. After `on_retry`, the
    reply begins again: the thinking and the calls that the failed attempt yielded are not part of it.
    """
    tries, started, shown = 0, time.monotonic(), False
    while True:
        try:
            async with aclosing(provider.stream(before_attempt(request))) as events:
                async for event in events:
                    shown = shown or isinstance(event, TextDelta)
                    yield event
            return
        except ProviderError as error:
            error.shown = shown
            tries += 1
            wait_s = delay_before(tries, policy, error)
            if shown or not error.is_retryable or tries > policy.max_retries_after(error) or wait_s > MAX_WAIT_S:
                error.tries, error.tried_s = tries, time.monotonic() - started
                raise
            on_retry(tries, wait_s, error)
        await asyncio.sleep(wait_s)


def delay_before(retry: int, policy: RetryPolicy, error: ProviderError) -> float:
    """Return the seconds before retry 1, 2, …: as the server asks, else doubled each time, less 0 to 25 % at random."""
    if error.retry_after is not None:
        return max(0.0, error.retry_after)
    import random  # seldom needed, and imports hashlib

    delay = min(policy.initial_delay * 2.0 ** (retry - 1), MAX_WAIT_S)
    return delay * (1 - 0.25 * random.random())  # noqa: S311 - jitter needs no cryptography


def with_wait(text: str, error: ProviderError) -> str:
    """Add to a sentence how long the server asks to wait, if that is longer than `MAX_WAIT_S`."""
    wait_s = error.retry_after or 0.0
    if wait_s <= MAX_WAIT_S:
        return text
    wait = f"{ceil(wait_s)} s ({time_span(wait_s)}), until {clock_time(time.time() + wait_s)}"
    return f"{text.rstrip('.')}. The server asks to wait {wait}."


def clock_time(at: float) -> str:
    """Return a time of today as 14:05, and one of another day with its date."""
    then, now = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)  # [:3]: year, month and day


def time_span(span_s: float) -> str:
    """Return a number of seconds as a person reads it: 1 h 30 min."""
    left_s, parts = ceil(span_s), []
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left_s = divmod(left_s, size_s)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"
