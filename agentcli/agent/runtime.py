"""The records of the agent loop: a session's services, a turn, and the steps around its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from agentcli.agent.accounting.budgets import Amounts, Budgets, OverBudget
from agentcli.agent.calls.model import SessionCalls, TurnCalls
from agentcli.agent.context.window import ContextUse, ContextWatch, CountTexts, count_context, estimated
from agentcli.agent.events import DoneReason, Emit
from agentcli.agent.hooks import NoHooks, TurnHooks
from agentcli.agent.interfaces import SessionLog
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Compaction, Entry, Result
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Usage
from agentcli.llm.models import ModelInfo, bundled_models
from agentcli.llm.provider import Effort, Prefix, Provider, Request, RetryPolicy
from agentcli.tools.tool import ToolRegistry

Resolve = Callable[[AgentState], Awaitable[tuple[Provider, ModelInfo]]]
ModelFinder = Callable[[str], ModelInfo]
ContextTransform = Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]]


class TurnLimits(msgspec.Struct, frozen=True):
    """The limits of a turn: `max_turns` requests, and `max_tokens` for a reply (None: the model's limit, up to 32,000).

    With `asks` the person is asked, at this limit and where a budget is used up, if the turn continues. From the share
    `cheaper_at` of a budget in money on, `cheaper_model` answers. An answer that breaks off is continued without a
    question up to `max_breaks` times a turn. With `waits_for_reset` a turn waits for the end of a usage limit.
    """

    max_turns: int = 25
    max_tokens: int | None = None
    asks: bool = False
    budgets: Amounts = {}
    cheaper_model: str = ""
    cheaper_at: float = 0.8
    waits_for_reset: bool = False
    max_breaks: int = 0


class ContextPolicy(Protocol):
    """Decides before each request if the conversation must shrink."""

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit
    ) -> Compaction | None:
        """Return the compaction to add to the conversation before the request, or None. Raises `UserError`."""


async def unchanged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages as they are."""
    return messages


@dataclass(kw_only=True)
class ModelAccess:
    """The models of a session.

    `resolve` chooses the provider before each request; the model `fallback` answers where that one fails.
    `prefix_for` returns the fixed beginning of requests to a kind of model, `info` the facts of a `provider/model`.
    """

    resolve: Resolve
    prefix_for: Callable[[ModelInfo, ToolRegistry], Prefix]
    info: ModelFinder = lambda name: bundled_models().find(*name.split("/", 1))
    fallback: str = ""
    retry: RetryPolicy = RetryPolicy()
    temperature: float | None = None
    effort: Effort | None = None


@dataclass(kw_only=True)
class ContextControl:
    """Keeps the conversation within the model's window. A notice warns the person from the share `warn_at` on.

    `policy` may compact the conversation before a request, `watch` when a request was too long or the person asks.
    `transform` may change the messages of one request. `count_texts` counts tokens for /context.
    """

    policy: ContextPolicy | None = None
    watch: ContextWatch | None = None
    transform: ContextTransform = unchanged
    warn_at: float = 0.8
    count_texts: CountTexts = estimated


@dataclass(kw_only=True)
class Runtime:
    """The services of a session. `steps` makes the steps of each turn, in order; `collect` gets each new entry."""

    models: ModelAccess
    calls: SessionCalls
    log: SessionLog
    steps: list[Callable[[], TurnStep]]
    limits: TurnLimits = TurnLimits()
    context: ContextControl = field(default_factory=ContextControl)
    hooks: TurnHooks = field(default_factory=NoHooks)
    collect: Callable[[str, Entry], object] = lambda session_id, entry: None

    async def context_use(self, state: AgentState) -> ContextUse:
        """Return the tokens that the next request would hold, by source."""
        provider, info = await self.models.resolve(state)
        model, prefix = f"{provider.name}/{provider.model}", self.prefix(info)
        return await count_context(state, model=model, info=info, prefix=prefix, count=self.context.count_texts)

    def prefix(self, info: ModelInfo) -> Prefix:
        """Return the prefix of requests to a model: the same bytes while the tools are the same."""
        return self.models.prefix_for(info, self.calls.tools)


# A turn


@dataclass(kw_only=True)
class TurnLog:
    """The entries of a turn: the prompt's ids, all ids, and the tasks that store entries, oldest first."""

    pending: list[asyncio.Task[None]] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    accepted: int = 0  # as many of the ids were in a request that the provider answered
    has_shrunk: bool = False  # the conversation was compacted because a request was too long


@dataclass(kw_only=True)
class Spending:
    """The usage and cost of a turn, in USD; None where a price is unknown."""

    budgets: Budgets
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    dearer_model: str = ""  # a cheaper model has just replaced it


@dataclass(kw_only=True)
class AnswerText:
    """The texts that the model has written in a turn."""

    parts: list[str] = field(default_factory=list)  # of the answer so far
    earlier: list[str] = field(default_factory=list)  # before calls
    is_half: bool = False  # a reply broke off in its text

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def begin(self) -> None:
        """Begin a new answer: the texts so far came before it."""
        self.earlier += self.parts
        self.parts.clear()


@dataclass(kw_only=True)
class Turn:
    """One prompt being answered. `round` counts its requests, from 1."""

    state: AgentState
    runtime: Runtime
    calls: TurnCalls
    steps: Sequence[TurnStep]
    spending: Spending
    log: TurnLog = field(default_factory=TurnLog)
    answer: AnswerText = field(default_factory=AnswerText)
    round: int = 0

    @property
    def emit(self) -> Emit:
        return self.calls.emit


class EarlyEnd(NamedTuple):
    """The end of a turn whose newest reply has calls; the result of each of them is `why`."""

    reason: DoneReason
    why: str


class TurnStep:
    """Something that a session does around the requests of a turn.

    A step is made for each turn, and overrides the methods it needs.
    """

    def start(self, turn: Turn, *, is_resumed: bool) -> None:
        """Called when the turn begins, before its prompt is in the conversation."""

    async def begin(self, turn: Turn) -> None:
        """Called before the first request. Raises `UserError`, which ends the turn."""

    async def before_request(self, turn: Turn) -> DoneReason | None:
        """Called before each request; a reason ends the turn."""
        return None

    def shape(self, request: Request) -> Request:
        """Return the request in the form to send."""
        return request

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool | DoneReason:
        """Called after a request that failed: True asks for another one, a reason ends the turn."""
        return False

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """Called after a reply, before its calls. With an `EarlyEnd` the turn ends and no call is run."""
        return None

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> DoneReason | None:
        """Called after the calls of a reply; a reason ends the turn."""
        return None

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        """Add messages that the model reads next, and return True if there were some. Every step is called."""
        return False

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Return True if another request is due; then no later step is called."""
        return False

    def end(self, turn: Turn) -> None:
        """Called when the turn ends, in any way."""
