"""Parses a shell command, one complete command after the other, as `bash -c` does.

Strict: it accepts the grammar that people write (bash(1), SHELL GRAMMAR) and reports what it does not follow.
"""

from __future__ import annotations

from msgspec import Struct

from agentcli.safety.commands.reader.compound_reader import ENDINGS, CompoundReader
from agentcli.safety.commands.reader.syntax import (
    AndOr,
    Background,
    Command,
    Node,
    Pipeline,
    Script,
)
from agentcli.safety.commands.reader.words import NotUnderstood, Refused


class Reading(Struct, frozen=True):
    """The commands bash would run. `problem` says why not all is in `script`; `is_refused`: bash stops there too."""

    script: Script
    problem: str = ""
    is_refused: bool = False


def read_commands(text: str) -> Reading:
    """Parse a text. Bash runs complete lines before it meets an error further down, so those are kept."""
    parser = Parser(text)
    try:
        while (node := parser.complete_command()) is not None:
            parser.done.append(node)
    except (Refused, NotUnderstood) as stopped:
        return Reading(Script(tuple(parser.done)), str(stopped), isinstance(stopped, Refused))
    return Reading(Script(tuple(parser.done)))


class Parser(CompoundReader):
    """A cursor over one text. `done` are the complete commands read so far."""

    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.done: list[Node] = []

    def complete_command(self) -> Node | None:
        """The commands of the next line that has any; None at the end."""
        self._skip_newlines()
        if self.at >= len(self.text):
            return None
        items = self._and_ors(stop_at_newline=True)
        if self.at < len(self.text) and self._control() != "\n":
            raise Refused(f"{self._control() or self._peek_bare()!r} stands where no command can end")
        return Script(tuple(items))

    def _and_ors(self, *, stop_at_newline: bool = False) -> list[Node]:
        """Commands separated by `;`, `&` and newlines, up to what ends them."""
        items: list[Node] = []
        while True:
            node = self._and_or()
            separator = self._control()
            if separator == "&":
                node = Background(node)
            items.append(node)
            if separator in ("&", ";"):
                self.at += 1
                self._blanks()
            elif separator != "\n":
                return items
            if stop_at_newline and (self.at >= len(self.text) or self._next_is("\n")):
                return items
            self._skip_newlines()
            if self.at >= len(self.text) or self._control() == ")" or self._peek_bare() in ENDINGS:
                return items
            if self._control() in (";;", ";&", ";;&"):
                return items

    def _and_or(self) -> Node:
        left = self._pipeline()
        while (operator := self._control()) in ("&&", "||"):
            self.at += 2
            self._skip_newlines()
            left = AndOr(left, operator, self._pipeline())
        return left

    def _pipeline(self) -> Node:
        is_odd = False
        while (bare := self._peek_bare()) in ("!", "time"):
            self._word()
            self._blanks()
            for option in ("-p", "--") if bare == "time" else ():
                if self._peek_bare() == option:
                    self._word()
                    self._blanks()
            if self.at >= len(self.text) or self._control() in (";", "&", "\n", ")"):
                return Command(bare, (), (), ())
            is_odd = is_odd or (bare == "time" and self._peek_bare().startswith("-"))
        if is_odd:
            raise NotUnderstood("an option of `time`")
        parts = [self._command()]
        while (operator := self._control()) in ("|", "|&"):
            self.at += len(operator)
            self._skip_newlines()
            parts.append(self._command())
        return parts[0] if len(parts) == 1 else Pipeline(tuple(parts))

    def _script_inside(self) -> Script:
        self._deeper()
        self._skip_newlines()
        items = [] if self._next_is(")") else self._and_ors()
        if not self._next_is(")"):
            raise Refused(") is missing")
        self.at += 1
        self.depth -= 1
        return Script(tuple(items))

    def _script_of(self, text: str) -> Script:
        parser = Parser(text, self.depth + 1)
        while (node := parser.complete_command()) is not None:
            parser.done.append(node)
        return Script(tuple(parser.done))
