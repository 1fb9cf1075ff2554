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

from agentcli.agent.accounting.budgets import Budgets, most_tokens
from agentcli.agent.context import Paid
from agentcli.agent.events import Emit, Notice
from agentcli.agent.requests.paid_request import PaidRequest
from agentcli.conversation.entries import Assistant, Result, User
from agentcli.conversation.history import TurnRecord, calls_in, text_of
from agentcli.errors import UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Usage, user_message
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider, Request, RetryPolicy
from agentcli.llm.tokens import estimate_text
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.observation import cut_middle
from agentcli.tools.summary import call_title

log = logging.getLogger(__name__)

MOST_AT_ONCE = 4
FIRST_PAUSE_S = 30.0  # after a failure; doubled with each further one, up to an hour
LONGEST_RESULT = 2_000  # characters of a result that the writer reads
ROOM_TO_THINK = 2_000  # tokens of a reply that are no summary
SHARE_READ = 0.5  # of the writer's window that a turn may fill
_AN_HOUR = 3_600.0
_RUNNING: set[asyncio.Task[None]] = set()  # a program may drop what began them
_BEING_WRITTEN: set[str] = set()


class TextCache(Protocol):
    """Texts by key, some of which may be gone."""

    def get(self, key: str, /) -> str | None: ...

    def __setitem__(self, key: str, text: str, /) -> None: ...


Writer = Callable[[], Awaitable[tuple[Provider, ModelInfo]]]


@dataclass(kw_only=True)
class Summaries:
    """Writes about turns, one request for each, and keeps the texts by the hash of what they are about.

    `problem` says why the newest summary could not be written; then nobody is asked until a growing pause is over.
    """

    settings: CompactionSettings
    writer: Writer
    paid: Paid
    kept: TextCache
    budgets: Budgets = field(default_factory=Budgets)
    model: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        self._running: asyncio.Task[None] | None = None
        self._spent: list[tuple[float, float]] = []  # when, USD
        self._unreported = 0.0
        self._pause_s, self._asked_again_at = FIRST_PAUSE_S, 0.0

    def ready(self, turns: Sequence[TurnRecord], focus: str) -> dict[int, str]:
        """Return the summaries there are of these turns, by their numbers."""
        return {turn.number: text for turn in turns if (text := self.kept.get(self._key(turn, focus)))}

    def missing(self, turns: Sequence[TurnRecord], focus: str = "") -> list[TurnRecord]:
        """Return the turns that no summary covers."""
        return [turn for turn in turns if self.kept.get(self._key(turn, focus)) is None]

    def begin(self, turns: Sequence[TurnRecord], tell: Emit) -> None:
        """Write in the background, unless that is under way."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._write_quietly(turns, tell))
            _RUNNING.add(self._running)
            self._running.add_done_callback(_RUNNING.discard)

    async def _write_quietly(self, turns: Sequence[TurnRecord], tell: Emit) -> None:
        try:
            await self.write(turns, tell=tell)
        except Exception:  # nobody waits for it: telling by rules takes its place
            log.exception("a summary could not be written")

    async def write(self, turns: Sequence[TurnRecord], focus: str = "", *, tell: Emit | None = None) -> None:
        """Write what is missing for these turns. With `tell` nobody asked for it, so it keeps to the hourly budget."""
        missing = self.missing(turns, focus)
        if tell is not None:
            missing = [turn for turn in missing if self._key(turn, focus) not in _BEING_WRITTEN]
        if not missing or time.monotonic() < self._asked_again_at:
            return
        keys = {self._key(turn, focus) for turn in missing}
        _BEING_WRITTEN.update(keys)
        try:
            provider, writer = await self.writer()
            if writer.small:
                return
            self.model = f"{provider.name}/{provider.model}"
            if tell is not None and not self._may_spend(missing, writer, tell):
                return
            gate = asyncio.Semaphore(MOST_AT_ONCE)

            async def write_one(turn: TurnRecord) -> None:
                async with gate:
                    self.kept[self._key(turn, focus)] = await self._about(turn_text(turn), focus, provider, writer)

            async with asyncio.TaskGroup() as group:
                for turn in missing:
                    group.create_task(write_one(turn))
        except* (ProviderError, UserError) as errors:
            self.fail(str(errors.exceptions[0]))
        else:
            self.problem, self._pause_s = "", FIRST_PAUSE_S
        finally:
            _BEING_WRITTEN.difference_update(keys)

    def fail(self, problem: str) -> None:
        """Note why no summary came, and ask nobody for a while."""
        log.warning("a summary could not be written: %s", problem)
        self.problem, self._asked_again_at = problem, time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _AN_HOUR)

    def _may_spend(self, turns: Sequence[TurnRecord], writer: ModelInfo, tell: Emit) -> bool:
        cost, most, now = self._most_cost(turns, writer), self.settings.summary_usd_per_hour, time.monotonic()
        self._spent = [(at, usd) for at, usd in self._spent if now - at < _AN_HOUR]
        if most < inf and (cost is None or sum(usd for _, usd in self._spent) + cost > most):
            return False
        if cost:
            tell(Notice(f"{self.model} summarises {len(turns)} older turns, for ${cost:.4f} at most."))
        return True

    async def cost_of(self, turns: Sequence[TurnRecord], focus: str) -> float | None:
        """USD that writing about these turns takes at most; None where no price is known."""
        _, writer = await self.writer()
        return self._most_cost(self.missing(turns, focus), writer)

    def _most_cost(self, turns: Sequence[TurnRecord], writer: ModelInfo) -> float | None:
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

    def _key(self, turn: TurnRecord, focus: str) -> str:
        of = f"{turn_text(turn)}\0{focus}\0{self.settings.summary_words}"
        return hashlib.sha256(of.encode(errors="replace")).hexdigest()

    async def _about(self, text: str, focus: str, provider: Provider, writer: ModelInfo) -> str:
        """The summary of a text, of which the middle is left out where the window is small. Raises as a request."""
        settings, room = self.settings, int(SHARE_READ * writer.window)
        if (tokens := estimate_text(text, writer)) > room:
            text = cut_middle(text, len(text) * room // tokens)
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
            raise ProviderError(f"{self.model} wrote nothing")
        return reply

    def _book(self, writer: ModelInfo, used: Usage) -> None:
        cost = writer.cost(used)
        self.paid(self.model, used, cost, "summary")
        self._unreported += cost or 0.0
        self._spent.append((time.monotonic(), cost or 0.0))


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


def _prose() -> str:
    return files("agentcli.agent.context").joinpath("summary.md").read_text("utf-8").strip()
