"""The interactive terminal: one prompt_toolkit application that owns the screen while a session is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, get_args

from msgspec import Struct
from prompt_toolkit.history import History

from agentcli.agent.commands.command import Commands
from agentcli.agent.events import ApprovalRequested, Background, Interrupt, RunQueued, SetMode, TakeBack
from agentcli.agent.permissions import Mode
from agentcli.agent.todo import todo_items
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.approval import ApprovalPanel, Choice
from agentcli.frontends.terminal.completion import PromptCompleter
from agentcli.frontends.terminal.composer import Composer
from agentcli.frontends.terminal.console import HINT, Console
from agentcli.frontends.terminal.desk import House, TerminalDesk
from agentcli.frontends.terminal.diff import diff_fragments
from agentcli.frontends.terminal.drafts import Drafts
from agentcli.frontends.terminal.file_index import FileIndex
from agentcli.frontends.terminal.keys import KEY_HELP, key_bindings
from agentcli.frontends.terminal.live import TICK_S, Live, said
from agentcli.frontends.terminal.notify import notification
from agentcli.frontends.terminal.pager import run_pager
from agentcli.frontends.terminal.picker import Picker
from agentcli.frontends.terminal.screen import Frame, Row
from agentcli.frontends.terminal.screen_commands import screen_commands
from agentcli.frontends.terminal.status_bar import custom_status, status_row
from agentcli.frontends.terminal.text_width import clipped
from agentcli.frontends.terminal.theme import CHOICES, background_of, palette_for
from agentcli.frontends.terminal.turn_view import TurnView
from agentcli.llm.provider import Effort

TYPING_PAUSE_S = 0.8  # an approval that comes up while somebody types takes no key before such a pause
TWICE_S = 2.0  # the second Ctrl-C or Esc has to come within
UNFOLD_LINES = 60  # longer output goes to a pager
MODE_CYCLE: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "auto")

Purpose = Literal["prompt", "comment", "rule", "secret"]
_MARKS: dict[Purpose, str] = {"prompt": "› ", "comment": "no, but: ", "rule": "rule: ", "secret": "key: "}


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
        self._background = ""
        self._live = Live()
        self._approvals: list[ApprovalPanel] = []
        self._shown_approval: ApprovalPanel | None = None
        self.picker: Picker | None = None
        self._picked: asyncio.Future[int | None] | None = None
        self._secret: asyncio.Future[str | None] | None = None
        self.purpose: Purpose = "prompt"
        self._set_aside = ""
        self._hint = ""
        self._hint_until = 0.0
        self._last_key = self._last_escape = self._last_control_c = self._last_control_x = 0.0
        self._shows_todo = False
        self._has_focus = True
        self._custom_status = ""
        self.on_close: Callable[[], Awaitable[None]] | None = None  # gives back what sessions share
        self._status_task: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self.view = TurnView(
            console.print,
            self._live,
            columns=lambda: console.columns,
            at_line_start=lambda: console.screen.at_line_start,
        )
        self.desk = TerminalDesk(house, self, commands, self.view, self._live)
        for command in screen_commands(self):
            commands.add(command)
        self.composer = Composer(
            console.area, drafts, environment=console.environment, tell=self.hint, hand_over=console.hand_over
        )
        console.area.use_history(history)
        self._file_index = file_index
        self._keeps = drafts is not None
        console.area.buffer.completer = PromptCompleter(lambda: self.desk.commands, file_index, self._arguments)
        console.area.buffer.on_text_changed += lambda _: self.key_pressed()
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

    def early_enter(self) -> None:
        self.accept()

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
        if self._tick_timer is None and self._live.is_busy:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        if self._live.is_busy:
            self.changed()

    def draw(self, columns: int, most: int) -> Frame:
        """The live region, input and status line first; the rest takes what room is left."""
        area = self.composer.area
        status = [self._status_row(columns)] if most > 2 else []
        room = most - len(status)
        panel = self._panel_rows(columns, max(0, room - 1))
        input_rows, (row, column) = area.rows(columns, max(1, min(room - len(panel), max(3, most // 2))))
        room -= len(input_rows) + len(panel)
        menu = area.menu_rows(columns, room) if self.picker is None else []
        room -= len(menu)
        live = self._live.rows(columns, room, unfinished=self.console.screen.held_text) if room > 0 else []
        above = [*live, *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def _panel_rows(self, columns: int, most: int) -> list[Row]:
        if most < 1:
            return []
        if self.picker is not None:
            return self.picker.rows(columns, most)
        rows: list[Row] = []
        if self.composer.area.buffer.text == "?" and self.purpose == "prompt":
            rows += [clipped([("accent", f"  {key:<28}"), ("muted", text)], columns) for key, text in KEY_HELP]
        if self._shows_todo:
            rows += self._todo_rows(columns)
        if self.approval is not None:
            rows += self.approval.rows(columns, len(self._approvals) - 1)
        return rows[-most:]

    def _todo_rows(self, columns: int) -> list[Row]:
        items = todo_items(self.desk.session.state.entries) if self.desk.is_open else []
        marks = {"completed": ("ok", "✓"), "in_progress": ("accent", "▸")}
        rows = [
            clipped([("", "  "), marks.get(item.status, ("muted", "○")), ("", f" {printable(item.content)}")], columns)
            for item in items
        ]
        return rows or [[("muted", "  The to-do list is empty.")]]

    def _status_row(self, columns: int) -> Row:
        hint = self._hint if time.monotonic() < self._hint_until else ""
        if self.purpose == "comment":
            hint = "Enter sends it to the model · Esc goes back"
        elif self.purpose in ("rule", "secret"):
            hint = f"Enter takes the {'rule' if self.purpose == 'rule' else 'key'} · Esc goes back"
        return status_row(self.desk.status, columns, custom="" if hint else self._custom_status, hint=hint)

    def placeholder(self) -> str:
        if self.purpose != "prompt" or self.approval is not None or self.picker is not None:
            return ""
        return "Enter steers · Tab queues · Esc interrupts" if self.is_busy else HINT

    def mark(self) -> str:
        return _MARKS[self.purpose]

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
            self.use_theme(self._look.theme)

    def use_theme(self, choice: str) -> None:
        """Paint what comes from now on as `choice` (of theme.py's `CHOICES`) says."""
        theme, environment = self.console.theme, self.console.environment
        palette = palette_for(choice, environment, is_terminal=True, background=self._background)
        if palette != theme.palette:
            theme.use(palette)
            self.redraw()

    # Front

    def turn_ended(self, why: str) -> None:
        self._refresh_custom_status()
        if why != "interrupted":
            self._notify("The answer is there." if why == "done" else "The turn failed.")

    def idle(self) -> None:
        self.changed()

    def _arguments(self, name: str, typed: str) -> Iterable[tuple[str, str]]:
        """What may follow a command's name."""
        match name:
            case "theme":
                options: Iterable[tuple[str, str]] = ((choice, "") for choice in CHOICES)
            case "effort":
                options = ((effort, "") for effort in get_args(Effort))
            case "copy":
                options = (("code", "only the code blocks"),)
            case "help":
                options = ((command.name, command.help) for command in self.desk.commands)
            case "model":
                options = self._house.models()
            case _:
                options = ()
        return [(value, note) for value, note in options if typed.lower() in value.lower()]

    def _notify(self, text: str) -> None:
        if not self._has_focus and (codes := notification(text, self._look.notifications, self.console.environment)):
            self.console.raw(codes)

    def _refresh_custom_status(self) -> None:
        command = self._look.status_command
        if not command or (self._status_task is not None and not self._status_task.done()):
            return

        async def ask() -> None:
            self._custom_status = await custom_status(command, self.desk.status, self.console.environment)
            self.changed()

        self._status_task = asyncio.create_task(ask())

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        if not options:
            return None
        self.end_picker(taken=False)
        self.picker = Picker(title, options)
        self._picked = asyncio.get_running_loop().create_future()
        self.changed()
        return await self._picked

    def end_picker(self, *, taken: bool) -> None:
        picker, picked = self.picker, self._picked
        self.picker = self._picked = None
        if picker is not None and picked is not None and not picked.done():
            picked.set_result(picker.chosen if taken else None)
        self.changed()

    def move_picker(self, by: int) -> None:
        assert self.picker is not None
        self.picker.move(by)
        self.changed()

    def type_in_picker(self, text: str) -> None:
        """Add to what narrows the list; an empty text takes a character away."""
        assert self.picker is not None
        if text:
            self.picker.type(text)
        else:
            self.picker.backspace()
        self.changed()

    async def ask_secret(self, question: str) -> str | None:
        self.view.line(question, "accent")
        self._secret = asyncio.get_running_loop().create_future()
        self._start_answer("secret")
        return await self._secret

    async def run_outside(self, arguments: Sequence[str]) -> int:
        async with self.console.hand_over():
            process = await asyncio.create_subprocess_exec(*arguments)
            return await process.wait()

    def put_into_input(self, text: str) -> None:
        self.composer.area.set_text(text)
        self.changed()

    # Approvals

    @property
    def approval(self) -> ApprovalPanel | None:
        return self._approvals[0] if self._approvals else None

    @property
    def takes_approval_keys(self) -> bool:
        """Not while somebody is in the middle of a word, nor while the input takes a comment or a rule."""
        if self.approval is None or self.purpose != "prompt":
            return False
        return not self.composer.area.buffer.text or time.monotonic() - self._last_key > TYPING_PAUSE_S

    def ask_approval(self, request: ApprovalRequested) -> None:
        self._approvals.append(ApprovalPanel(request))
        self._live.asked.add(request.id)
        self._show_approval()
        self._notify(f"Waits for your yes: {request.title}")

    def _show_approval(self) -> None:
        panel = self.approval
        if panel is None or panel is self._shown_approval:
            return
        self._shown_approval = panel
        self.view.block(panel.preview(self.console.columns))
        self.view.was_previewed(panel.request.id)
        self.changed()

    def forget_approval(self, call_id: str) -> None:
        before = len(self._approvals)
        self._live.asked.discard(call_id)
        self._approvals = [panel for panel in self._approvals if panel.request.id != call_id]
        if len(self._approvals) != before:
            self._end_answer()
            self._show_approval()

    def decide(self, choice: Choice | None) -> None:
        """Answer the approval; None takes the marked choice."""
        panel = self.approval
        assert panel is not None
        choice = choice or panel.selected
        if choice == "comment":
            self._start_answer("comment")
        elif choice not in panel.choices:
            self.hint("That choice is not offered here.")
        elif choice == "hunks":
            panel.hunk, panel.accepted = 0, []
            self.view.block(panel.hunk_preview(self.console.columns))
        else:
            self._answer(panel.answer(choice))
        self.changed()

    def decide_number(self, number: int) -> None:
        panel = self.approval
        assert panel is not None
        if number < len(panel.choices):
            self.decide(panel.choices[number])

    def move_choice(self, by: int) -> None:
        assert self.approval is not None
        self.approval.move(by)
        self.changed()

    def widen(self, by: int) -> None:
        assert self.approval is not None
        self.approval.widen(by)
        self.changed()

    def edit_rule(self) -> None:
        assert self.approval is not None
        if self.approval.rules:
            self._start_answer("rule", self.approval.rule)

    def decide_hunk(self, *, accepted: bool) -> None:
        panel = self.approval
        assert panel is not None
        answer = panel.take_hunk(accepted=accepted)
        if answer is not None:
            self._answer(answer)
        else:
            self.view.block(panel.hunk_preview(self.console.columns))
        self.changed()

    def accept_remaining_hunks(self) -> None:
        panel = self.approval
        while panel is not None and panel is self.approval and panel.hunk is not None:
            answer = panel.take_hunk(accepted=True)
            if answer is not None:
                self._answer(answer)
                return

    def leave_hunks(self) -> None:
        assert self.approval is not None
        self.approval.hunk = None
        self.changed()

    def view_whole_request(self) -> None:
        assert self.approval is not None
        self._page(printable(self.approval.request.preview))

    def _answer(self, answer: Any) -> None:
        self._live.asked.discard(self._approvals.pop(0).request.id)
        self._end_answer()
        self.desk.session.submit(answer)
        self._show_approval()
        self.changed()

    def _start_answer(self, purpose: Purpose, text: str = "") -> None:
        """The input takes a comment or a rule; what stood in it comes back afterwards."""
        self._set_aside = self.composer.area.buffer.text
        self.purpose = purpose
        self.composer.area.completes = False
        self.composer.area.is_secret = purpose == "secret"
        self.composer.area.set_text(text)
        self.changed()

    def _end_answer(self) -> None:
        if self.purpose != "prompt":
            self.purpose = "prompt"
            self.composer.area.completes = True
            self.composer.area.is_secret = False
            self._give_secret(None)
            self.composer.area.set_text(self._set_aside)
            self._set_aside = ""

    def _give_secret(self, text: str | None) -> None:
        if self._secret is not None and not self._secret.done():
            self._secret.set_result(text or None)
        self._secret = None

    def _accept_answer(self) -> None:
        panel, text, purpose = self.approval, self.composer.text.strip(), self.purpose
        if purpose == "secret":
            self._give_secret(text)
        self._end_answer()
        if panel is None:
            return
        if purpose == "rule":
            if text:
                panel.set_rule(text)
        elif panel.hunk is not None:
            panel.comment = text
        else:
            panel.comment = text
            self._answer(panel.answer("no"))
        self.changed()

    # Keys

    @property
    def is_busy(self) -> bool:
        return self.desk.is_open and self.desk.session.is_busy

    @property
    def runs_command(self) -> bool:
        return any(call.title.startswith("Run ") for call in self._live.calls.values())

    @property
    def has_queue(self) -> bool:
        return bool(self._live.steering or self._live.follow_ups)

    @property
    def ctrl_x_pressed(self) -> bool:
        return time.monotonic() - self._last_control_x < TWICE_S

    def key_pressed(self) -> None:
        self._last_key = time.monotonic()

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
        if self.purpose != "prompt":
            self._accept_answer()
            return
        if not self.composer.text.strip():
            if self.has_queue and not self.is_busy:
                self.desk.session.submit(RunQueued())
            return
        shown, text, with_images = self.composer.take()
        self.desk.submit(text.strip(), with_images, shown=shown.strip(), queue=queue)
        self.changed()

    def accept_with_menu(self) -> None:
        """Enter takes what is marked; a command that needs nothing more is run at once."""
        buffer = self.composer.area.buffer
        before = buffer.text
        self.take_completion()
        is_command = buffer.text.startswith("/") and "\n" not in buffer.text
        if is_command and (buffer.text.rstrip() == before.rstrip() or not self._wants_argument(buffer.text)):
            self.accept()

    def _wants_argument(self, text: str) -> bool:
        name = text[1:].strip()
        needs = (command.argument for command in self.desk.commands if command.name == name)
        return any(argument and not argument.startswith("[") for argument in needs)

    def take_completion(self) -> None:
        buffer = self.composer.area.buffer
        state = buffer.complete_state
        if state is None or not state.completions:
            return
        if state.complete_index is None:
            buffer.apply_completion(state.completions[0])
        else:
            buffer.complete_state = None
        if buffer.text.endswith("/") and not buffer.text.startswith("/"):
            buffer.start_completion()  # a folder: go on inside
        self.changed()

    def move_in_menu(self, by: int) -> None:
        buffer = self.composer.area.buffer
        state = buffer.complete_state
        assert state is not None
        if state.complete_index is None and by > 0 and len(state.completions) > 1:
            buffer.go_to_completion(1)  # the first one was marked already
        elif by > 0:
            buffer.complete_next()
        else:
            buffer.complete_previous()

    def escape(self) -> None:
        """Close what is open; else interrupt; else, when pressed twice, rewind."""
        now = time.monotonic()
        twice, self._last_escape = now - self._last_escape < TWICE_S / 2, now
        buffer = self.composer.area.buffer
        if self.purpose != "prompt":
            self._end_answer()
        elif buffer.complete_state is not None:
            buffer.cancel_completion()
        elif self._shows_todo:
            self._shows_todo = False
        elif self.is_busy or self._live.is_busy:
            self.desk.session.submit(Interrupt())
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
        if self.picker is not None:
            self.end_picker(taken=False)
        elif self.purpose != "prompt":
            self._end_answer()
        elif self.is_busy or self._live.is_busy:
            self.desk.session.submit(Interrupt())
        elif self.composer.area.buffer.text:
            self.composer.remember()
            self.composer.area.set_text("")
        elif twice:
            self.leave()
        else:
            self.hint("Ctrl-C again leaves.", TWICE_S)
        self.changed()

    def control_x(self) -> None:
        self._last_control_x = time.monotonic()

    def take_back(self) -> None:
        """The newest queued message goes back into the input."""
        waiting = [*self._live.steering, *self._live.follow_ups]
        if not waiting:
            return
        text = said(self._live.follow_ups[-1] if self._live.follow_ups else self._live.steering[-1])
        typed = self.composer.area.buffer.text
        self.view.will_take_back()
        self.desk.session.submit(TakeBack())
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
        self.hint(f"Mode: {after}", 1.5)

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
            self._page(f"{part.title}\n\n{part.text}")
            return
        self.view.line(f"▾ {part.title}", "accent")
        if part.is_diff:
            self.view.block(diff_fragments(part.text, width=self.console.columns, most_lines=None))
        else:
            self.view.block([("muted", "".join(f"  {line}\n" for line in part.text.rstrip("\n").split("\n")))])

    def _page(self, text: str) -> None:
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
