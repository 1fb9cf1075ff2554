"""Groups a conversation's path into turns, finds its active skills, and names it by its prompts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    Entry,
    PlanAccepted,
    Result,
    SkillActivated,
    SkillEnded,
    User,
    reminder,
)
from agentcli.llm.messages import Text, ToolUse

_INSTRUCTIONS = re.compile(r'<system-reminder><skill name="([^"]*)" ')


class Step(Struct, frozen=True):
    """An entry that reaches the model. `number` is its place in the log from 1 on, which `recall` takes."""

    number: int
    entry: Entry


class TurnRecord(Struct, frozen=True):
    """One turn, which begins with any message of the person; notes ahead of the first one belong to it."""

    number: int
    steps: tuple[Step, ...]

    @property
    def calls(self) -> list[ToolUse]:
        bodies = [step.entry.body for step in self.steps]
        return [use for body in bodies if isinstance(body, Assistant) for use in calls_in(body)]

    @property
    def observations(self) -> list[Result]:
        return [step.entry.body for step in self.steps if isinstance(step.entry.body, Result)]


def turn_records(conversation: Conversation) -> list[TurnRecord]:
    """The turns on the path, oldest first, numbered from 1 on."""
    turns: list[list[Step]] = []
    has_prompt = False
    numbers = {id(entry): number for number, entry in enumerate(conversation.entries, 1)}
    for entry in conversation.path:
        if not isinstance(entry.body, User | Assistant | Result):
            continue
        if not turns or (entry.is_prompt and has_prompt):
            turns.append([])
        has_prompt = has_prompt or entry.is_prompt
        turns[-1].append(Step(numbers[id(entry)], entry))
    return [TurnRecord(number, tuple(steps)) for number, steps in enumerate(turns, 1)]


def text_of(body: Body) -> str:
    """The text of a reply or a result; empty for what is neither."""
    if isinstance(body, Assistant):
        return "".join(block.text for block in body.content if isinstance(block, Text))
    return body.result.text if isinstance(body, Result) else ""


def calls_in(reply: Assistant) -> list[ToolUse]:
    return [block for block in reply.content if isinstance(block, ToolUse)]


def one_line(text: str, most: int) -> str:
    """The text on one line, cut to so many characters."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most].rstrip()}…"


def active_on(path: Sequence[Entry]) -> list[SkillActivated]:
    """The skills that are active at the end of a path, the oldest first."""
    active: dict[str, SkillActivated] = {}
    for entry in path:
        match entry.body:
            case SkillActivated(id):
                active[id] = entry.body
            case SkillEnded(id):
                active.pop(id, None)
            case _:
                pass
    return list(active.values())


def note_of(activated: SkillActivated, path: Sequence[Entry]) -> User | None:
    """The note with the instructions of a skill; None where the model was not told."""
    at = next((n for n, entry in enumerate(path) if entry.body is activated), len(path))
    for entry in path[at:]:
        if isinstance(entry.body, User) and skill_of(entry.body) == activated.skill.name:
            return entry.body
    return None


def skill_of(note: User) -> str:
    """The name of the skill whose instructions a note tells; empty for any other."""
    found = _INSTRUCTIONS.match(note.text) if note.is_reminder else None
    return found[1] if found else ""


def carried_notes(path: Sequence[Entry]) -> list[User]:
    """Return the notes that a compaction keeps whole: of active skills, and of the plan that was accepted last."""
    found = (note_of(activated, path) for activated in active_on(path))
    notes = [note for note in found if note is not None]
    plans = (entry.body for entry in reversed(path) if isinstance(entry.body, PlanAccepted))
    if (plan := next(plans, None)) is not None:
        notes.append(reminder(f"The plan that the user has accepted:\n{plan.text}"))
    return notes


LONGEST_TITLE = 80  # characters

_MARKS = re.compile(r"^(?:[#>*+-]+\s+)+")
_NO_PROSE = re.compile(r"(?:```|~~~).*|</?\w[^<>]*>|\W*")  # a fence, a tag, a rule
_SAYS_LITTLE = re.compile(r"\W*(?:\w+\W*)?")  # one word, as a greeting


def title_of(entries: Iterable[Entry]) -> str:
    """The first prompt in a line."""
    return next((short_prompt(entry.body) for entry in entries if entry.is_prompt), "")


def last_prompt_of(entries: Iterable[Entry]) -> str:
    """The newest prompt in a line."""
    return next((short_prompt(entry.body) for entry in reversed([*entries]) if entry.is_prompt), "")


def short_prompt(body: object) -> str:
    """The first line of a prompt that says something, shortened; empty for what is no prompt."""
    if not isinstance(body, User) or body.is_reminder:
        return ""
    lines = [" ".join(_MARKS.sub("", line.strip()).split()) for line in body.text.splitlines()]
    lines = [line for line in lines if not _NO_PROSE.fullmatch(line)]
    telling = (line for line in lines if not _SAYS_LITTLE.fullmatch(line) or not line.isascii())
    return shortened(next(telling, next(iter(lines), "")), LONGEST_TITLE)


def shortened(line: str, most: int) -> str:
    """A line of at most so many characters, cut between words where one ends in its second half."""
    if len(line) <= most:
        return line
    cut = line[: most - 1]
    at = cut.rfind(" ") if not line[most - 1].isspace() else -1
    return f"{(cut[:at] if at >= most // 2 else cut).rstrip(' ,;:.-')}…"
