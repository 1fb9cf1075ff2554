"""Groups a conversation's path into turns: a prompt, its calls and results, and the answer. Finds its active skills."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
