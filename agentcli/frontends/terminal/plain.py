"""Runs the session line by line, for screen readers, logs and terminals that cannot move the cursor."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Sequence
from typing import TextIO

from agentcli.agent.commands.command import ChoiceIndex, CommandSet
from agentcli.agent.events import AnyQuestion, Question
from agentcli.agent.ops import Interrupt, RunCommand
from agentcli.frontends.printable import printable
from agentcli.frontends.run_end import leave_on_signals
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.panel import QuestionPanel
from agentcli.frontends.terminal.programs import run_program
from agentcli.frontends.terminal.protocols import TerminalActions, TerminalOpener
from agentcli.frontends.terminal.text.fragments import Fragment, first_rows, plain, rows_of
from agentcli.frontends.terminal.text.theme import Theme

ROWS_OF_QUESTION = 4  # that stay free below a page of what is asked about
TWICE_S = 2.0  # within which a second Ctrl-C leaves
WIDTH = 80  # for tables and diffs, which need one
_WORDS = {"yes": "y", "session": "s", "always": "a", "try": "t", "no": "n"}


class LinearOutput:
    """Prints fragments one after another; a theme paints them where there is one."""

    columns = WIDTH

    def __init__(self, out: TextIO, theme: Theme | None = None) -> None:
        self._out = out
        self._theme = theme
        self.at_line_start = True
        self.is_gone = False

    def print(self, fragments: Sequence[Fragment]) -> None:
        if text := plain(fragments):
            try:
                self._out.write(self._theme.paint(fragments) if self._theme else text)
                self._out.flush()
            except OSError:  # whoever read this has gone
                self.is_gone = True
            self.at_line_start = text.endswith("\n")


class PlainTerminal(TerminalActions):
    """A terminal with lines only: a line typed during a turn steers it."""

    def __init__(
        self, opener: TerminalOpener, commands: CommandSet, *, stdin: int, out: TextIO, banner: Sequence[str]
    ) -> None:
        self._stdin = stdin
        self._output = LinearOutput(out)
        self._banner = banner
        self._view = TurnView(self._output, is_live=False, unfold_key="", shows_claims=opener.shows_claims)
        self._controller = TerminalController(opener, self, commands, self._view)
        self._panels: list[QuestionPanel] = []
        self._choosing: asyncio.Future[str] | None = None
        self._leaving = asyncio.Event()
        self._exit_code = 0
        self._leaves_until = 0.0  # at the next Ctrl-C
        self._typed = b""
        self._mode = "default"

    async def run(self, prompt: str | None) -> int:
        """Read lines until the person leaves; gives the exit code. Raises the error of a session that did not open."""
        for line in self._banner:
            self._view.line(line)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stdin, self._read)
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        leave_on_signals(self._leave_with)
        opening = self._controller.start_opening()
        opening.add_done_callback(lambda done: self.leave() if done.cancelled() or done.exception() else None)
        if prompt:
            self._controller.submit(prompt)
        else:
            self._ask_for_more()
        try:
            await self._leaving.wait()
        finally:
            loop.remove_reader(self._stdin)
            await self._controller.close()
        if opening.done() and not opening.cancelled() and (error := opening.exception()) is not None:
            raise error
        return self._exit_code

    def _ask_for_more(self) -> None:
        self._output.print([("", "› ")])

    def _read(self) -> None:
        try:
            data = os.read(self._stdin, 65_536)
        except OSError:
            data = b""
        if self._output.is_gone:
            self.leave()
            return
        if not data:  # Ctrl-D; where nothing more can come it is read again at once
            self._controller.leave()
            if not self._leaving.is_set():
                self._ask_for_more()
            return
        self._typed += data
        *lines, self._typed = self._typed.split(b"\n")
        self._output.at_line_start = True  # the terminal has shown the line end
        for line in lines:
            self._take(printable(line.decode("utf-8", "replace")).strip())

    def _take(self, line: str) -> None:
        self._leaves_until = 0.0
        if self._choosing is not None and not self._choosing.done():
            self._choosing.set_result(line)
        elif self._panels:
            self._answer(line)
        elif line:
            self._controller.submit(line)
        elif not self._controller.is_busy:
            self._controller.go_on()
            if not self._controller.is_busy:
                self._ask_for_more()

    def _answer(self, line: str) -> None:
        """Take a line as an answer: a choice by its key or number, else words."""
        panel, word = self._panels[0], line.lower()
        choice = panel.choice_for(_WORDS.get(word, word)) if word else panel.no
        shows_all = choice is not None and choice.id == "view"
        if shows_all or (panel.rest and (not word or (choice is not None and choice.is_yes))):
            self._show(panel, panel.rest or panel.preview(WIDTH), is_all=shows_all)
            return
        self._panels.pop(0)
        can_choose = choice is not None and choice.answer is not None
        self._controller.answer(panel.answer(choice) if choice and can_choose else panel.answer_in_words(line))
        if self._panels:
            self._show_question()

    def _show_question(self) -> None:
        self._show(self._panels[0], self._panels[0].preview(WIDTH))

    def _show(self, panel: QuestionPanel, shown: list[Fragment], *, is_all: bool = False) -> None:
        """Show as much of what is asked about as a window has room for, and ask once nothing is left of it."""
        size = os.get_terminal_size(self._stdin) if os.isatty(self._stdin) else os.terminal_size((0, 0))
        panel.rest = []
        if size.lines and size.columns and not is_all:
            shown, panel.rest = first_rows(shown, size.columns, max(1, size.lines - ROWS_OF_QUESTION))
        self._view.block(shown, "question")
        if panel.rest:
            left = f"{rows_of(panel.rest, size.columns):,} more rows"
            self._output.print(
                [("", f"Enter for more ({left}), v for all of it, n for no, or say what to do instead: ")]
            )
            return
        self._view.was_previewed(panel.question.id)
        for text in panel.in_lines():
            self._view.line(text)
        words = "answer in your own words" if isinstance(panel.question, Question) else "say what to do instead"
        self._output.print([("", f"Choose, or {words}: ")])

    def _interrupted(self) -> None:
        self._output.at_line_start = False  # the terminal has written ^C
        if self._controller.is_open and (self._controller.is_busy or self._view.live.is_busy):
            self._controller.session.submit(Interrupt())
        elif self._choosing is not None and self._controller.is_open:
            self._take("")
            self._output.print([("", "\n")])
            self._ask_for_more()
        elif self._controller.name_jobs():
            self._leaves_until = math.inf
            self._ask_for_more()
        elif time.monotonic() < self._leaves_until or not self._controller.is_open or not os.isatty(self._stdin):
            self._leave_with(130)
        else:
            self._leaves_until = time.monotonic() + TWICE_S
            self._view.line("Ctrl-C again leaves.", "warning")
            self._ask_for_more()

    def _leave_with(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self.leave()

    # For the controller

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        for number, (label, detail) in enumerate(options, 1):
            mark = "●" if number - 1 == current else " "
            self._view.line(f"{number:>3} {mark} {label}  {detail}".rstrip())
        self._output.print([("", f"{title}: a number, or Enter for none: ")])
        self._choosing = asyncio.get_running_loop().create_future()
        try:
            answer = await self._choosing
        finally:
            self._choosing = None
        return ChoiceIndex(int(answer) - 1) if answer.isdecimal() and 1 <= int(answer) <= len(options) else None

    async def ask_secret(self, question: str) -> str | None:
        self._view.line("A key is not typed here, where it would be seen: agentcli login PROVIDER keeps one.")
        return None

    async def run_outside(self, arguments: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._stdin)
        try:
            await run_program(arguments)
        finally:
            loop.add_reader(self._stdin, self._read)

    async def run_own(self, command: str, *, to_model: bool) -> None:
        self._controller.session.submit(RunCommand(command, to_model))

    def session_opened(self) -> None:
        self._panels.clear()

    def put_into_input(self, text: str) -> None:
        self._view.line(f"To be sent again, changed or not:\n{text}")

    def ask_question(self, question: AnyQuestion) -> None:
        self._panels.append(QuestionPanel(question))
        if len(self._panels) == 1:
            self._show_question()

    def forget_question(self, id: str) -> None:
        before = self._panels[:1]
        self._panels = [panel for panel in self._panels if panel.question.id != id]
        if self._panels and self._panels[:1] != before:
            self._show_question()

    def changed(self) -> None:
        if self._output.is_gone:
            self.leave()
        if (mode := self._controller.status.mode) != self._mode:
            self._mode = mode
            self._view.line(f"Permission mode: {mode}")

    def idle(self) -> None:
        self._ask_for_more()

    def turn_ended(self, why: str) -> None:
        self._panels.clear()
        if not self._controller.session.snapshot().conversation.queue.follow_ups:
            self._ask_for_more()

    def leave(self) -> None:
        self._leaving.set()
