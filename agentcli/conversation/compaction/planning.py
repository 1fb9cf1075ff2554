"""Plans a compaction: fills the tokens that are free, from the newest turn to the oldest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import product

from msgspec import Struct, structs

from agentcli.conversation.compaction.digest import (
    BRIEF,
    FEW_FILES,
    MAX_FILES,
    TIMES,
    Carried,
    DigestWriter,
    Length,
    Scorer,
    is_about,
    lengths,
    pick_excerpts,
    stub_of,
)
from agentcli.conversation.conversation import Conversation, apply_compaction, messages_of
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

MIN_FREE = 0.2  # share of the window without the system text and the tools, if these nearly fill the target
# Shares of the size from which a compaction is due: for the target, and for a target with large fixed parts.
_MAX_TARGET, _MAX_TARGET_WITH_FIXED = 0.75, 0.9
_AIM = 0.7  # share of the limit up to which optional text is added
_OLDER, _FILES = 0.5, 0.1  # shares of the room: for older turns before newer ones stay whole, for files
# Shares of the room for older turns that excerpts get: beside all prompts if possible, and if the oldest turns are
# joined.
_EXCERPT_SHARES = (0.2, 0.0, 0.7)
_MIN_GAIN = 0.1  # share of the request; a smaller gain is not worth the provider's prompt cache
_CORRECTIONS = 4  # plans with less room, because sizes do not quite add up
_JOINED = 20  # tokens, at least, of the line that replaces the oldest turns
_ALL = 1_000_000_000

Count = Callable[[Sequence[Message]], int]

_HEADING = (
    "The conversation was compacted: {what}. The user's words are quoted as they were; … [turn 3 #12] marks a cut in "
    "entry #12."
)
_RECALL = ' Nothing is lost: recall(query="…") searches all of it, recall(id="12") gives entry #12 whole.'


class Budget(Struct, frozen=True):
    """The tokens of a compaction.

    `window` is that of the model, `prefix` the part of the system text and the tools, and `before` the request without
    a compaction.
    """

    window: int
    prefix: int
    before: int
    count: Count

    def limit(self, target: float, at: float, fixed: int = 0) -> int:
        """Return the tokens that the request may take: more if the prefix and other `fixed` parts are large.

        `target` and `at` are the shares of the window in the settings.
        """
        fixed += self.prefix
        least = fixed + MIN_FREE * (self.window - fixed)
        target = min(target, _MAX_TARGET * at)
        return int(max(target * self.window, min(least, _MAX_TARGET_WITH_FIXED * at * self.window)))

    def size(self, text: str) -> int:
        empty = self.count([Message("user", (Text("\n"),))])
        return self.count([Message("user", (Text(f"{text}\n"),))]) - empty if text else 0


class Tail(Struct, frozen=True, kw_only=True):
    """The newest part of a conversation, which stays in place: `turns`, or some `rounds` of the newest turn.

    A round is a reply with its results. Results have at most `result` characters, those of the newest round `newest`.
    """

    turns: int = 1
    rounds: int = _ALL
    result: int = _ALL
    newest: int = _ALL
    cuts_prompt: bool = False


def tails(settings: CompactionSettings) -> Iterator[Tail]:
    least = settings.result_chars
    for turns in range(settings.keep_turns, 0, -1):
        yield Tail(turns=turns)
    for rounds, result in ((_ALL, 4_000), (_ALL, 1_000), (_ALL, least), (8, 1_000), (8, least), (2, 4_000), (2, least)):
        yield Tail(rounds=rounds, result=result)
    for newest in (_ALL, 20_000, 4_000, max(1_000, least)):
        yield Tail(rounds=1, result=least, newest=newest)
    yield Tail(rounds=1, result=least, newest=max(1_000, least), cuts_prompt=True)


class Planner(Struct, frozen=True, kw_only=True):
    """Everything a compaction is made of. `can_recall`: the model has the tool `recall`."""

    conversation: Conversation
    turns: Sequence[TurnRecord]
    carried: Carried
    settings: CompactionSettings
    budget: Budget
    trigger: CompactionTrigger = "auto"
    summaries: dict[int, str] = {}
    can_recall: bool = True

    def plan(self) -> Compaction | str:
        """Return the compaction, or the reason why there is none."""
        if len(self.turns) == 0 or len(messages_of(self.conversation.request_entries)) < 2:
            return "there is nothing to leave out yet"
        why, tight = "", self.limit
        for limit in (tight, max(tight, int(_MAX_TARGET * self.settings.at * self.budget.window))):
            for plan in self._plans(limit):
                if not (why := self._problem(plan, limit)):
                    return plan
        return why or f"what must stay takes more than the {tight:,} tokens that are meant for it"

    def _plans(self, limit: int) -> Iterator[Compaction]:
        # A person who asks for a compaction wants more room than shorter results give.
        if self.settings.strategy == "truncate" or (self.settings.strategy == "auto" and self.trigger != "manual"):
            yield self._with_cuts(limit)
        room = limit
        for _ in range(_CORRECTIONS):
            if (plan := self._with_digest(room, limit)) is None:
                return
            yield plan
            room -= max(plan.tokens_after - limit, limit // 50)

    @property
    def limit(self) -> int:
        """The tokens that the request should have afterwards; it may have more if no plan is so small."""
        fixed = messages_of(step.entry for step in self.turns[-1].steps if step.entry.is_prompt)
        fixed.append(Message("user", (Text("\n".join([*self.carried.parts(0), *self.carried.opening])),)))
        limit = self.budget.limit(self.settings.target, self.settings.at, self.budget.count(fixed))
        if self.trigger == "manual":  # a person who asks early wants the conversation itself to get smaller
            limit = min(limit, self.budget.prefix + (self.budget.before - self.budget.prefix) // 2)
        return limit

    # Plans in which everything stays in place, and old entries are cut

    def _with_cuts(self, limit: int) -> Compaction:
        """Cut results, oldest first, and then other messages, until the request is small enough."""
        first = self.turns[0].steps[0]
        stubs = {id: "" for turn in self.turns for id in self._repeated(turn)}
        plan = self._build(self._carried([]), first, "truncate", stubs=stubs)
        free = plan.tokens_after
        older = [(step, turn.number) for turn in self.turns[: -self.settings.keep_turns] for step in turn.steps]
        result, message = self.settings.result_chars, self.settings.message_chars
        for kind, times in product((Result, object), reversed(TIMES)):
            for step, turn in older:
                if free <= _AIM * limit or stubs.get(step.entry.id) == "" or not isinstance(step.entry.body, kind):
                    continue
                if (stub := stub_of(step, turn, result=times * result, message=times * message)) is not None:
                    shown = stubs.get(step.entry.id, text_of(step.entry.body))
                    free -= self.budget.size(shown) - self.budget.size(stub)
                    stubs[step.entry.id] = stub
        return self._build(plan.carried, first, "truncate", stubs=stubs)

    # Plans in which a digest replaces older turns, and newer ones stay

    def _with_digest(self, room: int, limit: int) -> Compaction | None:
        """Return the fullest plan that fits into `room`; None if even the smallest plan does not."""
        lengths_of = lengths(self.settings)
        writer = DigestWriter(self.settings, self.turns[-1].number, self.can_recall, self.summaries)
        sizes: dict[tuple[int, int, int], int] = {}

        def size(turn: TurnRecord, length: int) -> int:
            key = turn.number, len(turn.steps), length
            if key not in sizes:
                sizes[key] = self.budget.size(writer.text(turn, lengths_of[length]))
            return sizes[key]

        @cache
        def max_excerpts() -> int:
            """Count the tokens of all excerpts that there could be."""
            sentences = (sentence.text for turn in self.turns for sentence in writer.sentences(turn, None))
            return self.budget.size("\n".join(sentences))

        sizes_of_files = {most: self.budget.size(self._carried([], most)) for most in (MAX_FILES, FEW_FILES)}
        room -= self.budget.prefix + sizes_of_files[FEW_FILES]
        files = MAX_FILES if sizes_of_files[MAX_FILES] - sizes_of_files[FEW_FILES] < _FILES * room else FEW_FILES
        room -= sizes_of_files[files] - sizes_of_files[FEW_FILES]
        *uncut, barest = tails(self.settings)
        whole = [tail for tail in uncut if tail.newest == _ALL]
        # Results that the model has not seen yet come before older turns, and the message to be answered before all.
        best = (*product([_OLDER], whole), (0.0, whole[-1]))
        for share, tail in (*best, *product((_OLDER, 0.0), uncut), *product((_OLDER, 0.0), [barest])):
            covered, remaining = self._split(tail)
            stubs = {id: stub for turn in remaining for id, stub in self._stubs(turn, tail).items()}
            free = room - self._size(remaining, stubs)
            brief_size = sum(size(turn, BRIEF) for turn in covered)
            if free < min(brief_size, int(share * room)):
                continue
            if brief_size <= free:
                chosen = _grow(covered, size, free - int((1 - _AIM) * limit), self._writing_order(covered))
                joined = 0
            elif (shortened := _shorten(covered, size, free, max_excerpts())) is None:
                continue
            else:
                joined, chosen = shortened
            shown_lengths = [lengths_of[length] for length in chosen]
            texts = [writer.text(turn, length) for turn, length in zip(covered[joined:], shown_lengths, strict=True)]
            if brief_size > free:
                lengths_shown = [*[None] * joined, *shown_lengths]
                unused = free - sum(self.budget.size(text) for text in texts)
                texts[:0] = self._excerpts(writer, zip(covered, lengths_shown, strict=True), unused)
            if joined:
                oldest, newest = covered[0], covered[joined - 1]
                first, last = oldest.steps[0].number, newest.steps[-1].number
                texts.insert(0, f"Turns {oldest.number} to {newest.number}: entries [#{first} to #{last}]")
            strategy: CompactionStrategy = "summarize" if self.summaries else "extract"
            carried, start = self._carried(texts, files), remaining[0].steps[0]
            return self._build(carried, start, strategy, stubs=stubs, covered=covered)
        return None

    def _excerpts(
        self, writer: DigestWriter, shown: Iterable[tuple[TurnRecord, Length | None]], room: int
    ) -> list[str]:
        """Return excerpts of what turns do not show at their lengths, in at most `room` tokens."""
        everything = (sentence for turn in self.turns for sentence in writer.sentences(turn, None))
        scorer = Scorer(everything, distinctive_words(self.carried.focus.lower()))
        sentences = [sentence for turn, length in shown for sentence in writer.sentences(turn, length)]
        lines = pick_excerpts(sentences, room, self.budget.size, scorer)
        return ["\n".join(["Excerpts of what is left out:", *lines])] if lines else []

    def _writing_order(self, covered: Sequence[TurnRecord]) -> list[int]:
        """Return the order in which turns get more text: those about the focus, then the newest first."""
        words = distinctive_words(self.carried.focus.lower())
        order = list(range(len(covered) - 1, -1, -1))
        return sorted(order, key=lambda position: not is_about(covered[position], words)) if words else order

    def _split(self, tail: Tail) -> tuple[list[TurnRecord], list[TurnRecord]]:
        """Return the turns that the digest covers and those that stay; a turn that is cut between rounds is in both."""
        covered, remaining = list(self.turns[: -tail.turns]), list(self.turns[-tail.turns :])
        rounds = [n for n, step in enumerate(remaining[0].steps) if isinstance(step.entry.body, Assistant)]
        if len(rounds) > tail.rounds:
            last, cut = remaining[0], rounds[-tail.rounds]
            covered.append(TurnRecord(last.number, last.steps[:cut]))
            remaining = [TurnRecord(last.number, last.steps[cut:])]
        return covered, remaining

    def _stubs(self, turn: TurnRecord, tail: Tail) -> dict[str, str]:
        """Return the texts that replace the contents of a turn's remaining entries, by id."""
        stubs = dict.fromkeys(self._repeated(turn), "")
        replies = [n for n, step in enumerate(turn.steps) if isinstance(step.entry.body, Assistant)]
        is_last = turn.number == self.turns[-1].number
        writer = DigestWriter(self.settings, turn.number, self.can_recall)
        for position, step in enumerate(turn.steps):
            if step.entry.is_prompt:
                if tail.cuts_prompt and (start := writer.start_of_newest(step)):
                    stubs[step.entry.id] = start
                continue
            chars = tail.newest if is_last and position >= max(replies, default=0) else tail.result
            if chars < _ALL and isinstance(step.entry.body, Result | Assistant):
                stub = stub_of(step, turn.number, result=chars, message=max(chars, self.settings.message_chars))
                if stub is not None:
                    stubs[step.entry.id] = stub
        return stubs

    def _repeated(self, turn: TurnRecord) -> Iterator[str]:
        """Yield the ids of notes that are carried in a new form, and of those that are no longer true."""
        for step in turn.steps:
            text = getattr(step.entry.body, "text", "")
            is_note = isinstance(step.entry.body, User) and step.entry.body.is_reminder
            if is_note and ("<instructions path=" in text or text in self.carried.opening or SHORTENED_SOON in text):
                yield step.entry.id

    def _carried(self, texts: Sequence[str], files: int = MAX_FILES) -> str:
        what = "its older part is told below" if texts else "older results and replies are cut"
        heading = _HEADING.format(what=what) + (_RECALL if self.can_recall else "")
        digest = [f"## What was said and done\n\n{chr(10).join(filter(None, texts)).strip()}"] if texts else []
        parts = "\n\n".join([heading, *digest, *self.carried.parts(files)])
        return "\n".join([f"<system-reminder>{parts}</system-reminder>", *self.carried.opening])

    def _build(
        self,
        carried: str,
        first: Step,
        strategy: CompactionStrategy,
        *,
        stubs: dict[str, str],
        covered: Sequence[TurnRecord] = (),
    ) -> Compaction:
        ends = [step.entry.id for turn in covered or self.turns for step in turn.steps]
        plan = Compaction(
            carried=carried,
            covers=(ends[0], ends[-1]),
            first_kept=first.entry.id,
            stubs=stubs,
            strategy=strategy,
            trigger=self.trigger,
            tokens_before=self.budget.before,
        )
        return structs.replace(plan, tokens_after=self.budget.prefix + self.budget.count(self._messages(plan)))

    def _size(self, remaining: Sequence[TurnRecord], stubs: dict[str, str]) -> int:
        first = remaining[0].steps[0].entry.id
        return self.budget.count(self._messages(Compaction(carried="", first_kept=first, stubs=stubs)))

    def _messages(self, compaction: Compaction) -> list[Message]:
        return messages_of(apply_compaction(self.conversation.path, Entry("", None, time.time(), compaction)))

    def _problem(self, plan: Compaction, limit: int) -> str:
        """Return the reason to reject a plan; empty if it is good."""
        if plan.strategy == "truncate" and self.settings.strategy == "auto":
            limit = int(_AIM * limit)  # if cutting frees less, a digest lasts longer
        if plan.tokens_after > limit:
            return f"what must stay takes {plan.tokens_after:,} tokens, and {limit:,} are meant for it"
        min_gain = _MIN_GAIN if self.trigger == "manual" else 0.0
        if plan.tokens_after >= (1 - min_gain) * plan.tokens_before:
            return "it would hardly get smaller"
        messages = tuple(self._messages(plan))
        # Calls that are open after a crash are answered when a turn begins.
        sent = repair_messages(messages) if self.conversation.open_calls else messages
        return "" if is_valid(sent) else "the provider would refuse it"


def _grow(
    turns: Sequence[TurnRecord], size: Callable[[TurnRecord, int], int], aim: int, order: Sequence[int]
) -> list[int]:
    """Return a length for each turn, at least `BRIEF`. They grow in `order` while all turns take at most `aim`."""
    chosen = [BRIEF] * len(turns)
    total = sum(size(turn, BRIEF) for turn in turns)
    for length in range(BRIEF + 1, BRIEF + len(TIMES) + 1):
        for position in order:
            more = size(turns[position], length) - size(turns[position], length - 1)
            if chosen[position] == length - 1 and total + more <= aim:
                chosen[position] = length
                total += more
    return chosen


def _shorten(
    turns: Sequence[TurnRecord], size: Callable[[TurnRecord, int], int], free: int, max_excerpts: int
) -> tuple[int, list[int]] | None:
    """Return the number of the oldest turns, which one line replaces, and lengths up to `BRIEF` for the others.

    Prompts stay whole as long as they fit, with a fifth of the room for excerpts of the rest if possible. If they do
    not fit, the oldest turns are joined, and excerpts get most of the room, but at most `max_excerpts` tokens. None
    means that the room is too small for a single line.
    """
    for share in _EXCERPT_SHARES:
        chosen = [BRIEF] * len(turns)
        room = free - min(int(share * free), max_excerpts)
        total = sum(size(turn, BRIEF) for turn in turns)
        for length in range(BRIEF - 1, -1, -1):
            for position in range(len(turns)):
                if total <= room:
                    return 0, chosen
                total -= size(turns[position], chosen[position]) - size(turns[position], length)
                chosen[position] = length
    joined = 0
    while total > room:
        if joined == len(turns):
            return None
        total += (0 if joined else _JOINED) - size(turns[joined], chosen[joined])
        joined += 1
    return joined, chosen[joined:]
