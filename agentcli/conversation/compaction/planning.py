"""Plans a compaction: fills the room there is, from the newest turn to the oldest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from msgspec import Struct, structs

from agentcli.conversation.compaction.digest import (
    BRIEF,
    FEW_FILES,
    MOST_FILES,
    TIMES,
    Carried,
    DigestWriter,
    Length,
    is_about,
    lengths,
    stub_of,
)
from agentcli.conversation.compaction.excerpts import Scorer, pick_excerpts
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
from agentcli.conversation.history import Step, TurnRecord, distinctive_words, text_of
from agentcli.llm.messages import Message, Text, is_valid, repair_messages
from agentcli.settings.structs import CompactionSettings

LEAST_LEFT = 0.2  # share of what the system text and the tools leave, where they alone nearly fill the target
# Of the share from which a compaction is due: the target at most, and what is fixed with some room.
_MOST_OF_DUE, _LONGER_THAN_DUE = 0.75, 0.9
_AIM = 0.7  # of the limit: what may be left out is told up to here
_OLDER, _FILES = 0.5, 0.1  # of the room: for older turns before newer ones stay whole, for files
# Of the room for older turns, for excerpts: beside all prompts if possible, and where the oldest turns are joined.
_EXCERPT_SHARES = (0.2, 0.0, 0.7)
_LEAST_GAIN = 0.1  # of the request: for less, nobody's prompt cache is thrown away
_CORRECTIONS = 4  # times that a plan is made with less room, as sizes do not quite add up
_JOINED = 20  # tokens, at least, of the line that stands for the oldest turns
_ALL = 1_000_000_000

Count = Callable[[Sequence[Message]], int]

_HEADING = (
    "The conversation was compacted: {what}. The user's words are quoted as they were; … [turn 3 #12] marks a cut in "
    "entry #12."
)
_RECALL = ' Nothing is lost: recall(query="…") searches all of it, recall(id="12") gives entry #12 whole.'


class Budget(Struct, frozen=True):
    """Tokens: the model's window, what the system text and the tools take of it, what the request would take now."""

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

    def size(self, text: str) -> int:
        """Tokens that a text adds to a message."""
        empty = self.count([Message("user", (Text("\n"),))])
        return self.count([Message("user", (Text(f"{text}\n"),))]) - empty if text else 0


class Tail(Struct, frozen=True):
    """The newest part, which stays in place: so many turns, or of the newest turn so many rounds (replies and results).

    Its results have at most `result` characters, those of the newest round `newest`.
    """

    turns: int = 1
    rounds: int = _ALL
    result: int = _ALL
    newest: int = _ALL
    cuts_prompt: bool = False


def tails(settings: CompactionSettings) -> Iterator[Tail]:
    """From the most generous to the last resort."""
    least = settings.result_chars
    for turns in range(settings.keep_turns, 0, -1):
        yield Tail(turns)
    for rounds, result in ((_ALL, 4_000), (_ALL, 1_000), (_ALL, least), (8, 1_000), (8, least), (2, 4_000), (2, least)):
        yield Tail(1, rounds, result)
    for newest in (_ALL, 20_000, 4_000, max(1_000, least)):
        yield Tail(1, 1, least, newest)
    yield Tail(1, 1, least, max(1_000, least), cuts_prompt=True)


class Planner(Struct, frozen=True, kw_only=True):
    """All that a compaction is made of. `can_recall` says that the model has the tool of that name."""

    conversation: Conversation
    turns: Sequence[TurnRecord]
    carried: Carried
    settings: CompactionSettings
    budget: Budget
    trigger: CompactionTrigger = "auto"
    summaries: dict[int, str] = {}
    can_recall: bool = True

    def plan(self) -> Compaction | str:
        """The compaction, or why there is none: nothing to leave out, or too much that must stay."""
        if len(self.turns) == 0 or len(messages_of(self.conversation.request_entries)) < 2:
            return "there is nothing to leave out yet"
        why, tight = "", self.limit
        for limit in (tight, max(tight, int(_MOST_OF_DUE * self.settings.at * self.budget.window))):
            for made in self._plans(limit):
                if not (why := self._problem(made, limit)):
                    return made
        return why or f"what must stay takes more than the {tight:,} tokens that are meant for it"

    def _plans(self, limit: int) -> Iterator[Compaction]:
        # Who asks for a compaction wants more room than cutting results gives.
        if self.settings.strategy == "truncate" or (self.settings.strategy == "auto" and self.trigger != "manual"):
            yield self._truncated(limit)
        room = limit
        for _ in range(_CORRECTIONS):
            if (made := self._digested(room, limit)) is None:
                return
            yield made
            room -= max(made.tokens_after - limit, limit // 50)

    @property
    def limit(self) -> int:
        """Tokens that the request is to have afterwards at most; where nothing is so small, it may have more."""
        fixed = messages_of(step.entry for step in self.turns[-1].steps if step.entry.is_prompt)
        fixed.append(Message("user", (Text("\n".join([*self.carried.parts(0), *self.carried.opening])),)))
        limit = self.budget.limit(self.settings.target, self.settings.at, self.budget.count(fixed))
        if self.trigger == "manual":  # who asks for it where there is room means the conversation
            limit = min(limit, self.budget.prefix + (self.budget.before - self.budget.prefix) // 2)
        return limit

    # Everything stays in place, old entries cut

    def _truncated(self, limit: int) -> Compaction:
        """Cut results, oldest first, and then other messages, until little enough is left."""
        first = self.turns[0].steps[0]
        stubs = {id: "" for turn in self.turns for id in self._repeated(turn)}
        made = self._made(self._carried([]), first, "truncate", stubs)
        left = made.tokens_after
        older = [(step, turn.number) for turn in self.turns[: -self.settings.keep_turns] for step in turn.steps]
        result, message = self.settings.result_chars, self.settings.message_chars
        for kind, times in product((Result, object), reversed(TIMES)):
            for step, turn in older:
                if left <= _AIM * limit or stubs.get(step.entry.id) == "" or not isinstance(step.entry.body, kind):
                    continue
                if (stub := stub_of(step, turn, result=times * result, message=times * message)) is not None:
                    shown = stubs.get(step.entry.id, text_of(step.entry.body))
                    left -= self.budget.size(shown) - self.budget.size(stub)
                    stubs[step.entry.id] = stub
        return self._made(made.carried, first, "truncate", stubs)

    # Older turns are told, newer ones stay

    def _digested(self, room: int, limit: int) -> Compaction | None:
        """Return the fullest plan for so much room; None where even the barest takes more."""
        lengths_of = lengths(self.settings)
        writer = DigestWriter(self.settings, self.turns[-1].number, self.can_recall, self.summaries)
        sizes: dict[tuple[int, int, int], int] = {}

        def size(turn: TurnRecord, length: int) -> int:
            key = turn.number, len(turn.steps), length
            if key not in sizes:
                sizes[key] = self.budget.size(writer.text(turn, lengths_of[length]))
            return sizes[key]

        sizes_of_files = {most: self.budget.size(self._carried([], most)) for most in (MOST_FILES, FEW_FILES)}
        room -= self.budget.prefix + sizes_of_files[FEW_FILES]
        files = MOST_FILES if sizes_of_files[MOST_FILES] - sizes_of_files[FEW_FILES] < _FILES * room else FEW_FILES
        room -= sizes_of_files[files] - sizes_of_files[FEW_FILES]
        *uncut, barest = tails(self.settings)
        whole = [tail for tail in uncut if tail.newest == _ALL]
        # Older turns give way to results that the model has not seen yet, and all do to the message to be answered.
        best = (*product([_OLDER], whole), (0.0, whole[-1]))
        for share, tail in (*best, *product((_OLDER, 0.0), uncut), *product((_OLDER, 0.0), [barest])):
            covered, kept = self._parted(tail)
            stubs = {id: stub for turn in kept for id, stub in self._stubs(turn, tail).items()}
            left = room - self._size(kept, stubs)
            most = sum(size(turn, BRIEF) for turn in covered)
            if left < min(most, int(share * room)):
                continue
            if most <= left:
                chosen = _grow(covered, size, left - int((1 - _AIM) * limit), self._writing_order(covered))
                joined = 0
            elif (shortened := _shorten(covered, size, left, self._size_of_sentences(writer, covered))) is None:
                continue
            else:
                joined, chosen = shortened
            told = [lengths_of[length] for length in chosen]
            texts = [writer.text(turn, length) for turn, length in zip(covered[joined:], told, strict=True)]
            if most > left:
                lengths_shown = [*[None] * joined, *told]
                unused = left - sum(self.budget.size(text) for text in texts)
                texts[:0] = self._excerpts(writer, zip(covered, lengths_shown, strict=True), unused)
            if joined:
                oldest, newest = covered[0], covered[joined - 1]
                first, last = oldest.steps[0].number, newest.steps[-1].number
                texts.insert(0, f"Turns {oldest.number} to {newest.number}: entries [#{first} to #{last}]")
            strategy: CompactionStrategy = "summarize" if self.summaries else "extract"
            return self._made(self._carried(texts, files), kept[0].steps[0], strategy, stubs, covered)
        return None

    def _excerpts(
        self, writer: DigestWriter, shown: Iterable[tuple[TurnRecord, Length | None]], room: int
    ) -> list[str]:
        """Return excerpts of what turns do not show at their lengths, in at most `room` tokens."""
        everything = (sentence for turn in self.turns for sentence in writer.sentences(turn, None))
        scorer = Scorer(everything, saying_much(self.carried.focus.lower()))
        sentences = [sentence for turn, length in shown for sentence in writer.sentences(turn, length)]
        lines = pick_excerpts(sentences, room, self.budget.size, scorer)
        return ["\n".join(["Excerpts of what is left out:", *lines])] if lines else []

    def _size_of_sentences(self, writer: DigestWriter, turns: Sequence[TurnRecord]) -> int:
        """Return the tokens of all excerpts that there could be of these turns."""
        return self.budget.size("\n".join(sentence.text for turn in turns for sentence in writer.sentences(turn, None)))

    def _writing_order(self, covered: Sequence[TurnRecord]) -> list[int]:
        """Return the order in which turns are told at greater length: those about the focus, then the newest first."""
        words = distinctive_words(self.carried.focus.lower())
        order = list(range(len(covered) - 1, -1, -1))
        return sorted(order, key=lambda place: not is_about(covered[place], words)) if words else order

    def _parted(self, tail: Tail) -> tuple[list[TurnRecord], list[TurnRecord]]:
        """The turns that are covered and those that stay; a turn is cut between rounds, so it may be in both."""
        covered, kept = list(self.turns[: -tail.turns]), list(self.turns[-tail.turns :])
        rounds = [n for n, step in enumerate(kept[0].steps) if isinstance(step.entry.body, Assistant)]
        if len(rounds) > tail.rounds:
            last, cut = kept[0], rounds[-tail.rounds]
            covered.append(TurnRecord(last.number, last.steps[:cut]))
            kept = [TurnRecord(last.number, last.steps[cut:])]
        return covered, kept

    def _stubs(self, turn: TurnRecord, tail: Tail) -> dict[str, str]:
        """The texts in place of a turn's entries that stay, by id."""
        stubs = dict.fromkeys(self._repeated(turn), "")
        replies = [n for n, step in enumerate(turn.steps) if isinstance(step.entry.body, Assistant)]
        is_last = turn.number == self.turns[-1].number
        writer = DigestWriter(self.settings, turn.number, self.can_recall)
        for position, step in enumerate(turn.steps):
            if step.entry.is_prompt:
                if tail.cuts_prompt and (start := writer.start_of_newest(step)):
                    stubs[step.entry.id] = start
                continue
            most = tail.newest if is_last and position >= max(replies, default=0) else tail.result
            if most < _ALL and isinstance(step.entry.body, Result | Assistant):
                stub = stub_of(step, turn.number, result=most, message=max(most, self.settings.message_chars))
                if stub is not None:
                    stubs[step.entry.id] = stub
        return stubs

    def _repeated(self, turn: TurnRecord) -> Iterator[str]:
        """The notes of the start, which are carried as they are now, and those that are no longer true."""
        for step in turn.steps:
            text = getattr(step.entry.body, "text", "")
            is_note = isinstance(step.entry.body, User) and step.entry.body.is_reminder
            if is_note and ("<instructions path=" in text or text in self.carried.opening or SHORTENED_SOON in text):
                yield step.entry.id

    def _carried(self, texts: Sequence[str], files: int = MOST_FILES) -> str:
        what = "its older part is told below" if texts else "older results and replies are cut"
        heading = _HEADING.format(what=what) + (_RECALL if self.can_recall else "")
        told = [f"## What was said and done\n\n{chr(10).join(filter(None, texts)).strip()}"] if texts else []
        parts = "\n\n".join([heading, *told, *self.carried.parts(files)])
        return "\n".join([f"<system-reminder>{parts}</system-reminder>", *self.carried.opening])

    def _made(
        self,
        carried: str,
        first: Step,
        strategy: CompactionStrategy,
        stubs: dict[str, str],
        covered: Sequence[TurnRecord] = (),
    ) -> Compaction:
        ends = [step.entry.id for turn in covered or self.turns for step in turn.steps]
        made = Compaction(
            carried=carried,
            covers=(ends[0], ends[-1]),
            first_kept=first.entry.id,
            stubs=stubs,
            strategy=strategy,
            trigger=self.trigger,
            tokens_before=self.budget.before,
        )
        return structs.replace(made, tokens_after=self.budget.prefix + self.budget.count(self._messages(made)))

    def _size(self, kept: Sequence[TurnRecord], stubs: dict[str, str]) -> int:
        """Tokens of the turns that stay."""
        first = kept[0].steps[0].entry.id
        return self.budget.count(self._messages(Compaction(carried="", first_kept=first, stubs=stubs)))

    def _messages(self, compaction: Compaction) -> list[Message]:
        at = Entry("", None, time.time(), compaction)
        return messages_of(compacted(self.conversation.path, at))

    def _problem(self, made: Compaction, limit: int) -> str:
        """Why a compaction will not do; empty if it will."""
        if made.strategy == "truncate" and self.settings.strategy == "auto":
            limit = int(_AIM * limit)  # where cutting frees less, telling older turns lasts longer
        if made.tokens_after > limit:
            return f"what must stay takes {made.tokens_after:,} tokens, and {limit:,} are meant for it"
        least_gain = _LEAST_GAIN if self.trigger == "manual" else 0.0
        if made.tokens_after >= (1 - least_gain) * made.tokens_before:
            return "it would hardly get smaller"
        messages = tuple(self._messages(made))
        # Calls that are open after a crash are answered when a turn begins.
        sent = repair_messages(messages) if self.conversation.open_calls else messages
        return "" if is_valid(sent) else "the provider would refuse it"


def _grow(
    turns: Sequence[TurnRecord], size: Callable[[TurnRecord, int], int], aim: int, order: Sequence[int]
) -> list[int]:
    """Return a length for each turn, at least `BRIEF`: they grow in `order` while all together take at most `aim`."""
    chosen = [BRIEF] * len(turns)
    total = sum(size(turn, BRIEF) for turn in turns)
    for length in range(BRIEF + 1, BRIEF + len(TIMES) + 1):
        for place in order:
            more = size(turns[place], length) - size(turns[place], length - 1)
            if chosen[place] == length - 1 and total + more <= aim:
                chosen[place] = length
                total += more
    return chosen


def _shorten(
    turns: Sequence[TurnRecord], size: Callable[[TurnRecord, int], int], left: int, max_excerpts: int
) -> tuple[int, list[int]] | None:
    """Return the number of the oldest turns that one line stands for, and lengths up to `BRIEF` for the others.

    Prompts stay whole as long as there is room for them, with a fifth of it for excerpts of the rest if possible. Where
    they do not fit, the oldest turns are joined, and most of the room is for excerpts, which take at most
    `max_excerpts` tokens. None means that the room is too small for a single line.
    """
    for share in _EXCERPT_SHARES:
        chosen = [BRIEF] * len(turns)
        room = left - min(int(share * left), max_excerpts)
        total = sum(size(turn, BRIEF) for turn in turns)
        for length in range(BRIEF - 1, -1, -1):
            for place in range(len(turns)):
                if total <= room:
                    return 0, chosen
                total -= size(turns[place], chosen[place]) - size(turns[place], length)
                chosen[place] = length
    joined = 0
    while total > room:
        if joined == len(turns):
            return None
        total += (0 if joined else _JOINED) - size(turns[joined], chosen[joined])
        joined += 1
    return joined, chosen[joined:]
