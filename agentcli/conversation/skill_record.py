"""Defines what the log keeps of a skill that was activated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import Struct

FILE = "SKILL.md"

Source = Literal["project", "user", "bundled", "library"]


class SkillRecord(Struct, frozen=True, omit_defaults=True):
    """The fields of a skill that the log keeps, as `extensions/skills/skill.py` describes them."""

    name: str
    description: str
    folder: str
    source: Source
    digest: str = ""
    argument_hint: str = ""
    allowed_tools: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    model: str = ""
    effort: str = ""
    for_model: bool = True
    for_person: bool = True
    may_nest: bool = True
    takes_words: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        return Path(self.folder) / FILE
