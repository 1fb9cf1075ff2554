"""Writes the text that replaces older turns, at several lengths, and collects the facts that every compaction keeps."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from math import log
from typing import Literal

from msgspec import Struct

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import ADDED_FOLDER, Assistant, Result, User, without_reminder_tags
from agentcli.conversation.history import Step, TurnSteps, calls_in, skill_of, text_of
from agentcli.conversation.mentions import typed_blocks
from agentcli.llm.messages import Text
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.observation import call_title

MAX_SENTENCE_CHARS = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_WORD = re.compile(r"\w+")
_CUE = re.compile(  # words that suggest a rule, a reason or a decision
    r"\b(?:never|always|must|do not|don't|from now on|make sure|remember|important|prefer|because|instead|"
    r"(?:I|we) (?:use|keep|chose|decided|will|have|went))\b",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"`|\w[_/.]\w|\d")  # code, a path, a name with underscores, a number
_CUE_FACTOR, _IDENTIFIER_FACTOR, _FOCUS_FACTOR = 2.0, 1.3, 10.0
_RARE_WORDS = 2  # only a sentence's two rarest words score, so long sentences have no advantage
_SMOOTHING_WORDS = 8  # keeps very short sentences from winning
_MAX_MISSES = 20  # sentences of a kind that do not fit before the search for shorter ones ends
_ENTRY_TOKENS = 8  # the line break, the speaker and the number before the first sentence of an entry

Kind = Literal["failure", "answer", "prompt"]
# Shares of the room, in this order; room that one kind leaves goes to the next.
SHARES: dict[Kind, float] = {"failure": 0.2, "answer": 0.3, "prompt": 0.5}


class Sentence(Struct, frozen=True):
    """A sentence of an entry. `speaker` introduces it in an excerpt."""

    entry: int  # its number in the log
    kind: Kind
    speaker: str
    text: str


def split_sentences(entry: int, kind: Kind, speaker: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of an entry's text, on one line each and not too long to become excerpts."""
    for part in _SENTENCE_END.split(text):
        if _WORD.search(part):
            line = " ".join(part[: 2 * MAX_SENTENCE_CHARS].split())
            shown = line if len(line) <= MAX_SENTENCE_CHARS else f"{line[:MAX_SENTENCE_CHARS].rstrip()}…"
            yield Sentence(entry, kind, speaker, shown)


class Scorer:
    """Scores sentences for excerpts: words that are rare in the conversation score more, those of `focus` most."""

    def __init__(self, sentences: Iterable[Sentence], focus: Collection[str] = ()) -> None:
        found = [_words(sentence.text) for sentence in sentences]
        self._uses = Counter(word for words in found for word in words)  # by word: the number of sentences that have it
        self._count = len(found) + 1  # of sentences; plus one keeps a word of all sentences above 0
        self._focus = tuple(focus)  # in lower case

    def score(self, text: str) -> float:
        """Score a sentence by its rarest words; rules, reasons, code and words of the focus multiply the score."""
        words = _words(text)
        rarest = sorted((log(self._count / (self._uses[word] or 1)) for word in words), reverse=True)[:_RARE_WORDS]
        score = sum(rarest) / (len(words) + _SMOOTHING_WORDS)
        score *= _CUE_FACTOR if _CUE.search(text) else 1
        score *= _IDENTIFIER_FACTOR if _IDENTIFIER.search(text) else 1
        is_about_focus = self._focus and any(word.startswith(self._focus) for word in words)
        return score * (_FOCUS_FACTOR if is_about_focus else 1)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def pick_excerpts(
    sentences: Sequence[Sentence], max_tokens: int, size: Callable[[str], int], scorer: Scorer
) -> list[str]:
    """Return the most informative sentences in their order, one line per entry. `size` counts the tokens of a text."""
    picked: list[int] = []  # positions in `sentences`
    entries: set[int] = set()  # the numbers of entries that have a picked sentence
    room = 0.0  # tokens that are free for the kinds so far
    newest_first = reversed(range(len(sentences)))  # among equally good sentences, the newest come first
    best_first = sorted(newest_first, key=lambda position: scorer.score(sentences[position].text), reverse=True)
    for kind, share in SHARES.items():
        room += share * max_tokens
        misses = 0
        for position in (position for position in best_first if sentences[position].kind == kind):
            sentence = sentences[position]
            tokens = size(sentence.text) + 1 + (0 if sentence.entry in entries else _ENTRY_TOKENS)
            if tokens <= room:
                room -= tokens
                picked.append(position)
                entries.add(sentence.entry)
            elif (misses := misses + 1) > _MAX_MISSES:
                break
    lines = []
    for number, positions in groupby(sorted(picked), key=lambda position: sentences[position].entry):
        entry_positions = [*positions]
        text = sentences[entry_positions[0]].text
        for before, position in pairwise(entry_positions):
            text += f"{' ' if position == before + 1 else ' … '}{sentences[position].text}"
        lines.append(f"{sentences[entry_positions[0]].speaker} [#{number}]: {text}")
    return lines


MIN_ANSWER_CHARS = 300  # at the usual length; answers get more than other texts because they contain decisions
MAX_ERROR_CHARS = 500
MAX_NEWEST_PROMPT_CHARS = 2_000  # characters of the prompt that must be answered, if the whole prompt does not fit
_CUT_MARK_CHARS = 20  # length of the mark for a cut; cutting fewer characters would save nothing
_TAGS = re.compile(r"<(?=/?(?:system-reminder|instructions)\b)")  # tags that only agentcli may write


class Length(Struct, frozen=True, kw_only=True):
    """The maximum characters of each part of a turn. None keeps all of it; 0 keeps only its number, or nothing."""

    prompt: int | None = None
    error: int = 0  # of a failed call
    answer: int = 0
    thought: int = 0
    result: int = 0


BRIEF = 3  # the position in `DigestWriter.lengths` where prompts are whole and answers short
FACTORS = (1, 3, 8, 20, 50, 125)  # the lengths in the settings are multiplied by one of them if there is room


class DigestWriter(Struct, frozen=True, dict=True):
    """Shortens turns of a conversation for a digest."""

    settings: CompactionSettings
    newest_turn: int  # its number
    can_recall: bool = True
    summaries: dict[int, str] = {}  # by turn number; a summary replaces all of its turn but prompts and failures

    @cached_property
    def lengths(self) -> tuple[Length, ...]:
        """The lengths that a turn's text may have, shortest first; planning picks the longest that fits.

        The first keeps the start of the prompt, the second the whole prompt and nothing else (`Length()`). The next two
        add errors and a short answer; the others multiply the lengths in the settings by each of `FACTORS`.
        """
        message, result = self.settings.message_chars, self.settings.result_chars
        answer = max(message, MIN_ANSWER_CHARS)
        shorter = Length(prompt=MAX_NEWEST_PROMPT_CHARS), Length(), Length(error=80), Length(error=200, answer=message)
        longer = (
            Length(error=MAX_ERROR_CHARS, answer=factor * answer, thought=factor * message, result=factor * result)
            for factor in FACTORS
        )
        return (*shorter, *longer)

    def text(self, turn: TurnSteps, length: Length) -> str:
        """Return the text of a turn at a length; one without answers has only prompts and failures, and no heading."""
        summary = self.summaries.get(turn.number) if length.answer else None
        inputs = {use.id: use.input for use in turn.calls}
        lines = [f"\n### Turn {turn.number}"] if length.answer else []
        for step in turn.steps:
            has_failed = isinstance(step.entry.body, Result) and step.entry.body.result.is_error
            if step.entry.is_prompt:
                lines.append(f"User [#{step.number}]: {self._truncated(self._typed_text(step), length.prompt, step)}")
            elif has_failed and not length.error:
                lines.append(f"- FAILED [#{step.number}]")
            elif (has_failed or summary is None) and (line := self._line(step, turn, length, inputs)):
                lines.append(_quoted(line))
        if summary is not None:
            lines.append(_quoted(f"Summary of this turn: {summary}"))
        return "\n".join(lines)

    def excerpt_candidates(self, turn: TurnSteps, length: Length | None) -> Iterator[Sentence]:
        """Yield the sentences of prompts, failures and answers that a turn's text at this length omits (None: all)."""
        inputs = {use.id: use.input for use in turn.calls}
        for step in turn.steps:
            match step.entry.body:
                case User() if step.entry.is_prompt and length is None:
                    yield from split_sentences(step.number, "prompt", "User", self._typed_text(step))
                case Result(result=result) as body if result.is_error and (length is None or not length.error):
                    title = call_title(body.name, inputs.get(result.tool_use_id, {}), MAX_ERROR_CHARS)
                    text = _quoted(result.text[-MAX_ERROR_CHARS:])
                    yield from split_sentences(step.number, "failure", f"- {title} FAILED", text)
                case Assistant() as reply if not calls_in(reply) and (length is None or not length.answer):
                    yield from split_sentences(step.number, "answer", "Answer", _quoted(text_of(reply)))

    def start_of_newest_prompt(self, step: Step) -> str | None:
        """Return the beginning of the newest prompt; None if it can stay whole: it is short, without attachments."""
        text = self._typed_text(step)
        has_attachments = isinstance(step.entry.body, User) and len(step.entry.body.content) > 1
        if len(text) <= MAX_NEWEST_PROMPT_CHARS and not has_attachments:
            return None
        return self._truncated(text, MAX_NEWEST_PROMPT_CHARS, step)

    def _truncated(self, text: str, max_chars: int | None, step: Step) -> str:
        if max_chars is None or len(text) <= max_chars + _CUT_MARK_CHARS:
            return text
        return f"{text[:max_chars].rstrip()}… [the whole message has {len(text):,} characters{self._recall_hint(step)}]"

    def _typed_text(self, step: Step) -> str:
        """Return the text of a prompt, without attached files; a hint at the end says if there are any."""
        body = step.entry.body
        assert isinstance(body, User)
        typed = [block for block in typed_blocks(body.content) if isinstance(block, Text)]
        text = "\n".join(block.text for block in typed)
        return text if len(typed) == len(body.content) else f"{text}\n[with files or images{self._recall_hint(step)}]"

    def _recall_hint(self, step: Step) -> str:
        return f": recall id={step.number}" if self.can_recall else ""

    def _line(self, step: Step, turn: TurnSteps, length: Length, inputs: dict[str, dict[str, object]]) -> str:
        """Return the line for a reminder, a result or a reply; empty if it is left out.

        `inputs` holds the inputs of the turn's calls by call id, for the titles of results.
        """
        age = self.newest_turn - turn.number  # in turns
        # Lengths above those in the settings leave room for a result's own text instead of its summary, and for the
        # thoughts of old turns.
        has_long_results = length.result > self.settings.result_chars
        has_long_thoughts = length.thought > self.settings.message_chars
        match step.entry.body:
            case User() as reminder:
                # A turn without room for answers consists of prompts and failures alone.
                if not length.answer or age >= self.settings.low_turns:
                    return ""
                if skill := skill_of(reminder):  # its instructions are carried elsewhere
                    return f"Note: the skill {skill} was activated"
                return f"Note: {without_reminder_tags(reminder.text)}"
            case Result(result=result) as body:
                title = call_title(body.name, inputs.get(result.tool_use_id, {}), MAX_ERROR_CHARS)
                if result.is_error:
                    return f"- {title} FAILED: {' '.join(result.text[: length.error].split())} [#{step.number}]"
                if not length.result:
                    return ""
                summary = "" if has_long_results else body.summary
                text = summary or " ".join(result.text[: length.result].split())
                return f"- {title}: {text[: length.result]} [#{step.number}]"
            case Assistant() as reply if text := text_of(reply).strip():
                if not calls_in(reply):
                    return f"Answer: {cut(text, length.answer, step, turn.number)}" if length.answer else ""
                is_shown = age < self.settings.medium_turns or has_long_thoughts
                return f"Thought: {cut(text, length.thought, step, turn.number)}" if is_shown and length.thought else ""
            case _:
                return ""


def is_about(turn: TurnSteps, words: Sequence[str]) -> bool:
    """Return True if a reply or a result of the turn contains one of the words."""
    texts = (text_of(step.entry.body).lower() for step in turn.steps)
    return any(re.search(rf"(?<!\w){re.escape(word)}", text) for text in texts for word in words)


def stub_of(step: Step, turn_number: int, result_chars: int, reply_chars: int) -> str | None:
    """Return a shorter text to replace an entry's own; None if that is short enough. Reminders become empty."""
    match step.entry.body:
        case User(is_reminder=True):
            return ""
        case Result(result=found):
            max_chars = max(result_chars, MAX_ERROR_CHARS) if found.is_error else result_chars
            has_media = not isinstance(found.content, str)  # the stub drops it
            return cut(found.text, max_chars, step, turn_number) if len(found.text) > max_chars or has_media else None
        case Assistant() as reply:
            return cut(text_of(reply), reply_chars, step, turn_number)
        case _:
            return None


def cut(text: str, max_chars: int, step: Step, turn_number: int) -> str:
    """Return the first characters of a text, with the turn and the number by which the model can recall the rest."""
    if len(text) <= max_chars + _CUT_MARK_CHARS:
        return text
    return f"{text[:max_chars].rstrip()}… [turn {turn_number} #{step.number}]"


def _quoted(text: str) -> str:
    """Quote text that is not the user's, so that neither its lines nor its tags look like parts of the digest."""
    return _TAGS.sub("‹", text).replace("\n", "\n  ")


MAX_FILES = 20
_ACTIONS = {"file_read": "read", "file_write": "changed", "file_edit": "changed"}  # by tool


class FileInWork(Struct, frozen=True):
    """A file that was worked on."""

    path: str
    action: str  # the last one, "read" or "changed"
    turn: int  # the number of its turn


class Carried(Struct, frozen=True, kw_only=True):
    """The facts that every compaction carries."""

    pins: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    files: tuple[FileInWork, ...] = ()
    reminders: tuple[str, ...] = ()  # those of a session's start, skills and the plan, as they are now
    folders: tuple[str, ...] = ()  # reminders of the folders that the user added
    focus: str = ""  # the user's words about what to keep

    def parts(self) -> list[str]:
        """Return all facts but the reminders as the model reads them. Of many files, changed and newer ones stay."""
        newest = sorted(self.files, key=lambda file: (file.action == "read", -file.turn))[:MAX_FILES]
        shown = [f"- {file.path} ({file.action} in turn {file.turn})" for file in self.files if file in newest]
        if (more := len(self.files) - len(shown)) > 0:
            shown.insert(0, f"- {more} more before these")
        listed = (
            ("Pinned by the user", [f"- {pin}" for pin in self.pins]),
            ("Task list", list(self.tasks)),
            ("Folders", [f"- {folder}" for folder in self.folders]),
            ("Files worked on", shown),
            ("The user asked to keep in mind", [self.focus] if self.focus else []),
        )
        return ["\n".join([f"## {heading}", *lines]) for heading, lines in listed if lines]


def collect_facts(
    conversation: Conversation, turns: Sequence[TurnSteps], reminders: Iterable[str], *, focus: str
) -> Carried:
    """Collect what the next compaction carries. `reminders` and `focus` are fields of `Carried`."""
    # All entries, because the reminders of folders that the user added may precede an earlier compaction.
    bodies = (entry.body for entry in conversation.entries)
    past = (without_reminder_tags(body.text) for body in bodies if isinstance(body, User) and body.is_reminder)
    return Carried(
        pins=tuple(conversation.pins),
        tasks=tuple(_tasks(turns)),
        files=tuple(_files(turns)),
        reminders=tuple(reminders),
        folders=tuple(dict.fromkeys(text for text in past if text.startswith(ADDED_FOLDER))),
        focus=focus,
    )


def _tasks(turns: Sequence[TurnSteps]) -> list[str]:
    results = (result for turn in reversed(turns) for result in reversed(turn.observations))
    newest = next((result for result in results if result.name == "todo" and not result.result.is_error), None)
    lines = newest.result.text.splitlines() if newest else []
    return lines if any(not line.startswith("[x]") for line in lines) else []  # a finished list is not carried


def _files(turns: Sequence[TurnSteps]) -> list[FileInWork]:
    """Return the files in the order in which they were last worked on. A later read does not replace a change."""
    found: dict[str, FileInWork] = {}
    for turn in turns:
        inputs = {use.id: use.input for use in turn.calls}
        for result in turn.observations:
            for path, action in _worked_on(result, inputs.get(result.result.tool_use_id, {})):
                file = found.pop(path, None)  # the path moves to the end
                if file is None or (file.action, action) != ("changed", "read"):
                    file = FileInWork(path, action, turn.number)
                found[path] = file
    return list(found.values())


def _worked_on(result: Result, input: dict[str, object]) -> list[tuple[str, str]]:
    """Return the paths that a call worked on, each with "read" or "changed"; for a command, its applied changes."""
    if result.result.is_error and result.name != "bash":  # a command that failed may have changed files
        return []
    if result.name in _ACTIONS and isinstance(path := input.get("path"), str):
        return [(path, _ACTIONS[result.name])]
    applied = result.structured.get("kept") if isinstance(result.structured, dict) else None
    return [(path, "changed") for path in applied or () if isinstance(path, str)]
