"""Defines the key bindings, the conditions under which they apply, and the actions behind them."""

import re
import time
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct, field
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Always, Condition, Filter, has_selection, vi_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from agentcli.agent.ops import Background, SetMode, TakeBack
from agentcli.agent.permissions.modes import Mode
from agentcli.frontends.terminal.composer import Composer
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.dialogs import Dialogs
from agentcli.frontends.terminal.input.prompt import KeyLabels, Picker, sequence
from agentcli.frontends.terminal.input.typed_text import TypedText
from agentcli.frontends.terminal.output.activity import Activity
from agentcli.frontends.terminal.text.code import diff_fragments

TWICE_S = 2.0  # a second Ctrl-C within this time is a repetition; a second Esc within half of it
CHORD_S = 2.0  # the second key of a chord must come within this time
_NEXT_MODES: dict[Mode, Mode] = {"default": "acceptEdits", "acceptEdits": "plan", "plan": "auto"}  # others: default
MAX_UNFOLDED_LINES = 60  # longer output goes to a pager
MAX_OPTION_CHARS = 200  # of a text that a list shows
# A binding: the name of an action in the settings, or fixed keys; the effect; the state in which it applies.
# For `Keys.Any` (any character) and `Keys.BracketedPaste`, the effect gets the text.
Binding = tuple[str | tuple[str, ...], Callable[..., object], Filter]


class KeyActions(Struct, eq=False, kw_only=True):
    """One method for each key whose effect is more than one call."""

    console: Console
    controller: TerminalController
    composer: Composer
    dialogs: Dialogs
    labels: KeyLabels
    shows_todo: bool = False
    chord: tuple[str, float] = ("", 0.0)  # the first key, such as `c-x`, and when it was pressed
    _pressed: dict[str, float] = field(default_factory=dict)  # when Esc and Ctrl-C were last pressed, by name

    def __post_init__(self) -> None:
        # After a change of the text, the next Esc or Ctrl-C is a first one again.
        self.buffer.on_text_changed += lambda _: self._pressed.clear()

    @property
    def buffer(self) -> Buffer:
        return self.composer.area.buffer

    @property
    def activity(self) -> Activity:
        return self.controller.view.activity

    @property
    def picker(self) -> Picker:
        assert self.dialogs.picker is not None, "its keys are bound while a list is open"
        return self.dialogs.picker

    @property
    def can_interrupt(self) -> bool:
        return self.controller.is_busy or self.activity.is_busy

    @property
    def shows_key_help(self) -> bool:
        return self.buffer.text == "?" and self.dialogs.purpose == "prompt"

    @property
    def can_close(self) -> bool:
        """True while something is open that Esc closes. Esc does so even when `interrupt` is bound to another key."""
        has_open_view = self.shows_key_help or self.shows_todo or bool(self.controller.view.opened_agent)
        return has_open_view or self.dialogs.is_writing_message or self.dialogs.purpose != "prompt"

    def enter(self) -> None:
        """Send the text or, after a backslash, begin a new line."""
        if self.buffer.document.text_before_cursor.endswith("\\"):
            self.buffer.delete_before_cursor()
            self.buffer.insert_text("\n")
        else:
            self.accept()

    def accept(self, *, queue: bool = False) -> None:
        """Take the typed text; with `queue` it waits for the end of the turn."""
        text, commands = self.buffer.text.strip(), self.controller.commands
        if self.dialogs.purpose in ("denial", "plan_comment", "answer") and commands.is_known(text):
            self.dialogs.end_answer()  # somebody who types a command's name means the command
            self.composer.area.set_text(text)
            self._set_command_aside()
        elif self.dialogs.purpose != "prompt":
            self.dialogs.accept_answer()
        elif self.shows_key_help:
            self.composer.area.replace_text("")  # without its `?`, the help is closed
        elif not self.composer.typed.expand().strip():  # Enter in the empty input
            self.controller.handle_empty_enter()
        elif self.dialogs.panel is not None and commands.is_command(text):
            self._set_command_aside()
        else:
            self.console.begin_inserting()
            self.controller.submit(self.composer.take(), queue=queue)

    def _set_command_aside(self) -> None:
        """Let the person answer the open question first; then the command is in the input again."""
        self.dialogs.stop_waiting_for_message()  # the question takes the keys
        self.console.hint.show("The command waits in the input until you have answered.", 8.0)

    def accept_with_menu(self) -> None:
        """Take the marked completion; a command that needs nothing more is run at once."""
        before, menu = self.buffer.text, self.buffer.complete_state
        if re.fullmatch(r"/\S+ +", before) and menu is not None and menu.complete_index is None:
            self.buffer.cancel_completion()  # nobody has chosen an argument
            self.accept()
            return
        self.composer.area.take_completion()
        text = self.buffer.text
        arguments = (command.argument for command in self.controller.commands if command.name == text[1:].strip())
        # Arguments in brackets, such as `[NAME]`, are optional.
        needs_argument = any(argument and not argument.startswith("[") for argument in arguments)
        was_typed_in_full = text.rstrip() == before.rstrip()
        if text.startswith("/") and "\n" not in text and (was_typed_in_full or not needs_argument):
            self.accept()

    def take_back(self) -> None:
        """Put the newest queued message back into the input."""
        if self.controller.is_open and (waiting := self.activity.queued):
            self.controller.view.taken_back.append(waiting[-1])
            self.controller.session.submit(TakeBack(len(waiting) - 1))
            self.composer.put_before(self.controller.find_typed_text(waiting[-1]))

    def search_history(self) -> None:
        # Equal entries are listed once, at the place of the newest.
        entries = [*{(entry.text, *entry.pastes.values()): entry for entry in self.composer.history.entries}.values()]
        if not entries:
            self.console.hint.show("The history is empty.")
            return
        options = [(" ".join(entry.text.split())[:MAX_OPTION_CHARS], "") for entry in entries]
        picking = self.dialogs.pick(Picker("History", options))  # before the task runs: the next key is for the list

        async def pick() -> None:
            if (chosen := await picking) is not None:
                self.composer.put(entries[chosen])

        self.controller.spawn(pick())

    def escape(self) -> None:
        """Close what is open; else interrupt; else, when pressed twice, clear or rewind."""
        is_second = time.monotonic() - self._pressed.pop("escape", 0.0) < TWICE_S / 2  # a slower one is a first one
        if self.dialogs.purpose != "prompt":
            self.dialogs.end_answer()
        elif self.buffer.complete_state is not None:
            self.buffer.cancel_completion()
        elif self.dialogs.is_writing_message:
            self.dialogs.stop_waiting_for_message()
        elif self.shows_key_help:
            self.composer.area.replace_text("")  # without its `?`, the help is closed
        elif self.controller.view.opened_agent:
            self.controller.view.opened_agent = ""
        elif self.shows_todo:
            self.shows_todo = False
        elif self.can_interrupt:
            self.controller.interrupt()
        elif not is_second:
            self._pressed["escape"] = time.monotonic()
            effect = "clear the input" if self.buffer.text else "rewind the conversation"
            self.console.hint.show(f"Press {self.labels.first('interrupt')} again to {effect}.", 1.0)
        elif self.buffer.text:
            self._clear_input()
        else:
            self.console.hint.show("", 0.0)
            self.controller.submit(TypedText("/rewind"))

    def control_c(self) -> None:
        """Close a list or an answer; else interrupt; else clear; else, when pressed twice, leave."""
        is_second = time.monotonic() - self._pressed.get("control_c", 0.0) < TWICE_S
        self._pressed["control_c"] = time.monotonic()
        if self.dialogs.picker is not None:
            self.dialogs.close_list()
        elif self.dialogs.purpose != "prompt":
            self.dialogs.end_answer()
        elif self.can_interrupt:
            self.controller.interrupt()
            self._pressed.clear()  # a second, impatient Ctrl-C is not meant to leave
        elif self.buffer.text:
            self._clear_input()
        elif is_second:
            self.controller.leave()
        else:
            self.console.hint.show(f"Press {self.labels.first('cancel')} again to leave.", TWICE_S)

    def control_d(self) -> None:
        if self.controller.is_busy:
            keys = self.labels.hints(interrupt="to interrupt it", leave="to leave after that")
            self.console.hint.show(f"A turn is running: {keys}.")
        else:
            self.controller.leave()

    def _clear_input(self) -> None:
        if not self.shows_key_help:
            self.composer.add_to_history()
        self.composer.area.set_text("")

    def next_mode(self) -> None:
        if not self.controller.is_open:
            return
        mode = _NEXT_MODES.get(self.controller.session.snapshot().mode, "default")
        self.controller.session.submit(SetMode(mode, is_step=True))  # maybe on the way to another mode
        # An empty hint replaces one about the previous mode, which is wrong by now.
        hint = "Asks before edits and before anything outside the project." if mode == "default" else ""
        self.console.hint.show(hint, 1.5)

    def unfold(self) -> None:
        view = self.controller.view
        if not view.folded:
            self.console.hint.show("No output was shortened.")
            return
        folded = view.folded.pop()
        if folded.text.count("\n") > MAX_UNFOLDED_LINES:
            self.controller.spawn(self.dialogs.show_in_pager(f"{folded.title}\n\n{folded.text}"))
            return
        view.print_line(f"▾ {folded.title}", "accent")
        block = [("muted", "".join(f"  {line}\n" for line in folded.text.rstrip("\n").split("\n")))]
        if folded.is_diff:
            block = diff_fragments(folded.text, width=self.console.columns, max_lines=None, wraps=True)
        view.print_block(block)
        self.dialogs.reprint_question()

    def type_into_list(self, text: str = "") -> None:
        """Narrow the open list by a character, or undo that with an empty `text` (Backspace)."""
        if self.picker.type(text):  # a letter for Yes or No
            self.dialogs.close_list(chooses=True)

    def paste_into_list(self, text: str) -> None:
        if not self.picker.paste(text):
            self.console.hint.show("No option matches the pasted text.")


class _KeyConditions:
    """The states in which keys differ: a list or a question takes them, or the input does.

    Below a list that `is_startup` the person can write: the list gets only the keys that the text does not need.
    """

    def __init__(self, actions: KeyActions) -> None:
        dialogs, buffer = actions.dialogs, actions.buffer
        self.has_list: Filter = Condition(lambda: dialogs.picker is not None)
        self.question_takes_keys: Filter = Condition(lambda: dialogs.picker is None and dialogs.takes_keys)
        self.list_takes_text: Filter = self.has_list & Condition(lambda: not actions.picker.is_startup)
        self.input_takes_keys = ~self.list_takes_text & ~self.question_takes_keys
        self.input_takes_answer: Filter = Condition(lambda: dialogs.purpose != "prompt")
        self.input_takes_prompt = self.input_takes_keys & ~self.input_takes_answer & ~self.has_list
        self.is_busy: Filter = Condition(lambda: actions.controller.is_busy)
        self.is_empty: Filter = Condition(lambda: not buffer.text)
        has_completions = Condition(lambda: bool(buffer.complete_state and buffer.complete_state.completions))
        self.has_menu = self.input_takes_keys & has_completions
        self.has_no_menu = self.input_takes_keys & ~self.has_menu


def key_bindings(actions: KeyActions) -> KeyBindings:
    """Return all bindings. If two apply to a key, the one that is added later wins."""
    when, bindings = _KeyConditions(actions), KeyBindings()
    for build in (_input_bindings, _view_bindings, _dialog_bindings):
        for keys, act, state in build(actions, when):
            for key in actions.labels.keys[keys] if isinstance(keys, str) else keys:
                _bind(bindings, actions, key, act, when=state)
    return bindings


def _input_bindings(actions: KeyActions, when: _KeyConditions) -> Iterator[Binding]:
    """Yield the keys for writing: sending, completion, the queue, the history; a paste's token is one unit."""
    composer, buffer, area = actions.composer, actions.buffer, actions.composer.area
    has_queue = Condition(lambda: bool(actions.activity.queued) and actions.controller.is_open)
    is_after_token = Condition(lambda: composer.token_at(ahead=False) is not None)
    is_before_token = Condition(lambda: composer.token_at(ahead=True) is not None)
    can_queue = when.is_busy & ~when.is_empty & ~when.input_takes_answer
    can_complete = ~when.is_busy & ~when.input_takes_answer
    yield from (
        (("c-o", "c-z", "pageup", "pagedown"), lambda: None, Always()),  # else prompt_toolkit's own would act
        ("newline", lambda: buffer.insert_text("\n"), when.input_takes_keys),
        ("send", actions.enter, when.has_no_menu),
        ("send", actions.accept_with_menu, when.has_menu),
        (("enter",), actions.accept_with_menu, when.has_menu),  # even if "send" has another key
        (("enter",), actions.enter, when.has_no_menu & when.input_takes_answer),  # Enter also ends an answer
        ("complete", area.take_completion, when.has_menu),
        ("complete", buffer.start_completion, when.has_no_menu & can_complete),
        ("queue", lambda: actions.accept(queue=True), when.has_no_menu & can_queue),
        (("up", "c-p"), lambda: area.move_in_menu(-1), when.has_menu),
        (("down", "c-n"), lambda: area.move_in_menu(1), when.has_menu),
        ("previous", buffer.auto_up, when.has_no_menu & ~has_selection),
        ("previous", actions.take_back, when.has_no_menu & when.is_empty & has_queue),
        ("next", buffer.auto_down, when.has_no_menu & ~has_selection),
        ("take_back", actions.take_back, when.input_takes_prompt),
        ("search", actions.search_history, when.input_takes_prompt),
        (("backspace",), composer.delete_token, when.input_takes_keys & is_after_token),
        (("left",), partial(composer.skip_token, ahead=False), when.input_takes_keys & is_after_token),
        (("right",), partial(composer.skip_token, ahead=True), when.input_takes_keys & is_before_token),
    )


def _view_bindings(actions: KeyActions, when: _KeyConditions) -> Iterator[Binding]:
    """Yield the keys that apply to running work, the mode and what is shown, or that leave or suspend the program."""
    composer, controller, console = actions.composer, actions.controller, actions.console
    can_close = Condition(lambda: actions.can_close)
    # In vi's insert mode the first Esc leaves that mode, unless there is something to close or to interrupt.
    escape_acts = ~vi_insert_mode | can_close | when.is_busy
    can_go_to_background = Condition(
        lambda: any(call.name in ("bash", "create_subagent") for call in actions.activity.calls.values())
    )
    yield from (
        ("interrupt", actions.escape, when.input_takes_keys & escape_acts),
        # Esc closes what is open, even if "interrupt" has another key.
        (("escape",), actions.escape, (when.input_takes_keys & can_close) | (when.has_menu & ~vi_insert_mode)),
        (("<sigint>",), actions.control_c, Always()),
        ("cancel", actions.control_c, Always()),
        ("leave", actions.control_d, when.input_takes_keys & when.is_empty),
        ("mode", actions.next_mode, Always()),
        ("todo", lambda: setattr(actions, "shows_todo", not actions.shows_todo), Always()),
        ("redraw", console.redraw, Always()),
        ("suspend", actions.dialogs.suspend, Always()),
        ("unfold", actions.unfold, ~when.has_list),
        ("background", lambda: controller.session.submit(Background()), when.input_takes_keys & can_go_to_background),
        ("stash", composer.stash, when.input_takes_prompt),
        ("paste_image", lambda: controller.spawn(composer.paste_image()), when.input_takes_prompt),
        ("editor", lambda: controller.spawn(composer.edit_in_editor()), when.input_takes_prompt),
    )


def _dialog_bindings(actions: KeyActions, when: _KeyConditions) -> Iterator[Binding]:
    """Yield the keys for an open question and for an open list."""
    dialogs = actions.dialogs
    # Below a list at startup, the person can write a prompt: Enter and Esc are for the prompt, once it has a text.
    list_takes_enter = when.has_list & (when.list_takes_text | when.is_empty)
    for key in ("enter", "escape", "tab", "backspace", "left", "right", "up", "down", "pageup", "pagedown", "end"):
        yield (key,), partial(dialogs.press, key), when.question_takes_keys
    for key in map(chr, range(0x20, 0x7F)):  # one by one, to override vi's bindings of single keys
        yield (key if key != " " else "space",), partial(dialogs.type, key), when.question_takes_keys
    yield from (
        ((Keys.Any,), dialogs.type, when.question_takes_keys),
        ((Keys.BracketedPaste,), dialogs.paste, when.question_takes_keys),
        (("up", "c-p"), lambda: actions.picker.move(-1), when.has_list),
        (("down", "c-n"), lambda: actions.picker.move(1), when.has_list),
        (("pageup",), lambda: actions.picker.move(-5), when.has_list),
        (("pagedown",), lambda: actions.picker.move(5), when.has_list),
        (("enter",), partial(dialogs.close_list, chooses=True), list_takes_enter),
        (("escape",), dialogs.close_list, list_takes_enter),
        (("backspace",), actions.type_into_list, when.list_takes_text),
        ((Keys.Any,), actions.type_into_list, when.list_takes_text),
        ((Keys.BracketedPaste,), actions.paste_into_list, when.list_takes_text),
        ((Keys.BracketedPaste,), actions.composer.paste, when.input_takes_keys),
    )


def _bind(bindings: KeyBindings, actions: KeyActions, key: str, act: Callable[..., object], *, when: Filter) -> None:
    """Call `act` for a key or a chord of two keys, while `when` is true."""
    first, _, second = key.partition(" ")  # of a chord such as `c-x c-e`

    def handle(event: KeyPressEvent) -> None:
        actions.chord = ("", 0.0)
        if key not in (Keys.Any, Keys.BracketedPaste):
            act()
        elif key == Keys.BracketedPaste or event.data.isprintable():  # `Keys.Any` also matches control characters
            act(event.data)

    def begin_chord(event: KeyPressEvent) -> None:
        actions.chord = (first, time.monotonic())

    if second:  # prompt_toolkit's own chords would have to be typed within `ESCAPE_ALONE_S`
        bindings.add(*sequence(first), filter=when)(begin_chord)
        when &= Condition(lambda: actions.chord[0] == first and time.monotonic() - actions.chord[1] < CHORD_S)
    bindings.add(*sequence(second or first), filter=when)(handle)
