"""Runs a session line by line, for screen readers, logs and terminals that cannot move the cursor."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from agentcli.agent.commands.command import CommandSet
from agentcli.agent.events import AnyQuestion, Question
from agentcli.agent.ops import Interrupt, RunCommand
from agentcli.frontends.choices import yes_or_no
from agentcli.frontends.printable import printable
from agentcli.frontends.run_end import leave_on_signals
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.typed_text import TypedText
from agentcli.frontends.terminal.output.turn_view import TurnEnd, TurnView
from agentcli.frontends.terminal.panel import QuestionPanel
from agentcli.frontends.terminal.programs import run_program
from agentcli.frontends.terminal.screen_commands import trust_command
from agentcli.frontends.terminal.status import TerminalActions, TerminalOpener
from agentcli.frontends.terminal.text.fragments import Fragment, plain
from agentcli.frontends.terminal.text.theme import Theme

TWICE_S = 2.0  # a second Ctrl-C within this time is a repetition
WIDTH = 80  # of tables and diffs
_WORDS = {"yes": "y", "session": "s", "always": "a", "try": "t", "no": "n"}  # answers and their keys


class LinearOutput:
    """Prints fragments one after another; a theme paints them where there is one."""

    columns = WIDTH

    def __init__(self, out: TextIO, theme: Theme | None = None) -> None:
        self._out, self._theme = out, theme
        self.at_line_start = True
        self.has_lost_reader = False  # True once the program that read the output through a pipe has ended

    def print(self, fragments: Sequence[Fragment]) -> None:
        if text := plain(fragments):
            try:
                self._out.write(self._theme.paint(fragments) if self._theme else text)
                self._out.flush()
            except OSError:
                self.has_lost_reader = True
            self.at_line_start = text.endswith("\n")


class PlainTerminal(TerminalActions):
    """A terminal with lines only: a line typed during a turn steers it."""

    def __init__(
        self, opener: TerminalOpener, commands: CommandSet, *, stdin: int, out: TextIO, banner: Sequence[str]
    ) -> None:
        self._stdin, self._banner = stdin, banner
        self._output = LinearOutput(out)
        self._view = TurnView(self._output, is_live=False, unfold_key="", shows_claims=opener.shows_claims)
        self._controller = TerminalController(opener, self, commands, self._view)
        commands.add(trust_command(self._controller, opener))
        self._panels: list[QuestionPanel] = []
        self._list_answer: asyncio.Future[str] | None = None  # gets the next line, while a list is open
        self._leaving, self._exit_code = asyncio.Event(), 0
        self._leave_deadline = 0.0  # a Ctrl-C leaves until then, by `time.monotonic()`
        self._unfinished_line = b""  # typed so far
        self._mode = "default"  # the permission mode that was printed last

    async def run(self, prompt: str | None) -> int:
        """Read lines until the person leaves; return the exit code. Raises the error of a session that did not open."""
        for line in self._banner:
            self._view.print_line(line)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stdin, self._read_lines)
        loop.add_signal_handler(signal.SIGINT, self._handle_ctrl_c)
        leave_on_signals(self._leave_with)
        opening = self._controller.start_opening()
        # Without a session there is nothing to do; the error is raised below.
        opening.add_done_callback(lambda done: self.leave() if done.cancelled() or done.exception() else None)
        if prompt:
            self._controller.submit(TypedText(prompt))
        else:
            self.show_prompt_sign()
        try:
            await self._leaving.wait()
        finally:
            loop.remove_reader(self._stdin)
            await self._controller.close()
        if opening.done() and not opening.cancelled():
            opening.result()  # raises its error
        return self._exit_code

    def _read_lines(self) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(self._stdin, 65_536)
        if not data:  # Ctrl-D or the end of a pipe
            self._controller.leave()  # a pipe's end is read again, and this second request leaves even with jobs
            if not self._leaving.is_set():
                self.show_prompt_sign()
            return
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        self._output.at_line_start = True  # the terminal has shown the line end
        for line in lines:
            self._handle_line(printable(line.decode("utf-8", "replace")).strip())

    def _handle_line(self, line: str) -> None:
        """Handle a typed line: for an open list, a question or the session, which an empty line may continue."""
        self._leave_deadline = 0.0
        if self._list_answer is not None and not self._list_answer.done():
            self._list_answer.set_result(line)
        elif self._panels:
            self._answer(line)
        elif line:
            self._controller.submit(TypedText(line))
        elif not self._controller.is_busy:
            self._controller.handle_empty_enter()
            if not self._controller.is_busy:
                self.show_prompt_sign()

    def _answer(self, line: str) -> None:
        """Take a line as an answer: a choice by its key or number, else words. An empty line is a no."""
        panel, word = self._panels[0], line.lower()
        choice = panel.choice_for(_WORDS.get(word, word)) if word else panel.no
        if choice is not None and choice.id == "view":
            self._print_question(panel, is_whole=True)
            return
        commands, is_model_question = self._controller.commands, isinstance(panel.question, Question)
        # The model's question may be answered with a path, such as /srv; at an approval, that is a mistyped command.
        is_command = commands.is_known(line) if is_model_question else commands.is_command(line)
        if not choice and is_command:
            enter = "Enter skips it" if is_model_question else "Enter declines"
            self._view.print_question([("warning", f"Answer the question first ({enter}), then type {line} again.\n")])
            self._print_choices(panel)
            return
        self._panels.pop(0)
        answer = panel.answer(choice) if choice and choice.answer else panel.answer_in_words(line)
        self._view.print_answer(answer, panel.outcome(answer, WIDTH))
        self._controller.answer(answer)
        self._show_question()

    def _show_question(self) -> None:
        self._view.release_held_output()
        if self._panels:
            self._print_question(self._panels[0])

    def _print_question(self, panel: QuestionPanel, *, is_whole: bool = False) -> None:
        self._view.print_question(panel.preview(WIDTH, is_whole=is_whole))
        self._print_choices(panel)

    def _print_choices(self, panel: QuestionPanel) -> None:
        self._output.print([("", f"{line}\n") for line in panel.plain_lines()])
        words = "answer in your own words" if isinstance(panel.question, Question) else "say what to do instead"
        self._output.print([("", f"Choose, or {words}: ")])

    def _handle_ctrl_c(self) -> None:
        """Interrupt what runs, else close a list, else leave when it is pressed twice."""
        self._output.at_line_start = False  # the terminal has written ^C
        if self._controller.is_open and (self._controller.is_busy or self._view.activity.is_busy):
            self._controller.session.submit(Interrupt())
        elif self._list_answer is not None and self._controller.is_open:
            self._handle_line("")  # an empty answer chooses nothing
            self._output.print([("", "\n")])
            self.show_prompt_sign()
        elif self._controller.warn_about_jobs():  # only the first time: the next Ctrl-C leaves, however late it comes
            self._leave_deadline = float("inf")
            self.show_prompt_sign()
        elif time.monotonic() < self._leave_deadline or not self._controller.is_open or not os.isatty(self._stdin):
            self._leave_with(128 + signal.SIGINT)
        else:
            self._leave_deadline = time.monotonic() + TWICE_S
            self._view.print_line("Press Ctrl-C again to leave.", "warning")
            self.show_prompt_sign()

    def _leave_with(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self.leave()

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, is_startup: bool = False
    ) -> int | None:
        """Print the options with numbers, and read a choice: a number, y or n."""
        for number, (label, detail) in enumerate(options, 1):
            self._view.print_line(f"{number:>3} {'●' if number - 1 == current else ' '} {label}  {detail}".rstrip())
        self._output.print([("", f"{title} (type a number, or Enter to cancel): ")])
        self._list_answer = asyncio.get_running_loop().create_future()
        try:
            answer = await self._list_answer
        finally:
            self._list_answer = None
        if is_startup and answer and not answer.isdecimal():  # a prompt for later; the list stays open
            self._controller.submit(TypedText(answer))
            return await self.choose(title, options, current=current, is_startup=True)
        if (index := yes_or_no(answer[:1].lower(), [label for label, _ in options])) is not None:
            return index
        return int(answer) - 1 if answer.isdecimal() and 1 <= int(answer) <= len(options) else None

    async def ask_secret(self, question: str) -> str | None:
        self._view.print_line("A key typed here would be visible. To store one, run agentcli login PROVIDER.")
        return None

    async def run_with_terminal(self, arguments: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._stdin)
        try:
            await run_program(arguments)
        finally:
            loop.add_reader(self._stdin, self._read_lines)

    async def run_own_command(self, command: str, *, to_model: bool) -> None:
        self._controller.session.submit(RunCommand(command, to_model))

    def session_opened(self) -> None:
        self._panels.clear()

    def put_into_input(self, text: str) -> None:
        self._view.print_line(f"Your message, to edit and send again:\n{text}")

    def ask_question(self, question: AnyQuestion) -> None:
        self._panels.append(QuestionPanel(question, self._view.activity.agent_title(question.agent_id)))
        if len(self._panels) == 1:
            self._show_question()

    def forget_question(self, id: str) -> None:
        before, self._panels = self._panels, [panel for panel in self._panels if panel.question.id != id]
        if self._panels[:1] != before[:1]:  # the question on the screen was withdrawn
            self._show_question()

    def draw_soon(self) -> None:
        """Print the permission mode if it has changed; leave if nobody reads the output any more."""
        if self._output.has_lost_reader:
            self.leave()
        if (mode := self._controller.status.mode) != self._mode:
            self._mode = mode
            self._view.print_line(f"Permission mode: {mode}")

    def show_prompt_sign(self) -> None:
        self._output.print([("", "› ")])

    def turn_ended(self, end: TurnEnd) -> None:
        """Withdraw the turn's questions, not background agents'; a queued message begins the next turn at once."""
        still_open = self._controller.session.open_questions
        self._panels = [panel for panel in self._panels if panel.question.id in still_open]
        if not self._panels:
            self._view.release_held_output()
        if not self._controller.session.snapshot().conversation.queue.follow_ups:
            self.show_prompt_sign()

    def leave(self) -> None:
        self._leaving.set()
