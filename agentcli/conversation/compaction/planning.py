"""Plans a compaction: the free tokens go to the newest turns first."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import product

from msgspec import Struct, field, structs

from agentcli.conversation import entries
from agentcli.conversation.compaction import digest
from agentcli.conversation.conversation import Conversation, apply_compaction, messages_of
from agentcli.conversation.history import Step, TurnSteps, distinctive_words, text_of
from agentcli.llm.messages import Message, Text
from agentcli.settings.structs import CompactionSettings

MIN_FREE = 0.2  # share of the window without its fixed parts that stays available even if those fill the target
# The target is at most this share of the size at which compaction starts: usually, and with large fixed parts.
_MAX_TARGET, _MAX_TARGET_WITH_FIXED = 0.75, 0.9
_FILLED_SHARE = 0.7  # optional text is added up to this share of the limit, so that the next turns have room
# Excerpts get this share of the room for older turns: if all prompts fit too, and if the oldest turns are replaced.
_EXCERPTS_SHARE, _EXCERPTS_SHARE_WITHOUT_PROMPTS = 0.2, 0.7
_MIN_GAIN = 0.1  # share of the request; a smaller gain is not worth losing the provider's prompt cache
_MAX_DIGEST_ATTEMPTS = 4  # each with less room than the last, because sizes do not quite add up
_REPLACEMENT_TOKENS = 20  # of the line that replaces the oldest turns, at least
_NO_LIMIT = 1_000_000_000  # more than any conversation has
Count = Callable[[Sequence[Message]], int]

_HEADING = (
    "The conversation was compacted: {what}. The user's words are quoted as they were; … [turn 3 #12] marks a cut in "
    "entry #12."
)
_RECALL = ' Nothing is lost: recall(query="…") searches all of it, recall(id="12") gives entry #12 whole.'


class Budget(Struct, frozen=True):
    """The tokens that a compaction has to work with. `count` returns the tokens of messages."""

    window: int
    prefix: int  # the system text and the tools
    before: int  # the whole request before the compaction
    count: Count

    def limit(self, target: float, at: float, fixed: int = 0) -> int:
        """Return the tokens that the request may have, more if the prefix and other `fixed` parts are large.

        `target` and `at` are settings: the share of the window to reach, and the share at which compaction begins.
        """
        fixed += self.prefix
        usual = min(target, _MAX_TARGET * at) * self.window
        with_room = fixed + MIN_FREE * (self.window - fixed)  # more than `usual` if the fixed parts are large
        return int(max(usual, min(with_room, _MAX_TARGET_WITH_FIXED * at * self.window)))

    def size(self, text: str) -> int:
        # Measured as a part of a message, with a line end after it.
        empty = self.count([Message("user", (Text("\n"),))])
        return self.count([Message("user", (Text(f"{text}\n"),))]) - empty if text else 0


class Tail(Struct, frozen=True, kw_only=True):
    """The newest part of the conversation, which stays in place; results in it may be cut."""

    turns: int = 1
    rounds: int = _NO_LIMIT  # of the oldest of these turns: a round is a reply with its results
    result: int = _NO_LIMIT  # maximum characters of a result before the newest round
    newest: int = _NO_LIMIT  # maximum characters of a result in the newest round
    cuts_prompt: bool = False
    min_older: float = 0.5  # share of the room that must remain for older turns, unless they need less


def tails(settings: CompactionSettings) -> Iterator[Tail]:
    """Yield the possible tails from the longest to the shortest; a plan takes the first that leaves enough room."""
    least, every = settings.result_chars, _NO_LIMIT
    yield from (Tail(turns=turns) for turns in range(settings.keep_turns, 0, -1))
    # Of the newest turn alone: how many rounds stay, and how many characters of their results.
    cuts = ((every, 4_000), (every, 1_000), (every, least), (8, 1_000), (8, least), (2, 4_000), (2, least))
    yield from (Tail(rounds=rounds, result=max_chars) for rounds, max_chars in cuts)
    # Results that the model has not seen yet matter more than older turns, and the prompt to be answered most of all.
    for max_chars in (_NO_LIMIT, 20_000, 4_000, max(1_000, least)):
        yield Tail(rounds=1, result=least, newest=max_chars, min_older=0.0)
    yield Tail(rounds=1, result=least, newest=max(1_000, least), min_older=0.0, cuts_prompt=True)


class Planner(Struct, frozen=True, kw_only=True, dict=True):
    """Plans one compaction, which cuts old entries in place, or puts a digest of older turns before a `Tail`."""

    conversation: Conversation
    turns: Sequence[TurnSteps]
    carried: digest.Carried  # in every plan
    settings: CompactionSettings
    budget: Budget
    trigger: entries.CompactionTrigger = "auto"
    summaries: dict[int, str] = field(default_factory=dict)  # by turn number
    can_recall: bool = True  # True if the model has the tool `recall`

    def plan(self) -> entries.Compaction | str:
        """Return the compaction, or the reason why there is none."""
        if len(self.turns) == 0 or len(messages_of(self.conversation.request_entries)) < 2:
            return "there is nothing to leave out yet"
        problem = f"the parts that must stay take more than the {self.limit:,} tokens available"
        # If no plan is small enough, one that frees less is better than none.
        for limit in (self.limit, max(self.limit, int(_MAX_TARGET * self.settings.at * self.budget.window))):
            for plan in self._plans(limit):
                if not (problem := self._problem(plan, limit)):
                    return plan
        return problem

    def _plans(self, limit: int) -> Iterator[entries.Compaction]:
        """Yield plans, each smaller than the last."""
        # A person who asks for a compaction wants more room than cutting entries can free.
        if self.settings.strategy == "truncate" or (self.settings.strategy == "auto" and self.trigger != "manual"):
            yield self._with_cuts(limit)
        room = limit
        for _ in range(_MAX_DIGEST_ATTEMPTS):
            if (plan := self._with_digest(room, limit)) is None:
                return
            yield plan
            room -= max(plan.tokens_after - limit, limit // 50)  # by the excess, but by at least 2% of the limit

    @cached_property
    def limit(self) -> int:
        """The tokens that the request should have after the compaction; it may have more if no plan is that small."""
        # Every plan contains the newest prompts and the carried facts, so the limit is higher where they are large.
        carried = Message("user", (Text("\n".join([*self.carried.parts(), *self.carried.reminders])),))
        newest_prompts = messages_of(step.entry for step in self.turns[-1].steps if step.entry.is_prompt)
        fixed = self.budget.count([*newest_prompts, carried])
        limit = self.budget.limit(self.settings.target, self.settings.at, fixed=fixed)
        if self.trigger == "manual":  # a person may ask long before the window is full: at least halve the conversation
            limit = min(limit, self.budget.prefix + (self.budget.before - self.budget.prefix) // 2)
        return limit

    def _with_cuts(self, limit: int) -> entries.Compaction:
        """Return a plan without a digest: entries stay in place, and old ones are cut until the request fits.

        Each pass cuts to a shorter length than the one before, the oldest entry first. If cutting results alone is
        not enough, they are whole again, and the passes start over with all entries, so that results and replies are
        cut alike. The newest turns (`keep_turns`) lose only outdated reminders. The caller rejects a plan that is too
        large.
        """
        first = self.turns[0].steps[0]
        outdated = {id: "" for turn in self.turns for id in self._outdated_reminders(turn)}  # "": it is not sent
        uncut = self._build(self._carried_text([]), first, "truncate", stubs=outdated)
        settings, target = self.settings, _FILLED_SHARE * limit
        older = [(step, turn.number) for turn in self.turns[: -settings.keep_turns] for step in turn.steps]
        for kind in (entries.Result, object):  # `object`: any kind
            stubs, tokens = dict(outdated), uncut.tokens_after
            # Each pass multiplies the lengths in the settings by its factor.
            for factor, (step, number) in product(reversed(digest.FACTORS), older):
                if tokens <= target:
                    break
                if step.entry.id in outdated or not isinstance(step.entry.body, kind):
                    continue
                stub = digest.stub_of(step, number, factor * settings.result_chars, factor * settings.message_chars)
                if stub is not None:
                    shown = stubs.get(step.entry.id, text_of(step.entry.body))  # the text that earlier passes left
                    tokens -= self.budget.size(shown) - self.budget.size(stub)
                    stubs[step.entry.id] = stub
            if tokens <= target:
                break
        return self._build(uncut.carried, first, "truncate", stubs=stubs)

    def _with_digest(self, room: int, limit: int) -> entries.Compaction | None:
        """Return the fullest plan that fits into `room` tokens; None if even the smallest plan does not.

        `limit` is the maximum of the whole request; `room` is smaller if an earlier plan came out too large.
        """
        turns_room = room - self.budget.prefix - self.budget.size(self._carried_text([]))
        left_for_next_turns = int((1 - _FILLED_SHARE) * limit)
        for tail in tails(self.settings):
            covered, remaining = self._split(tail)
            stubs = {id: stub for turn in remaining for id, stub in self._stubs(turn, tail).items()}
            start = remaining[0].steps[0]
            tail_only = entries.Compaction(first_kept=start.entry.id, stubs=stubs)
            free = turns_room - self.budget.count(self._messages(tail_only))
            brief_size = sum(self._turn_size(turn, digest.BRIEF) for turn in covered)
            if free < min(brief_size, int(tail.min_older * turns_room)):  # too little for older turns: a shorter tail
                continue
            if (texts := self._older_texts(covered, free, preferred=free - left_for_next_turns)) is not None:
                strategy: entries.CompactionStrategy = "summarize" if self.summaries else "extract"
                return self._build(self._carried_text(texts), start, strategy, stubs=stubs, covered=covered)
        return None

    def _older_texts(self, covered: Sequence[TurnSteps], free: int, preferred: int) -> list[str] | None:
        """Return the texts of older turns, in at most `free` tokens; None if not even a single line fits.

        If all turns fit at the length `BRIEF`, they get longer, up to `preferred` tokens. Otherwise they get shorter,
        or one line replaces the oldest of them, and excerpts of the omitted text come first.
        """
        needs_excerpts = sum(self._turn_size(turn, digest.BRIEF) for turn in covered) > free
        room = free - self._excerpts_room(covered, free) if needs_excerpts else free
        if (choice := self._choose_lengths(covered, room, preferred)) is None:
            return None
        replaced, positions = choice
        lengths = [self._writer.lengths[position] for position in positions]
        texts = [self._writer.text(turn, length) for turn, length in zip(covered[replaced:], lengths, strict=True)]
        if needs_excerpts:
            unused = free - sum(self.budget.size(text) for text in texts)
            all_lengths = [*[None] * replaced, *lengths]  # None: all of the turn's text is omitted
            texts[:0] = self._excerpts(zip(covered, all_lengths, strict=True), unused)
        if replaced:
            oldest, newest = covered[0], covered[replaced - 1]
            first, last = oldest.steps[0].number, newest.steps[-1].number
            texts.insert(0, f"Turns {oldest.number} to {newest.number}: entries [#{first} to #{last}]")
        return texts

    @cached_property
    def _writer(self) -> digest.DigestWriter:
        return digest.DigestWriter(self.settings, self.turns[-1].number, self.can_recall, self.summaries)

    @cached_property
    def _sizes(self) -> dict[tuple[int, int, int], int]:
        return {}  # the keys of `_turn_size`

    def _turn_size(self, turn: TurnSteps, length: int) -> int:
        """Count the tokens of a turn's text. `length` is a position in `DigestWriter.lengths`."""
        key = turn.number, len(turn.steps), length  # two parts of a turn have the same number
        if key not in self._sizes:
            self._sizes[key] = self.budget.size(self._writer.text(turn, self._writer.lengths[length]))
        return self._sizes[key]

    def _excerpts_room(self, covered: Sequence[TurnSteps], free: int) -> int:
        """Return the tokens that excerpts get: most of those that are `free`, or few or none if all prompts fit."""
        prompts_size = sum(self._turn_size(turn, 0) for turn in covered)
        prompts_fit = prompts_size <= free
        share = _EXCERPTS_SHARE if prompts_fit else _EXCERPTS_SHARE_WITHOUT_PROMPTS
        room = min(int(share * free), self.budget.size("\n".join(one.text for one in self._all_sentences)))
        return 0 if prompts_fit and prompts_size + room > free else room

    @cached_property
    def _all_sentences(self) -> list[digest.Sentence]:
        return [sentence for turn in self.turns for sentence in self._writer.excerpt_candidates(turn, None)]

    def _excerpts(self, lengths: Iterable[tuple[TurnSteps, digest.Length | None]], room: int) -> list[str]:
        """Return excerpts of what the digest leaves out of turns at these lengths (None: all), in `room` tokens."""
        scorer = digest.Scorer(self._all_sentences, distinctive_words(self.carried.focus.lower()))
        sentences = [sentence for turn, length in lengths for sentence in self._writer.excerpt_candidates(turn, length)]
        lines = digest.pick_excerpts(sentences, room, self.budget.size, scorer)
        return ["\n".join(["Excerpts of what is left out:", *lines])] if lines else []

    def _choose_lengths(self, covered: Sequence[TurnSteps], room: int, preferred: int) -> tuple[int, list[int]] | None:
        """Return how many of the oldest turns one line replaces, and the lengths of the others.

        A length is a position in `DigestWriter.lengths`. If no turn is replaced, all turns get longer by one position,
        then by another one: up to `BRIEF` while all turns together take at most `room` tokens, and further while they
        take at most `preferred` ones. Returns None if the room is too small for a single line.
        """
        replaced, total = 0, sum(self._turn_size(turn, 0) for turn in covered)
        while total > room:
            if replaced == len(covered):
                return None
            total -= self._turn_size(covered[replaced], 0)
            total += _REPLACEMENT_TOKENS if replaced == 0 else 0  # one line replaces all of them
            replaced += 1
        chosen = [0] * (len(covered) - replaced)
        if replaced:
            return replaced, chosen
        newest_first = range(len(covered) - 1, -1, -1)
        focus = distinctive_words(self.carried.focus.lower())
        # Turns about the focus get longer before others.
        order = sorted(newest_first, key=lambda n: not digest.is_about(covered[n], focus))
        for length in range(1, len(self._writer.lengths)):
            max_total = room if length <= digest.BRIEF else preferred
            for n in order:
                more = self._turn_size(covered[n], length) - self._turn_size(covered[n], length - 1)
                # A turn for which an earlier length was too long gets no longer one.
                if chosen[n] == length - 1 and total + more <= max_total:
                    chosen[n] = length
                    total += more
        return 0, chosen

    def _split(self, tail: Tail) -> tuple[list[TurnSteps], list[TurnSteps]]:
        """Return the turns that the digest covers and those that stay. One turn may be split between two rounds."""
        covered, remaining = list(self.turns[: -tail.turns]), list(self.turns[-tail.turns :])
        rounds = [n for n, step in enumerate(remaining[0].steps) if isinstance(step.entry.body, entries.Assistant)]
        if len(rounds) > tail.rounds:  # only a tail of a single turn limits its rounds
            turn, start = remaining[0], rounds[-tail.rounds]
            covered.append(TurnSteps(turn.number, turn.steps[:start]))
            remaining = [TurnSteps(turn.number, turn.steps[start:])]
        return covered, remaining

    def _stubs(self, turn: TurnSteps, tail: Tail) -> dict[str, str]:
        """Return, by id, the texts that replace the contents of entries of a turn that stays."""
        stubs = dict.fromkeys(self._outdated_reminders(turn), "")
        replies = [n for n, step in enumerate(turn.steps) if isinstance(step.entry.body, entries.Assistant)]
        has_newest_round = turn.number == self.turns[-1].number
        newest_round_start = max(replies, default=0) if has_newest_round else len(turn.steps)
        for position, step in enumerate(turn.steps):
            max_chars = tail.newest if position >= newest_round_start else tail.result
            stub = None
            if step.entry.is_prompt:  # only a tail of the newest turn alone cuts prompts
                stub = self._writer.start_of_newest_prompt(step) if tail.cuts_prompt else None
            elif max_chars < _NO_LIMIT and isinstance(step.entry.body, entries.Result | entries.Assistant):
                message_chars = max(max_chars, self.settings.message_chars)
                stub = digest.stub_of(step, turn.number, result_chars=max_chars, reply_chars=message_chars)
            if stub is not None:
                stubs[step.entry.id] = stub
        return stubs

    def _outdated_reminders(self, turn: TurnSteps) -> Iterator[str]:
        """Yield the ids of reminders that the digest repeats, perhaps in a newer form, so that they can go."""
        for step in turn.steps:
            text = step.entry.body.text if isinstance(step.entry.body, entries.User) else ""
            if not step.entry.is_prompt and ("<instructions path=" in text or text in self.carried.reminders):
                yield step.entry.id

    def _carried_text(self, texts: Sequence[str]) -> str:
        """Return the text with which later requests begin. `texts` are the texts of older turns."""
        what = "its older part is shortened below" if texts else "older results and replies are cut"
        heading = _HEADING.format(what=what) + (_RECALL if self.can_recall else "")
        older = ["## What was said and done\n\n" + "\n".join(filter(None, texts)).strip()] if texts else []
        parts = "\n\n".join([heading, *older, *self.carried.parts()])
        return "\n".join([f"<system-reminder>{parts}</system-reminder>", *self.carried.reminders])

    def _build(
        self,
        carried: str,
        first: Step,
        strategy: entries.CompactionStrategy,
        *,
        stubs: dict[str, str],
        covered: Sequence[TurnSteps] = (),
    ) -> entries.Compaction:
        """Return a plan that keeps the entries from `first` on. Without `covered`, it covers all turns."""
        ids = [step.entry.id for turn in covered or self.turns for step in turn.steps]
        plan = entries.Compaction(
            carried=carried,
            covers=(ids[0], ids[-1]),
            first_kept=first.entry.id,
            stubs=stubs,
            strategy=strategy,
            trigger=self.trigger,
            tokens_before=self.budget.before,
        )
        return structs.replace(plan, tokens_after=self.budget.prefix + self.budget.count(self._messages(plan)))

    def _messages(self, compaction: entries.Compaction) -> list[Message]:
        return messages_of(apply_compaction(self.conversation.path, entries.Entry("", None, 0.0, compaction)))

    def _problem(self, plan: entries.Compaction, limit: int) -> str:
        """Return the reason to reject a plan; empty if it is good."""
        if plan.strategy == "truncate" and self.settings.strategy == "auto":
            # If cutting frees less than that, a digest puts off the next compaction for longer.
            limit = int(_FILLED_SHARE * limit)
        if plan.tokens_after > limit:
            return f"the parts that must stay take {plan.tokens_after:,} tokens, and {limit:,} are available"
        min_gain = _MIN_GAIN if self.trigger == "manual" else 0.0  # a full window needs any gain
        return "that would hardly make it smaller" if plan.tokens_after >= (1 - min_gain) * plan.tokens_before else ""
