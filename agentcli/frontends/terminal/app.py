"""Puts the parts of the interactive terminal together: session, input, live region, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from agentcli.agent.calls.own_command import run_in_terminal
from agentcli.agent.commands.command import ChoiceIndex, CommandSet
from agentcli.agent.ops import CommandRan
from agentcli.agent.permissions.modes import MODE_TEXTS
from agentcli.agent.state import SessionSnapshot
from agentcli.conversation.instructions import git_branch
from agentcli.errors import ToolError
from agentcli.frontends.printable import printable, with_tilde
from agentcli.frontends.terminal.approval.asking import Asking
from agentcli.frontends.terminal.approval.picker import Picker
from agentcli.frontends.terminal.console import Console, Notifier
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.completion import PromptCompleter
from agentcli.frontends.terminal.input.composer import Composer, Typing
from agentcli.frontends.terminal.input.keyboard import KeyLabels
from agentcli.frontends.terminal.key_actions import UNFOLD_LINES, KeyActions
from agentcli.frontends.terminal.keys import key_bindings
from agentcli.frontends.terminal.live_region import LiveRegion
from agentcli.frontends.terminal.output.live import TICK_S
from agentcli.frontends.terminal.output.screen import Frame
from agentcli.frontends.terminal.output.tool_views import FoldedText
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.programs import edit_text, lend_terminal, run_program
from agentcli.frontends.terminal.protocols import TerminalOpener
from agentcli.frontends.terminal.screen_commands import Appearance, argument_options, screen_commands
from agentcli.frontends.terminal.status import StatusCommand, short_model
from agentcli.frontends.terminal.text.wrapping import wrapped
from agentcli.llm.messages import Block
from agentcli.settings.terminal import TerminalSettings


class TerminalApp:
    """The live screen of a session. Implements `TerminalActions` and `ConsoleView`."""

    def __init__(
        self,
        console: Console,
        opener: TerminalOpener,
        commands: CommandSet,
        *,
        settings: TerminalSettings,
        typing: Typing,
    ) -> None:
        self._console = console
        self._opener = opener
        self._files = typing.files
        self._keeps = typing.drafts is not None
        self._title_state = ""
        self._tick_timer: asyncio.TimerHandle | None = None
        self.leave, self.changed, self.idle = console.leave, console.changed, console.changed
        self.on_close: Callable[[], Awaitable[None]] | None = None  # gives back what sessions share
        self._labels = labels = KeyLabels(settings.keys)
        self._view = TurnView(
            console,
            interrupt_key=labels.first("interrupt"),
            unfold_key=labels.first("unfold"),
            wraps=settings.wrap == "words",
            home=console.environment.get("HOME", ""),
            shows_claims=opener.shows_claims,
        )
        self.controller = controller = TerminalController(opener, self, commands, self._view)
        self._warnings: list[str] = []  # held until the first lines are printed
        self._has_begun = False
        self._notifier = Notifier(console.raw, settings.notifications, console.environment)
        self._appearance = Appearance(console, settings.theme, settings.themes)
        self._status_command = StatusCommand(settings.status_command, console.environment, console.changed)
        self._composer = composer = Composer(
            console.area,
            typing,
            labels,
            environment=console.environment,
            tell=console.hint.show,
            hand_over=console.hand_over,
        )
        notify = partial(self._notifier.notify, is_urgent=True)
        self._asking = asking = Asking(console, controller, composer, notify=notify)
        self.ask_secret, self.ask_question = asking.ask_secret, asking.ask_question
        self.forget_question = asking.forget_question
        self._region = region = LiveRegion(console, controller, composer, asking, self._status_command, labels=labels)
        actions = KeyActions(console, controller, composer, asking, region, labels=labels)
        console.area.mark, console.area.placeholder = lambda: asking.mark, region.placeholder
        console.keys = key_bindings(actions, labels.keys)
        for command in screen_commands(controller, console, self._appearance):
            commands.add(command)
        arguments = partial(argument_options, commands=commands, opener=opener, appearance=self._appearance)
        console.area.buffer.completer = PromptCompleter(
            commands, arguments, typing.files, folder=typing.folder, home=typing.home
        )

    # From the start to the end

    def start(self, prompt: str | None) -> None:
        """Open the session; a prompt from the command line is the first thing said in it."""
        if prompt is None and not self._composer.area.buffer.text and self._composer.restore_draft():
            self._console.hint.show("Your draft is back.")
        asyncio.get_running_loop().run_in_executor(None, self._composer.history.load)
        self.controller.start_opening().add_done_callback(self._opened)
        for report in self._console.early_reports:
            self.reported(report)
        for text in ([prompt] if prompt else []) + self._console.early_lines:
            self.controller.submit(text)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self._console.fail(error)
        else:
            self.changed()

    def show_warning(self, text: str) -> None:
        """A warning of the runtime; before the session is open it waits for the first lines."""
        if self._console.head:
            self._warnings.append(text)
        else:
            self._view.line(text, "warning")

    # For the console

    def draw(self, columns: int, most: int) -> Frame:
        """Draw a frame; while something is under way another one follows soon. The window's title has the state."""
        state = "asks" if self._asking.asks else "working" if self.controller.is_busy else "ready"
        if state != self._title_state and self._console.environment.get("TERM") != "linux":
            self._title_state = state
            self._console.title(f"{printable(self._opener.root.name or '/')} · {state}")
        if self._tick_timer is None and self._view.live.is_moving:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return self._region.draw(columns, most)

    def _tick(self) -> None:
        self._tick_timer = None
        if self._view.live.is_moving:
            self._console.changed()

    def reported(self, report: str) -> None:
        if report in ("I", "O"):
            self._notifier.has_focus = report == "I"
        elif report.startswith("11;"):
            self._appearance.take_background(report)

    async def last_words(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._status_command.cancel()
        self._asking.forget_questions()  # and have the draft back that they took the place of
        if not self._composer.area.buffer.text.strip():
            self._composer.forget_draft()
        self._print_warnings()
        was_used = (
            self._keeps and self.controller.is_open and bool(self.controller.session.snapshot().conversation.entries)
        )
        await self.controller.close()
        if was_used:
            self._view.line(f"Go on with: agentcli -r {self.controller.session.id[:13]}", "muted")
        await self._files.aclose()
        if self.on_close is not None:
            await self.on_close()

    # For the controller

    def status_changed(self) -> None:
        self._status_command.refresh(self.controller.status)

    def turn_ended(self, why: str) -> None:
        self._status_command.refresh(self.controller.status)
        self._asking.forget_questions()
        if why != "interrupted":
            self._notifier.notify("The answer is there." if why == "done" else "The turn failed.")

    def session_opened(self) -> None:
        self._asking.forget_questions()
        self._region.shows_todo = False
        if not self._has_begun:
            self._has_begun = True
            self._print_first_lines(self.controller.session.snapshot())

    def _print_first_lines(self, session: SessionSnapshot) -> None:
        """The place, the model and the files read, then warnings."""
        program, files = self._opener.introduction()
        name, _, place = program.partition(" · ")
        parts = [git_branch(self._opener.root) or "", short_model(session.model), MODE_TEXTS[session.mode][0]]
        head = [("bold", name), ("muted", " · ")] if self._console.head else []
        parts = [part for part in ([place, *parts] if head else parts) if part]
        head.append(("muted", f"{' · '.join(parts)}\n"))
        if files:
            head.append(("muted", f"read {', '.join(files)}\n"))
        home = self._console.environment.get("HOME", "")
        head = [(roles, with_tilde(printable(text), home)) for roles, text in head]
        self._console.print(wrapped(head, self._console.columns, hang=2), is_head=True)
        self._print_warnings()
        self._console.print([("", "\n")])
        self._view.begin_anew()

    def _print_warnings(self) -> None:
        for text in self._warnings:
            self._view.line(text, "warning")
        self._warnings.clear()

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> ChoiceIndex | None:
        picker = Picker(title, options, current=current, can_keep=can_keep)
        return await self._asking.pick(picker) if options else None

    async def run_outside(self, arguments: Sequence[str]) -> None:
        async with self._console.hand_over():
            await run_program(arguments)

    async def edit(self, text: str) -> str | None:
        async with self._console.hand_over():
            return await edit_text(text, self._console.environment)

    async def run_own(self, command: str, *, to_model: bool) -> None:
        """Run a command of the person's with the terminal lent to it, then tell the session what it said."""
        session, view, said = self.controller.session, self._view, ""
        try:
            async with self._console.hand_over():
                said, ended = await lend_terminal(partial(run_in_terminal, session.runtime.calls, command))
        except ToolError as error:
            ended = f"[{error}]"
        if ended is None:
            ended = "[ended by the user; it may have had effects]"
        if ended:
            view.line(ended, "warning")
        if said.count("\n") > UNFOLD_LINES:
            view.folded.append(FoldedText(f"!{command}", said))
        view.gap()
        whole = "\n".join(part for part in (said.rstrip(), ended) if part)
        session.submit(CommandRan(command, whole, to_model))

    def put_into_input(self, text: str) -> None:
        self._composer.area.set_text(text)
        self.changed()

    def give_back(self, prompts: Sequence[Sequence[Block]]) -> None:
        if self._composer.area.buffer.text or self._asking.purpose != "prompt":
            key = self._labels.first("previous")
            self._console.hint.show(f"{key} in the empty input brings it back.", 8.0, holds=lambda: True)
            return
        for content in reversed(prompts):
            self._composer.put_before(self._composer.as_typed(content))
        self.changed()
