"""The table of keys: which key does what, and when; and the actions behind them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Always, Condition, Filter, has_selection, vi_insert_mode, vi_navigation_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from agentcli.agent.ops import Background, SetMode, TakeBack
from agentcli.agent.permissions.modes import Mode
from agentcli.frontends.terminal.asking import Asking
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.input.keyboard import KeyLabels, sequence
from agentcli.frontends.terminal.live_region import LiveRegion
from agentcli.frontends.terminal.output.live import Live, message_text
from agentcli.frontends.terminal.panel import Picker
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.llm.messages import Block

TWICE_S = 2.0  # within which the second Ctrl-C has to come; an Esc in half of it
MODE_CYCLE: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "auto")
UNFOLD_LINES = 60  # longer output goes to a pager
LONGEST_ROW = 200  # characters of a text in a list
_BARE_COMMAND = re.compile(r"/\S+ +")


@dataclass(eq=False)
class KeyActions:
    """One method for each key whose effect is more than one call; keys.py has the table."""

    console: Console
    controller: TerminalController
    composer: Composer
    asking: Asking
    region: LiveRegion
    labels: KeyLabels
    _last_escape: float = 0.0
    _last_control_c: float = 0.0

    def __post_init__(self) -> None:
        self.buffer.on_text_changed += self._text_changed

    @property
    def buffer(self) -> Buffer:
        return self.composer.area.buffer

    def _text_changed(self, _: Buffer) -> None:
        self._last_escape = self._last_control_c = 0.0  # the next one is the first

    @property
    def live(self) -> Live:
        return self.controller.view.live

    @property
    def has_card(self) -> bool:
        """True while something stands open that Esc closes, whatever the key that interrupts."""
        return self.region.shows_keys or self.region.shows_todo or self.asking.purpose != "prompt"

    @property
    def escape_closes(self) -> bool:
        """True while there is something to close or interrupt, which comes before leaving vi's insert mode."""
        return self.has_card or self.controller.is_busy

    # Sending

    def enter(self) -> None:
        """Send; behind a backslash begin a new line."""
        if self.buffer.document.text_before_cursor.endswith("\\"):
            self.buffer.delete_before_cursor()
            self.buffer.insert_text("\n")
        else:
            self.accept()

    def accept(self, *, queue: bool = False) -> None:
        """Take what is typed; with `queue` it waits for the end of the turn."""
        if self.asking.purpose != "prompt":
            self.asking.accept_answer()
        elif self.region.shows_keys:
            self.composer.area.replace_text("")
        elif not self.composer.text.strip():
            self.controller.go_on()
        else:
            shown, text, pastes = self.composer.take()
            self.console.begin_inserting()
            self.controller.submit(text.strip(), pastes, shown=shown.strip(), queue=queue)

    def accept_with_menu(self) -> None:
        """Take the marked completion; a command that needs nothing more is run at once."""
        before, menu = self.buffer.text, self.buffer.complete_state
        if _BARE_COMMAND.fullmatch(before) and menu is not None and menu.complete_index is None:
            self.buffer.cancel_completion()  # nobody has marked the first of its arguments
            self.accept()
            return
        self.composer.area.take_completion()
        text = self.buffer.text
        arguments = (one.argument for one in self.controller.commands if one.name == text[1:].strip())
        needs_argument = any(argument and not argument.startswith("[") for argument in arguments)
        is_command = text.startswith("/") and "\n" not in text
        if is_command and (text.rstrip() == before.rstrip() or not needs_argument):
            self.accept()

    # Bringing earlier text back

    def take_back(self) -> None:
        """Put the newest queued message back into the input."""
        if waiting := self.live.queued:
            self._take_back(waiting, len(waiting) - 1)

    def choose_queued(self) -> None:
        """Put one of the queued messages back, to be changed, sent later or dropped."""
        waiting = self.live.queued

        def put_back(number: int) -> None:
            if waiting == self.live.queued:
                self._take_back(waiting, number)

        if len(waiting) < 2:
            self.take_back()
        else:
            self._pick("Take back", [message_text(content) for content in waiting], put_back)

    def search_history(self) -> None:
        entries = list({(sent.text, *sent.pastes.values()): sent for sent in self.composer.history.entries}.values())
        if entries:
            texts = [sent.text for sent in entries]
            self._pick("History", texts, lambda number: self.composer.put(entries[number]))
        else:
            self.console.hint.show("The history is empty.")

    def _pick(self, title: str, texts: Sequence[str], take: Callable[[int], None]) -> None:
        """Show a list; `take` gets the number of the text that is chosen."""
        options = [(" ".join(text.split())[:LONGEST_ROW], "") for text in texts]
        picking = self.asking.pick(Picker(title, options))

        async def pick() -> None:
            if (chosen := await picking) is not None:
                take(chosen)

        self.controller.spawn(pick())

    def _take_back(self, waiting: Sequence[Sequence[Block]], position: int) -> None:
        self.controller.view.will_take_back(waiting[position])
        self.controller.session.submit(TakeBack(position))
        self.composer.put_before(self.composer.as_typed(waiting[position]))

    # Interrupting and leaving

    def escape(self) -> None:
        """Close what is open; else interrupt; else, when pressed twice, clear or rewind."""
        twice, self._last_escape = time.monotonic() - self._last_escape < TWICE_S / 2, 0.0
        if self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif self.buffer.complete_state is not None:
            self.buffer.cancel_completion()
        elif self.region.shows_keys:
            self.composer.area.replace_text("")
        elif self.region.shows_todo:
            self.region.shows_todo = False
        elif self.controller.is_busy or self.live.is_busy:
            self.controller.interrupt()
        elif twice and not self.buffer.text:
            self.controller.submit("/rewind")
        elif twice:
            self._clear()
        else:
            self._last_escape = time.monotonic()
            does = "clears the input" if self.buffer.text else "rewinds the conversation"
            self.console.hint.show(f"{self.labels.first('interrupt')} again {does}.", 1.0)

    def control_c(self) -> None:
        """Close a list or an answer; else interrupt; else clear; else, when pressed twice, leave."""
        now = time.monotonic()
        twice, self._last_control_c = now - self._last_control_c < TWICE_S, now
        if self.asking.picker is not None:
            self.asking.end_picking()
        elif self.asking.purpose != "prompt":
            self.asking.end_answer()
        elif self.controller.is_busy or self.live.is_busy:
            self.controller.interrupt()
            self._last_control_c = 0.0  # an impatient second one is not meant to leave
        elif self.region.shows_keys:
            self.composer.area.replace_text("")
        elif self.buffer.text:
            self._clear()
        elif twice:
            self.controller.leave()
        else:
            self.console.hint.show(f"{self.labels.first('cancel')} again leaves.", TWICE_S)

    def control_d(self) -> None:
        if self.controller.is_busy:
            keys = self.labels.hints(interrupt="interrupts", leave="leaves then")
            self.console.hint.show(f"It is at work: {keys}.", holds=lambda: self.controller.is_busy)
        else:
            self.controller.leave()

    def _clear(self) -> None:
        self.composer.remember()
        self.composer.area.set_text("")

    # Modes and views

    def next_mode(self) -> None:
        if not self.controller.is_open:
            return
        mode = self.controller.session.snapshot().mode
        after = MODE_CYCLE[(MODE_CYCLE.index(mode) + 1) % len(MODE_CYCLE)] if mode in MODE_CYCLE else MODE_CYCLE[0]
        both = (mode, after)  # the change takes a moment
        self.controller.session.submit(SetMode(after))
        if after == "default":
            told = "Asks before edits and before anything outside the project."
            self.console.hint.show(told, 1.5, holds=lambda: self.controller.status.mode in both)

    def unfold(self) -> None:
        """Show the last output as a whole; the next time, the one before it."""
        view = self.controller.view
        if not view.folded:
            self.console.hint.show("There is nothing to unfold.")
            return
        part = view.folded.pop()
        if part.text.count("\n") > UNFOLD_LINES:
            self.controller.spawn(self.asking.page(f"{part.title}\n\n{part.text}"))
            return
        view.line(f"▾ {part.title}", "accent")
        if part.is_diff:
            view.block(diff_fragments(part.text, width=self.console.columns, most_lines=None))
        else:
            view.block([("muted", "".join(f"  {line}\n" for line in part.text.rstrip("\n").split("\n")))])

    def toggle_todo(self) -> None:
        self.region.shows_todo = not self.region.shows_todo


CHORD_S = 2.0  # within which the second of two keys has to come
_WRITING_KEYS = [chr(code) for code in range(0x20, 0x7F)]


def key_bindings(actions: KeyActions, chosen: Mapping[str, Sequence[str]]) -> KeyBindings:
    """`chosen` has the person's keys for each action. A binding that is added later goes before."""
    table = _Table(chosen)
    when = _When(actions)
    table.bind("c-o", "c-z", to=lambda: None, when=Always())  # prompt_toolkit's own would empty the input
    _bind_sending(table, when, actions)
    _bind_menus(table, when, actions)
    _bind_interrupting(table, when, actions)
    _bind_views(table, when, actions)
    _bind_questions(table, when, actions.asking)
    _bind_lists(table, when, actions.asking)
    _bind_pastes(table, when, actions.composer)
    return table.bindings


class _Table:
    """`bind` binds keys that are fixed, `act` those that the person has chosen for an action."""

    def __init__(self, chosen: Mapping[str, Sequence[str]]) -> None:
        self.bindings = KeyBindings()
        self._chosen = chosen
        self._chord = ""  # the first of two keys, once it was pressed
        self._chord_at = 0.0

    def bind(self, *keys: str, to: Callable[[], object], when: Filter) -> None:
        def handle(event: KeyPressEvent) -> None:
            to()

        for key in keys:
            self.bindings.add(*sequence(key), filter=when)(handle)

    def act(self, action: str, *, to: Callable[[], object], when: Filter) -> None:
        for key in self._chosen[action]:
            first, _, second = key.partition(" ")
            if second:
                self.bind(first, to=partial(self._begin_chord, first), when=when)
                self.bind(second, to=partial(self._end_chord, to), when=when & Condition(partial(self._is_in, first)))
            else:
                self.bind(key, to=to, when=when)

    def text(self, *, to: Callable[[str], object], when: Filter) -> None:
        """Bind every key that writes."""

        @self.bindings.add(Keys.Any, filter=when)
        def _(event: KeyPressEvent) -> None:
            if event.data.isprintable():
                to(event.data)

    def paste(self, *, to: Callable[[str], object], when: Filter) -> None:
        @self.bindings.add(Keys.BracketedPaste, filter=when)
        def _(event: KeyPressEvent) -> None:
            to(event.data)

    def _begin_chord(self, key: str) -> None:
        self._chord, self._chord_at = key, time.monotonic()

    def _end_chord(self, act: Callable[[], object]) -> None:
        self._chord = ""
        act()

    def _is_in(self, key: str) -> bool:
        return self._chord == key and time.monotonic() - self._chord_at < CHORD_S


class _When:
    """The states in which keys differ: a list is open, an approval asks, else the person writes."""

    def __init__(self, actions: KeyActions) -> None:
        asking, buffer = actions.asking, actions.composer.area.buffer
        self.picking: Filter = Condition(lambda: asking.picker is not None)
        self.asked: Filter = Condition(lambda: asking.picker is None and asking.takes_keys)
        self.writing = ~self.picking & ~self.asked
        self.answering: Filter = Condition(lambda: asking.purpose != "prompt")  # the input takes a comment or a rule
        self.is_busy: Filter = Condition(lambda: actions.controller.is_busy)
        self.is_empty: Filter = Condition(lambda: not buffer.text)
        self.menu = self.writing & Condition(
            lambda: buffer.complete_state is not None and bool(buffer.complete_state.completions)
        )
        self.no_menu = self.writing & ~self.menu


def _bind_sending(table: _Table, when: _When, actions: KeyActions) -> None:
    area, buffer = actions.composer.area, actions.composer.area.buffer
    idle = when.no_menu & ~when.is_busy & ~when.answering
    busy = when.no_menu & when.is_busy & ~when.is_empty & ~when.answering
    inserting = when.writing & ~vi_navigation_mode
    table.bind("space", to=area.take_own_space, when=inserting & Condition(lambda: area.has_own_space))
    table.act("newline", to=lambda: buffer.insert_text("\n"), when=when.writing)
    table.act("send", to=actions.enter, when=when.no_menu)
    table.act("send", to=actions.accept_with_menu, when=when.menu)
    table.bind("enter", to=actions.accept_with_menu, when=when.menu)
    table.bind("enter", to=actions.enter, when=when.no_menu & when.answering)
    table.act("complete", to=area.take_completion, when=when.menu)
    table.act("complete", to=buffer.start_completion, when=idle)
    table.act("queue", to=lambda: actions.accept(queue=True), when=busy)


def _bind_menus(table: _Table, when: _When, actions: KeyActions) -> None:
    """Menus, the queue, the history."""
    area, buffer = actions.composer.area, actions.composer.area.buffer
    has_queue = Condition(lambda: bool(actions.live.queued))
    table.bind("up", "c-p", to=lambda: area.move_in_menu(-1), when=when.menu)
    table.bind("down", "c-n", to=lambda: area.move_in_menu(1), when=when.menu)
    table.act("previous", to=buffer.auto_up, when=when.no_menu & ~has_selection)
    table.act("previous", to=actions.take_back, when=when.no_menu & when.is_empty & has_queue)
    table.act("next", to=buffer.auto_down, when=when.no_menu & ~has_selection)
    table.act("take_back", to=actions.choose_queued, when=when.writing & ~when.answering)
    table.act("search", to=actions.search_history, when=when.writing & ~when.answering)


def _bind_interrupting(table: _Table, when: _When, actions: KeyActions) -> None:
    closes = ~vi_insert_mode | Condition(lambda: actions.escape_closes)
    has_card = Condition(lambda: actions.has_card)
    table.act("interrupt", to=actions.escape, when=when.writing & closes)
    table.bind("escape", to=actions.escape, when=when.writing & has_card | when.menu & ~vi_insert_mode)
    table.bind("<sigint>", to=actions.control_c, when=Always())
    table.act("cancel", to=actions.control_c, when=Always())
    table.act("leave", to=actions.control_d, when=when.writing & when.is_empty)


def _bind_views(table: _Table, when: _When, actions: KeyActions) -> None:
    controller, prompting = actions.controller, when.writing & ~when.answering
    runs_command = Condition(lambda: actions.live.runs_command)
    table.act("mode", to=actions.next_mode, when=Always())
    table.act("todo", to=actions.toggle_todo, when=Always())
    table.act("redraw", to=actions.console.redraw, when=Always())
    table.act("suspend", to=actions.console.suspend, when=Always())
    table.act("unfold", to=actions.unfold, when=~when.picking)
    table.act("background", to=lambda: controller.session.submit(Background()), when=when.writing & runs_command)
    table.act("stash", to=actions.composer.stash, when=prompting)
    table.act("paste_image", to=lambda: controller.spawn(actions.composer.paste_image()), when=prompting)
    table.act("editor", to=lambda: controller.spawn(actions.composer.edit_outside()), when=prompting)


def _bind_questions(table: _Table, when: _When, asking: Asking) -> None:
    for key in ("enter", "escape", "tab", "backspace", "left", "right", "up", "down", "pagedown"):
        table.bind(key, to=partial(asking.press, key), when=when.asked)
    for key in _WRITING_KEYS:  # by name, since vi's keys have names, too
        table.bind(key if key != " " else "space", to=partial(asking.type, key), when=when.asked)
    table.text(to=asking.type, when=when.asked)
    table.paste(to=asking.paste, when=when.asked)


def _bind_lists(table: _Table, when: _When, asking: Asking) -> None:
    def move(by: int) -> None:
        if asking.picker is not None:
            asking.picker.move(by)

    def narrow(text: str) -> None:
        if asking.picker is not None:
            asking.picker.type(text)

    can_keep = Condition(lambda: asking.picker is not None and asking.picker.can_keep)
    for key, by in (("up", -1), ("down", 1), ("c-p", -1), ("c-n", 1), ("pageup", -5), ("pagedown", 5)):
        table.bind(key, to=partial(move, by), when=when.picking)
    table.bind("enter", to=partial(asking.end_picking, taken=True), when=when.picking)
    table.bind("c-s", to=partial(asking.end_picking, taken=True, keeps=True), when=can_keep)
    table.bind("escape", to=asking.end_picking, when=when.picking)
    table.bind("backspace", to=partial(narrow, ""), when=when.picking)
    table.text(to=narrow, when=when.picking)
    table.paste(to=lambda pasted: narrow(" ".join(pasted.split())), when=when.picking)


def _bind_pastes(table: _Table, when: _When, composer: Composer) -> None:
    """The token of a paste is one unit."""
    behind_token = when.writing & Condition(lambda: composer.token_at(ahead=False) is not None)
    before_token = when.writing & Condition(lambda: composer.token_at(ahead=True) is not None)
    table.bind("backspace", to=composer.delete_token, when=behind_token)
    table.bind("left", to=partial(composer.skip_token, ahead=False), when=behind_token)
    table.bind("right", to=partial(composer.skip_token, ahead=True), when=before_token)
    table.paste(to=composer.paste, when=when.writing)
