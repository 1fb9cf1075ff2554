"""Carries out keys: sending, interrupting, leaving, switching modes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prompt_toolkit.buffer import Buffer

from agentcli.agent.ops import SetMode, TakeBack
from agentcli.agent.permissions.modes import Mode
from agentcli.frontends.terminal.approval.asking import Asking
from agentcli.frontends.terminal.approval.picker import Picker
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.input.keyboard import KeyLabels
from agentcli.frontends.terminal.live_region import LiveRegion
from agentcli.frontends.terminal.output.live import Live, message_text
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
