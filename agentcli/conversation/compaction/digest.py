"""Writes older turns as text: the person's words as they are, the rest by how much it matters and how old it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcli.conversation.compaction.carried import MOST_FILES
from agentcli.conversation.compaction.stubs import LONGEST_ERROR, cut, is_failure, line_of
from agentcli.conversation.entries import SHORTENED_SOON, Assistant, Result, User, bare_note
from agentcli.conversation.mentions import typed_blocks
from agentcli.conversation.turns import Step, TurnRecord, calls_in, is_prompt, one_line, skill_of, text_of
from agentcli.llm.messages import Text
from agentcli.settings.structs import CompactionSettings

LONGEST_ANSWER = 300  # characters of an answer that is decided in
_FOCUS = 5  # times longer is what has a word of the focus in it
NEWEST_START = 2_000  # characters of the prompt that is to be answered, where it does not fit
_TAGS = re.compile(r"<(?=/?(?:system-reminder|instructions)\b)")
_TOLD_FAILURES = 3  # newest turns, whose failures are told where older ones are numbers
_TOLD_TURNS = 20  # newest turns that are told where older ones are one line


class Summary(Struct, frozen=True):
    """A model's summary of the turns from `first` to `last`."""

    first: int
    last: int
    text: str


# "brief" counts the calls of a turn and cuts answers short; "bare" leaves the prompts and what failed.
Telling = Literal["full", "brief", "bare"]

# Ages in turns from which a turn is told briefly, and from which barely: the most generous, and what is tried after it.
Ages = tuple[int, int]
FULL_AGES: Ages = (20, 60)
SHORTER_AGES: tuple[Ages, ...] = ((8, 30), (3, 12), (1, 5), (0, 2), (0, 0))

_ERRORS: dict[Telling, int] = {"full": LONGEST_ERROR, "brief": 200, "bare": 80}  # characters of an error


class Way(Struct, frozen=True):
    """One way to compact: how much of the newest part stays, and how briefly older turns are told.

    Whole turns stay, or of the newest turn only the newest rounds. `stubs_results` cuts the results in that part except
    in the newest round, `stubs_newest` in that one too, and `cuts_prompt` also the prompt to be answered. `ages` say
    how briefly older turns are described, `most_files` how many files are listed. Prompts longer than `longest_prompt`
    are cut to their beginning. `numbers_failures` reduces older failures to their numbers, `numbers_only` all prompts;
    `joins_oldest` puts one line in place of the oldest turns.
    """

    keep_turns: int
    keep_rounds: int | None = None
    stubs_results: bool = False
    stubs_newest: bool = False
    cuts_prompt: bool = False
    ages: Ages = FULL_AGES
    most_files: int = MOST_FILES
    longest_prompt: int | None = None
    numbers_failures: bool = False
    numbers_only: bool = False
    joins_oldest: bool = False
    has_focus: bool = True


class Digest(Struct, frozen=True, kw_only=True):
    """Older turns as text. `newest` is the number of the conversation's last turn, from which the ages of `way` count.

    Turns that a summary covers have only prompts and failures of their own. Parts with a word of `focus` in them are
    described at greater length. Without `can_recall`, no hint says how to recall an entry.
    """

    settings: CompactionSettings
    newest: int
    way: Way
    can_recall: bool = True
    summaries: tuple[Summary, ...] = ()
    focus: frozenset[str] = frozenset()

    def text(self, turns: Sequence[TurnRecord]) -> str:
        joined = turns[:-_TOLD_TURNS] if self.way.joins_oldest else ()
        lines = [self._turn(turn) for turn in turns[len(joined) :]]
        if joined:
            first, last = joined[0].steps[0].number, joined[-1].steps[-1].number
            lines.insert(0, f"Turns {joined[0].number} to {joined[-1].number}: entries [#{first} to #{last}]\n")
        return "\n".join(filter(None, lines)).strip()

    def joins(self, turn: TurnRecord, turns: Sequence[TurnRecord]) -> bool:
        """True if nothing but a number of these turns' range stands for one of them."""
        return self.way.joins_oldest and any(turn.number == one.number for one in turns[:-_TOLD_TURNS])

    def _telling_of(self, turn: TurnRecord) -> Telling:
        if self._is_in_focus(turn):
            return "full"
        age, (brief, bare) = self.newest - turn.number, self.way.ages
        return "bare" if age >= bare else "brief" if age >= brief else "full"

    def _turn(self, turn: TurnRecord) -> str:
        summary = next((one for one in self.summaries if one.first <= turn.number <= one.last), None)
        telling, inputs = self._telling_of(turn), {use.id: use.input for use in turn.calls}
        lines = []
        for step in turn.steps:
            if is_prompt(step.entry):
                lines.append(self._prompt(step, is_newest=turn.number == self.newest))
            elif is_failure(step.entry.body):
                is_old = self.way.numbers_failures and self.newest - turn.number >= _TOLD_FAILURES
                told = line_of(step, inputs, self.settings, most_error=_ERRORS[telling])
                lines.append(f"- FAILED [#{step.number}]" if is_old else _quoted(told))
            elif summary is None and (line := self._line(step, turn, telling, inputs)):
                lines.append(_quoted(line))
        if summary is None and telling == "brief" and (counted := _counted(turn)):
            lines.append(f"- {counted}")
        if summary is not None and turn.number == summary.last:
            covered = f"turns {summary.first} to {summary.last}" if summary.first < summary.last else "this turn"
            lines.append(_quoted(f"Summary of {covered}: {summary.text}"))
        return "\n".join(lines if telling == "bare" or not lines else [f"\n### Turn {turn.number}", *lines])

    def _prompt(self, step: Step, *, is_newest: bool) -> str:
        """The person's message word for word; where it is too long, its beginning and its number."""
        if self.way.numbers_only and not is_newest:
            return f"User [#{step.number}]"
        text, most = self._typed(step), self.way.longest_prompt
        if most is not None or self.way.numbers_only:
            text = self._start(text, max(most or 0, NEWEST_START if is_newest else 0), step)
        return f"User [#{step.number}]: {text}"

    def start_of_newest(self, step: Step) -> str:
        """Return the beginning of the message to be answered now, where it is cut; else an empty string."""
        text = self._typed(step)
        has_more = isinstance(step.entry.body, User) and len(step.entry.body.content) > 1
        return self._start(text, NEWEST_START, step) if len(text) > NEWEST_START or has_more else ""

    def _start(self, text: str, most: int, step: Step) -> str:
        if len(text) <= most:
            return text
        return f"{text[:most].rstrip()}… [the whole message has {len(text):,} characters{self._recalled(step)}]"

    def _typed(self, step: Step) -> str:
        body = step.entry.body
        assert isinstance(body, User)
        typed = [block for block in typed_blocks(body.content) if isinstance(block, Text)]
        text = "\n".join(block.text for block in typed)
        return text if len(typed) == len(body.content) else f"{text}\n[with files or images{self._recalled(step)}]"

    def _recalled(self, step: Step) -> str:
        return f": recall id={step.number}" if self.can_recall else ""

    def _line(self, step: Step, turn: TurnRecord, telling: Telling, inputs: dict[str, dict[str, object]]) -> str:
        age, settings = self.newest - turn.number, self._settings_for(step.entry.body)
        match step.entry.body:
            case User() as note:
                is_told = age < settings.low_turns and SHORTENED_SOON not in note.text
                if skill := skill_of(note):  # the text of one that is active is carried whole
                    return f"Note: the skill {skill} was activated" if is_told else ""
                return f"Note: {bare_note(note.text)}" if is_told else ""
            case Result():
                return line_of(step, inputs, settings) if telling == "full" else ""
            case Assistant() as reply if telling != "bare" and (text := text_of(reply).strip()):
                if calls_in(reply):
                    is_told = age < settings.medium_turns
                    return f"Thought: {cut(text, settings.message_chars, step, turn.number)}" if is_told else ""
                most = settings.message_chars if telling == "brief" else LONGEST_ANSWER
                return f"Answer: {cut(text, max(most, settings.message_chars), step, turn.number)}"
            case _:
                return ""

    def _settings_for(self, body: object) -> CompactionSettings:
        if not isinstance(body, Assistant | Result) or not self._is_about_focus(body):
            return self.settings
        chars, results = self.settings.message_chars, self.settings.result_chars
        return replace(self.settings, message_chars=_FOCUS * chars, result_chars=_FOCUS * results)

    def _is_in_focus(self, turn: TurnRecord) -> bool:
        return bool(self.focus) and any(
            self._is_about_focus(step.entry.body)
            for step in turn.steps
            if isinstance(step.entry.body, Assistant | Result)
        )

    def _is_about_focus(self, body: Assistant | Result) -> bool:
        if not self.focus:
            return False
        text = (body.result.text if isinstance(body, Result) else text_of(body)).lower()
        return any(re.search(rf"(?<!\w){re.escape(word)}", text) for word in self.focus)


def _quoted(text: str) -> str:
    """Quote text that is not the user's, so that neither its lines nor its tags begin anything."""
    return _TAGS.sub("‹", text).replace("\n", "\n  ")


def _counted(turn: TurnRecord) -> str:
    """The calls of a turn that worked, by tool, and between which numbers they stand."""
    found = [
        (s.number, body.name) for s in turn.steps if isinstance(body := s.entry.body, Result) and not is_failure(body)
    ]
    names = [name for _, name in found]
    tools = ", ".join(f"{name} ×{names.count(name)}" for name in dict.fromkeys(names))
    if not found:
        return ""
    first, last = found[0][0], found[-1][0]
    return one_line(f"{tools} [#{first} to #{last}]" if last > first else f"{tools} [#{first}]", LONGEST_ANSWER)
