"""Prints a turn: text as it streams, one line for each call, diffs of edits, what it cost."""

from __future__ import annotations

import asyncio
from typing import TextIO

from agentcli.agent.events import (
    Done,
    Event,
    Notice,
    ProviderSwitched,
    Retry,
    Steered,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnFailed,
)
from agentcli.frontends.printable import PrintableStream, printable
from agentcli.frontends.terminal.theme import Theme

SHOW_AS_RUNNING_S = 2.0  # a call that takes longer is announced before it has ended
DIFF_LINES = 24


class Renderer:
    """Only ever appends to the output; remembers whether the cursor stands at the start of a line."""

    def __init__(self, out: TextIO, theme: Theme) -> None:
        self._out = out
        self._theme = theme
        self._at_line_start = True
        self._is_thinking = False
        self._text = PrintableStream()
        self._model = ""
        self._seen_diffs: set[str] = set()
        self._running: dict[str, tuple[str, asyncio.TimerHandle]] = {}

    def show(self, event: Event) -> None:
        match event:
            case TextDelta(text):
                self._end_thinking()
                self._write(self._text.feed(text))
            case ThinkingDelta(text):
                self._think(text)
            case ToolStarted(id, _, _, title):
                timer = asyncio.get_running_loop().call_later(SHOW_AS_RUNNING_S, self._announce, title)
                self._running[id] = (title, timer)
            case ToolFinished():
                self._finished(event)
            case TurnEnded(_, _, model, provider):
                self._model = f"{provider}/{model} · "
            case Retry(number, delay_s, error):
                self.line(f"{error} Trying again in {delay_s:.0f} s (retry {number}).", "yellow")
            case Notice(text):
                self.line(text, "yellow")
            case ProviderSwitched(before, after):
                self.line(f"{before} → {after}", "dim")
            case Steered(skipped):
                self.line(f"Your message came first: {len(skipped)} calls were not run.", "dim")
            case TurnFailed(error):
                self.line(f"✗ {error}", "red")
            case Done():
                self._done(event)
            case _:
                pass

    def line(self, text: str, *styles: str) -> None:
        """A line of its own."""
        self._end_thinking()
        self._fresh_line()
        self._write("\n".join(self._theme.paint(part, *styles) for part in printable(text).split("\n")) + "\n")

    def block(self, text: str) -> None:
        """Text that is painted already, on lines of its own."""
        self._fresh_line()
        self._write(text + "\n")

    def diff(self, call_id: str, diff: str) -> None:
        """The diff a call would make; it is not shown again when the call has made it."""
        self._seen_diffs.add(call_id)
        self.block(self._theme.diff(diff, DIFF_LINES))

    def key_was_echoed(self) -> None:
        """The cursor no longer stands where the last output left it."""
        self._at_line_start = False

    def _announce(self, title: str) -> None:
        self.line(f"… {title} (running)", "dim")

    def _finished(self, event: ToolFinished) -> None:
        title, timer = self._running.pop(event.id, (event.name, None))
        if timer is not None:
            timer.cancel()
        mark, colour = ("✗", "red") if event.result.is_error else ("✓", "green")
        took = f" · {event.duration_ms / 1000:.1f} s" if event.duration_ms >= 1000 else ""
        summary = f" · {event.summary}" if event.summary else ""
        self._end_thinking()
        self._fresh_line()
        outcome = self._theme.paint(printable(summary) + took, "dim")
        self._write(f"{self._theme.paint(mark, colour)} {printable(title)}{outcome}\n")
        diff = event.structured.get("diff") if isinstance(event.structured, dict) else None
        if diff and not event.result.is_error and event.id not in self._seen_diffs:
            self.block(self._theme.diff(diff, DIFF_LINES))

    def _think(self, text: str) -> None:
        if not self._is_thinking:
            self._fresh_line()
            self._is_thinking = True
        self._write(self._theme.paint(self._text.feed(text), "dim"))

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._write("\n\n" if not self._at_line_start else "\n")

    def _done(self, done: Done) -> None:
        self._end_thinking()
        self._fresh_line()
        match done.reason:
            case "interrupted":
                self.line("Interrupted; what was said is kept.", "yellow")
            case "max_turns":
                self.line("Stopped at the limit of requests for one prompt; say “go on” to go on.", "yellow")
            case "max_budget":
                self.line("Stopped: the budget is used up.", "yellow")
            case "max_tokens":
                self.line("The answer was cut off by its length limit; say “go on” to go on.", "yellow")
            case _:
                pass
        usage = done.usage
        cost = f" · ${done.cost_usd:.4f}" if done.cost_usd else ""
        self.line(f"{self._model}{usage.prompt_tokens:,} tokens in, {usage.output_tokens:,} out{cost}", "dim")

    def _fresh_line(self) -> None:
        self._write(self._text.close())
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")
