"""Shows the whole of something that the transcript shows in part."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.programs.pager import run_pager
from agentcli.frontends.terminal.text.diff import diff_fragments

UNFOLD_LINES = 60  # longer output goes to a pager


@dataclass(eq=False)
class Unfolding:
    """Unfolds below the transcript, or in the pager; `spawn` lets the pager run."""

    console: Console
    view: TurnView
    spawn: Callable[[Coroutine[Any, Any, None]], None]

    def unfold(self) -> bool:
        """Show the last output as a whole; the next time, the one before it. False when none is left."""
        if not self.view.folded:
            return False
        part = self.view.folded.pop()
        if part.text.count("\n") > UNFOLD_LINES:
            self.page(f"{part.title}\n\n{part.text}")
            return True
        self.view.line(f"▾ {part.title}", "accent")
        if part.is_diff:
            self.view.block(diff_fragments(part.text, width=self.console.columns, most_lines=None))
        else:
            self.view.block([("muted", "".join(f"  {line}\n" for line in part.text.rstrip("\n").split("\n")))])
        return True

    def page(self, text: str) -> None:
        """Show a text in the pager, or print it where there is none."""
        self.spawn(self._page(text))

    async def _page(self, text: str) -> None:
        async with self.console.hand_over():
            was_shown = await run_pager(text, self.console.environment)
        if not was_shown:
            self.view.line(text)
