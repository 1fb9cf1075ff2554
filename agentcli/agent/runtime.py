"""The records of the agent loop: a session's services, a turn, and the steps around its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from agentcli.agent.accounting.budgets import Amounts, Budgets, OverBudget
from agentcli.agent.calls.model import SessionCalls, TurnCalls
from agentcli.agent.context.sources import ContextUse, CountTexts, count_context, estimated
from agentcli.agent.context.watch import ContextWatch
from agentcli.agent.events import DoneReason, Emit
from agentcli.agent.hooks import NoHooks, TurnHooks
from agentcli.agent.interfaces import SessionLog
from agentcli.agent.state import AgentState, SessionSnapshot
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Compaction, Entry, Result
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Usage
from agentcli.llm.models import ModelInfo, bundled_models
from agentcli.llm.provider import Effort, Prefix, Provider, Request, RetryPolicy
from agentcli.tools.registry import ToolRegistry

Resolve = Callable[[AgentState], Awaitable[tuple[Provider, ModelInfo]]]
ModelFinder = Callable[[str], ModelInfo]
ContextTransform = Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]]


class TurnLimits(msgspec.Struct, frozen=True):
    """`max_turns` requests for one prompt; `max_tokens` for one reply (None: the model's own limit, up to 32,000).

    With `asks` the person is asked at this limit, and where a budget is used up, whether the turn goes on. From the
    share `cheaper_at` of a budget in money on `cheaper_model` answers. An answer that breaks off is continued
    unasked up to `max_breaks` times a turn.
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
    """Decides before each request whether the conversation has to shrink."""

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit
    ) -> Compaction | None:
        """The compaction that is added to the conversation before the request, or None. Raises `UserError`."""


async def unchanged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Send the messages as they are."""
    return messages


@dataclass(kw_only=True)
class ModelAccess:
    """The models of a session: `resolve` chooses the provider before each request; `fallback` is the one in reserve.

    `prefix_for` gives the fixed beginning of requests to a kind of model, `info` what is known of a `provider/model`.
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
    """Keeps the conversation within the model's window, of which the person is told from the share `warn_at` on.

    `policy` may compact it before a request, `watch` when a request was too long or the person asks; `transform`
    may change the messages of one request. `count_texts` counts tokens for /context.
    """

    policy: ContextPolicy | None = None
    watch: ContextWatch | None = None
    transform: ContextTransform = unchanged
    warn_at: float = 0.8
    count_texts: CountTexts = estimated


@dataclass(kw_only=True)
class Runtime:
    """The services of a session. `steps` makes those of each turn, in order; `collect` gets each new entry."""

    models: ModelAccess
    calls: SessionCalls
    log: SessionLog
    steps: list[Callable[[], TurnStep]]
    limits: TurnLimits = TurnLimits()
    context: ContextControl = field(default_factory=ContextControl)
    hooks: TurnHooks = field(default_factory=NoHooks)
    collect: Callable[[str, Entry], object] = lambda session_id, entry: None

    async def context_use(self, state: AgentState) -> ContextUse:
        """The tokens that the next request would hold, by source."""
        provider, info = await self.models.resolve(state)
        model, prefix = f"{provider.name}/{provider.model}", self.prefix(info)
        return await count_context(state, model=model, info=info, prefix=prefix, count=self.context.count_texts)

    async def compaction(self, state: AgentState, *, focus: str, is_dry: bool) -> Compaction | str:
        """A compaction as the person asks for it, or why there is none. Raises `UserError`."""
        if (watch := self.context.watch) is None:
            return "this session has no compactor"
        _, info = await self.models.resolve(state)
        prefix = self.prefix(info)
        return await watch.compactor.by_hand(state.conversation, info, prefix, focus=focus, is_dry=is_dry)

    def snapshot(self, state: AgentState, *, is_busy: bool) -> SessionSnapshot:
        """Return the session as a front end shows it now."""
        calls, total = self.calls, state.meter.total
        return SessionSnapshot(
            id=self.log.session_id,
            model=state.model,
            mode=state.mode,
            mode_before_plan=state.mode_before_plan,
            effort=state.effort,
            workspace=calls.workspace,
            tools=tuple(tool.name for tool in calls.tools),
            conversation=state.conversation,
            usage=total.usage,
            cost_usd=total.whole_usd,
            by_model=state.meter.by_model,
            max_budget_usd=state.budgets.limit("session", "usd"),
            max_turns=self.limits.max_turns,
            is_busy=is_busy,
            mcp_servers=servers.listing() if (servers := calls.delegates.servers) is not None else [],
        )

    def prefix(self, info: ModelInfo) -> Prefix:
        """The prefix of requests to a model: the same bytes while the tools are the same."""
        return self.models.prefix_for(info, self.calls.tools)


# A turn


@dataclass(kw_only=True)
class TurnLog:
    """The entries of a turn. `pending` are being stored, oldest first; the prompt's are among all `entry_ids`.

    The first `accepted` of them were in a request that was answered. `has_shrunk`: the conversation was compacted
    because a request was too long.
    """

    pending: list[asyncio.Task[None]] = field(default_factory=list)
    prompt_ids: list[str] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)
    accepted: int = 0
    has_shrunk: bool = False


@dataclass(kw_only=True)
class Spending:
    """The cost of a turn, in USD (None: a price is unknown). `dearer_model` has just been replaced by a cheaper one."""

    budgets: Budgets
    usage: Usage = Usage()
    cost_usd: float | None = 0.0
    dearer_model: str = ""


@dataclass(kw_only=True)
class AnswerText:
    """The model's words in a turn: `parts` of the answer, which `is_half` if a reply broke off, and `earlier` texts."""

    parts: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    is_half: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def begin(self) -> None:
        """Set aside what was said so far: what the model says next is an answer of its own."""
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
    """The end of a turn though its newest reply has calls; each of them is answered with `why`."""

    reason: DoneReason
    why: str


class TurnStep:
    """Something a session does around the requests of a turn; it overrides what it needs. It is made for each turn."""

    def start(self, turn: Turn, *, is_resumed: bool) -> None:
        """As the turn begins, before its prompt is in the conversation."""

    async def begin(self, turn: Turn) -> None:
        """Before the first request. Raises `UserError`, which ends the turn."""

    async def before_request(self, turn: Turn) -> DoneReason | None:
        """Before each request; a reason ends the turn."""
        return None

    def shape(self, request: Request) -> Request:
        """Return a request as it is to be sent."""
        return request

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool | DoneReason:
        """After a request that failed: True asks for another one, a reason ends the turn, False leaves the error."""
        return False

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """After a reply, before its calls; an ending ends the turn, and none of them is run."""
        return None

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> DoneReason | None:
        """After the calls of a reply; a reason ends the turn."""
        return None

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        """Add messages that the model reads next; True if there were some. Every step is called."""
        return False

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Return True where another request is due; then no later step is called."""
        return False

    def end(self, turn: Turn) -> None:
        """As the turn ends, however it does."""
