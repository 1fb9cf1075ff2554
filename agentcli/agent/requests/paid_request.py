"""Sends a request within the budgets: each try is reserved before it is sent, and paid for however it ends."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec import structs

from agentcli.agent.accounting import Budgets, Reservation
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import OnRetry, Provider, Request, RetryPolicy, StreamEvent, lasts_an_hour, stream_with_retry
from agentcli.llm.tokens import estimate, request_size

# Tokens of a byte that no provider has counted yet, at most: base64 comes to 0.72 in cl100k_base,
# characters beyond ASCII to 0.95. Prose has 0.22, but a reservation must be enough.
TOKENS_PER_BYTE, TOKENS_PER_FOREIGN_BYTE = 0.75, 1.0
TOKENS_PER_MESSAGE = 8
MEDIA_MARGIN = 1.5


def most_tokens(request: Request, info: ModelInfo) -> int:
    """Return the most tokens that a prompt can have of which the provider has counted nothing."""
    size = request_size(request, info)
    text = size.ascii * min(1.0, TOKENS_PER_BYTE * max(1.0, info.token_factor))
    media = size.media * MEDIA_MARGIN + TOKENS_PER_MESSAGE * len(request.messages)
    return int(text + size.foreign * TOKENS_PER_FOREIGN_BYTE + media) + 1


class RequestTarget(NamedTuple):
    """The model that a request goes to."""

    provider: Provider
    info: ModelInfo

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider.name}/{self.provider.model}"


@dataclass(kw_only=True)
class Attempt:
    """The newest try of a request. `retries` counts the tries before it."""

    sent: Request
    retries: int = 0
    duration_ms: int = 0
    is_estimated: bool = False  # the provider did not count the tokens of the reply


@dataclass(kw_only=True)
class PaidRequest:
    """A request and its retries, each within the budgets.

    `max_prompt_tokens` bounds the tokens of a prompt. `on_broken` is called for a try that ended without a reply,
    with the usage that its stream reported, else an estimate; the budgets are charged with the worst case.
    """

    target: RequestTarget
    budgets: Budgets
    policy: RetryPolicy
    on_broken: Callable[[Usage], None]
    on_retry: OnRetry = lambda *failure: None
    max_prompt_tokens: Callable[[Request, ModelInfo], int] = most_tokens

    async def reply(self, request: Request, on_event: Callable[[StreamEvent], object] = lambda event: None) -> llm.Done:
        """Return the reply with what it used. Raises `ProviderError`, and `OverBudget` if a try cannot be paid for."""
        self._held: Reservation | None = None
        self.attempt = Attempt(sent=request)
        try:
            async with asyncio.timeout(None) as self._deadline:
                stream = stream_with_retry(
                    self.target.provider, request, policy=self.policy, on_retry=self._failed, before_try=self._begin
                )
                async with aclosing(stream) as events:
                    async for event in events:
                        self._count(event)
                        if isinstance(event, llm.Done):
                            return self._whole(event)
                        on_event(event)
        except TimeoutError as error:
            if not self._deadline.expired():
                raise
            self._break()
            self.budgets.check()
            raise UserError("The request was ended: the time its budget left is over.") from error
        except ProviderError as error:
            self._break(error)
            raise
        finally:
            self._break()
        raise AssertionError(f"{self.target.name} ended its stream without Done")

    def _begin(self, request: Request) -> Request:
        prompt_tokens = partial(self.max_prompt_tokens, request, self.target.info)
        self._held = self.budgets.reserve(prompt_tokens, request.max_tokens, self._at_highest_price(request))
        self.attempt.sent = structs.replace(request, max_tokens=self._held.max_tokens)
        self._used, self._received, self._has_begun, self._started = Usage(), 0, False, time.monotonic()
        if self._held.seconds < math.inf:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._held.seconds)
        return self.attempt.sent

    def _at_highest_price(self, request: Request) -> ModelInfo:
        """Return the model, at the price of keeping its prompt for an hour where the request asks for that."""
        info, prices = self.target.info, self.target.info.prices
        if not self.budgets.is_limited or prices is None or prices.cache_write_1h is None or not lasts_an_hour(request):
            return info
        return structs.replace(info, prices=structs.replace(prices, cache_write=prices.cache_write_1h))

    def _failed(self, number: int, delay_s: float, error: ProviderError) -> None:
        self._break(error)
        self.attempt.retries = number
        self.on_retry(number, delay_s, error)

    def _count(self, event: StreamEvent) -> None:
        self._has_begun = True
        match event:
            case llm.TextDelta(text) | llm.ThinkingDelta(text) | llm.ToolCallDelta(_, text):
                self._received += len(text) if text.isascii() else len(text.encode(errors="replace"))
            case llm.UsageUpdate(usage):
                self._used = usage

    def _whole(self, done: llm.Done) -> llm.Done:
        """Return a reply, its usage estimated where the server did not count: some never do, or the end was lost."""
        self.attempt.is_estimated = done.usage == Usage()
        if not self.attempt.is_estimated:
            self._settle(done.usage)
            return done
        used, worst = self._uncounted()
        self._settle(worst)
        return structs.replace(done, usage=used)

    def _settle(self, usage: Usage) -> None:
        assert self._held is not None
        duration_s = time.monotonic() - self._started
        self.attempt.duration_ms = round(duration_s * 1000)
        self._held.settle(usage, self.target.info.cost(usage), duration_s)

    def _break(self, error: ProviderError | None = None) -> None:
        """End a try that brought no reply. One that the server refused, or that never reached it, is free."""
        if self._held is None or not self._held.is_open:
            return
        if error is not None and not self._has_begun and not error.is_answered:
            self._settle(Usage())
            return
        used, worst = self._uncounted()
        self._settle(worst)
        self.on_broken(used)

    def _uncounted(self) -> tuple[Usage, Usage]:
        """Return what a reply took that was not counted to its end: an estimate, and the most it can have been."""
        assert self._held is not None
        info, sent = self.target.info, self.attempt.sent
        used, most = self._with_output(self._received // 4), self._with_output(self._received // 2)
        if info.thinking != "none" or not info.is_known:  # it may have reasoned all it was allowed to
            most = self._with_output(self._held.max_tokens)
        if not used.prompt_tokens and used.cost_usd is None:
            used = structs.replace(used, input_tokens=estimate(sent, info).tokens)
            most = structs.replace(most, cache_creation_input_tokens=self.max_prompt_tokens(sent, info))
        return used, most

    def _with_output(self, tokens: int) -> Usage:
        return structs.replace(self._used, output_tokens=max(self._used.output_tokens, tokens))
