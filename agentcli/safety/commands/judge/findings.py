"""Collects the findings of a walk through a command."""

from __future__ import annotations

from msgspec import Struct

from agentcli.safety.commands.records import Effects, Segment


class Around(Struct, frozen=True):
    """The context of a command: why it can do more than its text says, and the forms of the wrappers around it.

    `given` is the text of its standard input; empty at the start of the whole command.
    """

    problem: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    depth: int = 0
    given: str = ""


class Findings:
    """The findings on a command. `problem` and `catastrophe` concern all of it, `segments` its simple commands.

    `gave_up`: not all of it was walked through. `unread` are scripts inside it that are not understood. The others are
    as in `CommandAnalysis`.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.problem = ""
        self.catastrophe = ""
        self.gave_up = False
        self.unread: list[str] = []
        self.hidden = Effects()
        self.hidden_catastrophe = ""
        self.unreadable = ""

    @property
    def has_catastrophe(self) -> bool:
        return any(segment.verdict == "catastrophic" for segment in self.segments)

    def _note(self, segment: Segment) -> None:
        if segment not in self.segments:
            self.segments.append(segment)

    def _note_unknown(self, text: str, why: str, around: Around) -> None:
        self._note(Segment(text, None, "unknown", around.problem or why, Effects(), (), (text, *around.deny)))
