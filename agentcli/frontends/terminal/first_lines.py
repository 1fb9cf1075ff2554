"""Prints the first lines of a session: the place, the model, the files read, then warnings."""

from __future__ import annotations

from agentcli.agent.snapshot import SessionSnapshot
from agentcli.frontends.printable import printable, with_tilde
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.output.status_bar import mode_label, short_model
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.protocols import TerminalOpener
from agentcli.frontends.terminal.text.wrapping import wrapped


class FirstLines:
    """Holds warnings back until the first lines are printed."""

    def __init__(self, console: Console, view: TurnView, opener: TerminalOpener) -> None:
        self._console = console
        self._view = view
        self._opener = opener
        self._warnings: list[str] = []
        self._are_shown = False

    def show(self, session: SessionSnapshot) -> None:
        """Print them, the first time."""
        if self._are_shown:
            return
        self._are_shown = True
        program, files = self._opener.introduction()
        name, _, place = program.partition(" · ")
        parts = [self._opener.branch(), short_model(session.model), mode_label(session.mode)]
        head = [("bold", name)] if self._console.has_head else []
        parts = [part for part in ([place, *parts] if head else parts) if part]
        head.append(("muted", f"{' · ' if head else ''}{' · '.join(parts)}\n"))
        if files:
            head.append(("muted", f"read {', '.join(files)}\n"))
        home = self._console.environment.get("HOME", "")
        head = [(roles, with_tilde(printable(text), home)) for roles, text in head]
        self._console.print(wrapped(head, self._console.columns, hang=2), is_head=True)
        self.print_warnings()
        self._console.print([("", "\n")])
        self._view.begin_anew()

    def warn(self, text: str) -> None:
        if self._console.has_head:
            self._warnings.append(text)
        else:
            self._view.line(text, "warning")

    def print_warnings(self) -> None:
        for text in self._warnings:
            self._view.line(text, "warning")
        self._warnings.clear()
