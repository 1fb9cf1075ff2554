"""Colours, and text made safe to print."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

# Whole escape sequences go, then what is left of control characters is shown as a picture of itself.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(128, 160), "�")
# Characters that turn the direction of text around can make a command look like another one.
_CONTROLS |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298), 8206, 8207, 1564), "�")


def printable(text: str) -> str:
    """`text` without anything that could steer a terminal; a line end alone or after a return stays one."""
    return _SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n").translate(_CONTROLS)


class PrintableStream:
    """`printable` for text that comes in pieces: a sequence that is split over two pieces is taken out whole."""

    _UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*|\r)\Z")
    _LONGEST = 4_096  # characters held back; what is longer is no sequence a terminal would wait for

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        unfinished = self._UNFINISHED.search(text)
        end = unfinished.start() if unfinished and len(unfinished.group()) <= self._LONGEST else len(text)
        self._held = text[end:]
        return printable(text[:end])

    def close(self) -> str:
        held, self._held = self._held, ""
        return printable(held)


class Theme:
    """Paints text, or leaves it when colours are off. No meaning is in colour alone."""

    def __init__(self, *, colours: bool) -> None:
        self.colours = colours

    def paint(self, text: str, *styles: str) -> str:
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def diff(self, diff: str, most_lines: int) -> str:
        """A unified diff without its file lines, coloured, cut after `most_lines`."""
        lines = [line for line in printable(diff).split("\n") if not line.startswith(("--- ", "+++ "))]
        if lines and not lines[-1]:
            lines.pop()
        shown = [self.paint(line, *self._diff_style(line)) for line in lines[:most_lines]]
        if len(lines) > most_lines:
            shown.append(self.paint(f"… {len(lines) - most_lines} more lines", "dim"))
        return "\n".join(f"  {line}" for line in shown)

    @staticmethod
    def _diff_style(line: str) -> tuple[str, ...]:
        return {"+": ("green",), "-": ("red",), "@": ("cyan",)}.get(line[:1], ("dim",))


def wants_colours(environment: Mapping[str, str], *, plain: bool, is_terminal: bool) -> bool:
    """NO_COLOR (no-color.org), TERM=dumb and --plain turn colours off; FORCE_COLOR turns them on."""
    if plain or environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return is_terminal or bool(environment.get("FORCE_COLOR"))
