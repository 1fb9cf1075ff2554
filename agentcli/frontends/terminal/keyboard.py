"""Keys as the terminal sends them, and the answers it gives to questions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

# Enter with Shift, Alt or Ctrl, as xterm (modifyOtherKeys) and kitty's protocol report it: a new line.
ANSI_SEQUENCES.update(
    {f"\x1b[27;{modifier};13~": Keys.ControlJ for modifier in (2, 3, 5)}
    | {f"\x1b[13;{modifier}u": Keys.ControlJ for modifier in (2, 3, 5)}
    | {"\x1b[27u": Keys.Escape}
)

# What colour is the background (xterm OSC 11)? Is output synchronized on request (DECRQM of mode 2026)?
QUESTIONS = "\x1b]11;?\x1b\\\x1b[?2026$p"
_REPORT = re.compile(r"\x1b\](\d+;[^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b\[(\?2026;\d\$y)|\x1b\[([IO])(?![A-Za-z])")
_BEGUN_REPORT = re.compile(r"\x1b(?:\](?:\d[^\x07\x1b]*\x1b?)?|\[\?(?:2026?[;\d$]*)?)\Z")


class TerminalInput(Vt100Input):
    """Standard input without the terminal's reports, which go to `on_report`.

    A report is `11;rgb:…` (the background), `?2026;2$y` (synchronized output), `I` or `O` (focus came or went).
    """

    def __init__(self, stdin: TextIO, on_report: Callable[[str], None]) -> None:
        super().__init__(stdin)
        self._on_report = on_report
        self._begun = ""
        self.expects_reports = False  # only then may a key be held back because it could be the start of one

    def read_keys(self) -> list[KeyPress]:
        data = self._begun + self.stdin_reader.read()
        self._begun = ""
        if "\x1b" in data:
            data = _REPORT.sub(self._reported, data)
            if self.expects_reports and (begun := _BEGUN_REPORT.search(data)):
                self._begun, data = begun.group(), data[: begun.start()]
        self.vt100_parser.feed(data)
        keys, self._buffer = self._buffer, []
        return keys

    def flush_keys(self) -> list[KeyPress]:
        if self._begun:  # it was no report
            self.vt100_parser.feed(self._begun)
            self._begun = ""
        return super().flush_keys()

    def _reported(self, found: re.Match[str]) -> str:
        self._on_report(next(group for group in found.groups() if group))
        return ""
