"""Prints the first lines of a session: the place, the model, the files read, then warnings."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcli.agent.snapshot import SessionSnapshot
from agentcli.frontends.printable import printable, with_tilde
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.protocols import TerminalOpener
from agentcli.frontends.terminal.status import mode_label, short_model
from agentcli.frontends.terminal.text.wrapping import wrapped


@dataclass(eq=False)
class FirstLines:
    """Holds warnings back until the first lines are printed."""

    console: Console
    view: TurnView
    opener: TerminalOpener
    _warnings: list[str] = field(default_factory=list)
    _are_shown: bool = False

    def show(self, session: SessionSnapshot) -> None:
        """Print them, the first time."""
        if self._are_shown:
            return
        self._are_shown = True
        program, files = self.opener.introduction()
        name, _, place = program.partition(" · ")
        parts = [self.opener.branch(), short_model(session.model), mode_label(session.mode)]
        head = [("bold", name)] if self.console.head else []
        parts = [part for part in ([place, *parts] if head else parts) if part]
        head.append(("muted", f"{' · ' if head else ''}{' · '.join(parts)}\n"))
        if files:
            head.append(("muted", f"read {', '.join(files)}\n"))
        home = self.console.environment.get("HOME", "")
        head = [(roles, with_tilde(printable(text), home)) for roles, text in head]
        self.console.print(wrapped(head, self.console.columns, hang=2), is_head=True)
        self.print_warnings()
        self.console.print([("", "\n")])
        self.view.begin_anew()

    def warn(self, text: str) -> None:
        if self.console.head:
            self._warnings.append(text)
        else:
            self.view.line(text, "warning")

    def print_warnings(self) -> None:
        for text in self._warnings:
            self.view.line(text, "warning")
        self._warnings.clear()
