"""Switches the colours of the screen between themes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.text.theme import background_of, own_codes, palette_for
from agentcli.look_settings import THEMES


class Appearance:
    """`choice` is one of `themes`: our own and `own`, the person's."""

    def __init__(self, console: Console, choice: str, own: Mapping[str, Mapping[str, int | str]]) -> None:
        self._console = console
        self._own = own
        self._background = ""  # "dark" or "light", once the terminal has said so
        self.choice = choice

    @property
    def themes(self) -> Sequence[str]:
        return (*THEMES, *self._own)

    def use(self, choice: str) -> None:
        """Paint everything from now on with this theme."""
        self.choice = choice
        environment = self._console.environment
        palette = palette_for(choice, environment, is_terminal=True, background=self._background)
        if self._console.theme.use(palette, own_codes(self._own.get(choice, {}), environment)):
            self._console.redraw()

    def take_background(self, report: str) -> None:
        """Fit the theme to the background that the terminal has reported."""
        self._background = background_of(report)
        self.use(self.choice)
