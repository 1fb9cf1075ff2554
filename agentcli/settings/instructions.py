"""Defines the settings of instruction files."""

from typing import Literal

from msgspec import Struct

Kind = Literal["agents", "claude", "gemini", "cursor", "copilot", "windsurf", "cline", "aider"]


class InstructionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Kinds of instruction files in `off` are not read, such as the rules of one tool: see docs/context.md.

    `output_style` is the name of a style, which changes how the model answers: see docs/context.md.
    """

    off: tuple[Kind, ...] = ()
    output_style: str = ""
