"""Activates skills: the stack of those that are active, and the messages that tell a conversation of one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from agentcli.errors import UsageError, did_you_mean
from agentcli.extensions.skills.find import Catalog
from agentcli.extensions.skills.skill import Skill
from agentcli.llm.messages import Message, Text

log = logging.getLogger(__name__)

MAX_DEPTH = 3  # skills that a model may activate within each other
_MAX_LISTED = 40  # resources that are named with the instructions

By = Literal["person", "model"]
Level = Literal[1, 2, 3]


class SkillMessage(Struct, frozen=True):
    """A part of what an activation says. The model is told the instructions; the person sees what is visible."""

    type: Literal["metadata", "instruction", "permissions"]
    text: str
    is_visible: bool = False


class Activation(Struct, frozen=True):
    """A skill that is active. One of the model's ends with the turn, one of the person's when they say so."""

    id: str
    skill: Skill
    by: By
    level: Level = 2
    messages: tuple[SkillMessage, ...] = ()

    @property
    def instructions(self) -> str:
        return "\n\n".join(message.text for message in self.messages if message.type == "instruction")


class SkillRegistry:
    """The skills there are, and the `active` ones, the oldest first: the person's, then a stack of the model's."""

    def __init__(self, skills: Catalog | Iterable[Skill] = ()) -> None:
        self.catalog = skills if isinstance(skills, Catalog) else Catalog(tuple(skills))
        self.active: list[Activation] = []

    def register(self, skill: Skill) -> None:
        """Add a skill. Raises `UsageError` when its name is taken."""
        if skill.name in self.catalog.by_name:
            raise UsageError(f"There is a skill named {skill.name!r} already, in {self.get(skill.name).folder}.")
        self.catalog.by_name[skill.name] = skill

    def get(self, name: str) -> Skill:
        """Raises `UsageError` that names the nearest."""
        if (skill := self.catalog.find(name)) is None:
            raise UsageError(f"There is no skill {name!r}{did_you_mean(name, list(self.catalog.by_name))}.")
        return skill

    def is_active(self, name: str) -> bool:
        return any(one.skill.name == name for one in self.active)

    def check(self, name: str, *, by: By = "person") -> Skill:
        """Return the skill, if it may be activated now. Raises `UsageError` that says why it may not."""
        skill = self.get(name)
        if by == "model" and not skill.for_model:
            raise UsageError(f"Only the user activates the skill {skill.name}.")
        way = " → ".join((*(one.skill.name for one in self.active), skill.name))
        if self.is_active(skill.name):
            raise UsageError(f"The skill {skill.name} is active already ({way}): follow its instructions.")
        if by == "model":
            if closed := next((one.skill.name for one in self.active if not one.skill.may_nest), None):
                raise UsageError(f"While the skill {closed} is active no other one is activated.")
            if sum(one.by == "model" for one in self.active) == MAX_DEPTH:
                raise UsageError(f"Skills nest {MAX_DEPTH} deep at most ({way}): end one first.")
        return skill

    def activate(
        self,
        name: str,
        *,
        request: str = "",
        history: list[Message] | None = None,
        by: By = "person",
        instructions: str | None = None,
    ) -> Activation:
        """Activate a skill for a `request`; its instructions join `history`. Raises `UsageError`, changing nothing."""
        skill = self.check(name, by=by)
        try:
            text = skill.instructions() if instructions is None else instructions
            made = Activation(os.urandom(6).hex(), skill, by, 2, _messages(skill, text, request))
        except (OSError, ValueError) as error:
            raise UsageError(f"The skill {skill.name} cannot be used: {error}.") from error
        if history is not None:
            history.append(Message("user", (Text(made.instructions),)))
        self.active.append(made)
        return made

    def resume(self, activation: Activation) -> None:
        """Take up one that was active before, as a log tells of it."""
        self.active.append(activation)

    def deactivate(self, name: str = "", *, by: By = "person") -> Activation:
        """End an active skill, by its name or the innermost, as the model must. Raises `UsageError` where none is."""
        own = [one for one in self.active if one.by == by]
        if not own:
            raise UsageError("No skill is active." if by == "person" else "No skill that you activated is active.")
        top = own[-1]
        ended = next((one for one in own if one.skill.name == name), None) if name else top
        if ended is None:
            raise UsageError(f"The skill {name} is not active{did_you_mean(name, [one.skill.name for one in own])}.")
        if by == "model" and ended is not top:
            log.warning("skill %s was to end while %s was the innermost", name, top.skill.name)
            raise UsageError(f"{top.skill.name} is the innermost skill: end it before {name}.")
        self.active.remove(ended)
        return ended


def _messages(skill: Skill, text: str, request: str) -> tuple[SkillMessage, ...]:
    """Raises `ValueError` for a skill without instructions."""
    if not text.strip():
        raise ValueError("it has no instructions")
    active = f"The skill {skill.name} is active{f': {request}' if request else ''}"
    instruction = f'<skill name="{skill.name}" folder="{skill.folder}">\n{text.strip()}\n{_resources(skill)}</skill>'
    granted = ", ".join(skill.allowed_tools)
    return (
        SkillMessage("metadata", active, is_visible=True),
        SkillMessage("instruction", instruction),
        *((SkillMessage("permissions", f"Until the next prompt: {granted}", is_visible=True),) if granted else ()),
    )


def _resources(skill: Skill) -> str:
    if not (names := skill.resources()):
        return ""
    more = f"\n({len(names) - _MAX_LISTED} more)" if len(names) > _MAX_LISTED else ""
    listed = "\n".join(names[:_MAX_LISTED])
    return f"\nFiles in its folder, to be read or run when the instructions say so:\n{listed}{more}\n"
