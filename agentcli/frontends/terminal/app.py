"""Assembles the interactive terminal from its parts: session, input, live region, keys."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from agentcli.agent.calls.run import run_in_terminal
from agentcli.agent.commands.command import CommandSet
from agentcli.agent.ops import CommandRan
from agentcli.agent.permissions.modes import MODE_TEXTS
from agentcli.agent.state import todo_items
from agentcli.conversation.instructions import git_branch
from agentcli.errors import ToolError
from agentcli.frontends.printable import printable, with_tilde
from agentcli.frontends.terminal.composer import INPUT_HINTS, INPUT_MARKS, Composer, InputContext
from agentcli.frontends.terminal.console import HINT, Console, notification
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.dialogs import MAX_WORK_ROWS, Dialogs
from agentcli.frontends.terminal.input.completion import PromptCompleter
from agentcli.frontends.terminal.input.prompt import KeyLabels, Picker, join_fitting
from agentcli.frontends.terminal.input.typed_text import TypedText
from agentcli.frontends.terminal.keys import MAX_UNFOLDED_LINES, KeyActions, key_bindings
from agentcli.frontends.terminal.output.activity import TICK_S, message_text
from agentcli.frontends.terminal.output.screen import Frame
from agentcli.frontends.terminal.output.tool_views import FoldedText, todo_lines
from agentcli.frontends.terminal.output.turn_view import TurnEnd, TurnView
from agentcli.frontends.terminal.programs import edit_text, run_in_pty, run_program
from agentcli.frontends.terminal.reviews import marked_cell
from agentcli.frontends.terminal.screen_commands import Appearance, argument_options, screen_commands
from agentcli.frontends.terminal.status import Status, StatusCommand, TerminalOpener, short_model, status_rows
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, in_rows, wrapped
from agentcli.settings.terminal import TerminalSettings
from agentcli.tools.builtin.toolset import TodoItem

MAX_TODO_ITEMS = 5  # of the to-do list, shown while a turn runs
# The state that is reported to the terminal (OSC 7501) after a turn, by how that turn ended.
_STATES_AFTER = {"done": "done", "failed": "error", "interrupted": "idle", "auth": "blocked:kind=auth"}


class TerminalApp:
    """The live screen of a session. Implements `TerminalActions` and `ConsoleView`."""

    is_live = True

    def __init__(
        self,
        console: Console,
        opener: TerminalOpener,
        commands: CommandSet,
        *,
        settings: TerminalSettings,
        context: InputContext,
    ) -> None:
        self._console, self._opener, self._context = console, opener, context
        self._title = ""  # of the window, as it was last set
        self._state_at_rest = "idle"  # reported to the terminal while no turn runs
        self._tick_timer: asyncio.TimerHandle | None = None  # draws the next frame of the spinner
        self._warnings: list[str] = []  # held until the transcript begins
        self._has_begun_transcript = False
        self.leave, self.draw_soon = console.leave, console.draw_soon
        self.show_prompt_sign = console.draw_soon  # the input with its sign is always on the screen
        self._labels = labels = KeyLabels(settings.keys)
        self._home = console.environment.get("HOME", "")
        self._view = TurnView(
            console,
            unfold_key=labels.first("unfold"),
            wraps=settings.wrap == "words",
            home=self._home,
            shows_claims=opener.shows_claims,
        )
        self.show_prompt = self._view.begin_prompt  # for prompts from elsewhere, such as the page of this session
        self.controller = controller = TerminalController(opener, self, commands, self._view)
        self._notifications = settings.notifications
        self._has_focus: bool | None = None  # None until the terminal reports it
        self._appearance = Appearance(console, settings.theme, settings.themes)
        encode = Status.to_claude_json if settings.status_format == "claude" else Status.to_json
        self._status_command = StatusCommand(settings.status_command, console.environment, console.draw_soon, encode)
        self._composer = composer = Composer(console, context, labels)
        # Until the first prompt, a draft is stored for the next session that begins, not for this one.
        composer.session_id = lambda: controller.session.id if controller.has_entries else ""
        self._dialogs = dialogs = Dialogs(console, controller, composer, notify=partial(self._notify, is_question=True))
        self.ask_secret, self.ask_question = dialogs.ask_secret, dialogs.ask_question
        self.forget_question = dialogs.forget_question
        self._actions = KeyActions(
            console=console, controller=controller, composer=composer, dialogs=dialogs, labels=labels
        )
        console.keys = key_bindings(self._actions)
        console.area.mark = lambda: INPUT_MARKS[dialogs.purpose]
        console.area.placeholder = self._placeholder
        for command in screen_commands(controller, opener, console, self._appearance, dialogs):
            commands.add(command)
        arguments = partial(argument_options, controller=controller, opener=opener, appearance=self._appearance)
        console.area.buffer.completer = PromptCompleter(commands, arguments, context.files)

    def start(self, prompt: str | None) -> None:
        """Open the session; the prompt of the command line is submitted first."""
        self._composer.restore_draft()
        asyncio.get_running_loop().run_in_executor(None, self._composer.history.load)
        self.controller.start_opening().add_done_callback(self._opened)
        for report in self._console.early_reports:  # the terminal sent them before this screen was loaded
            self.handle_terminal_report(report)
        for text in ([prompt] if prompt else []) + self._console.early_lines:
            self.controller.submit(TypedText(text))

    def _opened(self, opening: asyncio.Task[None]) -> None:
        if not opening.cancelled() and (error := opening.exception()) is not None:
            self._console.fail(error)
        else:
            self.draw_soon()

    def show_warning(self, text: str) -> None:
        """Print a warning of the runtime; until the session is open, it waits for the first lines to be printed."""
        if self._console.banner and not self._has_begun_transcript:
            self._warnings.append(text)
        else:
            self._view.print_line(text, "warning")

    def handle_terminal_report(self, report: str) -> None:
        if report in ("I", "O"):  # the window has got the focus, or lost it
            self._has_focus = report == "I"
        elif report.startswith("11;"):  # its background colour
            self._appearance.adapt_to_background(report)

    async def close(self) -> None:
        """End the session and what serves it; a text that was not sent becomes the draft for the next start."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._status_command.cancel()
        self._dialogs.forget_questions()  # puts a draft that a question has hidden back into the input
        if not self.controller.is_open and (unsent := self._view.activity.queue.steering):
            self._composer.keep_as_draft([message_text(content) for content in unsent])  # typed before it opened
        if not self._composer.area.buffer.text.strip():
            self._composer.forget_draft()
        self._print_warnings()  # if the session has never opened
        can_resume = self._context.drafts is not None and self.controller.has_entries  # no drafts: nothing is stored
        await self.controller.close()
        if can_resume:
            self._view.print_line(f"To resume this session: agentcli -r {self.controller.session.id[:13]}", "muted")
        await self._context.files.aclose()
        await self._opener.aclose()

    def draw(self, columns: int, max_rows: int) -> Frame:
        """Lay out at most `max_rows` rows. A low window shows less of the work above the input and of the status line.

        Each frame also updates the window's title, the reported state and the status command.
        """
        self._report_state()
        if self.controller.is_open:
            self._status_command.refresh(self.controller.status)
        if self._tick_timer is None and self._view.activity.is_moving:
            self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        console, dialogs = self._console, self._dialogs
        hint = INPUT_HINTS.get(dialogs.purpose) or console.hint.text
        custom = self._status_command.rows[: 1 if dialogs.is_open else None]  # a question needs the rows
        status = status_rows(self.controller.status, columns, custom=custom, hint=hint, vi_mode=console.vi_mode)
        status = status[: max(0, max_rows - 2)]  # two rows stay for the input or a question
        room = max_rows - len(status)
        if dialogs.hides_input:  # a list or a question's choices take the input's place
            panel = self._panel_rows(columns, room)
            room -= len(panel)
            # Beside a question, work gets only the rows that the printed part of the question has left for it.
            above = self._view.activity.rows(columns, min(room, MAX_WORK_ROWS) if dialogs.takes_keys else room)
            # The cursor is in a list's title, after the text typed to narrow the list, or at the marked choice.
            row, column = (0, dialogs.picker.cursor) if dialogs.picker else marked_cell(panel)
            return Frame([*above, *panel, *status], (len(above) + row, min(column, columns - 1)))
        panel = self._panel_rows(columns, max(0, room - 1))  # a row stays for the input
        # The input takes half of the window, or three rows of a low one, so that running work stays in sight.
        max_input_rows = max(1, min(room - len(panel), max(3, max_rows // 2)))
        input_rows, (row, column) = console.area.rows(columns, max_input_rows)
        room -= len(input_rows) + len(panel)
        menu = console.area.menu_rows(columns, room)
        above = [*self._view.activity.rows(columns, room - len(menu)), *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def _report_state(self) -> None:
        """Report the state to a terminal that shows the state of programs; in another one, show it in the title."""
        console, dialogs = self._console, self._dialogs
        is_busy = self.controller.is_busy or self._view.activity.clock.started is not None  # until its end is shown
        state = self._state_at_rest
        if dialogs.purpose == "secret":
            state = "blocked:kind=auth"
            self._state_at_rest = "idle"  # no longer blocked by the rejected key, which is being replaced
        elif dialogs.panel is not None:
            state = f"blocked:kind={'question' if dialogs.panel.question.kind == 'ask' else 'permission'}"
        elif dialogs.is_open and not self.controller.is_open:  # a model or a session is chosen first
            state = "blocked:kind=question"
        elif is_busy:
            state = "working"
        console.report_status(f"state={state}:app=agentcli")
        title = printable(self._opener.root.name or "/")
        if not console.shows_status:
            title += " · asks" if dialogs.is_open else " · working" if is_busy else " · ready"
        if title != self._title and console.environment.get("TERM") != "linux":  # the Linux console has none
            self._title = title
            console.set_title(title)

    def _tick(self) -> None:
        self._tick_timer = None
        self._console.draw_soon()

    def _placeholder(self) -> str:
        """Return the text of the empty input: the keys that have an effect now, else a hint for a prompt."""
        if (picker := self._dialogs.picker) is not None and picker.is_startup:
            return "Your first prompt · it is sent once a model is connected"
        if self._dialogs.is_open or self._dialogs.purpose != "prompt":
            return ""
        escape = "to close" if self._view.opened_agent else "to interrupt"
        if self.controller.is_busy:
            runs_command = any(call.name == "bash" for call in self._view.activity.calls.values())
            background = {"background": "to background"} if runs_command else {}
            return self._labels.hints(interrupt=escape, send="to steer", queue="to queue", **background)
        if self._view.activity.commands:
            return self._labels.hints(interrupt="to interrupt")
        if self.controller.is_open and self._view.activity.queued:
            return self._labels.hints(send="to send the queued message", previous="to edit it")
        return HINT

    def _panel_rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the help on keys, the to-do list or a subagent's transcript; below it, the open list or question."""
        above = [] if self._dialogs.picker else self._help_and_todo_rows(columns)
        if self._view.opened_agent and not (self._dialogs.is_open or self._actions.shows_key_help):
            # A third of the rows stays for the main agent's work and the input.
            above = self._view.activity.agent_rows(self._view.opened_agent, columns, max(1, max_rows * 2 // 3))
        dialog = self._dialogs.rows(columns, max_rows)[:max_rows]
        return [*above[: max_rows - len(dialog)], *dialog]

    def _help_and_todo_rows(self, columns: int) -> list[Row]:
        """Return the help on keys and the to-do list if they are open; while a turn runs, at least its open to-dos."""
        lines: list[Row] = []
        if self._actions.shows_key_help:
            room = max(10, columns // 3)  # for the keys of an action: a narrow window shows only the first ones
            keys = [(join_fitting(labels, room, ", ") or labels[0], text) for labels, text in self._labels.help()]
            width = max(len(names) for names, _ in keys) + 2
            for names, text in keys:
                lines += in_rows([("accent", f"  {names:<{width}}"), ("muted", text)], columns, hang=width + 2)
        if self._actions.shows_todo:
            lines += todo_lines(self._todo_items()) or [[("muted", "  No to-do list yet.")]]
        elif self.controller.is_busy and not self._dialogs.is_open and self._dialogs.purpose == "prompt":
            lines += self._open_todo_lines(self._todo_items(since=self._view.activity.clock.started_unix))
        return [clipped(line, columns) for line in lines]

    def _open_todo_lines(self, items: Sequence[TodoItem]) -> list[Row]:
        """Return the first open items, and the number of all others, completed ones included."""
        lines = todo_lines([item for item in items if item.status != "completed"][:MAX_TODO_ITEMS])
        hidden = len(items) - len(lines)
        more: Row = [("muted", f"  and {hidden} more ({self._labels.first('todo')})")]
        return [*lines, more] if lines and hidden else lines

    def _todo_items(self, since: float = 0.0) -> Sequence[TodoItem]:
        """Return the items of the newest to-do list, unless it was written before this Unix time."""
        path = self.controller.session.snapshot().conversation.path if self.controller.is_open else []
        return todo_items(path[bisect_left(path, since, key=attrgetter("time")) :])

    def turn_ended(self, end: TurnEnd) -> None:
        """Withdraw the turn's questions, and tell the terminal and the person how the turn ended."""
        self._dialogs.forget_questions(keep=self.controller.session.open_questions)  # background agents still ask
        self._state_at_rest = _STATES_AFTER[end]
        if end != "interrupted":
            self._notify("The answer is ready." if end == "done" else "The turn failed.")

    def _notify(self, text: str, *, is_question: bool = False) -> None:
        """Send a notification unless the window has the focus, or the terminal notifies of reported states itself."""
        # If the terminal does not report the focus, only a question is worth a notification.
        is_away = self._has_focus is False or (is_question and self._has_focus is None)
        method = "off" if self._notifications == "auto" and self._console.shows_status else self._notifications
        if is_away and (codes := notification(text, method, self._console.environment)):
            self._console.write_codes(codes)

    def session_opened(self) -> None:
        """Reset the screen for another session; the first one also begins the transcript."""
        self._dialogs.forget_questions()
        self._composer.follow_session()
        self._actions.shows_todo, self._state_at_rest = False, "idle"
        if not self._has_begun_transcript:
            self._print_first_lines()

    def _print_first_lines(self) -> None:
        """Print the project, the model and the instruction files that were read, then the warnings."""
        session = self.controller.session.snapshot()
        program_and_folder, files = self._opener.introduction()
        model = self._opener.model_info(session.model).name
        parts = [git_branch(self._opener.root) or "", short_model(model), MODE_TEXTS[session.mode].name]
        head: list[Fragment] = []
        if self._console.banner:  # else it is part of the transcript already
            name, _, folder = program_and_folder.partition(" · ")
            head = [("bold", name), ("muted", " · ")]
            parts.insert(0, folder)
        head += [("muted", f"{' · '.join(filter(None, parts))}\n")]
        head += [("muted", f"read {', '.join(files)}\n")] if files else []
        head = [(roles, with_tilde(printable(text), self._home)) for roles, text in head]
        self._console.print(wrapped(head, self._console.columns, hang=2), is_banner=True)
        self._print_warnings()
        self._console.print([("", "\n")])
        self._view.reset()

    def _print_warnings(self) -> None:
        self._has_begun_transcript = True
        warnings, self._warnings = self._warnings, []
        for text in warnings:
            self._view.print_line(text, "warning")

    async def choose(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, is_startup: bool = False
    ) -> int | None:
        if is_startup:
            self._console.print([])  # makes the banner part of the transcript, above what is printed meanwhile
        picker = Picker(title, options, current=current, is_startup=is_startup)
        return await self._dialogs.pick(picker) if options else None

    async def run_with_terminal(self, arguments: Sequence[str]) -> None:
        await self._console.lend_to(run_program(arguments))

    async def edit(self, text: str) -> str | None:
        return await self._console.lend_to(edit_text(text, self._console.environment))

    async def run_own_command(self, command: str, *, to_model: bool) -> None:
        """Lend the terminal to a shell command of the person's, and give its output to the session."""
        session, view, output = self.controller.session, self._view, ""
        try:
            run = run_in_pty(partial(run_in_terminal, session.runtime.calls, command))
            output, note = await self._console.lend_to(run)  # such as an exit code; empty after success
        except ToolError as error:
            note = f"[{error}]"
        if note:
            view.print_line(note, "warning")
        if output.count("\n") > MAX_UNFOLDED_LINES:  # the screen no longer shows all that the command printed
            view.folded.append(FoldedText(f"!{command}", output))
        view.print_gap()
        self._dialogs.reprint_question()
        session.submit(CommandRan(command, "\n".join(part for part in (output.rstrip(), note) if part), to_model))

    def put_into_input(self, text: str) -> None:
        self._composer.area.set_text(text)
        self.draw_soon()

    def return_prompts(self, prompts: Sequence[TypedText]) -> bool:
        """Put unanswered prompts into the input; if it is in use, name the key that does so later, and return False."""
        if self._composer.area.buffer.text or self._dialogs.purpose != "prompt":
            text = f"Your message is kept. {self._labels.first('previous')} in the empty input brings it back."
            self._view.print_line(text, "warning")
            return False
        for prompt in reversed(prompts):  # each is put above the later ones
            self._composer.put_before(prompt)
        self.draw_soon()
        return True
