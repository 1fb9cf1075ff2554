"""Collects what is found in a command on the way through it."""

from __future__ import annotations

from msgspec import Struct

from agentcli.safety.commands.records import Effects, Segment


class Around(Struct, frozen=True):
    """What stands around a command: why it can do more than its text says, and the texts of the wrappers around it.

    `given` is the text on its standard input; nothing is there where the whole command starts.
    """

    problem: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    depth: int = 0
    given: str = ""


class Findings:
    """Collects `segments`. `problem` and `catastrophe` concern the command as a whole.

    `gave_up` says that not all of it was walked through; `unread` are scripts inside it that are not understood.
    `hidden`, `hidden_catastrophe` and `unreadable` are as in `CommandAnalysis`.
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
