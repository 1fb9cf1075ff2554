"""Compacts a session's conversation: before a request that would fill the window, after one that did, when asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from agentcli.agent.context import message_tokens, prefix_tokens, request_tokens
from agentcli.agent.context.summaries import Summaries
from agentcli.agent.events import Emit, Notice
from agentcli.conversation.compaction.digest import SeenHash, collect
from agentcli.conversation.compaction.planning import Budget, Planner
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Compaction, CompactionTrigger, User
from agentcli.conversation.history import TurnRecord, turn_records
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix
from agentcli.settings.structs import CompactionSettings

FORCED_AT = 0.95  # share of the window from which nothing is waited for

Opening = Callable[[ModelInfo], Sequence[User]]  # the notes of a session's start, read anew


class Basis(Struct, frozen=True):
    """The basis of a compaction: the conversation, the model that continues it, the tokens of the next request."""

    conversation: Conversation
    model: ModelInfo
    prefix: Prefix
    used: int
    trigger: CompactionTrigger = "auto"
    focus: str = ""


@dataclass
class Compactor:
    """`opening` gives the notes of a session's start as they are now, `seen_hash` a file's hash as it was last seen."""

    settings: CompactionSettings
    opening: Opening
    seen_hash: SeenHash
    summaries: Summaries
    _told: set[str] = field(default_factory=set)

    async def when_due(
        self, conversation: Conversation, model: ModelInfo, prefix: Prefix, *, used: int, tell: Emit
    ) -> Compaction | None:
        """The compaction a request needs; None where there is room, or where it is too soon or too late for one."""
        basis = Basis(conversation, model, prefix, used)
        share, is_forced = used / model.window, used >= FORCED_AT * model.window
        if share < self.settings.at:
            self.write_ahead(basis, tell)
            return None
        is_short = self.settings.strategy == "auto" and len(conversation.messages) < self.settings.min_messages
        if not is_forced and (is_short or _replies_since(conversation) < self.settings.cooldown):
            return None
        made = await self.made(basis)
        if problem := self.summaries.problem:
            self._notify_once(f"No summary could be written ({problem}): older turns are told by rules.", tell)
        if isinstance(made, Compaction):
            if not problem:
                self._told.clear()
            if any(entry.is_prompt and entry.id in made.stubs for entry in conversation.path):
                tell(Notice("Your message does not fit whole: the model is given its beginning, without images."))
            return made
        self._notify_once(f"The conversation could not be compacted: {made}. /clear begins a new one.", tell)
        return None

    def _notify_once(self, text: str, tell: Emit) -> None:
        """Unless it was told before; its numbers do not count."""
        key = re.sub(r"[\d,.]+", "", text)
        if key not in self._told:
            self._told.add(key)
            tell(Notice(text))

    async def after_overflow(self, conversation: Conversation, model: ModelInfo, prefix: Prefix) -> Compaction | str:
        """As the provider refused the request for its length: its window may be smaller than is known here."""
        used = request_tokens(conversation, model, prefix)
        model = replace(model, window=min(model.window, max(used, 1)))
        return await self.made(Basis(conversation, model, prefix, used, "overflow"))

    async def by_hand(
        self, conversation: Conversation, model: ModelInfo, prefix: Prefix, *, focus: str = "", is_dry: bool = False
    ) -> Compaction | str:
        """As the person asks. A dry run asks no model; its cost is what one would take at most."""
        basis = Basis(conversation, model, prefix, request_tokens(conversation, model, prefix), "manual", focus=focus)
        made = await self.made(basis, may_ask=not is_dry)
        if is_dry and isinstance(made, Compaction) and self._may_summarize(basis):
            older = turn_records(conversation)[: -self.settings.keep_turns]
            return replace(made, cost_usd=await self.summaries.cost_of(older, focus))
        return made

    async def made(self, basis: Basis, *, may_ask: bool = True) -> Compaction | str:
        """The compaction, or why there is none. Unless it `may_ask`, no model writes a summary for it."""
        turns = turn_records(basis.conversation)
        made = self._planned(basis, turns, await self._summaries(basis, turns, may_ask=may_ask))
        if isinstance(made, str) or not may_ask:
            return made
        return replace(made, model=self.summaries.model, cost_usd=self.summaries.cost_since_compaction())

    def _planned(self, basis: Basis, turns: Sequence[TurnRecord], summaries: dict[int, str]) -> Compaction | str:
        prefix = prefix_tokens(basis.prefix, basis.model)
        # The estimate errs: what was counted says by how much.
        estimated = prefix + message_tokens(basis.conversation.messages, basis.model)
        scale = basis.used / max(1, estimated)
        budget = Budget(
            basis.model.window,
            int(scale * prefix),
            basis.used,
            lambda messages: int(scale * message_tokens(tuple(messages), basis.model)),
        )
        opening = [note.text for note in self.opening(basis.model)]
        carried = collect(basis.conversation, turns, opening, self.seen_hash, focus=basis.focus)
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

    async def _summaries(self, basis: Basis, turns: Sequence[TurnRecord], *, may_ask: bool) -> dict[int, str]:
        """Return the summaries that a model wrote of the turns that do not stay; none where they are not ready."""
        settings, older = self.settings, turns[: -self.settings.keep_turns]
        if not older or not self._may_summarize(basis):
            return {}
        if settings.strategy == "summarize" and may_ask:
            try:
                async with asyncio.timeout(settings.summary_timeout):
                    await self.summaries.write(older, basis.focus)
            except TimeoutError:
                self.summaries.fail(f"none came within {settings.summary_timeout:g} s")
        return self.summaries.ready(older, basis.focus)

    def write_ahead(self, basis: Basis, tell: Emit) -> None:
        """Have the summary ready by the time it is due, where cutting results will not be enough."""
        turns = turn_records(basis.conversation)
        older = turns[: -self.settings.keep_turns]
        missing = self.summaries.missing(older)
        is_written = len(missing) < min(self.settings.keep_turns, len(older)) and self.settings.strategy != "summarize"
        if not older or is_written or not self._may_summarize(basis):
            return
        by_rules = self._planned(basis, turns, {})
        if isinstance(by_rules, str) or by_rules.strategy != "truncate" or self.settings.strategy == "summarize":
            self.summaries.begin(older, tell)

    def _may_summarize(self, basis: Basis) -> bool:
        settings = self.settings
        if not settings.enable_llm_summarization or settings.strategy in ("truncate", "extract"):
            return False
        return settings.strategy == "summarize" or len(basis.conversation.messages) >= settings.summary_messages


def _replies_since(conversation: Conversation) -> int:
    """Replies since the newest compaction; where there is none, more than any cool-down asks for."""
    count = 0
    for entry in reversed(conversation.path):
        if isinstance(entry.body, Compaction):
            return count
        count += isinstance(entry.body, Assistant)
    return 1_000_000
