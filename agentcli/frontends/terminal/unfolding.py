"""Shows the whole of something that the transcript shows in part."""

from __future__ import annotations

from dataclasses import dataclass

from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.programs.pager import run_pager
from agentcli.frontends.terminal.text.diff import diff_fragments

UNFOLD_LINES = 60  # longer output goes to a pager


@dataclass(eq=False)
class Unfolding:
    """Unfolds below the transcript, or in the pager."""

    console: Console
    controller: TerminalController

    def unfold(self) -> None:
        """Show the last output as a whole; the next time, the one before it."""
        view = self.controller.view
        if not view.folded:
            self.console.hint.show("There is nothing to unfold.")
            return
        part = view.folded.pop()
        if part.text.count("\n") > UNFOLD_LINES:
            self.page(f"{part.title}\n\n{part.text}")
            return
        view.line(f"▾ {part.title}", "accent")
        if part.is_diff:
            view.block(diff_fragments(part.text, width=self.console.columns, most_lines=None))
        else:
            view.block([("muted", "".join(f"  {line}\n" for line in part.text.rstrip("\n").split("\n")))])

    def page(self, text: str) -> None:
        """Show a text in the pager, or print it where there is none."""
        self.controller.spawn(self._page(text))

    async def _page(self, text: str) -> None:
        async with self.console.hand_over():
            was_shown = await run_pager(text, self.console.environment)
        if not was_shown:
            self.controller.view.line(text)
