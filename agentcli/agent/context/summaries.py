"""Has a model write about older turns, ahead of time where it can, and keeps what it wrote."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from math import inf
from typing import Protocol

from cachetools import TTLCache

from agentcli.agent.accounting.budgets import Budgets, OverBudget, most_tokens
from agentcli.agent.context.watch import Paid
from agentcli.agent.events import Emit, Notice
from agentcli.agent.requests.paid_request import PaidRequest
from agentcli.conversation.compaction.telling import Summary
from agentcli.conversation.entries import Assistant, Result, User
from agentcli.conversation.turns import TurnRecord, calls_in, text_of
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Usage, user_message
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider, Request
from agentcli.llm.retry import RetryPolicy
from agentcli.llm.tokens import estimate_text
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.observation import cut_middle
from agentcli.tools.summary import call_title

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
LONGEST_RESULT = 2_000  # characters of a result that the writer reads
ROOM_TO_THINK = 2_000  # tokens of a reply that are no summary
MOST_REDUCTIONS = 4  # summaries of summaries, should they not get shorter
SHARE_READ = 0.5  # of the writer's window that one request may fill
_AN_HOUR = 3_600.0


class TextCache(Protocol):
    """Texts by key, some of which may be gone."""

    def get(self, key: str, /) -> str | None: ...

    def __setitem__(self, key: str, text: str, /) -> None: ...


class EmptySummary(ProviderError):
    """A model answered with no text."""


Writer = Callable[[], Awaitable[tuple[Provider, ModelInfo]]]


@dataclass(kw_only=True)
class Summaries:
    """`writer` gives the model that writes; `paid` is told of every request, also of one that came to nothing.

    `problem` says why the newest summary could not be written. Texts are `kept` by the hash of what they are about.
    """

    settings: CompactionSettings
    writer: Writer
    paid: Paid
    budgets: Budgets = field(default_factory=Budgets)
    model: str = ""
    problem: str = ""
    kept: TextCache | None = None
    _written: dict[str, tuple[tuple[str, ...], tuple[Summary, ...]]] = field(default_factory=dict)
    _running: asyncio.Task[None] | None = None
    _spent: list[tuple[float, float]] = field(default_factory=list)
    _unreported: float = 0.0

    def __post_init__(self) -> None:
        self._kept: TextCache = self.kept or TTLCache(self.settings.cache_entries, self.settings.cache_hours * _AN_HOUR)

    def ready(self, turns: Sequence[TurnRecord], focus: str = "") -> tuple[Summary, ...]:
        """Return the summaries of these turns, from the first on; those of the newest turns may be missing."""
        keys, summaries = self._written.get(focus, ((), ()))
        return summaries if keys == tuple(_key(turn_text(turn), focus) for turn in turns[: len(keys)]) else ()

    @property
    def is_idle(self) -> bool:
        return self._running is None or self._running.done()

    def begin(self, turns: Sequence[TurnRecord], model: ModelInfo, tell: Emit) -> None:
        """Write in the background."""
        self._running = asyncio.create_task(self._write_quietly(turns, model, tell))

    async def _write_quietly(self, turns: Sequence[TurnRecord], model: ModelInfo, tell: Emit) -> None:
        try:
            await self.write(turns, model, tell=tell)
        except Exception:  # nobody waits for it: extracting takes its place
            log.exception("a summary could not be written")

    async def write(
        self, turns: Sequence[TurnRecord], model: ModelInfo, focus: str = "", *, tell: Emit | None = None
    ) -> None:
        """Write what is missing for these turns.

        With `tell` nobody has asked for it: what it may cost is told, and an hour may cost only so much.
        """
        provider, writer = await self.writer()
        missing = self.missing(turns, focus)
        if writer.small or not missing:
            return
        self.model = f"{provider.name}/{provider.model}"
        if tell is not None:
            cost, most = self.estimated_cost(missing, writer, focus), self.settings.summary_usd_per_hour
            if most < inf and (cost is None or self._last_hour() + cost > most):
                return
            if cost:
                tell(Notice(f"{self.model} summarises {len(missing)} older turns, for ${cost:.4f} at most."))
        gate = asyncio.Semaphore(MOST_AT_ONCE)

        async def one(turn: TurnRecord) -> Summary:
            async with gate:
                text = await self._about(turn_text(turn), focus, provider, writer)
                return Summary(turn.number, turn.number, text)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(turn)) for turn in missing]
            written = (*self.ready(turns, focus), *(task.result() for task in tasks))
            while oldest := self._too_many(written, model.window):
                text = await self._about("\n\n".join(one.text for one in oldest), focus, provider, writer)
                written = (Summary(oldest[0].first, oldest[-1].last, text), *written[len(oldest) :])
        except* (ProviderError, OverBudget) as errors:
            self.problem = str(errors.exceptions[0])
            log.warning("a summary could not be written: %s", self.problem)
        else:
            self.problem = ""
            self._written[focus] = tuple(_key(turn_text(turn), focus) for turn in turns), written

    async def cost_of(self, turns: Sequence[TurnRecord], focus: str) -> float | None:
        """USD that writing about these turns takes at most; None where no price is known."""
        _, writer = await self.writer()
        return self.estimated_cost(self.missing(turns, focus), writer, focus)

    def missing(self, turns: Sequence[TurnRecord], focus: str = "") -> list[TurnRecord]:
        """Return the turns that no summary covers."""
        covered = max((summary.last for summary in self.ready(turns, focus)), default=0)
        return [turn for turn in turns if turn.number > covered]

    def estimated_cost(self, turns: Sequence[TurnRecord], writer: ModelInfo, focus: str = "") -> float | None:
        """USD for writing about these turns, rather too much; None where no price is known."""
        turns = [turn for turn in turns if self._kept.get(_key(turn_text(turn), focus)) is None]
        tokens = sum(estimate_text(turn_text(turn), writer) + estimate_text(_prose(), writer) for turn in turns)
        return writer.cost(Usage(tokens, len(turns) * (self.settings.summary_tokens + _thinking_room(writer))))

    def cost_since_compaction(self) -> float:
        """USD of the requests since this was asked last."""
        cost, self._unreported = self._unreported, 0.0
        return cost

    async def aclose(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _too_many(self, written: Sequence[Summary], window: int) -> Sequence[Summary]:
        """The oldest half of what is too much together; at least two."""
        tokens = sum(estimate_text(one.text) for one in written)
        is_too_much = tokens > self.settings.summary_share * window and len(written) > 1
        return written[: max(2, (len(written) + 1) // 2)] if is_too_much else ()

    async def _about(self, text: str, focus: str, provider: Provider, writer: ModelInfo) -> str:
        """The summary of a text; of one that is larger than the window in parts, and then of their summaries."""
        key = _key(text, focus)
        if kept := self._kept.get(key):
            return kept
        room = int(SHARE_READ * writer.window)
        for _ in range(MOST_REDUCTIONS):
            if estimate_text(text, writer) <= room:
                break
            size = max(1, int(len(text) * room / estimate_text(text, writer)))
            parts = [text[start : start + size] for start in range(0, len(text), size)]
            text = "\n\n".join([await self._reply(part, focus, provider, writer) for part in parts])
        self._kept[key] = written = await self._reply(text, focus, provider, writer)
        return written

    async def _reply(self, text: str, focus: str, provider: Provider, writer: ModelInfo) -> str:
        """One request. Raises `ProviderError` or `OverBudget`."""
        settings = self.settings
        about = f"\nPay attention to: {focus}" if focus else ""
        system = _prose().replace("{words}", str(settings.summary_words)) + about
        request = Request(
            system,
            (user_message(f"<conversation>\n{text}\n</conversation>"),),
            max_tokens=min(settings.summary_tokens + _thinking_room(writer), writer.max_output),
            effort="low" if writer.takes_effort else None,
        )
        paid = PaidRequest(
            provider=provider,
            info=writer,
            budgets=self.budgets,
            policy=RetryPolicy(0),
            most_prompt_tokens=partial(most_tokens, request, writer),
            on_broken=partial(self._book, writer),
        )
        done = await paid.reply(request, lambda event: None)
        self._book(writer, done.usage)
        reply = _shortened(done.message.text.strip(), settings.summary_words, settings.summary_tokens, writer)
        if not reply:
            raise EmptySummary(f"{self.model} wrote nothing")
        return reply

    def _book(self, writer: ModelInfo, used: Usage) -> None:
        cost = writer.cost(used)
        self.paid(self.model, used, cost, "summary")
        self._unreported += cost or 0.0
        self._spent.append((time.monotonic(), cost or 0.0))

    def _last_hour(self) -> float:
        now = time.monotonic()
        self._spent = [(at, cost) for at, cost in self._spent if now - at < _AN_HOUR]
        return sum(cost for _, cost in self._spent)


def _thinking_room(writer: ModelInfo) -> int:
    return 0 if writer.thinking == "none" else ROOM_TO_THINK


def _shortened(text: str, words: int, tokens: int, writer: ModelInfo) -> str:
    """The text cut to so many words and tokens."""
    ends = [word.end() for word in re.finditer(r"\S+", text)]
    text = text[: ends[words - 1]] if len(ends) > words else text
    counted = estimate_text(text, writer)
    return text if counted <= tokens else text[: len(text) * tokens // counted].rstrip()


def turn_text(turn: TurnRecord) -> str:
    """A turn as the writer reads it."""
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
                lines.append(f"{title}{failed}: {cut_middle(result.result.text, LONGEST_RESULT)}")
            case _:
                pass
    return "\n".join(lines)


def _key(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="replace")).hexdigest()


def _prose() -> str:
    return files("agentcli.agent.context").joinpath("summary.md").read_text("utf-8").strip()
