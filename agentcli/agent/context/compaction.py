"""Compacts a session's conversation: before a request that would fill the window, after an overflow, or on demand.

A model may write summaries of older turns, ahead of time if possible. They are cached by the hash of the turn.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from math import inf
from typing import Protocol

from msgspec import Struct, field, structs

from agentcli.agent.accounting import Budgets
from agentcli.agent.events import Emit, Notice
from agentcli.agent.requests.attempts import PaidRequest
from agentcli.background import start_in_background
from agentcli.conversation.compaction.digest import collect_facts
from agentcli.conversation.compaction.planning import Budget, Planner
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Compaction, CompactionTrigger, PaidReason, Result, User
from agentcli.conversation.history import TurnSteps, calls_in, text_of, turn_steps
from agentcli.errors import UserError
from agentcli.llm.errors import AuthError, BadRequest, ProviderError
from agentcli.llm.messages import Message, Usage, user_message
from agentcli.llm.models import ModelInfo, RequestTarget, estimate, estimate_text
from agentcli.llm.provider import Prefix, Provider, Request, RetryPolicy
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.observation import call_title, cut_middle

log = logging.getLogger(__name__)
FORCED_AT = 0.95  # share of the window at which a compaction is made even soon after the last one
MAX_AT_ONCE = 4  # concurrent requests for summaries
FIRST_PAUSE_S = 30.0  # after a failure; doubled with each further one, up to an hour
MAX_RESULT_CHARS = 2_000  # of each result in the text for the writer
THINKING_TOKENS = 2_000  # allowed for thinking, in addition to the summary
MAX_SHARE_READ = 0.5  # of the writer's window that the text of a turn may fill
_AN_HOUR = 3_600.0
_RUNNING: set[asyncio.Task[None]] = set()  # they write summaries ahead of time, for all sessions
_BEING_WRITTEN: set[str] = set()  # keys of summaries, in all sessions, so that none is written twice

FirstReminders = Callable[[ModelInfo], Sequence[User]]  # reads the reminders at a session's start again
Paid = Callable[[str, Usage, float | None, PaidReason], None]  # records a request: its model, usage and cost in USD
# Returns the model that writes summaries; with True, it may be a small one of the same provider.
Writer = Callable[[bool], Awaitable[tuple[Provider, ModelInfo]]]


class Basis(Struct, frozen=True, kw_only=True):
    """The input of a compaction: the conversation, and the model that continues it."""

    conversation: Conversation
    model: ModelInfo
    prefix: Prefix
    used: int  # the tokens of the next request without a compaction
    trigger: CompactionTrigger = "auto"
    focus: str = ""  # the person's words on what summaries must stress


class Compactor(Struct, kw_only=True):
    """Makes compactions. They contain the session's `first_reminders`, read again because files may have changed."""

    settings: CompactionSettings
    first_reminders: FirstReminders
    summaries: "Summaries"
    _reported: set[str] = field(default_factory=set)  # problems that notices were shown for, without their numbers

    async def compact_if_due(
        self, conversation: Conversation, model: ModelInfo, prefix: Prefix, *, used: int, emit: Emit
    ) -> Compaction | None:
        """Return the compaction that a request needs; None if there is room, or the last compaction is too recent."""
        basis = Basis(conversation=conversation, model=model, prefix=prefix, used=used)
        if used < self.settings.at * model.window:
            self.write_ahead(basis, emit)  # for the next compaction
            return None
        is_short = self.settings.strategy == "auto" and len(conversation.messages) < self.settings.min_messages
        can_wait = is_short or not _has_cooled_down(conversation, self.settings.cooldown)
        if can_wait and used < FORCED_AT * model.window:
            return None
        compaction = await self.compact(basis)
        if problem := self.summaries.problem:
            self._notify_once(f"Could not summarize ({problem}). Older turns are shortened by rules.", emit)
        if isinstance(compaction, Compaction):
            if not problem:
                self._reported.clear()  # a problem after a success is shown again
            # `stubs` are the recent entries that the compaction cuts.
            if any(entry.is_prompt and entry.id in compaction.stubs for entry in conversation.path):
                emit(Notice("Your message is too long. The model gets only its beginning, without images."))
            return compaction
        self._notify_once(f"Could not compact the conversation: {compaction}. To start a new one: /clear", emit)
        return None

    def _notify_once(self, text: str, emit: Emit) -> None:
        """Emit a notice, unless the same text was emitted before, perhaps with other numbers."""
        key = re.sub(r"[\d,.]+", "", text)
        if key not in self._reported:
            self._reported.add(key)
            emit(Notice(text))

    async def compact_overflow(self, conversation: Conversation, model: ModelInfo, prefix: Prefix) -> Compaction | str:
        """Compact after the provider rejected a request as too long: the window may be smaller than assumed."""
        used = conversation.size.tokens(prefix.system, prefix.tools, model)
        model = structs.replace(model, window=min(model.window, max(used, 1)))
        basis = Basis(conversation=conversation, model=model, prefix=prefix, used=used, trigger="overflow")
        return await self.compact(basis)

    async def compact_on_request(
        self, conversation: Conversation, model: ModelInfo, prefix: Prefix, *, focus: str = "", is_dry: bool = False
    ) -> Compaction | str:
        """Compact at the person's request. A dry run asks no model."""
        used = conversation.size.tokens(prefix.system, prefix.tools, model)
        basis = Basis(conversation=conversation, model=model, prefix=prefix, used=used, trigger="manual", focus=focus)
        return await self.compact(basis, may_ask_model=not is_dry)

    async def compact(self, basis: Basis, *, may_ask_model: bool = True) -> Compaction | str:
        """Return a compaction, or why there is none. Without asking a model, it has only the cached summaries."""
        turns = turn_steps(basis.conversation)
        compaction = self._plan(basis, turns, await self._find_summaries(basis, turns, may_ask_model=may_ask_model))
        if isinstance(compaction, str) or not may_ask_model:
            return compaction
        return structs.replace(compaction, model=self.summaries.model, cost_usd=self.summaries.take_unreported_cost())

    def _plan(self, basis: Basis, turns: Sequence[TurnSteps], summaries: dict[int, str]) -> Compaction | str:
        """Return a compaction with these summaries, whose keys are the turns' numbers; or a text: why there is none."""
        prefix_tokens = estimate(Request(basis.prefix.system, (), basis.prefix.tools), basis.model).tokens
        # `used` is based on the provider's counts, so its ratio to our estimate corrects further estimates.
        scale = basis.used / max(1, prefix_tokens + message_tokens(basis.conversation.messages, basis.model))
        budget = Budget(
            window=basis.model.window,
            prefix=int(scale * prefix_tokens),
            before=basis.used,
            count=lambda messages: int(scale * message_tokens(tuple(messages), basis.model)),
        )
        reminders = [reminder.text for reminder in self.first_reminders(basis.model)]
        carried = collect_facts(basis.conversation, turns, reminders, focus=basis.focus)
        return Planner(
            conversation=basis.conversation,
            turns=turns,
            carried=carried,
            settings=self.settings,
            budget=budget,
            trigger=basis.trigger,
            summaries=summaries,
            can_recall=any(tool.name == "recall" for tool in basis.prefix.tools),
        ).plan()

    async def _find_summaries(self, basis: Basis, turns: Sequence[TurnSteps], *, may_ask_model: bool) -> dict[int, str]:
        """Return the summaries of older turns, by the turns' numbers. The strategy `summarize` writes them first."""
        settings, older = self.settings, turns[: -self.settings.keep_turns]
        if not older or not self._may_summarize(basis):
            return {}
        if settings.strategy == "summarize" and may_ask_model:
            try:
                async with asyncio.timeout(settings.summary_timeout):
                    await self.summaries.write(older, basis.focus)
            except TimeoutError:
                self.summaries.record_failure(f"timed out after {settings.summary_timeout:g} s")
        return self.summaries.cached(older, basis.focus)

    def write_ahead(self, basis: Basis, emit: Emit) -> None:
        """Begin to write summaries before they are due, if shortening results will not be enough."""
        turns = turn_steps(basis.conversation)
        older = turns[: -self.settings.keep_turns]
        if not older or not self._may_summarize(basis):
            return
        if self.settings.strategy != "summarize":  # the strategy uses summaries only if nothing cheaper is enough
            if len(self.summaries.missing(older)) < min(self.settings.keep_turns, len(older)):
                return  # few are missing, so they can wait until more are
            plan = self._plan(basis, turns, summaries={})
            if isinstance(plan, Compaction) and plan.strategy == "truncate":  # shortening results is enough
                return
        self.summaries.begin_writing(older, emit)

    def _may_summarize(self, basis: Basis) -> bool:
        settings = self.settings
        if not settings.enable_llm_summarization or settings.strategy in ("truncate", "extract"):
            return False
        return settings.strategy == "summarize" or len(basis.conversation.messages) >= settings.summary_messages


def _has_cooled_down(conversation: Conversation, min_replies: int) -> bool:
    bodies = [entry.body for entry in conversation.path]
    newest = max((n for n, body in enumerate(bodies) if isinstance(body, Compaction)), default=None)
    return newest is None or sum(isinstance(body, Assistant) for body in bodies[newest:]) >= min_replies


class TextCache(Protocol):
    """Texts by key. A cache may drop them at any time."""

    def get(self, key: str, /) -> str | None: ...

    def __setitem__(self, key: str, text: str, /) -> None: ...


class Summaries(Struct, kw_only=True, dict=True):
    """Has a model summarize turns, in one request for each, and caches the summaries by the hash of the turn."""

    settings: CompactionSettings
    choose_writer: Writer
    paid: Paid
    cache: TextCache
    budgets: Budgets = field(default_factory=Budgets)
    model: str = ""
    problem: str = ""  # why the newest summary could not be written; empty after a success

    def __post_init__(self) -> None:
        self._running: asyncio.Task[None] | None = None  # writes summaries in the background
        self._spent: list[tuple[float, float]] = []  # the time (monotonic) and cost (USD) of each request
        self._unreported = 0.0  # USD since the last compaction
        self._next_pause_s = FIRST_PAUSE_S  # after the next failure
        self._retry_at = 0.0  # the monotonic time at which the pause after the newest failure ends
        self._may_use_small_model = True  # False once the provider has rejected its small model

    def cached(self, turns: Sequence[TurnSteps], focus: str) -> dict[int, str]:
        """Return the summaries of these turns that are in the cache, by the turns' numbers."""
        return {turn.number: text for turn in turns if (text := self.cache.get(self._key(turn, focus)))}

    def missing(self, turns: Sequence[TurnSteps], focus: str = "") -> list[TurnSteps]:
        return [turn for turn in turns if self.cache.get(self._key(turn, focus)) is None]

    def begin_writing(self, turns: Sequence[TurnSteps], emit: Emit) -> None:
        if self._running is None or self._running.done():
            self._running = start_in_background(self._write_and_log_errors(turns, emit), _RUNNING)

    async def _write_and_log_errors(self, turns: Sequence[TurnSteps], emit: Emit) -> None:
        try:
            await self.write(turns, emit=emit)
        except Exception:  # nobody waits for this task, and a digest by rules replaces the summary
            log.exception("a summary could not be written")

    async def write(self, turns: Sequence[TurnSteps], focus: str = "", *, emit: Emit | None = None) -> None:
        """Write the missing summaries of these turns. With `emit`, they are ahead of time, within an hourly budget."""
        missing = self.missing(turns, focus)
        if emit is not None:  # no compaction waits for these, so none is written that another session is writing
            missing = [turn for turn in missing if self._key(turn, focus) not in _BEING_WRITTEN]
        if not missing or time.monotonic() < self._retry_at:
            return
        keys = {self._key(turn, focus) for turn in missing}
        was_small_model_rejected = False
        _BEING_WRITTEN.update(keys)
        try:
            await self._write_all(missing, focus, emit)
        except* (BadRequest, AuthError) as errors:
            # A gateway may not know the provider's small model and answer 400, so all later tries do without that
            # model. Only a rejection of such a later try is a failure.
            was_small_model_rejected = self._may_use_small_model and not self.settings.summary_model
            self._may_use_small_model = False
            if not was_small_model_rejected:
                self.record_failure(str(errors.exceptions[0]))
        except* (ProviderError, UserError) as errors:
            self.record_failure(str(errors.exceptions[0]))
        finally:
            _BEING_WRITTEN.difference_update(keys)
        if was_small_model_rejected:  # try again, now that the keys are no longer in `_BEING_WRITTEN`
            log.warning("a summary by %s was rejected: the session's model writes instead", self.model)
            await self.write(turns, focus, emit=emit)

    async def _write_all(self, turns: Sequence[TurnSteps], focus: str, emit: Emit | None) -> None:
        """Choose the writer, and let it summarize each turn. Raises `UserError` or `ProviderError`, also in groups."""
        provider, writer = await self.choose_writer(self._may_use_small_model)
        if writer.small:  # small models, such as most local ones, are not used for summaries
            return
        self.model = f"{provider.name}/{provider.model}"
        if emit is not None and not self._may_spend(turns, writer, emit):
            return
        gate = asyncio.Semaphore(MAX_AT_ONCE)

        async def write_one(turn: TurnSteps) -> None:
            await gate.acquire()  # not released after an error, so that no further summary is begun
            self.cache[self._key(turn, focus)] = await self._summarize(turn_text(turn), focus, provider, writer)
            gate.release()

        async with asyncio.TaskGroup() as group:
            for turn in turns:
                group.create_task(write_one(turn))
        self.problem, self._next_pause_s = "", FIRST_PAUSE_S

    def record_failure(self, problem: str) -> None:
        """Remember why a summary could not be written, and pause before the next try, twice as long each time."""
        log.warning("a summary could not be written: %s", problem)
        self.problem, self._retry_at = problem, time.monotonic() + self._next_pause_s
        self._next_pause_s = min(2 * self._next_pause_s, _AN_HOUR)

    def _may_spend(self, turns: Sequence[TurnSteps], writer: ModelInfo, emit: Emit) -> bool:
        """Return True if the hourly budget covers summaries of these turns; emit a notice of their maximum cost."""
        cost, budget_usd, now = self._max_cost(turns, writer), self.settings.summary_usd_per_hour, time.monotonic()
        self._spent = [(at, usd) for at, usd in self._spent if now - at < _AN_HOUR]
        if budget_usd < inf and (cost is None or sum(usd for _, usd in self._spent) + cost > budget_usd):
            return False
        if cost:
            emit(Notice(f"{self.model} is summarizing {len(turns)} older turns, for at most ${cost:.4f}."))
        return True

    def _max_cost(self, turns: Sequence[TurnSteps], writer: ModelInfo) -> float | None:
        prompts = sum(estimate_text(turn_text(turn), writer) + estimate_text(_instruction(), writer) for turn in turns)
        replies = len(turns) * (self.settings.summary_tokens + _thinking_tokens(writer))
        return writer.cost(Usage(input_tokens=prompts, output_tokens=replies))

    def take_unreported_cost(self) -> float:
        """Return the cost in USD of the requests since the last call of this method."""
        cost, self._unreported = self._unreported, 0.0
        return cost

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _key(self, turn: TurnSteps, focus: str) -> str:
        source = f"{turn_text(turn)}\0{focus}\0{self.settings.summary_words}"
        return hashlib.sha256(source.encode(errors="replace")).hexdigest()

    async def _summarize(self, text: str, focus: str, provider: Provider, writer: ModelInfo) -> str:
        """Return the summary of a text, without its middle if the writer's window is small.

        Raises `ProviderError`, and `OverBudget` if no budget covers it.
        """
        settings, max_tokens_read = self.settings, int(MAX_SHARE_READ * writer.window)
        if (tokens := estimate_text(text, writer)) > max_tokens_read:
            text = cut_middle(text, len(text) * max_tokens_read // tokens)
        system = _instruction().replace("{words}", str(settings.summary_words))
        if focus:
            system += f"\nFocus on: {focus}"
        request = Request(
            system,
            (user_message(f"<conversation>\n{text}\n</conversation>"),),
            max_tokens=min(settings.summary_tokens + _thinking_tokens(writer), writer.max_output),
            effort="low" if writer.takes_effort else None,
        )
        paid = PaidRequest(
            target=RequestTarget(provider, writer),
            budgets=self.budgets,
            policy=RetryPolicy(0),  # no retries, because a digest by rules replaces the summary
            on_broken=partial(self._record_cost, writer),
        )
        done = await paid.reply(request)
        self._record_cost(writer, done.usage)
        summary = _cut_text(done.message.text.strip(), settings.summary_words, settings.summary_tokens, writer)
        if not summary:
            raise ProviderError(f"{self.model} returned no text")
        return summary

    def _record_cost(self, writer: ModelInfo, used: Usage) -> None:
        cost = writer.cost(used)
        self.paid(self.model, used, cost, "summary")
        self._unreported += cost or 0.0
        self._spent.append((time.monotonic(), cost or 0.0))


def _thinking_tokens(writer: ModelInfo) -> int:
    return 0 if writer.thinking == "none" else THINKING_TOKENS


def _cut_text(text: str, max_words: int, max_tokens: int, writer: ModelInfo) -> str:
    word_ends = [word.end() for word in re.finditer(r"\S+", text)]
    text = text[: word_ends[max_words - 1]] if len(word_ends) > max_words else text
    tokens = estimate_text(text, writer)
    return text if tokens <= max_tokens else text[: len(text) * max_tokens // tokens].rstrip()


def turn_text(turn: TurnSteps) -> str:
    """Return the text of a turn for the writer of its summary."""
    inputs = {use.id: use.input for use in turn.calls}
    lines = []
    for step in turn.steps:
        match step.entry.body:
            case User(is_reminder=False) as prompt:
                lines.append(f"User: {prompt.text}")
            case Assistant() as reply if text := text_of(reply).strip():
                lines.append(f"{'Thought' if calls_in(reply) else 'Answer'}: {text}")
            case Result() as result:
                failed = " FAILED" if result.result.is_error else ""
                title = call_title(result.name, inputs.get(result.result.tool_use_id, {}))
                lines.append(f"{title}{failed}: {cut_middle(result.result.text, MAX_RESULT_CHARS)}")
    return "\n".join(lines)


def _instruction() -> str:
    return files("agentcli.agent.context").joinpath("summary.md").read_text("utf-8").strip()


def message_tokens(messages: tuple[Message, ...], model: ModelInfo) -> int:
    return estimate(Request("", messages), model).tokens
