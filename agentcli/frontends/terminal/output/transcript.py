"""Writes the transcript, which is only ever appended to, and remembers where its last line ends."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.frontends.terminal.output.moves import to_column
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.frontends.terminal.text.text_width import advance, is_unsure, width, with_spaces
from agentcli.frontends.terminal.text.theme import Theme


class Transcript:
    """`tail` is the column behind an unfinished last line, None when there is none."""

    def __init__(self, theme: Theme) -> None:
        self._theme = theme
        self._waiting: list[Fragment] = []  # text that is not on the screen yet
        self._held: list[Fragment] = []  # of it, a line of unsure width that has no end yet
        self._printed_column = 0  # cells of the last printed line, wrapped or not
        self.start_line()

    def start_line(self) -> None:
        """Go on in a new row."""
        self.tail: int | None = None
        self._tail_end: Fragment = ("", "")  # its last character, with the marks on it
        self._line: list[str] = []  # the unfinished line

    def print(self, fragments: Sequence[Fragment]) -> None:
        """Add text for the next frame; tabs become the spaces up to their stop."""
        for roles, text in fragments:
            text, self._printed_column = with_spaces(text, self._printed_column)
            if text:
                self._waiting.append((roles, text))

    @property
    def held_text(self) -> str:
        """The text that waits for the end of its line."""
        return "".join(text for _, text in self._held)

    @property
    def at_line_start(self) -> bool:
        last = next((text for _, text in reversed(self._held + self._waiting) if text), "")
        return last.endswith("\n") if last else self.tail is None

    def finish_line(self) -> None:
        """Let nothing be held back, and end the last line."""
        self._waiting = self._held + self._waiting
        self._held = []
        if not self.at_line_start:
            self._waiting.append(("", "\n"))

    def take(self, *, is_last: bool) -> list[Fragment]:
        """The text that can be written now: all but an unfinished line on whose width terminals disagree.

        Such a line is written whole: from its middle nobody could say where to go on.
        """
        text, self._waiting, self._held = self._held + self._waiting, [], []
        if is_last or not text:
            return text
        for position in range(len(text) - 1, -1, -1):
            roles, part = text[position]
            end = part.rfind("\n") + 1
            unfinished = [(roles, part[end:]), *text[position + 1 :]] if end else []
            if end or position == 0:
                line = unfinished if end else text
                if any(is_unsure(said) for _, said in line):
                    self._held = [fragment for fragment in line if fragment[1]]
                    text = [*text[:position], (roles, part[:end])] if end else []
                break
        return [fragment for fragment in text if fragment[1]]

    def written(self, text: Sequence[Fragment], columns: int) -> tuple[str, int]:
        """`text` painted, from the transcript's end on, and the number of rows that it begins.

        Its last line end is left out until a line follows it.
        """
        parts: list[Fragment] = []
        begun = 0
        is_first_row = self.tail is None  # the cursor stands at the start of a fresh row
        for roles, part in text:
            for number, line in enumerate(part.split("\n")):
                fresh = int(number > 0 and self.tail is None)  # a blank line takes a row
                if number:
                    self.start_line()
                fresh += bool(line) and self.tail is None
                begun += fresh
                for _ in range(fresh):
                    if not is_first_row:
                        parts.append((roles, "\n"))
                    is_first_row = False
                if not line:
                    continue
                wraps, self.tail = advance(self.tail or 0, line, columns)
                begun += wraps
                self._line.append(line)
                last = _last_character(line)
                self._tail_end = (roles, last) if width(last) else (self._tail_end[0], self._tail_end[1] + last)
                parts.append((roles, line))
        return self._theme.paint(parts), begun

    def go_to_tail(self, columns: int) -> list[str]:
        """Codes that lead from the last row to the end of its unfinished line; none without one."""
        if self.tail is None:
            return []
        if self.tail < columns:
            return [to_column(self.tail)]
        # The row is full: only writing its last cell again makes the terminal wrap what follows softly.
        roles, last = self._tail_end
        return [to_column(max(0, columns - width(last))), self._theme.paint([(roles, last)])]

    def resize(self, columns: int, *, reflows: bool) -> None:
        """Follow the unfinished line into a window of another width."""
        if self.tail is None:
            return
        if reflows:
            _, self.tail = advance(0, "".join(self._line), columns)
        else:
            self.start_line()  # where the line ends now is the terminal's secret: it goes on in a new row


def _last_character(text: str) -> str:
    """With the marks on it; all of the text when it is made of marks."""
    start = len(text) - 1
    while start and not width(text[start]):
        start -= 1
    return text[start:]
