"""Colours, where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping

from agentcli.frontends.printable import printable

_CODES = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


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
