"""The interactive terminal: one prompt_toolkit application that owns the screen while a session is open."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from prompt_toolkit.history import History

from agentcli.agent.commands.command import Commands, Picked
from agentcli.agent.events import ApprovalRequested, Background, SetMode, TakeBack
from agentcli.agent.permissions import Mode
from agentcli.agent.todo import todo_items
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.asking import Asking
from agentcli.frontends.terminal.completion import PromptCompleter
from agentcli.frontends.terminal.composer import Composer
from agentcli.frontends.terminal.console import HINT, Console
from agentcli.frontends.terminal.desk import House, NothingChosen, TerminalDesk
from agentcli.frontends.terminal.diff import diff_fragments
from agentcli.frontends.terminal.drafts import Drafts
from agentcli.frontends.terminal.file_index import FileIndex
from agentcli.frontends.terminal.keys import key_bindings
from agentcli.frontends.terminal.live import TICK_S, Live, said
from agentcli.frontends.terminal.notify import notification
from agentcli.frontends.terminal.pager import keys_are_not_ours, run_pager
from agentcli.frontends.terminal.panels import key_rows, todo_rows
from agentcli.frontends.terminal.picker import Picker
from agentcli.frontends.terminal.screen import Frame, Row
from agentcli.frontends.terminal.screen_commands import argument_options, screen_commands
from agentcli.frontends.terminal.status_bar import custom_status, status_row
from agentcli.frontends.terminal.theme import background_of, palette_for
from agentcli.frontends.terminal.turn_view import TurnView
from agentcli.llm.messages import Block

TWICE_S = 2.0  # the second Ctrl-C or Esc has to come within
UNFOLD_LINES = 60  # longer output goes to a pager
_BARE_COMMAND = re.compile(r"/\S+ +")
MODE_CYCLE: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "auto")


class Look(Struct, frozen=True):
    """What the settings say of the terminal."""

    theme: str = "auto"
    notifications: str = "auto"
    status_command: str = ""


class TerminalApp:
    """What is on the console while a session is open. Implements the console's `Face` and the desk's `Front`.

    keys.py calls its public methods.
    """

    def __init__(
        self,
        console: Console,
        house: House,
        commands: Commands,
        *,
        look: Look,
        history: History,
        drafts: Drafts | None,
        file_index: FileIndex,
    ) -> None:
        self.console = console
        self._house = house
        self._look = look
        self.theme_choice = look.theme
        self._background = ""
        self.live = Live()
        self.asking = Asking(self)
        self._hint = ""
        self._hint_until = 0.0
        self.last_typed = self._last_escape = self._last_control_c = self._last_control_x = 0.0
        self._shows_todo = False
        self._has_focus: bool | None = None  # until the terminal says so
        self._custom_status = ""
        self.on_close: Callable[[], Awaitable[None]] | None = None  # gives back what sessions share
        self._status_task: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self.view = TurnView(
            console.print,
            self.live,
            columns=lambda: console.columns,
            at_line_start=lambda: console.screen.at_line_start,
        )
        self.desk = TerminalDesk(house, self, commands, self.view, self.live)
        for command in screen_commands(self):
            commands.add(command)
        self.composer = Composer(
            console.area, drafts, environment=console.environment, tell=self.hint, hand_over=console.hand_over
        )
        console.area.use_history(history)
        self._file_index = file_index
        self._keeps = drafts is not None
        console.area.buffer.completer = PromptCompleter(lambda: self.desk.commands, file_index, self._arguments)
        console.area.buffer.on_text_changed += lambda _: self._typed()
        console.keys = key_bindings(self)

    # Living

    def start(self, prompt: str | None) -> None:
        """Open the session; a prompt from the command line is the first thing said in it."""
        if prompt is None and not self.composer.area.buffer.text and self.composer.restore_draft():
            self.hint("Your draft is back.")
        self.desk.start_opening().add_done_callback(self._opened)
        if prompt:
            self.desk.submit(prompt)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self.console.fail(error)
        else:
            self.changed()

    def early_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.desk.submit(line)

    def leave(self) -> None:
        self.console.leave()

    async def last_words(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._status_task is not None:
            self._status_task.cancel()
        if not self.composer.area.buffer.text.strip():
            self.composer.forget_draft()
        was_used = self._keeps and self.desk.is_open and bool(self.desk.session.state.entries)
        await self.desk.close()
        if was_used:
            self.view.line(f"Go on with: agentcli -r {self.desk.session.id[:13]}", "muted")
        await self._file_index.aclose()
        if self.on_close is not None:
            await self.on_close()

    # Drawing

    def changed(self) -> None:
        """Draw a frame soon; while something is under way four a second at least."""
        self.console.changed()
        if self._tick_timer is None and self.live.is_moving:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        if self.live.is_moving:
            self.changed()

    def draw(self, columns: int, most: int) -> Frame:
        """The live region, input and status line first; the rest takes what room is left."""
        area = self.composer.area
        status = [self._status_row(columns)] if most > 2 else []
        room = most - len(status)
        panel = self._panel_rows(columns, max(0, room - 1))
        input_rows, (row, column) = area.rows(columns, max(1, min(room - len(panel), max(3, most // 2))))
        room -= len(input_rows) + len(panel)
        menu = area.menu_rows(columns, room) if self.asking.picker is None else []
        room -= len(menu)
        live = self.live.rows(columns, room, unfinished=self.console.screen.held_text) if room > 0 else []
        above = [*live, *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def _panel_rows(self, columns: int, most: int) -> list[Row]:
        if most < 1:
            return []
        rows: list[Row] = []
        if self.asking.picker is None:
            if self.composer.area.buffer.text == "?" and self.asking.purpose == "prompt":
                rows += key_rows(columns)
            if self._shows_todo:
                rows += todo_rows(todo_items(self.desk.session.state.entries) if self.desk.is_open else (), columns)
        asked = self.asking.rows(columns, most)[:most]
        return [*rows[: most - len(asked)], *asked]

    def _status_row(self, columns: int) -> Row:
        hint = self.asking.hint or (self._hint if time.monotonic() < self._hint_until else "")
        return status_row(self.desk.status, columns, custom="" if hint else self._custom_status, hint=hint)

    def placeholder(self) -> str:
        if self.asking.is_open:
            return ""
        if self.is_busy:
            return "Enter steers · Tab queues · Esc interrupts"
        return "Enter sends what waits · ↑ takes it back" if self.has_queue else HINT

    def mark(self) -> str:
        return self.asking.mark

    def hint(self, text: str, seconds: float = 4.0) -> None:
        """A short word in the status line."""
        self._hint, self._hint_until = printable(text), time.monotonic() + seconds
        self.changed()
        asyncio.get_running_loop().call_later(seconds + 0.05, self.changed)

    def redraw(self) -> None:
        self.console.redraw()

    def reported(self, report: str) -> None:
        if report in ("I", "O"):
            self._has_focus = report == "I"
        elif report.startswith("11;"):
            self._background = background_of(report)
            self.use_theme(self.theme_choice)

    def use_theme(self, choice: str) -> None:
        """Paint what comes from now on as `choice` (of theme.py's `CHOICES`) says."""
        self.theme_choice = choice
        theme, environment = self.console.theme, self.console.environment
        palette = palette_for(choice, environment, is_terminal=True, background=self._background)
        if palette != theme.palette:
            theme.use(palette)
            self.redraw()

    # Front

    def turn_ended(self, why: str) -> None:
        self._refresh_custom_status()
        if why != "interrupted":
            self.notify("The answer is there." if why == "done" else "The turn failed.")

    def status_changed(self) -> None:
        self._refresh_custom_status()

    def idle(self) -> None:
        self.changed()

    def _arguments(self, name: str, typed: str) -> Iterable[tuple[str, str]]:
        return argument_options(name, typed, self.desk.commands, self._house.known_models)

    def notify(self, text: str, *, is_urgent: bool = False) -> None:
        is_away = self._has_focus is False or (is_urgent and self._has_focus is None)
        if is_away and (codes := notification(text, self._look.notifications, self.console.environment)):
            self.console.raw(codes)

    def _refresh_custom_status(self) -> None:
        command = self._look.status_command
        if not command or (self._status_task is not None and not self._status_task.done()):
            return

        async def ask() -> None:
            self._custom_status = await custom_status(command, self.desk.status, self.console.environment)
            self.changed()

        self._status_task = asyncio.create_task(ask())

    def session_opened(self) -> None:
        self.asking.forget_approvals()
        self._shows_todo = False

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        return await self.asking.choose(title, options)

    async def choose_setting(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None, can_keep: bool
    ) -> Picked | None:
        picked = await self.asking.pick(Picker(title, options, current=current, can_keep=can_keep))
        if picked is None:
            raise NothingChosen
        return picked

    async def ask_secret(self, question: str) -> str | None:
        return await self.asking.ask_secret(question)

    def ask_approval(self, request: ApprovalRequested) -> None:
        self.asking.ask_approval(request)

    def forget_approval(self, call_id: str) -> None:
        self.asking.forget_approval(call_id)

    async def run_outside(self, arguments: Sequence[str]) -> int:
        async with self.console.hand_over():
            process = await asyncio.create_subprocess_exec(*arguments)
            with keys_are_not_ours():
                return await process.wait()

    def put_into_input(self, text: str) -> None:
        self.composer.area.set_text(text)
        self.changed()

    # Keys

    @property
    def is_busy(self) -> bool:
        return self.desk.is_open and self.desk.session.is_busy

    @property
    def runs_command(self) -> bool:
        return any(call.name == "bash" for call in self.live.calls.values())

    @property
    def has_queue(self) -> bool:
        return bool(self.live.steering or self.live.follow_ups)

    @property
    def ctrl_x_pressed(self) -> bool:
        return time.monotonic() - self._last_control_x < TWICE_S

    def _typed(self) -> None:
        self.last_typed = time.monotonic() if self.composer.area.buffer.text else 0.0

    def enter(self) -> None:
        """Send; behind a backslash begin a new line."""
        buffer = self.composer.area.buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            self.accept()

    def accept(self, *, queue: bool = False) -> None:
        """Enter, or with `queue` Tab."""
        if self.asking.purpose != "prompt":
            self.asking.accept_answer()
            return
        if not self.composer.text.strip():
            self.desk.go_on()
            return
        shown, text, with_images = self.composer.take()
        self.desk.submit(text.strip(), with_images, shown=shown.strip(), queue=queue)
        self.changed()

    def accept_with_menu(self) -> None:
        """Enter takes what is marked; a command that needs nothing more is run at once."""
        area = self.composer.area
        before, menu = area.buffer.text, area.buffer.complete_state
        if _BARE_COMMAND.fullmatch(before) and menu is not None and menu.complete_index is None:
            area.buffer.cancel_completion()  # nobody has marked the first of its arguments
            self.accept()
            return
        area.take_completion()
        text = area.buffer.text
        is_command = text.startswith("/") and "\n" not in text
        if is_command and (text.rstrip() == before.rstrip() or not self._needs_argument(text[1:].strip())):
            self.accept()

    def _needs_argument(self, name: str) -> bool:
        arguments = (command.argument for command in self.desk.commands if command.name == name)
        return any(argument and not argument.startswith("[") for argument in arguments)

    def escape(self) -> None:
        """Close what is open; else interrupt; else, when pressed twice, rewind."""
        now = time.monotonic()
        twice, self._last_escape = now - self._last_escape < TWICE_S / 2, now
        buffer = self.composer.area.buffer
        if self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif buffer.complete_state is not None:
            buffer.cancel_completion()
        elif self._shows_todo:
            self._shows_todo = False
        elif self.is_busy or self.live.is_busy:
            self.desk.interrupt()
        elif twice and not buffer.text:
            self._last_escape = 0.0
            self.desk.submit("/rewind")
        elif twice:
            self.composer.remember()
            self.composer.area.set_text("")
        else:
            self.hint("Esc again rewinds the conversation." if not buffer.text else "Esc again clears the input.", 1.0)
        self.changed()

    def control_c(self) -> None:
        now = time.monotonic()
        twice, self._last_control_c = now - self._last_control_c < TWICE_S, now
        if self.asking.picker is not None:
            self.asking.end_picker(taken=False)
        elif self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif self.is_busy or self.live.is_busy:
            self.desk.interrupt()
            self._last_control_c = 0.0  # an impatient second one is not meant to leave
        elif self.composer.area.buffer.text:
            self.composer.remember()
            self.composer.area.set_text("")
            self._last_control_c = 0.0
        elif twice:
            self.desk.leave()
        else:
            self.hint("Ctrl-C again leaves.", TWICE_S)
        self.changed()

    def control_x(self) -> None:
        self._last_control_x = time.monotonic()

    def control_d(self) -> None:
        if self.is_busy:
            self.hint("It is at work: Esc interrupts, then Ctrl-D leaves.")
        else:
            self.desk.leave()

    def take_back(self) -> None:
        """The newest queued message goes back into the input."""
        if waiting := [*self.live.steering, *self.live.follow_ups]:
            self._take_back(waiting, len(waiting) - 1)

    def choose_queued(self) -> None:
        """One of the queued messages goes back into the input, to be changed, sent later or dropped."""
        waiting = [*self.live.steering, *self.live.follow_ups]

        async def choose() -> None:
            chosen = await self.choose(
                "Take back", [(" ".join(said(content).split())[:200], "") for content in waiting]
            )
            if chosen is not None and waiting == [*self.live.steering, *self.live.follow_ups]:
                self._take_back(waiting, chosen)

        if len(waiting) > 1:
            self.desk.spawn(choose())
        else:
            self.take_back()

    def _take_back(self, waiting: Sequence[Sequence[Block]], position: int) -> None:
        text, typed = self.composer.take_in(waiting[position]), self.composer.area.buffer.text
        self.view.will_take_back(waiting[position])
        self.desk.session.submit(TakeBack(position))
        self.composer.area.set_text(f"{text}\n{typed}" if typed else text)

    def search_history(self) -> None:
        entries = list(dict.fromkeys(reversed(self.composer.area.buffer.history.get_strings())))

        async def search() -> None:
            found = await self.choose("History", [(" ".join(text.split())[:200], "") for text in entries])
            if found is not None:
                self.put_into_input(entries[found])

        if entries:
            self.desk.spawn(search())
        else:
            self.hint("The history is empty.")

    def next_mode(self) -> None:
        if not self.desk.is_open:
            return
        mode = self.desk.session.state.mode
        after = MODE_CYCLE[(MODE_CYCLE.index(mode) + 1) % len(MODE_CYCLE)] if mode in MODE_CYCLE else MODE_CYCLE[0]
        self.desk.session.submit(SetMode(after))
        if after == "default":
            self.hint("default mode: edits and commands ask", 1.5)

    def to_background(self) -> None:
        self.desk.session.submit(Background())

    def toggle_todo(self) -> None:
        self._shows_todo = not self._shows_todo
        self.changed()

    def unfold(self) -> None:
        """The last output as a whole; pressed again, the one before it."""
        if not self.view.folded:
            self.hint("There is nothing to unfold.")
            return
        part = self.view.folded.pop()
        if part.text.count("\n") > UNFOLD_LINES:
            self.page(f"{part.title}\n\n{part.text}")
            return
        self.view.line(f"▾ {part.title}", "accent")
        if part.is_diff:
            self.view.block(diff_fragments(part.text, width=self.console.columns, most_lines=None))
        else:
            self.view.block([("muted", "".join(f"  {line}\n" for line in part.text.rstrip("\n").split("\n")))])

    def page(self, text: str) -> None:
        async def page() -> None:
            async with self.console.hand_over():
                was_shown = await run_pager(text, self.console.environment)
            if not was_shown:
                self.view.line(text)

        self.desk.spawn(page())

    def edit_outside(self) -> None:
        self._last_control_x = 0.0
        self.desk.spawn(self.composer.edit_outside())

    def paste_image(self) -> None:
        self.desk.spawn(self.composer.paste_image())

    def suspend(self) -> None:
        self.console.suspend()
