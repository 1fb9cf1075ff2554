"""The interactive terminal: one prompt_toolkit application that owns the screen while a session is open."""

from __future__ import annotations

import asyncio
import re
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from agentcli.agent.commands.command import Commands, Picked
from agentcli.agent.events import ApprovalRequested, Background, CommandRan, SetMode, TakeBack
from agentcli.agent.own_command import run_in_terminal
from agentcli.agent.permissions import Mode
from agentcli.agent.todo import todo_items
from agentcli.errors import ToolError
from agentcli.frontends.printable import printable, with_tilde
from agentcli.frontends.terminal.approval.asking import Asking
from agentcli.frontends.terminal.approval.panel import marked_cell
from agentcli.frontends.terminal.approval.picker import Picker
from agentcli.frontends.terminal.console import HINT, Console
from agentcli.frontends.terminal.controller import NothingChosen, TerminalController, TerminalOpener
from agentcli.frontends.terminal.input.completion import PromptCompleter
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.input.drafts import Drafts
from agentcli.frontends.terminal.input.file_index import FileIndex, paths_elsewhere
from agentcli.frontends.terminal.input.history import ProjectHistory
from agentcli.frontends.terminal.input.key_names import label
from agentcli.frontends.terminal.input.unknown_files import UnknownFile, unknown_files
from agentcli.frontends.terminal.keys import key_bindings
from agentcli.frontends.terminal.output.live import TICK_S, Live, said
from agentcli.frontends.terminal.output.notify import notification
from agentcli.frontends.terminal.output.screen import Frame, Row
from agentcli.frontends.terminal.output.status_bar import custom_status, mode_label, short_model, status_row
from agentcli.frontends.terminal.output.tool_views import Folded
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.panels import key_rows, todo_rows
from agentcli.frontends.terminal.programs.own_terminal import lend_terminal
from agentcli.frontends.terminal.programs.pager import keys_are_not_ours, run_pager
from agentcli.frontends.terminal.screen_commands import argument_options, screen_commands
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.text_width import clipped
from agentcli.frontends.terminal.text.theme import background_of, own_codes, palette_for
from agentcli.frontends.terminal.text.wrapping import wrapped
from agentcli.llm.messages import Block
from agentcli.look_settings import THEMES

TWICE_S = 2.0  # the second Ctrl-C or Esc has to come within
UNFOLD_LINES = 60  # longer output goes to a pager
_BARE_COMMAND = re.compile(r"/\S+ +")
MODE_CYCLE: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "auto")


class ScreenOptions(Struct, frozen=True):
    """What the settings say of the terminal."""

    keys: Mapping[str, tuple[str, ...]]  # of each action, see look_settings.py
    theme: str = "auto"
    themes: Mapping[str, Mapping[str, int | str]] = {}
    wrap: str = "words"
    notifications: str = "auto"
    status_command: str = ""


class TerminalApp:
    """Shows a session on the console. Implements `ConsoleView` and `TerminalActions`.

    keys.py calls its public methods.
    """

    def __init__(
        self,
        console: Console,
        opener: TerminalOpener,
        commands: Commands,
        *,
        options: ScreenOptions,
        history: ProjectHistory,
        drafts: Drafts | None,
        file_index: FileIndex,
        folder: Path,
        home: Path,
    ) -> None:
        self.console = console
        self._opener = opener
        self._options = options
        self.theme_choice = options.theme
        self._background = ""
        self.live = Live(interrupt_key=self.key("interrupt"))
        self.asking = Asking(self)
        self._hint = ""
        self._hint_until = 0.0
        self._hint_holds: Callable[[], bool] = lambda: True
        self.last_typed = self._last_escape = self._last_control_c = self._chord_at = 0.0
        self._chord = ""
        self._shows_todo = False
        self._has_focus: bool | None = None  # until the terminal says so
        self._custom_status = ""
        self._told: list[str] = []  # before the session was open
        self._title_state = ""
        self._is_introduced = False
        self.on_close: Callable[[], Awaitable[None]] | None = None  # gives back what sessions share
        self._status_task: asyncio.Task[None] | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self.view = TurnView(
            console.print,
            self.live,
            columns=lambda: console.columns,
            at_line_start=lambda: console.screen.at_line_start,
            unfold_key=self.key("unfold"),
            wraps=options.wrap == "words",
            home=console.environment.get("HOME", ""),
        )
        self.controller = TerminalController(opener, self, commands, self.view, self.live)
        for command in screen_commands(self):
            commands.add(command)
        self.composer = Composer(
            console.area,
            drafts,
            history,
            environment=console.environment,
            tell=self.hint,
            stash_key=self.key("stash"),
            hand_over=console.hand_over,
        )
        self._file_index = file_index
        self._folder, self._home = folder, home
        self._told_names: set[str] = set()  # of no file, in the prompt that is being written
        self._held = ("", "")  # a prompt that waits for a second Enter, and why
        self._keeps = drafts is not None
        console.area.buffer.completer = PromptCompleter(
            lambda: self.controller.commands,
            file_index,
            self._arguments,
            lambda typed: paths_elsewhere(typed, folder, home),
        )
        console.area.buffer.on_text_changed += lambda _: self._typed()
        console.keys = key_bindings(self, options.keys)

    # Living

    def start(self, prompt: str | None) -> None:
        """Open the session; a prompt from the command line is the first thing said in it."""
        if prompt is None and not self.composer.area.buffer.text and self.composer.restore_draft():
            self.hint("Your draft is back.")
        asyncio.get_running_loop().run_in_executor(None, self.composer.history.load)
        self.controller.start_opening().add_done_callback(self._opened)
        if prompt:
            self.controller.submit(prompt)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self.console.fail(error)
        else:
            self.changed()

    def early_lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.controller.submit(line)

    def leave(self) -> None:
        self.console.leave()

    async def last_words(self) -> None:
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self._status_task is not None:
            self._status_task.cancel()
        self.asking.forget_approvals()  # and have the draft back that they took the place of
        if not self.composer.area.buffer.text.strip():
            self.composer.forget_draft()
        for text in self._told:
            self.view.line(text, "warning")
        was_used = self._keeps and self.controller.is_open and bool(self.controller.session.state.entries)
        await self.controller.close()
        if was_used:
            self.view.line(f"Go on with: agentcli -r {self.controller.session.id[:13]}", "muted")
        await self._file_index.aclose()
        if self.on_close is not None:
            await self.on_close()

    # Drawing

    def changed(self) -> None:
        """Draw a frame soon; while something is under way four a second at least."""
        self._retitle()
        self.console.changed()
        if self._tick_timer is None and self.live.is_moving:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _retitle(self) -> None:
        """The window's title: the project, and whether it works, asks or is ready."""
        if self.asking.approval is not None or self.asking.picker is not None:
            state = "asks"
        else:
            state = "working" if self.is_busy else "ready"
        if state != self._title_state and self.console.environment.get("TERM") != "linux":
            self._title_state = state
            self.console.title(f"{printable(self._opener.project)} · {state}")

    def _tick(self) -> None:
        self._tick_timer = None
        if self.live.is_moving:
            self.changed()

    def draw(self, columns: int, most: int) -> Frame:
        """The live region, input and status line first; the rest takes what room is left."""
        area = self.composer.area
        status = [self._status_row(columns)] if most > 2 else []
        room = most - len(status)
        if self.asking.hides_input:
            panel = self._panel_rows(columns, room)
            live = self.live.rows(columns, room - len(panel), unfinished=self.console.screen.held_text)
            picker = self.asking.picker
            row, column = (0, picker.cursor) if picker is not None else marked_cell(panel)
            return Frame([*live, *panel, *status], (len(live) + row, min(column, columns - 1)))
        panel = self._panel_rows(columns, max(0, room - 1))
        input_rows, (row, column) = area.rows(columns, max(1, min(room - len(panel), max(3, most // 2))))
        room -= len(input_rows) + len(panel)
        menu = area.menu_rows(columns, room)
        room -= len(menu)
        live = self.live.rows(columns, room, unfinished=self.console.screen.held_text) if room > 0 else []
        above = [*live, *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def _panel_rows(self, columns: int, most: int) -> list[Row]:
        if most < 1:
            return []
        rows: list[Row] = []
        if self.asking.picker is None:
            if self.shows_keys:
                rows += key_rows(columns, self._options.keys)
            if self._held[0] == self.composer.area.buffer.text and self._told_names:
                told = textwrap.wrap(printable(self._held[1]), max(1, columns))
                rows += [clipped([("warning", row)], columns) for row in told]
            if self._shows_todo:
                rows += todo_rows(
                    todo_items(self.controller.session.state.entries) if self.controller.is_open else (), columns
                )
        asked = self.asking.rows(columns, most)[:most]
        return [*rows[: most - len(asked)], *asked]

    def _status_row(self, columns: int) -> Row:
        is_said = time.monotonic() < self._hint_until and self._hint_holds()
        hint = self.asking.hint or (self._hint if is_said else "")
        custom = "" if hint else self._custom_status
        return status_row(self.controller.status, columns, custom=custom, hint=hint, vi_mode=self.console.vi_mode)

    def placeholder(self) -> str:
        if self.asking.is_open:
            return ""
        if self.is_busy:
            return self._keys_for(send="steers", queue="queues", interrupt="interrupts")
        return self._keys_for(send="sends what waits", previous="takes it back") if self.has_queue else HINT

    def key(self, action: str) -> str:
        """The name of the first key that does it; empty when none does."""
        return next((label(key) for key in self._options.keys[action]), "")

    def _keys_for(self, **actions: str) -> str:
        return " · ".join(f"{key} {does}" for action, does in actions.items() if (key := self.key(action)))

    def mark(self) -> str:
        return self.asking.mark

    def hint(self, text: str, seconds: float = 4.0, *, holds: Callable[[], bool] | None = None) -> None:
        """A short word in the status line, as long as it `holds`: without that, until the input is changed."""
        buffer = self.composer.area.buffer
        before = buffer.text
        self._hint, self._hint_until = printable(text), time.monotonic() + seconds
        self._hint_holds = holds or (lambda: buffer.text == before)
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
        """Paint what comes from now on as `choice` (of `themes`) says."""
        self.theme_choice = choice
        theme, environment = self.console.theme, self.console.environment
        palette = palette_for(choice, environment, is_terminal=True, background=self._background)
        if theme.use(palette, own_codes(self._options.themes.get(choice, {}), environment)):
            self.redraw()

    @property
    def themes(self) -> Sequence[str]:
        """The names of all themes there are."""
        return (*THEMES, *self._options.themes)

    # TerminalActions

    def turn_ended(self, why: str) -> None:
        self._refresh_custom_status()
        self.asking.forget_approvals()
        if why != "interrupted":
            self.notify("The answer is there." if why == "done" else "The turn failed.")

    def status_changed(self) -> None:
        self._refresh_custom_status()

    def idle(self) -> None:
        self.changed()

    def _arguments(self, name: str, typed: str) -> Iterable[tuple[str, str]]:
        return argument_options(name, typed, self.controller.commands, self._opener.known_models, self.themes)

    def notify(self, text: str, *, is_urgent: bool = False) -> None:
        is_away = self._has_focus is False or (is_urgent and self._has_focus is None)
        if is_away and (codes := notification(text, self._options.notifications, self.console.environment)):
            self.console.raw(codes)

    def _refresh_custom_status(self) -> None:
        command = self._options.status_command
        if not command or (self._status_task is not None and not self._status_task.done()):
            return

        async def ask() -> None:
            self._custom_status = await custom_status(command, self.controller.status, self.console.environment)
            self.changed()

        self._status_task = asyncio.create_task(ask())

    def session_opened(self) -> None:
        self.asking.forget_approvals()
        self._shows_todo = False
        if not self._is_introduced:
            self._is_introduced = True
            self._introduce()

    def _introduce(self) -> None:
        """The first lines of the screen: where, with what, what was read; then what the person is warned of."""
        state = self.controller.session.state
        program, files = self._opener.introduction()
        name, _, place = program.partition(" · ")
        parts = [self._opener.branch(), short_model(state.model), mode_label(state.mode)]
        head = [("bold", name)] if self.console.has_head else []
        parts = [part for part in ([place, *parts] if head else parts) if part]
        head.append(("muted", f"{' · ' if head else ''}{' · '.join(parts)}\n"))
        if files:
            head.append(("muted", f"read {', '.join(files)}\n"))
        home = self.console.environment.get("HOME", "")
        head = [(roles, with_tilde(printable(text), home)) for roles, text in head]
        self.console.print(wrapped(head, self.console.columns, hang=2), is_head=True)
        for text in self._told:
            self.view.line(text, "warning")
        self._told.clear()
        self.console.print([("", "\n")])
        self.view.begin_anew()

    def tell(self, text: str) -> None:
        """A warning of the runtime; before the session is open it waits for the first lines."""
        if self.console.has_head:
            self._told.append(text)
        else:
            self.view.line(text, "warning")

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

    def run_own(self, command: str, *, to_model: bool) -> None:
        self.controller.spawn(self._run_own(command, to_model=to_model))

    async def _run_own(self, command: str, *, to_model: bool) -> None:
        session, said = self.controller.session, ""
        try:
            async with self.console.hand_over():
                said, ended = await lend_terminal(partial(run_in_terminal, session.runtime.calls, command))
        except ToolError as error:
            ended = f"[{error}]"
        if ended is None:
            ended = "[ended by the user; it may have had effects]"
        if ended:
            self.view.line(ended, "warning")
        if said.count("\n") > UNFOLD_LINES:
            self.view.folded.append(Folded(f"!{command}", said))
        self.view.gap()
        whole = "\n".join(part for part in (said.rstrip(), ended) if part)
        session.submit(CommandRan(command, whole, to_model))

    def put_into_input(self, text: str) -> None:
        self.composer.area.set_text(text)
        self.changed()

    def give_back(self, prompts: Sequence[Sequence[Block]]) -> None:
        if self.composer.area.buffer.text or self.asking.purpose != "prompt":
            self.hint(f"{self.key('previous')} in the empty input brings it back.", 8.0, holds=lambda: True)
            return
        for content in reversed(prompts):
            self.composer.put_before(self.composer.as_typed(content))
        self.changed()

    # Keys

    @property
    def is_busy(self) -> bool:
        return self.controller.is_open and self.controller.session.is_busy

    @property
    def runs_command(self) -> bool:
        return any(call.name == "bash" for call in self.live.calls.values())

    @property
    def has_queue(self) -> bool:
        return bool(self.live.steering or self.live.follow_ups)

    def is_in_chord(self, key: str) -> bool:
        return self._chord == key and time.monotonic() - self._chord_at < TWICE_S

    def end_chord(self, act: Callable[[], object]) -> None:
        self._chord = ""
        act()

    @property
    def shows_keys(self) -> bool:
        return self.composer.asks_for_keys and self.asking.purpose == "prompt"

    def _typed(self) -> None:
        self.last_typed = time.monotonic() if self.composer.area.buffer.text else 0.0
        self._last_escape = self._last_control_c = 0.0  # what comes next is the first one
        if not self._hint_holds():
            self._hint = ""
        self.asking.text_changed()

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
        if self.shows_keys:
            self._close_keys()
            return
        if not self.composer.text.strip():
            self.controller.go_on()
            return
        if self._holds_back(self.composer.area.buffer.text):
            self.changed()
            return
        shown, text, with_images = self.composer.take()
        self.console.begin_inserting()
        self.controller.submit(text.strip(), with_images, shown=shown.strip(), queue=queue)
        self.changed()

    def _holds_back(self, text: str) -> bool:
        """Whether the prompt names something that is no file and the person has not been told of it yet."""
        unknown = [] if text.lstrip().startswith(("/", "!")) else self._unknown_files(text)
        unknown = [one for one in unknown if one.name not in self._told_names]
        if not unknown:
            self._told_names.clear()
            return False
        self._told_names |= {one.name for one in unknown}
        told = [f"@{one.name} names no file" + (f", did you mean @{one.near}?" if one.near else ".") for one in unknown]
        self._held = (text, " ".join([*told, f"{self.key('send')} sends it as it is."]))
        return True

    def _unknown_files(self, text: str) -> list[UnknownFile]:
        return unknown_files(text, self._folder, self._home, self._file_index.paths_like)

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
        arguments = (command.argument for command in self.controller.commands if command.name == name)
        return any(argument and not argument.startswith("[") for argument in arguments)

    @property
    def has_card(self) -> bool:
        """Whether something stands open that Esc closes, whatever the key that interrupts."""
        return self.shows_keys or self._shows_todo or self.asking.purpose != "prompt"

    @property
    def escape_closes(self) -> bool:
        """Whether something is to be closed or interrupted, which comes before leaving vi's insert mode."""
        return self.has_card or self.is_busy

    def escape(self) -> None:
        """Close what is open; else interrupt; else, when pressed twice, rewind."""
        twice, self._last_escape = time.monotonic() - self._last_escape < TWICE_S / 2, 0.0
        buffer = self.composer.area.buffer
        if self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif buffer.complete_state is not None:
            buffer.cancel_completion()
        elif self.shows_keys:
            self._close_keys()
        elif self._shows_todo:
            self._shows_todo = False
        elif self.is_busy or self.live.is_busy:
            self.controller.interrupt()
        elif twice and not buffer.text:
            self.controller.submit("/rewind")
        elif twice:
            self._clear()
        else:
            self._last_escape = time.monotonic()
            does = "clears the input" if buffer.text else "rewinds the conversation"
            self.hint(f"{self.key('interrupt')} again {does}.", 1.0)
        self.changed()

    def _close_keys(self) -> None:
        self.composer.area.replace_text("")
        self.changed()

    def _clear(self) -> None:
        self._told_names.clear()
        self.composer.remember()
        self.composer.area.set_text("")

    def control_c(self) -> None:
        now = time.monotonic()
        twice, self._last_control_c = now - self._last_control_c < TWICE_S, now
        if self.asking.picker is not None:
            self.asking.end_picker(taken=False)
        elif self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif self.is_busy or self.live.is_busy:
            self.controller.interrupt()
            self._last_control_c = 0.0  # an impatient second one is not meant to leave
        elif self.shows_keys:
            self._close_keys()
        elif self.composer.area.buffer.text:
            self._clear()
        elif twice:
            self.controller.leave()
        else:
            self.hint(f"{self.key('cancel')} again leaves.", TWICE_S)
        self.changed()

    def begin_chord(self, key: str) -> None:
        """The first of two keys was pressed."""
        self._chord, self._chord_at = key, time.monotonic()

    def control_d(self) -> None:
        if self.is_busy:
            keys = self._keys_for(interrupt="interrupts", leave="leaves then")
            self.hint(f"It is at work: {keys}.", holds=lambda: self.is_busy)
        else:
            self.controller.leave()

    def take_back(self) -> None:
        """The newest queued message goes back into the input."""
        if waiting := [*self.live.steering, *self.live.follow_ups]:
            self._take_back(waiting, len(waiting) - 1)

    def choose_queued(self) -> None:
        """One of the queued messages goes back into the input, to be changed, sent later or dropped."""
        waiting = [*self.live.steering, *self.live.follow_ups]

        async def choose(taken: Awaitable[Picked | None]) -> None:
            picked = await taken
            if picked is not None and waiting == [*self.live.steering, *self.live.follow_ups]:
                self._take_back(waiting, picked.number)

        if len(waiting) > 1:
            options = [(" ".join(said(content).split())[:200], "") for content in waiting]
            self.controller.spawn(choose(self.asking.pick(Picker("Take back", options))))
        else:
            self.take_back()

    def _take_back(self, waiting: Sequence[Sequence[Block]], position: int) -> None:
        self.view.will_take_back(waiting[position])
        self.controller.session.submit(TakeBack(position))
        self.composer.put_before(self.composer.as_typed(waiting[position]))

    def search_history(self) -> None:
        entries = list({(sent.text, *sent.pastes.values()): sent for sent in self.composer.history.entries}.values())

        async def search(taken: Awaitable[Picked | None]) -> None:
            picked = await taken
            if picked is not None:
                self.composer.put(entries[picked.number])
                self.changed()

        if entries:
            options = [(" ".join(sent.text.split())[:200], "") for sent in entries]
            self.controller.spawn(search(self.asking.pick(Picker("History", options))))
        else:
            self.hint("The history is empty.")

    def next_mode(self) -> None:
        if not self.controller.is_open:
            return
        mode = self.controller.session.state.mode
        after = MODE_CYCLE[(MODE_CYCLE.index(mode) + 1) % len(MODE_CYCLE)] if mode in MODE_CYCLE else MODE_CYCLE[0]
        before = (mode, after)  # the change takes a moment
        self.controller.session.submit(SetMode(after))
        if after == "default":
            self.hint("default mode: edits and commands ask", 1.5, holds=lambda: self.controller.status.mode in before)

    def to_background(self) -> None:
        self.controller.session.submit(Background())

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

        self.controller.spawn(page())

    def edit_outside(self) -> None:
        self.controller.spawn(self.composer.edit_outside())

    def paste_image(self) -> None:
        self.controller.spawn(self.composer.paste_image())

    def suspend(self) -> None:
        self.console.suspend()
