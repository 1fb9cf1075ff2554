"""Reads from a conversation which skills are active, and what the model was told of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentcli.conversation.entries import Entry, PlanAccepted, SkillActivated, SkillEnded, User, reminder

_INSTRUCTIONS = re.compile(r'<system-reminder><skill name="([^"]*)" ')


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
    """What a compaction carries whole: the instructions of active skills, and the plan that was accepted last."""
    found = (note_of(activated, path) for activated in active_on(path))
    notes = [note for note in found if note is not None]
    plans = (entry.body for entry in reversed(path) if isinstance(entry.body, PlanAccepted))
    if (plan := next(plans, None)) is not None:
        notes.append(reminder(f"The plan that the user has accepted:\n{plan.text}"))
    return notes
