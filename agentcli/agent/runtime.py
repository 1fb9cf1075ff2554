"""Everything a session's turns work with and do not change: providers, calls, the log, limits, hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentcli.agent.accounting.budgets import Amounts
from agentcli.agent.calls.model import SessionCalls
from agentcli.agent.context.nested_instructions import NestedInstructions
from agentcli.agent.context.sources import CountTexts, estimated
from agentcli.agent.events import Emit
from agentcli.agent.hooks import NoHooks, TurnHooks
from agentcli.agent.interfaces import SessionLog
from agentcli.agent.state import AgentState, SessionSnapshot
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Compaction, Entry
from agentcli.llm.messages import Message
from agentcli.llm.models import ModelInfo, bundled_models
from agentcli.llm.provider import Effort, Provider, ToolSpec
from agentcli.llm.retry import RetryPolicy
from agentcli.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from agentcli.agent.result import AnswerSchema

Resolve = Callable[[AgentState], Awaitable[tuple[Provider, ModelInfo]]]
ModelFinder = Callable[[str], ModelInfo]
ContextTransform = Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]]


class TurnLimits(msgspec.Struct, frozen=True):
    """`max_turns` requests for one prompt; `max_tokens` for one reply (None: the model's own limit, up to 32,000).

    With `asks` the person is asked at this limit, and where a budget is used up, whether the turn goes on.
    `budgets` are those of each turn; from the share `cheaper_at` of a budget in money on `cheaper_model` answers.
    With `waits_for_reset` a usage limit that names its end is waited for.
    """

    max_turns: int = 25
    max_tokens: int | None = None
    asks: bool = False
    budgets: Amounts = {}
    cheaper_model: str = ""
    cheaper_at: float = 0.8
    waits_for_reset: bool = False


class Prefix(msgspec.Struct, frozen=True):
    """The fixed beginning of every request to a kind of model: the same objects, so the same bytes, each time."""

    system: str
    tools: tuple[ToolSpec, ...]


class ContextPolicy(Protocol):
    """Decides before each request whether the conversation has to shrink."""

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit
    ) -> Compaction | None:
        """The compaction that is added to the conversation before the request, or None. Raises `UserError`."""
        ...


class OnRequest(Protocol):
    """Compacts when it is asked to. Each method gives the compaction, or says why there is none."""

    async def after_overflow(self, conversation: Conversation, model: ModelInfo, prefix: Prefix) -> Compaction | str:
        """As the provider refused a request for its length."""
        ...

    async def by_hand(
        self, conversation: Conversation, model: ModelInfo, prefix: Prefix, *, focus: str = "", is_dry: bool = False
    ) -> Compaction | str:
        """As the person asks, with what is to be kept in mind; a dry run asks no model."""
        ...

    async def aclose(self) -> None: ...


async def no_policy(conversation: Conversation, *, model: ModelInfo, prefix: Prefix, tell: Emit) -> Compaction | None:
    """Let the conversation grow."""
    return None


def bundled_info(name: str) -> ModelInfo:
    """Return what agentcli itself knows of `provider/model`."""
    return bundled_models().find(*name.split("/", 1))


async def unchanged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Send the messages as they are."""
    return messages


@dataclass(kw_only=True)
class Runtime:
    """The parts of a session. `resolve` chooses the provider before each request.

    `fallback_model` is used when the chosen one is overloaded. From the share `warn_at` of the window on, the person
    is told how full it is. An answer that breaks off is continued unasked up to `most_breaks` times a turn.
    `context_policy` may compact the conversation before a request, `compactor` when a request was too long or the
    person asks; `context_transform` may change the messages of one request. `nested` finds instruction files of
    folders that calls go to, `count_texts` counts for /context, `collect` gets each new entry,
    `model_info` returns what is known of a `provider/model`. An answer has to fit the `answer_schema`.
    """

    resolve: Resolve
    calls: SessionCalls
    log: SessionLog
    prefix_for: Callable[[ModelInfo, ToolRegistry], Prefix]
    limits: TurnLimits = TurnLimits()
    fallback_model: str = ""
    warn_at: float = 0.8
    most_breaks: int = 0
    retry: RetryPolicy = RetryPolicy()
    temperature: float | None = None
    effort: Effort | None = None
    hooks: TurnHooks = field(default_factory=NoHooks)
    context_policy: ContextPolicy = no_policy
    context_transform: ContextTransform = unchanged
    compactor: OnRequest | None = None
    nested: NestedInstructions | None = None
    count_texts: CountTexts = estimated
    collect: Callable[[str, Entry], object] = lambda session_id, entry: None
    model_info: ModelFinder = bundled_info
    answer_schema: AnswerSchema | None = None

    @property
    def changes_messages(self) -> bool:
        return self.context_transform is not unchanged

    async def compaction(self, state: AgentState, *, focus: str, is_dry: bool) -> Compaction | str:
        """A compaction as the person asks for it, or why there is none. Raises `UserError`."""
        if self.compactor is None:
            return "this session has no compactor"
        _, info = await self.resolve(state)
        return await self.compactor.by_hand(state.conversation, info, self.prefix(info), focus=focus, is_dry=is_dry)

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
            mcp_servers=calls.servers.listing() if calls.servers is not None else [],
        )

    def prefix(self, info: ModelInfo) -> Prefix:
        """The prefix of requests to a model: the same bytes while the tools are the same."""
        return self.prefix_for(info, self.calls.tools)
