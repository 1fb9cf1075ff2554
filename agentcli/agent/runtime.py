"""The records of the agent loop: a session's services, its use of the window, a turn, and a turn's steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentcli.agent.accounting import Amounts, Budgets, OverBudget
from agentcli.agent.calls.model import SessionCalls, TurnCalls
from agentcli.agent.events import DoneReason, Emit
from agentcli.agent.interfaces import NoHooks, SessionLog, TurnHooks
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Result, User
from agentcli.conversation.rule_files import RuleFileFinder
from agentcli.errors import AgentcliError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Block, Message, Text, ToolResult, Usage, block_text
from agentcli.llm.models import ModelInfo, RequestTarget, bundled_models, estimate, estimate_text
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.tool import ToolRegistry

if TYPE_CHECKING:
    from agentcli.agent.context.compaction import Compactor, Paid

Resolve = Callable[[AgentState], Awaitable[tuple[llm.Provider, ModelInfo]]]
# A library user's function that chooses the model, by name or with its provider.
ModelResolver = Callable[[AgentState], Awaitable[str | tuple[llm.Provider, ModelInfo]]]
ContextTransform = Callable[[tuple[Message, ...]], Awaitable[tuple[Message, ...]]]
CountTexts = Callable[[Sequence[str], ModelInfo], int]  # returns the tokens of all texts together; may block

SOURCES = ("system", "tools", "notes", "summary", "messages", "results")


class ContextUse(msgspec.Struct, frozen=True):
    """The tokens of the next request, based on the provider's counts."""

    model: str
    window: int
    parts: dict[str, int]  # by source, in the proportions that the model's encoder counts; they add up to `request`
    request: int


def _parts_by_source(body: Body) -> Iterator[tuple[str, str | Block]]:
    """Yield the parts of an entry, each with its source, for an overview: texts, images and documents."""
    match body:
        case User(content, is_reminder):
            for block in content:
                match block:
                    case Text(text) if is_reminder:
                        yield "notes", text
                    case _:
                        yield "messages", block.text if isinstance(block, Text) else block
        case Assistant(content=content):
            yield from (("messages", block_text(block)) for block in content)
        case Result(result=ToolResult(_, str(content))):
            yield "results", content
        case Result(result=ToolResult(_, tuple(content))):
            yield from (("results", part.text if isinstance(part, Text) else part) for part in content)
        case Compaction(carried=carried):
            yield "summary", carried


class ContextWatch(msgspec.Struct, dict=True):
    """The context policy of sessions; `make` imports and creates the compactor when it is first needed."""

    settings: CompactionSettings
    make: Callable[[], Compactor]
    paid: Paid = lambda model, usage, cost_usd, reason: None  # records the cost of summaries

    @cached_property
    def compactor(self) -> Compactor:
        return self.make()

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: llm.Prefix, tell: Emit
    ) -> Compaction | None:
        used = conversation.size.tokens(prefix.system, prefix.tools, model)
        if used < min(self.settings.warn_at, self.settings.at) * model.window:
            return None  # too early even to write summaries ahead
        return await self.compactor.compact_if_due(conversation, model, prefix, used=used, emit=tell)

    async def aclose(self) -> None:
        if "compactor" in self.__dict__:  # it was needed, so it exists
            await self.compactor.summaries.aclose()


class Guardrails(NoHooks):
    """A base class of hooks that check prompts and answers. A check returns why it rejects a text, else "".

    A rejected prompt is removed, and its turn fails. A rejected answer is requested again with the reason, up to
    `max_retries` times; then the turn fails. Steering messages, subagents and answers that were cut are not checked.
    """

    max_retries = 1

    async def check_prompt(self, prompt: str) -> str:
        return ""

    async def check_answer(self, answer: str) -> str:
        return ""


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a turn. If `is_interactive`, the person may let it exceed them."""

    max_turns: int = 25  # requests
    max_tokens: int | None = None  # of a reply; None: the model's limit, up to 32,000
    is_interactive: bool = False
    budgets: Amounts = {}
    waits_for_reset: bool = False  # at a usage limit, the turn waits until it resets
    max_breaks: int = 0  # the number of broken-off answers that are continued without a question


class ContextPolicy(Protocol):
    """Decides before each request if the conversation must be compacted."""

    async def __call__(
        self, conversation: Conversation, *, model: ModelInfo, prefix: llm.Prefix, tell: Emit
    ) -> Compaction | None:
        """Return the compaction to add to the conversation before the request, or None. Raises `UserError`."""


async def unchanged(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return messages


async def call_resolver(
    resolve: ModelResolver,
    state: AgentState,
    provider_of: Callable[[str], tuple[llm.Provider, ModelInfo]],
    fallback: str,
) -> tuple[llm.Provider, ModelInfo]:
    """Return the resolver's choice. If it fails, raise `ProviderError`, or return the fallback once that is in use."""
    try:
        chosen = await resolve(state)
    except AgentcliError:
        raise
    except Exception as error:
        if state.model.name != fallback:
            raise ProviderError(f"The resolver failed: {error!r}.", is_retryable=True) from error
        chosen = fallback
    return provider_of(chosen) if isinstance(chosen, str) else chosen


class ModelAccess(msgspec.Struct, kw_only=True):
    resolve: Resolve  # chooses the provider before each request
    prefix_for: Callable[[ModelInfo, ToolRegistry], llm.Prefix]  # the fixed beginning of requests to a model
    info: Callable[[str], ModelInfo] = lambda name: bundled_models().find(*name.split("/", 1))
    fallback: str = ""  # the model that answers if the chosen one fails
    retry: llm.RetryPolicy = llm.RetryPolicy()
    temperature: float | None = None
    effort: llm.Effort | None = None
    # Returns the model of a name, or by default a small one, for short questions outside the conversation.
    small: Callable[[AgentState, str], Awaitable[tuple[llm.Provider, ModelInfo]]] | None = None


class ContextControl(msgspec.Struct, frozen=True, kw_only=True):
    """Keeps the conversation within the model's window. When it is filled to the share `warn_at`, there is a notice."""

    policy: ContextPolicy | None = None  # may compact before a request
    watch: ContextWatch | None = None  # compacts after a request that was too long, or at the person's request
    transform: ContextTransform = unchanged  # may change the messages of one request
    warn_at: float = 0.8
    count_texts: CountTexts = lambda texts, info: sum(estimate_text(text, info) for text in texts)
    rules: RuleFileFinder | None = None  # finds the project's rule files for /memory


class Runtime(msgspec.Struct, kw_only=True):
    """The services of a session. `steps` are factories of a turn's steps; `collect` is called for each new entry."""

    models: ModelAccess
    calls: SessionCalls
    log: SessionLog
    steps: list[Callable[[], TurnStep]]
    limits: TurnLimits = TurnLimits()
    context: ContextControl = msgspec.field(default_factory=ContextControl)
    hooks: TurnHooks = msgspec.field(default_factory=NoHooks)
    collect: Callable[[str, Entry], object] = lambda session_id, entry: None

    async def context_use(self, state: AgentState) -> ContextUse:
        """Count the tokens of the next request, and distribute them over their sources."""
        target = RequestTarget(*await self.models.resolve(state))
        info, prefix, count = target.info, self.prefix(target.info), self.context.count_texts
        texts: dict[str, list[str]] = {source: [] for source in SOURCES}
        texts["system"].append(prefix.system)
        texts["tools"] += [msgspec.json.encode(spec).decode() for spec in prefix.tools]
        media: list[Block] = []
        for body in (*(entry.body for entry in state.conversation.request_entries), *state.notes):
            for source, part in _parts_by_source(body):
                if isinstance(part, str):
                    texts[source].append(part)
                else:
                    media.append(part)
        counted = await asyncio.to_thread(lambda: {source: count(texts[source], info) for source in SOURCES})
        if media:
            counted["messages"] += estimate(llm.Request("", (Message("user", tuple(media)),)), info).tokens
        # The provider's count is distributed in proportion. Each part is the difference of two rounded sums, so that
        # the parts add up to exactly that count.
        request = state.conversation.size.tokens(prefix.system, prefix.tools, info)
        sums = list(accumulate(counted.values()))
        ends = [round(request * tokens / max(1, sums[-1])) for tokens in sums]
        parts = {source: end - start for source, (start, end) in zip(SOURCES, pairwise((0, *ends)), strict=True)}
        return ContextUse(target.name, info.window, parts, request)

    def prefix(self, info: ModelInfo) -> llm.Prefix:
        """Return the prefix of requests to a model. As long as the tools are the same, so are its bytes."""
        return self.models.prefix_for(info, self.calls.tools)


class TurnLog(msgspec.Struct, kw_only=True):
    """The entries of a turn, and the state of its requests."""

    pending: list[asyncio.Task[None]] = msgspec.field(default_factory=list)  # they store entries; oldest first
    prompt_ids: list[str] = msgspec.field(default_factory=list)  # of the entries that are the turn's prompt
    entry_ids: list[str] = msgspec.field(default_factory=list)  # of all entries, oldest first
    accepted_count: int = 0  # so many of the first `entry_ids` were in a request that the provider answered
    had_overflow: bool = False  # a compaction followed a request that was too long; there is only one per turn
    is_retrying: bool = False  # the newest request has failed at least once and has no reply yet
    returns_prompt: bool = False  # the person stopped the turn and wants unanswered messages back in the input


class Spending(msgspec.Struct, kw_only=True):
    """The budgets of a turn, and its usage and cost so far."""

    budgets: Budgets
    usage: Usage = Usage()
    cost_usd: float | None = 0.0  # None once a price is unknown


class AnswerText(msgspec.Struct, kw_only=True):
    """The texts that the model has written in a turn."""

    parts: list[str] = msgspec.field(default_factory=list)  # of the answer so far
    earlier: list[str] = msgspec.field(default_factory=list)  # texts that came before calls
    is_partial: bool = False  # the newest reply broke off within its text

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def begin(self) -> None:
        """Begin a new answer; the texts so far become earlier ones."""
        self.earlier += self.parts
        self.parts.clear()


class Turn(msgspec.Struct, kw_only=True):
    """One prompt being answered. `round` counts its requests, from 1."""

    state: AgentState
    runtime: Runtime
    calls: TurnCalls
    steps: Sequence[TurnStep]
    spending: Spending
    log: TurnLog = msgspec.field(default_factory=TurnLog)
    answer: AnswerText = msgspec.field(default_factory=AnswerText)
    round: int = 0

    @property
    def emit(self) -> Emit:
        return self.calls.emit


class EarlyEnd(msgspec.Struct, frozen=True):
    """The end of a turn before the calls of its newest reply; each of them gets `why` as its result."""

    reason: DoneReason
    why: str


class TurnStep:
    """A part of a session's behaviour around the requests of a turn. Each turn has a new object of each step."""

    def start(self, turn: Turn, *, is_resumed: bool) -> None:
        """Called when the turn begins, before its prompt is in the conversation."""

    async def begin(self, turn: Turn) -> None:
        """Called before the first request. May raise `UserError` to end the turn."""

    async def before_request(self, turn: Turn) -> DoneReason | None:
        """Called before each request; a reason ends the turn."""

    def shape(self, request: llm.Request) -> llm.Request:
        """Return the request in the form to send."""
        return request

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool | DoneReason:
        """Called after a failed request: True asks for another request, a reason ends the turn."""
        return False

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """Called after a reply, before its calls. An `EarlyEnd` ends the turn without running them."""

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> DoneReason | None:
        """Called after the calls of a reply; a reason ends the turn."""

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        """Add messages for the model, and return True if there were any. Every step is called."""
        return False

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Return True if another request is due. In that case, no later step is called."""
        return False

    def end(self, turn: Turn) -> None:
        """Called when the turn ends, in any way."""
