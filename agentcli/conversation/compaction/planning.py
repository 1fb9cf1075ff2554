"""Plans a compaction: tries one way after another, from the most generous on, until the conversation fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentcli.conversation.compaction.carried import Carried
from agentcli.conversation.compaction.digest import FULL_AGES, SHORTER_AGES, Digest, Summary, Way
from agentcli.conversation.compaction.stubs import is_failure, stub_of
from agentcli.conversation.conversation import Conversation, compacted, messages_of
from agentcli.conversation.entries import (
    SHORTENED_SOON,
    Assistant,
    Compaction,
    CompactionStrategy,
    CompactionTrigger,
    Entry,
    Result,
    User,
)
from agentcli.conversation.mentions import typed_blocks
from agentcli.conversation.recall import saying_much
from agentcli.conversation.turns import Step, TurnRecord, is_prompt
from agentcli.llm.messages import Message, Text, ToolResult
from agentcli.llm.transcript import doctor, is_valid
from agentcli.settings.structs import CompactionSettings

LEAST_LEFT = 0.2  # share of what the system text and the tools leave, where they alone nearly fill the target
# Of the share from which a compaction is due: the target at most, and what is fixed with some room.
_MOST_OF_DUE, _LONGER_THAN_DUE = 0.75, 0.9
_ENOUGH = 0.6  # of that: where cutting frees less, extracting lasts longer
_LEAST_GAIN = 0.1  # of the request: for less, nobody's prompt cache is thrown away
_LAST_RESULT = 1_000  # characters of the newest results where even these do not fit
_LONG_PROMPTS = (2_000, 400, 100)  # characters
_SOME_FILES, _FEW_FILES = 40, 10

Count = Callable[[Sequence[Message]], int]

_HEADING = (
    "The conversation was compacted: {what}. The user's words are quoted as they were; … [turn 3 #12] marks a cut in "
    "entry #12."
)
_RECALL = ' Nothing is lost: recall(query="…") searches all of it, recall(id="12") gives entry #12 whole.'


class Budget(Struct, frozen=True):
    """Tokens: the model's window, what the system text and the tools take of it, what the request would take now.

    `count` gives the tokens of messages.
    """

    window: int
    prefix: int
    before: int
    count: Count

    def limit(self, target: float, at: float, fixed: int = 0) -> int:
        """Return the tokens that the request may take; more where the prefix and other `fixed` parts are large."""
        fixed += self.prefix
        least = fixed + LEAST_LEFT * (self.window - fixed)
        target = min(target, _MOST_OF_DUE * at)
        return int(max(target * self.window, min(least, _LONGER_THAN_DUE * at * self.window)))


def ways(keep_turns: int) -> Iterator[Way]:
    """From the most generous to the last resort."""
    for count in range(keep_turns, 0, -1):
        yield Way(count)
    yield Way(1, stubs_results=True)
    for rounds in (8, 2):
        yield Way(1, rounds, stubs_results=True)
    for ages in SHORTER_AGES:
        yield Way(1, 2, stubs_results=True, ages=ages, most_files=_SOME_FILES)
    barest = Way(1, 1, stubs_results=True, stubs_newest=True, ages=SHORTER_AGES[-1], most_files=_FEW_FILES)
    yield barest
    barest = replace(barest, numbers_failures=True)
    yield barest
    for longest in _LONG_PROMPTS:
        yield replace(barest, longest_prompt=longest)
    yield replace(barest, longest_prompt=_LONG_PROMPTS[0], cuts_prompt=True)
    for way in (replace(barest, numbers_only=True), replace(barest, numbers_only=True, joins_oldest=True)):
        yield way
        yield replace(way, cuts_prompt=True)


class Planner(Struct, frozen=True, kw_only=True):
    """All that a compaction is made of. `can_recall` says that the model has the tool of that name."""

    conversation: Conversation
    turns: Sequence[TurnRecord]
    carried: Carried
    settings: CompactionSettings
    budget: Budget
    trigger: CompactionTrigger = "auto"
    summaries: tuple[Summary, ...] = ()
    focus: str = ""
    can_recall: bool = True

    def plan(self) -> Compaction | str:
        """The compaction, or why there is none: nothing to leave out, or too much that must stay."""
        if len(self.turns) == 0 or len(messages_of(self.conversation.request_entries)) < 2:
            return "there is nothing to leave out yet"
        why, tight = "", self.limit
        for limit in (tight, max(tight, int(_MOST_OF_DUE * self.settings.at * self.budget.window))):
            for strategy, way in self._ladder():
                compaction = self._made(strategy, way)
                if not (why := self._problem(compaction, way, limit)):
                    return compaction
        return why

    def _ladder(self) -> Iterator[tuple[CompactionStrategy, Way]]:
        settings = self.settings
        if settings.strategy == "truncate":
            yield from (("truncate", way) for way in ways(settings.keep_turns) if way.keep_rounds is None)
        elif settings.strategy == "auto" and self.trigger != "manual":  # who asks for it wants more room than that
            yield "truncate", Way(settings.keep_turns)
        if self.summaries:
            yield from (("summarize", way) for way in ways(settings.keep_turns) if way.ages == FULL_AGES)
        if self.focus:  # told at greater length at the cost of the rest, but not of what the user said
            yield from (("extract", way) for way in ways(settings.keep_turns) if not way.stubs_newest)
        yield from (("extract", replace(way, has_focus=False)) for way in ways(settings.keep_turns))

    def _made(self, strategy: CompactionStrategy, way: Way) -> Compaction:
        covered, kept = self._parted(way)
        stubs: dict[str, str] = {}
        for turn in kept:
            stubs |= self._stubs_of_newest(turn, way)
        first = kept[0].steps[0].entry.id
        carried = self.carried.parts(way.most_files)
        what = "its older part is told below"
        if strategy == "truncate":
            what = "older results and replies are cut"
            first = self.turns[0].steps[0].entry.id
            stubs |= {
                step.entry.id: stub
                for turn in covered
                for step in turn.steps
                if (stub := stub_of(step, turn.number, self.settings)) is not None
            }
        elif covered:
            carried = [f"## What was said and done\n\n{self._digest(strategy, way).text(covered)}", *carried]
        if self.focus:
            carried.append(f"## The user asked to keep in mind\n{self.focus}")
        heading = _HEADING.format(what=what) + (_RECALL if self.can_recall else "")
        told = "\n\n".join([heading, *carried])
        ends = [step.entry.id for turn in covered or kept for step in turn.steps]
        compaction = Compaction(
            carried="\n".join([f"<system-reminder>{told}</system-reminder>", *self.carried.opening]),
            covers=(ends[0], ends[-1]),
            first_kept=first,
            stubs=stubs,
            strategy=strategy,
            trigger=self.trigger,
            tokens_before=self.budget.before,
        )
        after = self.budget.prefix + self.budget.count(self._messages(compaction))
        return replace(compaction, tokens_after=after)

    def _digest(self, strategy: CompactionStrategy, way: Way) -> Digest:
        return Digest(
            settings=self.settings,
            newest=self.turns[-1].number,
            way=way,
            can_recall=self.can_recall,
            summaries=self.summaries if strategy == "summarize" else (),
            focus=frozenset(saying_much(self.focus.lower())) if way.has_focus else frozenset(),
        )

    def _parted(self, way: Way) -> tuple[list[TurnRecord], list[TurnRecord]]:
        """The turns that are covered and those that stay; a turn is cut between rounds, so it may be in both."""
        covered, kept = list(self.turns[: -way.keep_turns]), list(self.turns[-way.keep_turns :])
        if way.keep_rounds is None:
            return covered, kept
        last = kept[0]
        rounds = [n for n, step in enumerate(last.steps) if isinstance(step.entry.body, Assistant)]
        if len(rounds) > way.keep_rounds:
            cut = rounds[-way.keep_rounds]
            covered.append(TurnRecord(last.number, last.steps[:cut]))
            kept = [TurnRecord(last.number, last.steps[cut:])]
        return covered, kept

    def _stubs_of_newest(self, turn: TurnRecord, way: Way) -> dict[str, str]:
        stubs: dict[str, str] = {}
        newest_reply = max(
            (n for n, step in enumerate(turn.steps) if isinstance(step.entry.body, Assistant)), default=0
        )
        is_newest_turn = turn.number == self.turns[-1].number
        for position, step in enumerate(turn.steps):
            body = step.entry.body
            if is_prompt(step.entry):
                if way.cuts_prompt and (start := self._digest("extract", way).start_of_newest(step)):
                    stubs[step.entry.id] = start
            elif is_newest_turn and position >= newest_reply:
                if way.stubs_newest and isinstance(body, Result | Assistant):
                    stubs |= self._stub(step, turn, max(_LAST_RESULT, self.settings.result_chars))
            elif way.stubs_results and isinstance(body, Result | Assistant):
                stubs |= self._stub(step, turn, self.settings.result_chars)
            elif not isinstance(body, Result | Assistant) and self._is_repeated(step):
                stubs[step.entry.id] = ""
        return stubs

    def _stub(self, step: Step, turn: TurnRecord, most: int) -> dict[str, str]:
        stub = stub_of(step, turn.number, replace(self.settings, result_chars=most))
        return {} if stub is None else {step.entry.id: stub}

    def _is_repeated(self, step: Step) -> bool:
        """True for the notes of the start, which are carried as they are now, and for one that is no longer true."""
        text = getattr(step.entry.body, "text", "")
        return "<instructions path=" in text or text in self.carried.opening or SHORTENED_SOON in text

    def _messages(self, compaction: Compaction) -> list[Message]:
        at = Entry("", None, time.time(), compaction)
        return messages_of(compacted(self.conversation.path, at))

    def _problem(self, compaction: Compaction, way: Way, limit: int) -> str:
        """Why a compaction will not do; empty if it will."""
        if self.settings.strategy == "auto" and compaction.strategy == "truncate":
            limit = int(limit * _ENOUGH)
        if compaction.tokens_after > limit:
            return f"what must stay takes {compaction.tokens_after:,} tokens, and {limit:,} are meant for it"
        least_gain = _LEAST_GAIN if self.trigger == "manual" else 0.0
        if compaction.tokens_after >= (1 - least_gain) * compaction.tokens_before:
            return "it would hardly get smaller"
        messages = self._messages(compaction)
        # Calls that are open after a crash are answered when a turn begins.
        sent = doctor(tuple(messages)) if self.conversation.open_calls else tuple(messages)
        if not is_valid(sent):
            return "the provider would refuse it"
        missing = self._missing(messages, compaction, way)
        return f"{missing} would be lost" if missing else ""

    @property
    def limit(self) -> int:
        """Tokens that the request is to have afterwards at most; where nothing is so small, it may have more."""
        fixed = messages_of(step.entry for step in self.turns[-1].steps if is_prompt(step.entry))
        notes = (*self.carried.opening, *self.carried.pins, *self.carried.tasks, *self.carried.folders)
        fixed.append(Message("user", (Text("\n".join(notes)),)))
        return self.budget.limit(self.settings.target, self.settings.at, self.budget.count(fixed))

    def _missing(self, messages: Sequence[Message], compaction: Compaction, way: Way) -> str:
        """The first thing that must be carried and is not there; empty if all is."""
        digest, covered = self._digest("extract", way), self._parted(way)[0]
        may_cut = way.numbers_only or way.longest_prompt is not None
        text = "\n".join(_texts(messages))
        answered = {
            block.tool_use_id for message in messages for block in message.content if isinstance(block, ToolResult)
        }
        for turn in self.turns:
            if digest.joins(turn, covered):
                continue
            for step in turn.steps:
                is_told = step.entry.id in compaction.stubs or (may_cut and f"User [#{step.number}]" in text)
                if is_prompt(step.entry) and not is_told and any(said not in text for said in _typed(step)):
                    return f"the message of turn {turn.number}"
                if is_failure(step.entry.body) and step.entry.id not in answered and f"[#{step.number}]" not in text:
                    return f"a failed call of turn {turn.number}"
        wanted = (*self.carried.pins, *self.carried.tasks, *self.carried.folders, *self.carried.opening)
        return next((part[:80] for part in wanted if part not in text), "")


def _typed(step: Step) -> Iterator[str]:
    body = step.entry.body
    assert isinstance(body, User)
    return (block.text for block in typed_blocks(body.content) if isinstance(block, Text))


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        for block in message.content:
            if isinstance(block, Text):
                yield block.text
