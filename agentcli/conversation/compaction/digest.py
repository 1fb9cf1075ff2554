"""Writes the text that stands for older turns, at several lengths, and collects what no compaction may lose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from agentcli.conversation.compaction.excerpts import Sentence, split_sentences
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import ADDED_FOLDER, SHORTENED_SOON, Assistant, Body, Result, User, bare_note
from agentcli.conversation.history import Step, TurnRecord, calls_in, one_line, skill_of, text_of
from agentcli.conversation.mentions import typed_blocks
from agentcli.llm.messages import Text
from agentcli.settings.structs import CompactionSettings
from agentcli.tools.summary import call_title

LONGEST_ANSWER = 300  # characters of an answer that is decided in, at the usual length
LONGEST_ERROR = 500
NEWEST_START = 2_000  # characters of the prompt that is to be answered, where it does not fit
_MARK = 20  # characters that a mark takes, so that cutting less would save nothing
_TAGS = re.compile(r"<(?=/?(?:system-reminder|instructions)\b)")


class Length(Struct, frozen=True):
    """Characters that each part of a turn may have. None is all of it, 0 a number in its place, or nothing."""

    prompt: int | None
    error: int = 0
    answer: int = 0
    thought: int = 0
    result: int = 0


def lengths(settings: CompactionSettings) -> tuple[Length, ...]:
    """From a shortened prompt to nearly all of a turn. At `BRIEF` prompts are whole and answers short."""
    chars, result = settings.message_chars, settings.result_chars
    answer = max(chars, LONGEST_ANSWER)
    return (
        Length(NEWEST_START),
        Length(None),
        Length(None, 80),
        Length(None, 200, chars),
        *(Length(None, LONGEST_ERROR, times * answer, times * chars, times * result) for times in TIMES),
    )


BRIEF = 3
TIMES = (1, 3, 8, 20, 50, 125)  # the usual length, where there is room


class DigestWriter(Struct, frozen=True):
    """Shortens turns of a conversation whose newest turn has the number `newest`.

    A turn that has a summary by a model in `summaries`, by its number, keeps only its prompts and failures beside it.
    """

    settings: CompactionSettings
    newest: int
    can_recall: bool = True
    summaries: dict[int, str] = {}

    def text(self, turn: TurnRecord, length: Length) -> str:
        summary = self.summaries.get(turn.number) if length.answer else None
        inputs = {use.id: use.input for use in turn.calls}
        lines = [f"\n### Turn {turn.number}"] if length.answer else []
        for step in turn.steps:
            if step.entry.is_prompt:
                lines.append(self._prompt(step, length.prompt))
            elif is_failure(step.entry.body) and not length.error:
                lines.append(f"- FAILED [#{step.number}]")
            elif (is_failure(step.entry.body) or summary is None) and (line := self._line(step, turn, length, inputs)):
                lines.append(_quoted(line))
        if summary is None and length.answer and not length.result and (counted := _counted(turn)):
            lines.append(f"- {counted}")
        if summary is not None:
            lines.append(_quoted(f"Summary of this turn: {summary}"))
        return "\n".join(lines)

    def sentences(self, turn: TurnRecord, length: Length | None) -> Iterator[Sentence]:
        """Yield the sentences of a turn that it does not show at this length; None stands for a turn without a text."""
        inputs = {use.id: use.input for use in turn.calls}
        for step in turn.steps:
            match step.entry.body:
                case User() if step.entry.is_prompt and length is None:
                    yield from split_sentences(step.number, "prompt", "User", self._typed(step))
                case Result(result) as body if result.is_error and (length is None or not length.error):
                    title = call_title(body.name, inputs.get(result.tool_use_id, {}), LONGEST_ERROR)
                    text = _quoted(result.text[-LONGEST_ERROR:])
                    yield from split_sentences(step.number, "failure", f"- {title} FAILED", text)
                case Assistant() as reply if not calls_in(reply) and (length is None or not length.answer):
                    yield from split_sentences(step.number, "answer", "Answer", _quoted(text_of(reply)))
                case _:
                    pass

    def _prompt(self, step: Step, most: int | None) -> str:
        """The person's message word for word; where it is too long, its beginning and its number."""
        text = self._typed(step)
        return f"User [#{step.number}]: {text if most is None else self._start(text, most, step)}"

    def start_of_newest(self, step: Step) -> str:
        """Return the beginning of the message to be answered now, where it is cut; else an empty string."""
        text = self._typed(step)
        has_more = isinstance(step.entry.body, User) and len(step.entry.body.content) > 1
        return self._start(text, NEWEST_START, step) if len(text) > NEWEST_START or has_more else ""

    def _start(self, text: str, most: int, step: Step) -> str:
        if len(text) <= most + _MARK:
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

    def _line(self, step: Step, turn: TurnRecord, length: Length, inputs: dict[str, dict[str, object]]) -> str:
        age = self.newest - turn.number
        match step.entry.body:
            case User() as note:
                is_told = length.answer and age < self.settings.low_turns and SHORTENED_SOON not in note.text
                if skill := skill_of(note):  # the text of one that is active is carried whole
                    return f"Note: the skill {skill} was activated" if is_told else ""
                return f"Note: {bare_note(note.text)}" if is_told else ""
            case Result(result) as body:
                title = call_title(body.name, inputs.get(result.tool_use_id, {}), LONGEST_ERROR)
                if result.is_error:
                    return f"- {title} FAILED: {' '.join(result.text[: length.error].split())} [#{step.number}]"
                if not length.result:
                    return ""
                is_usual = length.result <= self.settings.result_chars
                said = (body.summary if is_usual else "") or " ".join(result.text[: length.result].split())
                return f"- {title}: {said[: length.result]} [#{step.number}]"
            case Assistant() as reply if text := text_of(reply).strip():
                if not calls_in(reply):
                    return f"Answer: {cut(text, length.answer, step, turn.number)}" if length.answer else ""
                is_told = age < self.settings.medium_turns or length.thought > self.settings.message_chars
                return f"Thought: {cut(text, length.thought, step, turn.number)}" if is_told and length.thought else ""
            case _:
                return ""


def is_about(turn: TurnRecord, words: Sequence[str]) -> bool:
    """Return True if a reply or a result of the turn has one of the words in it."""
    texts = (text_of(step.entry.body).lower() for step in turn.steps)
    return any(re.search(rf"(?<!\w){re.escape(word)}", text) for text in texts for word in words)


def stub_of(step: Step, turn: int, *, result: int, message: int) -> str | None:
    """The text in place of an entry's own; None where it is short enough as it is. Notes become empty."""
    match step.entry.body:
        case User(is_reminder=True):
            return ""
        case Result(found):
            most = max(result, LONGEST_ERROR) if found.is_error else result
            has_media = not isinstance(found.content, str)
            return cut(found.text, most, step, turn) if len(found.text) > most or has_media else None
        case Assistant() as reply:
            return cut(text_of(reply), message, step, turn)
        case _:
            return None


def cut(text: str, most: int, step: Step, turn: int) -> str:
    """The first characters, then the turn and the number by which the rest is recalled."""
    return text if len(text) <= most + _MARK else f"{text[:most].rstrip()}… [turn {turn} #{step.number}]"


def is_failure(body: Body) -> bool:
    return isinstance(body, Result) and body.result.is_error


def _quoted(text: str) -> str:
    """Quote text that is not the user's, so that neither its lines nor its tags begin anything."""
    return _TAGS.sub("‹", text).replace("\n", "\n  ")


def _counted(turn: TurnRecord) -> str:
    """The calls of a turn that worked, by tool, and between which numbers they stand."""
    found = [
        (s.number, body.name) for s in turn.steps if isinstance(body := s.entry.body, Result) and not is_failure(body)
    ]
    if not found:
        return ""
    tools = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in Counter(n for _, n in found).items())
    first, last = found[0][0], found[-1][0]
    return one_line(f"{tools} [#{first} to #{last}]" if last > first else f"{tools} [#{first}]", LONGEST_ANSWER)


MOST_FILES, FEW_FILES = 40, 10
_READS, _CHANGES = ("file_read",), ("file_write", "file_edit")

SeenHash = Callable[[str], str]  # a file's hash as this session last saw it; empty where it has not


class FileNote(Struct, frozen=True):
    """A file that was worked on: what was done to it last, and in which turn."""

    path: str
    done: str
    turn: int
    hash: str = ""

    @property
    def line(self) -> str:
        return f"- {self.path} ({self.done} in turn {self.turn}{f', sha256 {self.hash}' if self.hash else ''})"


class Carried(Struct, frozen=True, kw_only=True):
    """`opening` are the notes of a session's start as they read now, `focus` is what the user asked to keep in mind."""

    pins: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    files: tuple[FileNote, ...] = ()
    opening: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    focus: str = ""

    def parts(self, most_files: int = MOST_FILES) -> list[str]:
        """As the model reads it; of the files the newest, those that were changed before those that were read."""
        newest = sorted(self.files, key=lambda file: (file.done == "read", -file.turn))[:most_files]
        shown = [file.line for file in self.files if file in newest]
        if (more := len(self.files) - len(shown)) > 0:
            shown.insert(0, f"- {more} more before these")
        listed = (
            ("Pinned by the user", [f"- {pin}" for pin in self.pins]),
            ("Task list", list(self.tasks)),
            ("Folders", [f"- {folder}" for folder in self.folders]),
            ("Files worked on, as they were last seen", shown),
            ("The user asked to keep in mind", [self.focus] if self.focus else []),
        )
        return ["\n".join([f"## {heading}", *lines]) for heading, lines in listed if lines]


def collect(
    conversation: Conversation,
    turns: Sequence[TurnRecord],
    opening: Iterable[str],
    seen_hash: SeenHash,
    *,
    focus: str = "",
) -> Carried:
    # The reminders of folders that the user added to the workspace, also those before a compaction.
    bodies = (entry.body for entry in conversation.entries)
    notes = (bare_note(body.text) for body in bodies if isinstance(body, User) and body.is_reminder)
    return Carried(
        pins=tuple(conversation.pins),
        tasks=tuple(_tasks(turns)),
        files=tuple(_files(turns, seen_hash)),
        opening=tuple(opening),
        folders=tuple(dict.fromkeys(note for note in notes if note.startswith(ADDED_FOLDER))),
        focus=focus,
    )


def _tasks(turns: Sequence[TurnRecord]) -> list[str]:
    """The newest task list, if anything of it is open."""
    results = (result for turn in reversed(turns) for result in reversed(turn.observations))
    newest = next((result for result in results if result.name == "todo" and not result.result.is_error), None)
    lines = newest.result.text.splitlines() if newest else []
    return lines if any(not line.startswith("[x]") for line in lines) else []


def _files(turns: Sequence[TurnRecord], seen_hash: SeenHash) -> list[FileNote]:
    """Files by the time they were last worked on; a change is told rather than a later look."""
    found: dict[str, FileNote] = {}
    for turn in turns:
        inputs = {use.id: use.input for use in turn.calls}
        for result in turn.observations:
            for path, done in _worked_on(result, inputs.get(result.result.tool_use_id, {})):
                before = found.pop(path, None)
                is_look = done == "read" and before is not None and before.done == "changed"
                found[path] = before if is_look and before is not None else FileNote(path, done, turn.number)
    return [FileNote(note.path, note.done, note.turn, seen_hash(note.path)) for note in found.values()]


def _worked_on(result: Result, input: dict[str, object]) -> list[tuple[str, str]]:
    if result.result.is_error and result.name != "bash":
        return []
    if result.name in _READS + _CHANGES and isinstance(path := input.get("path"), str):
        return [(path, "read" if result.name in _READS else "changed")]
    kept = result.structured.get("kept") if isinstance(result.structured, dict) else None
    return [(path, "changed") for path in kept or () if isinstance(path, str)]
